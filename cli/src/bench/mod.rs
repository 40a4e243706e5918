//! `unisono bench`: measures collectives (with the columns of nccl-tests), their overlap with computation, messages and raw puts;
//! and draws the results of several runs.

mod asked;
pub(crate) mod check;
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
use progress::Progress;
use report::BenchReport;
use rows::Flow;
use unisono::{ProcessGroup, dtype::Dtype, reduce::ReduceOp};
use unisono_schedule::Collective;

use crate::{Result, words};

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
    dtype: Dtype,
    op: ReduceOp,
    root: usize,
    /// The other options, of which some may mean nothing for this one.
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
}

pub(crate) fn parse_dtype(text: &str) -> std::result::Result<Dtype, String> {
    words::known(text, Dtype::parse(text), "type", Dtype::ALL.map(Dtype::name))
}

impl Bench {
    /// Measures and reports. Returns the number of wrong elements on all ranks.
    fn measure(&self, group: &ProcessGroup, report: &mut BenchReport<'_>) -> Result<u64> {
        report.begin(self);
        match self.what {
            Benchmark::Put => put::sweep(group, self, report),
            Benchmark::SendRecv => messages::sweep(group, self, report),
            Benchmark::Collective(collective) => collective::sweep(group, self, collective, report),
        }
    }

    /// The forms of the call, in order: true for the one in place.
    fn forms(&self) -> Vec<bool> {
        match (self.asked.in_place, self.asked.out_of_place) {
            _ if !self.what.is(operands::has_both) || self.asked.overlap => vec![false],
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

    /// Measures messages or puts of these sizes by `measure`, with each number of them that is to be under way at once, or with its
    /// default. Returns the number of wrong elements on all ranks.
    fn flows(
        &self,
        report: &mut BenchReport<'_>,
        sizes: &[usize],
        mut measure: impl FnMut(usize, Option<usize>) -> Result<Flow>,
    ) -> Result<u64> {
        let given: Vec<_> = self.asked.window.iter().map(|&window| Some(window as usize)).collect();
        let windows = if given.is_empty() { vec![None] } else { given };
        let progress = Progress::new(sizes.len() * windows.len(), report.group.rank() == 0);
        let mut wrong = 0;
        for (bytes, window) in sizes.iter().flat_map(|&bytes| windows.iter().map(move |it| (bytes, *it))) {
            progress.size(bytes);
            let flow = measure(bytes, window)?;
            wrong += flow.messages.as_ref().map_or(0, |messages| messages.wrong);
            progress.done(|| report.flow(&flow));
            if !report.check()? {
                break;
            }
        }
        progress.end();
        Ok(wrong)
    }
}

/// Checks the range of the sizes.
pub(crate) fn check_sizes(least: usize, most: usize) -> Result<()> {
    if least > most {
        return Err(format!("-b {least} is more than -e {most}").into());
    }
    Ok(())
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
