//! `unisono bench`: measures collectives (with the columns of nccl-tests), their overlap with computation, messages and raw puts;
//! and draws the results of several runs.

mod check;
pub(crate) mod collective;
mod compute;
pub(crate) mod data;
mod messages;
pub(crate) mod operands;
mod overlap;
mod plot;
pub(crate) mod progress;
mod put;
pub(crate) mod put_pair;
mod ranks;
pub(crate) mod report;

use std::{path::PathBuf, process::ExitCode};

use clap::builder::NonEmptyStringValueParser;
use unisono::{Config, ProcessGroup, Reduction, dtype::Dtype, reduce::ReduceOp};
use unisono_schedule::{Collective, algorithm::ALGORITHMS};
use unisono_transport::ofi::Options;

use crate::{
    meant,
    run::{
        self,
        job::{self, Job},
    },
    words,
};

/// The result of a bench, or why it failed.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Examples in the help.
const EXAMPLES: &str = "\
Examples:
  unisono bench all_reduce                                 8 B to 64 MiB on this machine, a rank a core
  unisono bench all_reduce --ranks 4 --provider tcp        the same with 4 ranks over TCP
  unisono bench all_reduce --ranks 4 --in-place            the same in place
  unisono bench all_reduce --ranks 4 --overlap             how much of it computation hides
  unisono bench send_recv --ranks 2                        messages: latency, bandwidth and rate
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
    override_usage = "unisono bench [OPTIONS] <COLLECTIVE>\n       unisono bench --plot <SVG> <JSON>..."
)]
pub(crate) struct BenchCommand {
    #[command(flatten)]
    bench: Option<Bench>,
    /// Draw results of collectives, which --json wrote, to an SVG file: time and bus bandwidth against size. Each file gives a
    /// line for each collective and number of ranks in it, labelled with the file's name. Nothing is measured
    #[arg(long, num_args = 2.., value_names = ["SVG", "JSON"], exclusive = true)]
    plot: Vec<PathBuf>,
}

impl BenchCommand {
    pub(crate) fn run(self) -> ExitCode {
        let result = match (self.bench, self.plot.split_first()) {
            (Some(bench), _) => bench.run(),
            (None, Some((picture, results))) => plot::draw(picture, results).map(|()| ExitCode::SUCCESS),
            // The definition of the command line rules it out.
            (None, None) => Err("there is neither a collective nor --plot".into()),
        };
        crate::status("bench", result)
    }
}

/// The options of a measurement.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Bench {
    /// all_reduce, reduce_scatter, all_gather, broadcast, barrier, reduce, gather, scatter, all_to_all, send_recv or put
    #[arg(value_name = "COLLECTIVE", value_parser = parse_what)]
    what: What,
    /// The smallest size in bytes, for instance 8, 4K, 1M. As in nccl-tests, it is the size of the whole vector, rounded down to
    /// whole elements (and to equal blocks if every rank has a block)
    #[arg(short = 'b', long, value_name = "BYTES", default_value = "8", value_parser = unisono::config::parse_size)]
    min_bytes: usize,
    /// The largest size in bytes
    #[arg(short = 'e', long, value_name = "BYTES", default_value = "64M", value_parser = unisono::config::parse_size)]
    max_bytes: usize,
    /// The factor from one size to the next
    #[arg(short = 'f', long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..))]
    factor: u32,
    /// The element type: f16, bf16, f32, f64, i8 to i64, u8 to u64 [default: f32]
    #[arg(short, long, value_name = "TYPE", value_parser = parse_dtype)]
    dtype: Option<Dtype>,
    /// The reduction: sum, product, min, max, avg, band, bor, bxor, premulsum:FACTOR [default: sum]
    #[arg(short, long, value_parser = parse_op)]
    op: Option<ReduceOp>,
    /// Timed calls of each size. Default: as many as take about a quarter of a second, from 5 to 2000; for put as many as move
    /// 256 MiB, from 32 to 5000
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    iters: Option<u32>,
    /// Untimed calls of each size, before the timed ones
    #[arg(short, long, value_name = "N", default_value_t = 5)]
    warmup: u32,
    /// The root of a broadcast, reduce, gather or scatter [default: 0]
    #[arg(short, long, value_name = "RANK")]
    root: Option<usize>,
    /// Start this many ranks on this machine [default: under a launcher the launcher's, otherwise one for each core, 2 at least]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    ranks: Option<u32>,
    /// The provider: tcp, shm, verbs or an exact name of libfabric's (as UNISONO_PROVIDER)
    #[arg(long, value_parser = crate::meant::parse_provider)]
    provider: Option<String>,
    /// Use only this algorithm (as UNISONO_ALGORITHM=collective:algorithm)
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    algorithm: Option<String>,
    /// Reduce in the order of ranks, so that the bits of the result do not depend on the algorithm (as
    /// UNISONO_REDUCTION=reproducible)
    #[arg(long)]
    reproducible: bool,
    /// Use registered buffers instead of plain memory
    #[arg(long)]
    registered: bool,
    /// Measure the call in place, as the in-place columns of nccl-tests: input and output lie in the same memory
    #[arg(long)]
    in_place: bool,
    /// Measure how much of the collective's time is hidden by computation between its start and the wait for it, in percent:
    /// 100 - 100 (both - computation alone) / collective alone. Two computations are measured: the thread sleeps, as if an
    /// accelerator computed, or all cores compute. Each takes a tenth longer than the collective
    #[arg(long)]
    overlap: bool,
    /// Do not measure raw puts first (for the column %raw). Over the loopback, collectives may take a quarter longer after them
    #[arg(long)]
    no_raw: bool,
    /// Also write the results to this file, one JSON object per line
    #[arg(long, value_name = "FILE")]
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

fn parse_what(text: &str) -> std::result::Result<What, String> {
    let all = || Collective::ALL.map(What::Collective).into_iter().chain([What::SendRecv, What::Put]);
    words::known(text, all().find(|what| what.name() == text), "bench", all().map(What::name))
}

pub(crate) fn parse_dtype(text: &str) -> std::result::Result<Dtype, String> {
    words::known(text, Dtype::parse(text), "type", Dtype::ALL.map(Dtype::name))
}

fn parse_op(text: &str) -> std::result::Result<ReduceOp, String> {
    const NAMES: [&str; 9] =
        ["sum", "product", "min", "max", "avg", "band", "bor", "bxor", "premulsum:FACTOR"];
    words::known(text, ReduceOp::parse(text), "reduction", NAMES)
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

    /// Whether the measured call is in place; `None` if there is but one form of it.
    fn is_in_place(&self) -> Option<bool> {
        match self.what {
            What::Collective(collective) if operands::has_both(collective) => {
                Some(self.in_place || self.overlap && overlap::in_place(collective))
            }
            _ => None,
        }
    }

    fn run(self) -> Result<ExitCode> {
        match self.ranks {
            Some(ranks) => self.start(ranks),
            None if job::is_launched() => self.measure(),
            None => {
                let ranks = self.own_number(run::cores());
                self.check(ranks as usize)?;
                crate::complain!("unisono bench: {}; --ranks N starts N", self.why(ranks, run::cores()));
                self.start(ranks)
            }
        }
    }

    /// How many ranks it starts by itself on this many cores: one on each; where only pairs are measured, or there is but one core, 2.
    fn own_number(&self, cores: u32) -> u32 {
        if self.what == What::Put { 2 } else { cores.max(2) }
    }

    /// The sentence that says so.
    fn why(&self, ranks: u32, cores: u32) -> String {
        match self.what {
            What::Put => "2 ranks on this host, which a put takes".to_owned(),
            _ if ranks == cores => {
                format!("{ranks} ranks on this host, one for each core that this process may use")
            }
            _ => format!(
                "{ranks} ranks on this host, where this process may use {}",
                words::some(cores as usize, "core")
            ),
        }
    }

    /// Starts the ranks, each of which runs this bench without `--ranks`.
    fn start(&self, ranks: u32) -> Result<ExitCode> {
        self.check(ranks as usize)?;
        // Rank 0 opens it again; checked here before ranks are started.
        report::check_json(self.json.as_deref())?;
        Ok(Job::again(ranks).run()?.exit_code())
    }

    /// Checks of the command line that clap cannot do.
    fn check(&self, ranks: usize) -> Result<()> {
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

    /// Runs one rank of the bench.
    fn measure(&self) -> Result<ExitCode> {
        let mut with = Config::default();
        let group = ProcessGroup::from_env_with(|config| {
            config.provider = self.provider.clone().or_else(|| config.provider.take());
            // For this collective alone: another algorithm of the barrier would change when the ranks begin.
            if let (Some(algorithm), What::Collective(collective)) = (&self.algorithm, self.what) {
                config.algorithm = Some(format!("{}:{algorithm}", collective.name()));
            }
            if self.reproducible {
                config.reduction = Reduction::Reproducible;
            }
            with = config.clone();
        })?;
        let options = ProcessGroup::transport_options(&with);
        let reduction = with.reduction;
        let measured = self.measure_in(&group, &options, reduction);
        // The other ranks report an error of one rank alone too, such as a full disk.
        let wrong = measured.inspect_err(|error| drop(group.abort(&error.to_string())))?;
        if wrong == 0 {
            return Ok(ExitCode::SUCCESS);
        }
        if group.rank() == 0 {
            crate::complain!("unisono bench: {wrong} elements are wrong, on all ranks together");
        }
        Ok(ExitCode::FAILURE)
    }

    /// Measures and reports. Returns the number of wrong elements on all ranks.
    fn measure_in(&self, group: &ProcessGroup, options: &Options, reduction: Reduction) -> Result<u64> {
        self.check(group.size())?;
        let mut report = report::Report::new(group, self, reduction)?;
        let wrong = match self.what {
            What::Put => {
                put::sweep(group, self, options, &mut report)?;
                0
            }
            What::SendRecv => messages::sweep(group, self, &mut report)?,
            What::Collective(collective) => collective::sweep(group, self, collective, options, &mut report)?,
        };
        report.end(group)?;
        Ok(wrong)
    }

    /// The sizes of the sweep, in bytes.
    fn sizes(&self) -> Vec<usize> {
        sweep(self.min_bytes, self.max_bytes, self.factor)
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
