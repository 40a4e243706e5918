//! `unisono bench`: measures collectives (with the columns of nccl-tests), their overlap with computation, messages and raw puts;
//! and draws the results of several runs.

mod asked;
mod check;
pub(crate) mod collective;
mod columns;
mod compute;
pub(crate) mod data;
mod messages;
pub(crate) mod operands;
mod origin;
mod overlap;
mod plot;
pub(crate) mod progress;
mod put;
pub(crate) mod put_pair;
mod ranks;
mod report;
pub(crate) mod rows;
mod table;

use std::{path::PathBuf, process::ExitCode};

use asked::BenchOptions;
use report::BenchReport;
use unisono::{ProcessGroup, dtype::Dtype, reduce::ReduceOp};
use unisono_schedule::{Collective, algorithm::ALGORITHMS};
use unisono_transport::ofi::Options;

use crate::{Result, meant, words};

/// Examples in the help.
const EXAMPLES: &str = "\
Examples:
  unisono bench all_reduce                                 8 B to 64 MiB on this machine, a rank a core
  unisono bench all_reduce --ranks 4 --provider tcp        the same with 4 ranks over TCP
  unisono bench all_reduce all_gather -d all -b 1M -i 1M -e 4M   two collectives, all types, 1 to 4 MiB
  unisono bench all_reduce --detail                        least and 99th percentile, algorithm, processor time
  unisono bench all_reduce --ranks 4 --overlap             how much of it overlaps with computation
  unisono bench send_recv --ranks 2 --window 1,16,64       messages: latency, bandwidth and rate
  unisono bench put --ranks 2 -b 8 -e 8 --json put.json    latency of the puts underneath
  mpirun -n 16 unisono bench all_gather -d bf16 -e 1G      on several hosts
  unisono bench --plot compared.svg before.json after.json draws results of --json";

/// Measures a collective, messages or raw puts over a sweep of sizes, or draws results.
///
/// Started by srun, mpirun, torchrun or unisono run, it is one rank of that job. Otherwise it starts ranks on this machine: as many as
/// --ranks says, or one for each core that it may use, 2 at least. Rank 0 prints the results. The elements that collectives and messages produce are
/// checked after each size; if one is wrong, the exit status is 1. The bytes of raw puts are not checked.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = EXAMPLES,
    override_usage = "unisono bench [OPTIONS] <COLLECTIVE>...\n       unisono bench --plot <PICTURE> <JSON>..."
)]
pub(crate) struct BenchCommand {
    #[command(flatten)]
    bench: Option<BenchOptions>,
    /// Draw results that --json wrote to an SVG file: time and bus bandwidth against size. Each file gives a
    /// line for each kind of result in it, labelled with the file's name. Nothing is measured
    #[arg(long, num_args = 2.., value_names = ["PICTURE", "JSON"], exclusive = true)]
    plot: Vec<PathBuf>,
}

impl BenchCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match (self.bench, self.plot.split_first()) {
            (Some(bench), _) => bench.run(),
            (None, Some((picture, results))) => plot::draw(picture, results).map(|()| ExitCode::SUCCESS),
            // The definition of the command line rules it out.
            (None, None) => Err("give a collective or --plot".into()),
        }
    }
}

/// A measurement: one collective, messages or puts, with one type, reduction and root.
#[derive(Clone, Debug)]
pub(crate) struct Bench {
    what: Benchmark,
    dtype: Option<Dtype>,
    op: Option<ReduceOp>,
    root: Option<usize>,
    /// The other options; if there are several measurements, without those that mean nothing for this one.
    asked: BenchOptions,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Benchmark {
    Collective(Collective),
    SendRecv,
    Put,
}

impl Benchmark {
    fn name(self) -> &'static str {
        match self {
            Self::Collective(collective) => collective.name(),
            Self::SendRecv => "send_recv",
            Self::Put => "put",
        }
    }

    /// True if it is a collective of this kind.
    fn is(self, kind: impl Fn(Collective) -> bool) -> bool {
        matches!(self, Self::Collective(collective) if kind(collective))
    }

    fn is_collective(self) -> bool {
        self.is(|_| true)
    }

    fn reduces(self) -> bool {
        self.is(Collective::reduces)
    }

    fn has_root(self) -> bool {
        self.is(Collective::has_root)
    }

    /// True if it can be called in place and out of place.
    fn has_both(self) -> bool {
        self.is(operands::has_both)
    }
}

pub(crate) fn parse_dtype(text: &str) -> std::result::Result<Dtype, String> {
    words::known(text, Dtype::parse(text), "type", Dtype::ALL.map(Dtype::name))
}

impl Bench {
    fn dtype(&self) -> Dtype {
        self.dtype.unwrap_or(Dtype::F32)
    }

    fn op(&self) -> ReduceOp {
        self.op.unwrap_or(ReduceOp::Sum)
    }

    fn root(&self) -> usize {
        self.root.unwrap_or(0)
    }

    /// True if the measured call is in place; `None` if it has only one form.
    fn is_in_place(&self) -> Option<bool> {
        let overlaps = || self.asked.overlap && self.what.is(overlap::in_place);
        self.what.has_both().then(|| self.asked.in_place || overlaps())
    }

    /// Checks of the command line that clap cannot do.
    fn check(&self, ranks: usize) -> Result<()> {
        let (what, name, asked) = (self.what, self.what.name(), &self.asked);
        if asked.detail && (asked.overlap || !what.is_collective()) {
            return Err("--detail: it has no meaning with --overlap, for send_recv and for put".into());
        }
        if asked.min_bytes > asked.max_bytes {
            return Err(format!("-b {} is more than -e {}", asked.min_bytes, asked.max_bytes).into());
        }
        if self.root() >= ranks {
            return Err(format!("-r {}: there are ranks 0 to {}", self.root(), ranks - 1).into());
        }
        if what.is_collective() && asked.in_place && asked.overlap {
            let form = if what.is(overlap::in_place) { "in" } else { "out of" };
            return Err(format!("--in-place: --overlap begins {name} {form} place").into());
        }
        if !what.is_collective() {
            if ranks < 2 {
                return Err(format!("{name} needs two ranks: --ranks 2").into());
            }
            if asked.overlap {
                return Err(format!("--overlap: it measures collectives, not {name}").into());
            }
            if let Some(algorithm) = &asked.algorithm {
                return Err(format!("--algorithm {algorithm}: {name} has no algorithms").into());
            }
        }
        let put = what == Benchmark::Put;
        if put && asked.max_bytes == 0 {
            return Err("-e 0: a put has at least one byte".into());
        }
        let given_for_nothing = [
            ("--window", !asked.window.is_empty() && what.is_collective()),
            ("-d", put && self.dtype.is_some()),
            ("--registered", put && asked.registered),
            ("--in-place", asked.in_place && !what.has_both()),
            ("--no-raw", asked.no_raw && !what.is_collective()),
            ("-o", self.op.is_some() && !what.reduces()),
            ("-r", self.root.is_some() && !what.has_root()),
            ("--reproducible", asked.reproducible && !what.reduces()),
        ];
        if let Some((flag, _)) = given_for_nothing.iter().find(|(_, given)| *given) {
            return Err(format!("{flag}: it has no meaning for {name}").into());
        }
        self.op().check(self.dtype())?;
        if let ReduceOp::PreMulSum(factor) = self.op()
            && !factor.is_finite()
        {
            return Err(
                format!("-o premulsum:{factor}: its result cannot be checked; give a finite factor").into()
            );
        }
        if let Some(algorithm) = &asked.algorithm {
            let able = ALGORITHMS.iter().filter(|it| what.is(|collective| it.supports(collective)));
            let able: Vec<_> = able.map(|it| it.name).collect();
            if !able.contains(&algorithm.as_str()) {
                let meant = meant::question(algorithm, able.iter().copied());
                let able = able.join(", ");
                return Err(format!("--algorithm {algorithm}: {meant}{name} can be done by {able}").into());
            }
        }
        Ok(())
    }

    /// Measures and reports. Returns the number of wrong elements on all ranks.
    fn measure(&self, group: &ProcessGroup, options: &Options, report: &mut BenchReport) -> Result<u64> {
        report.begin(self);
        match self.what {
            Benchmark::Put => put::sweep(group, self, options, report).map(|()| 0),
            Benchmark::SendRecv => messages::sweep(group, self, report),
            Benchmark::Collective(collective) => collective::sweep(group, self, collective, options, report),
        }
    }

    /// The forms of the call, in order: true for the one in place.
    fn forms(&self) -> Vec<bool> {
        match (self.asked.in_place, self.asked.out_of_place) {
            _ if !self.what.has_both() || self.asked.overlap => vec![false],
            (true, _) => vec![true],
            (_, true) => vec![false],
            _ => vec![false, true],
        }
    }

    /// The sizes of the sweep, in bytes.
    fn sizes(&self) -> Vec<usize> {
        let BenchOptions { min_bytes, max_bytes, factor, step, .. } = self.asked;
        match step {
            Some(step) => (min_bytes..=max_bytes).step_by(step).collect(),
            None => sweep(min_bytes, max_bytes, factor),
        }
    }

    /// The numbers of messages or puts under way at once, each of which is measured; `None` for the default.
    fn windows(&self) -> Vec<Option<usize>> {
        let given = &self.asked.window;
        if given.is_empty() { vec![None] } else { given.iter().map(|&it| Some(it as usize)).collect() }
    }
}

/// The sizes from the smallest to the largest, each `factor` times the one before.
pub(crate) fn sweep(least: usize, most: usize, factor: u32) -> Vec<usize> {
    let next = |bytes: &usize| match bytes {
        0 => Some(1),
        bytes => bytes.checked_mul(factor as usize),
    };
    std::iter::successors(Some(least), next).take_while(|&bytes| bytes <= most).collect()
}

/// An empty vector with room for `len`.
pub(crate) fn room<T>(len: usize) -> Result<Vec<T>> {
    let mut room = Vec::new();
    room.try_reserve_exact(len)
        .map_err(|error| format!("a vector of {} bytes: {error}", len.saturating_mul(size_of::<T>())))?;
    Ok(room)
}

/// The same for the results of `iterations` calls.
pub(crate) fn room_for<T>(iterations: usize) -> Result<Vec<T>> {
    room(iterations).map_err(|error| format!("-n {iterations}: {error}").into())
}
