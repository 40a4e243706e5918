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

use asked::Asked;
use report::Report;
use unisono::{ProcessGroup, dtype::Dtype, reduce::ReduceOp};
use unisono_schedule::{Collective, algorithm::ALGORITHMS};
use unisono_transport::ofi::Options;

use crate::{meant, words};

/// The result of a bench, or why it failed.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

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
    bench: Option<Asked>,
    /// Draw results that --json wrote to an SVG file: time and bus bandwidth against size. Each file gives a
    /// line for each kind of result in it, labelled with the file's name. Nothing is measured
    #[arg(long, num_args = 2.., value_names = ["PICTURE", "JSON"], exclusive = true)]
    plot: Vec<PathBuf>,
}

impl BenchCommand {
    pub(crate) fn run(self) -> ExitCode {
        let result = match (self.bench, self.plot.split_first()) {
            (Some(bench), _) => bench.run(),
            (None, Some((picture, results))) => plot::draw(picture, results).map(|()| ExitCode::SUCCESS),
            // The definition of the command line rules it out.
            (None, None) => Err("give a collective or --plot".into()),
        };
        crate::status("bench", result)
    }
}

/// A measurement: one collective, messages or puts, with one type, reduction and root.
#[derive(Clone, Debug)]
pub(crate) struct Bench {
    what: What,
    min_bytes: usize,
    max_bytes: usize,
    factor: u32,
    /// The difference of two sizes, in place of a factor.
    step: Option<usize>,
    dtype: Option<Dtype>,
    op: Option<ReduceOp>,
    root: Option<usize>,
    iters: Option<u32>,
    warmup: u32,
    /// The numbers of messages or puts under way at once, each of which is measured.
    windows: Vec<u32>,
    algorithm: Option<String>,
    reproducible: bool,
    registered: bool,
    in_place: bool,
    out_of_place: bool,
    detail: bool,
    overlap: bool,
    no_raw: bool,
    json: Option<PathBuf>,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Collective(Collective),
    SendRecv,
    Put,
}

impl What {
    fn name(self) -> &'static str {
        match self {
            Self::Collective(collective) => collective.name(),
            Self::SendRecv => "send_recv",
            Self::Put => "put",
        }
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
        match self.what {
            What::Collective(collective) if operands::has_both(collective) => {
                Some(self.in_place || self.overlap && overlap::in_place(collective))
            }
            _ => None,
        }
    }

    /// Checks of the command line that clap cannot do.
    fn check(&self, ranks: usize) -> Result<()> {
        if self.detail && (self.overlap || !matches!(self.what, What::Collective(_))) {
            return Err("--detail: it has no meaning with --overlap, for send_recv and for put".into());
        }
        if self.min_bytes > self.max_bytes {
            return Err(format!("-b {} is more than -e {}", self.min_bytes, self.max_bytes).into());
        }
        if self.root() >= ranks {
            return Err(format!("-r {}: there are ranks 0 to {}", self.root(), ranks - 1).into());
        }
        if let What::Collective(collective) = self.what
            && self.in_place
            && self.overlap
        {
            let form = if overlap::in_place(collective) { "in" } else { "out of" };
            return Err(format!("--in-place: --overlap begins {} {form} place", collective.name()).into());
        }
        if !matches!(self.what, What::Collective(_)) {
            let what = self.what.name();
            if ranks < 2 {
                return Err(format!("{what} needs two ranks: --ranks 2").into());
            }
            if self.overlap {
                return Err(format!("--overlap: it measures collectives, not {what}").into());
            }
            if let Some(name) = &self.algorithm {
                return Err(format!("--algorithm {name}: {what} has no algorithms").into());
            }
        }
        if self.what == What::Put && self.max_bytes == 0 {
            return Err("-e 0: a put has at least one byte".into());
        }
        let put = self.what == What::Put;
        let reduces = matches!(self.what, What::Collective(collective) if collective.reduces());
        let has_root = matches!(self.what, What::Collective(collective) if collective.has_root());
        let given_for_nothing = [
            ("--window", !self.windows.is_empty() && matches!(self.what, What::Collective(_))),
            ("-d", put && self.dtype.is_some()),
            ("--registered", put && self.registered),
            ("--in-place", self.in_place && self.is_in_place().is_none()),
            ("--no-raw", self.no_raw && !matches!(self.what, What::Collective(_))),
            ("-o", self.op.is_some() && !reduces),
            ("-r", self.root.is_some() && !has_root),
            ("--reproducible", self.reproducible && !reduces),
        ];
        if let Some((flag, _)) = given_for_nothing.iter().find(|(_, given)| *given) {
            return Err(format!("{flag}: it has no meaning for {}", self.what.name()).into());
        }
        self.op().check(self.dtype())?;
        if let ReduceOp::PreMulSum(factor) = self.op()
            && !factor.is_finite()
        {
            return Err(
                format!("-o premulsum:{factor}: its result cannot be checked; give a finite factor").into()
            );
        }
        if let (Some(name), What::Collective(collective)) = (&self.algorithm, self.what) {
            let able: Vec<_> = ALGORITHMS
                .iter()
                .filter(|all| all.supports(collective))
                .map(|algorithm| algorithm.name)
                .collect();
            if !able.contains(&name.as_str()) {
                let meant = meant::question(name, able.iter().copied());
                return Err(format!(
                    "--algorithm {name}: {meant}{} can be done by {}",
                    collective.name(),
                    able.join(", ")
                )
                .into());
            }
        }
        Ok(())
    }

    /// Measures and reports. Returns the number of wrong elements on all ranks.
    fn measure(&self, group: &ProcessGroup, options: &Options, report: &mut Report) -> Result<u64> {
        report.begin(self);
        match self.what {
            What::Put => put::sweep(group, self, options, report).map(|()| 0),
            What::SendRecv => messages::sweep(group, self, report),
            What::Collective(collective) => collective::sweep(group, self, collective, options, report),
        }
    }

    /// The forms of the call, in order: true for the one in place.
    fn forms(&self) -> Vec<bool> {
        match self.what {
            What::Collective(collective) if operands::has_both(collective) && !self.overlap => [false, true]
                .into_iter()
                .filter(|&it| if it { !self.out_of_place } else { !self.in_place })
                .collect(),
            _ => vec![false],
        }
    }

    /// The sizes of the sweep, in bytes.
    fn sizes(&self) -> Vec<usize> {
        match self.step {
            Some(step) => (self.min_bytes..=self.max_bytes).step_by(step).collect(),
            None => sweep(self.min_bytes, self.max_bytes, self.factor),
        }
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
