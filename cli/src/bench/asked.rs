//! The measurements that the command line asks for: each collective, type, reduction and root is a separate one.

use std::{path::PathBuf, process::ExitCode};

use clap::builder::{NonEmptyStringValueParser, StringValueParser, TypedValueParser};
use unisono::{ProcessGroup, Reduction, dtype::Dtype, reduce::ReduceOp};
use unisono_schedule::{Collective, algorithm::ALGORITHMS};

use super::{
    Bench, Benchmark, Result,
    operands::has_both,
    parse_dtype,
    report::{self, BenchReport},
};
use crate::{
    meant,
    run::{
        self,
        end::End,
        job::{self, Job},
    },
    words,
};

/// One of some, or all of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Every<T> {
    All,
    One(T),
}

/// Reads `all`, or one of them by `parse`.
fn every<T: Clone + Send + Sync + 'static>(
    parse: fn(&str) -> std::result::Result<T, String>,
) -> impl TypedValueParser<Value = Every<T>> {
    StringValueParser::new().try_map(move |text| match text.as_str() {
        "all" => Ok(Every::All),
        text => parse(text).map(Every::One),
    })
}

/// The options of measurements.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct BenchOptions {
    /// all_reduce, reduce_scatter, all_gather, broadcast, barrier, reduce, gather, scatter, all_to_all, send_recv or put; several one
    /// after the other
    #[arg(value_name = "COLLECTIVE", value_delimiter = ',', required = true, value_parser = parse_what)]
    whats: Vec<Benchmark>,
    /// The smallest size in bytes, for instance 8, 4K, 1M. As in nccl-tests, it is the size of the whole vector, rounded down to
    /// whole elements (and to equal blocks if every rank has a block)
    #[arg(short = 'b', long, value_name = "BYTES", default_value = "8", value_parser = unisono::config::parse_size)]
    pub(super) min_bytes: usize,
    /// The largest size in bytes
    #[arg(short = 'e', long, value_name = "BYTES", default_value = "64M", value_parser = unisono::config::parse_size)]
    pub(super) max_bytes: usize,
    /// The factor from one size to the next
    #[arg(short = 'f', long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..))]
    pub(super) factor: u32,
    /// The difference between one size and the next in bytes, instead of a factor
    #[arg(short = 'i', long, value_name = "BYTES", conflicts_with = "factor", value_parser = parse_step)]
    pub(super) step: Option<usize>,
    /// The element type: f16, bf16, f32, f64, i8 to i64, u8 to u64, or all [default: f32]
    #[arg(short, long, value_name = "TYPE", value_parser = every(parse_dtype))]
    dtype: Option<Every<Dtype>>,
    /// The reduction: sum, product, min, max, avg, band, bor, bxor, premulsum:FACTOR, or all but the last [default: sum]
    #[arg(short, long, value_parser = every(parse_op))]
    op: Option<Every<ReduceOp>>,
    /// Timed calls of each size. Default: as many as take about a quarter of a second, from 5 to 2000; for put as many as move
    /// 256 MiB, from 32 to 5000
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) iters: Option<u32>,
    /// Untimed calls of each size, before the timed ones
    #[arg(short, long, value_name = "N", default_value_t = 5)]
    pub(super) warmup: u32,
    /// The root of a broadcast, reduce, gather or scatter, or all [default: 0]
    #[arg(short, long, value_name = "RANK", value_parser = every(parse_root))]
    root: Option<Every<usize>>,
    /// How many messages or puts are under way at once, for their rates; several are measured one after the other [default: 64 messages,
    /// 16 puts; of large messages as many as have 16 MiB]
    #[arg(short = 'W', long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(super) window: Vec<u32>,
    /// Start this many ranks on this machine [default: under a launcher the launcher's, otherwise one for each core, 2 at least]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    ranks: Option<u32>,
    /// The provider: tcp, shm, verbs or an exact name of libfabric's (as UNISONO_PROVIDER)
    #[arg(long, value_parser = crate::meant::parse_provider)]
    provider: Option<String>,
    /// Use only this algorithm (as UNISONO_ALGORITHM=collective:algorithm)
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    pub(super) algorithm: Option<String>,
    /// Reduce in the order of ranks, so that the bits of the result do not depend on the algorithm (as
    /// UNISONO_REDUCTION=reproducible)
    #[arg(long)]
    pub(super) reproducible: bool,
    /// Use registered buffers instead of plain memory
    #[arg(long)]
    pub(super) registered: bool,
    /// Measure the call only in place: input and output lie in the same memory
    #[arg(long)]
    pub(super) in_place: bool,
    /// Measure the call only out of place
    #[arg(long, conflicts_with = "in_place")]
    pub(super) out_of_place: bool,
    /// Print more columns for each size: the algorithm, least, mean and 99th percentile, part of raw puts, processor time
    #[arg(long)]
    pub(super) detail: bool,
    /// Measure how much of the collective's time is hidden by computation between its start and the wait for it, in percent:
    /// 100 - 100 (both - computation alone) / collective alone. Two computations are measured: the thread sleeps, as if an
    /// accelerator computed, or all cores compute. Each takes a tenth longer than the collective
    #[arg(long)]
    pub(super) overlap: bool,
    /// Do not measure raw puts first (for the figure beside raw puts). Over the loopback, collectives may take a quarter longer after them
    #[arg(long)]
    pub(super) no_raw: bool,
    /// Also write the results to this file, one JSON object per line; with - write only that, to standard output
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

fn parse_what(text: &str) -> std::result::Result<Benchmark, String> {
    let all = || {
        Collective::ALL.map(Benchmark::Collective).into_iter().chain([Benchmark::SendRecv, Benchmark::Put])
    };
    words::known(text, all().find(|what| what.name() == text), "bench", all().map(Benchmark::name))
}

fn parse_op(text: &str) -> std::result::Result<ReduceOp, String> {
    const NAMES: [&str; 9] =
        ["sum", "product", "min", "max", "avg", "band", "bor", "bxor", "premulsum:FACTOR"];
    words::known(text, ReduceOp::parse(text), "reduction", NAMES)
}

fn parse_root(text: &str) -> std::result::Result<usize, String> {
    text.parse().map_err(|_| "wanted a rank, from 0, or all".to_owned())
}

fn parse_step(text: &str) -> std::result::Result<usize, String> {
    let step = unisono::config::parse_size(text)?;
    (step > 0).then_some(step).ok_or_else(|| "wanted 1 byte at least".to_owned())
}

impl BenchOptions {
    pub(super) fn run(self) -> Result<ExitCode> {
        match self.ranks {
            Some(ranks) => self.start(ranks),
            None if job::is_launched() => self.measure(),
            None => {
                let (ranks, why) = self.own_number(run::cores());
                self.checked(ranks as usize)?;
                crate::complain!("unisono bench: {ranks} ranks on this host, {why}; --ranks N starts N");
                self.start(ranks)
            }
        }
    }

    /// The number of ranks that it starts on this many cores, and why: one on each; 2 if only pairs are measured, or if there is one core.
    fn own_number(&self, cores: u32) -> (u32, String) {
        match self.whats[..] {
            [Benchmark::Put] => (2, "which a put takes".to_owned()),
            _ if cores >= 2 => (cores, "one for each core that this process may use".to_owned()),
            _ => (2, format!("where this process may use {}", words::some(cores as usize, "core"))),
        }
    }

    /// Starts the ranks, each of which runs this bench without `--ranks`.
    fn start(&self, ranks: u32) -> Result<ExitCode> {
        self.checked(ranks as usize)?;
        // Rank 0 opens it again; this checks it before ranks are started.
        report::check_json(self.json.as_deref())?;
        let end = Job::again(ranks).run()?;
        // If the reader of the output has stopped, this process ends as others do then, by SIGPIPE.
        let end = if end == End::Status(0) && job::is_closed(&std::io::stdout()) { End::PIPE } else { end };
        Ok(end.exit_code())
    }

    /// The measurements, each checked.
    fn checked(&self, ranks: usize) -> Result<Vec<Bench>> {
        self.check(ranks)?;
        let all: Vec<Bench> = self.whats.iter().flat_map(|&what| self.each(what, ranks)).collect();
        all.iter().try_for_each(|bench| bench.op.check(bench.dtype))?;
        if all.is_empty() {
            return Err("no reduction of this type".into());
        }
        Ok(all)
    }

    /// Checks of the command line that clap cannot do. An option must mean something for one of the measurements.
    fn check(&self, ranks: usize) -> Result<()> {
        let name = self.whats[0].name();
        let any = |is: fn(Benchmark) -> bool| self.whats.iter().any(|&what| is(what));
        let has = |kind: fn(Collective) -> bool| self.whats.iter().any(|what| what.is(kind));
        let (collective, typed) = (has(|_| true), any(|what| what != Benchmark::Put));
        if self.detail && (self.overlap || !collective) {
            return Err("--detail: it has no meaning with --overlap, for send_recv and for put".into());
        }
        super::check_sizes(self.min_bytes, self.max_bytes)?;
        if let Some(Every::One(root)) = self.root
            && root >= ranks
        {
            return Err(format!("-r {root}: there are ranks 0 to {}", ranks - 1).into());
        }
        if collective && self.in_place && self.overlap {
            return Err(format!("--in-place: --overlap begins {name} out of place").into());
        }
        if let Some(what) = self.whats.iter().find(|what| ranks < 2 && !what.is_collective()) {
            return Err(format!("{} needs two ranks: --ranks 2", what.name()).into());
        }
        if self.overlap && !collective {
            return Err(format!("--overlap: it measures collectives, not {name}").into());
        }
        if let Some(algorithm) = self.algorithm.as_ref().filter(|_| !collective) {
            return Err(format!("--algorithm {algorithm}: {name} has no algorithms").into());
        }
        if self.max_bytes == 0 && any(|what| what == Benchmark::Put) {
            return Err("-e 0: a put has at least one byte".into());
        }
        let options = [
            ("--window", !self.window.is_empty(), any(|what| !what.is_collective())),
            ("-d", self.dtype.is_some(), typed),
            ("--registered", self.registered, typed),
            ("--in-place", self.in_place, has(has_both)),
            ("--no-raw", self.no_raw, collective),
            ("-o", self.op.is_some(), has(Collective::reduces)),
            ("-r", self.root.is_some(), has(Collective::has_root)),
            ("--reproducible", self.reproducible, has(Collective::reduces)),
        ];
        if let Some((option, ..)) = options.iter().find(|(_, given, means)| *given && !means) {
            return Err(format!("{option}: it has no meaning for {name}").into());
        }
        if let Some(Every::One(ReduceOp::PreMulSum(factor))) = self.op
            && !factor.is_finite()
        {
            return Err(
                format!("-o premulsum:{factor}: its result cannot be checked; give a finite factor").into()
            );
        }
        self.whats.iter().try_for_each(|what| self.check_algorithm(*what))
    }

    /// Checks that the algorithm can do a collective.
    fn check_algorithm(&self, what: Benchmark) -> Result<()> {
        let Some(algorithm) = self.algorithm.as_deref().filter(|_| what.is_collective()) else {
            return Ok(());
        };
        let able = ALGORITHMS.iter().filter(|it| what.is(|collective| it.supports(collective)));
        let able: Vec<_> = able.map(|it| it.name).collect();
        if able.contains(&algorithm) {
            return Ok(());
        }
        let (meant, name) = (meant::question(algorithm, able.iter().copied()), what.name());
        let able = able.join(", ");
        Err(format!("--algorithm {algorithm}: {meant}{name} can be done by {able}").into())
    }

    /// The measurements of one collective, of messages or of puts, by the options that mean something for it.
    fn each(&self, what: Benchmark, ranks: usize) -> Vec<Bench> {
        let dtypes = each_of(self.dtype.filter(|_| what != Benchmark::Put), Dtype::F32, Dtype::ALL);
        let op = self.op.filter(|_| what.is(Collective::reduces));
        let ops = each_of(op, ReduceOp::Sum, ReduceOp::PLAIN);
        let roots = each_of(self.root.filter(|_| what.is(Collective::has_root)), 0, 0..ranks);
        // A reduction that was not named is left out if the type does not have it.
        let listed = op == Some(Every::All) || dtypes.len() > 1;
        let mut all = Vec::new();
        for (&dtype, &op) in dtypes.iter().flat_map(|dtype| ops.iter().map(move |op| (dtype, op))) {
            if !listed || op.check(dtype).is_ok() {
                all.extend(roots.iter().map(|&root| Bench { what, dtype, op, root, asked: self.clone() }));
            }
        }
        all
    }

    /// Runs one rank of the benches.
    fn measure(&self) -> Result<ExitCode> {
        let group = ProcessGroup::from_env_with(|config| {
            config.provider = self.provider.clone().or_else(|| config.provider.take());
            // The algorithm is set only for these collectives: another one of the barrier would change when the ranks begin.
            if let Some(algorithm) = &self.algorithm {
                let collectives = self.whats.iter().filter(|what| what.is_collective());
                let named = collectives.map(|what| format!("{}:{algorithm}", what.name()));
                config.algorithm = Some(named.collect::<Vec<_>>().join(","));
            }
            if self.reproducible {
                config.reduction = Reduction::Reproducible;
            }
        })?;
        let measured = self.checked(group.size()).and_then(|benches| {
            let mut report = BenchReport::new(&group, &benches[0])?;
            let mut wrong = 0;
            for bench in &benches {
                wrong += bench.measure(&group, &mut report)?;
                if report.closed {
                    break;
                }
            }
            report.end()?;
            Ok(wrong)
        });
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
}

/// The values that are asked for; the usual one if there are none.
fn each_of<T>(asked: Option<Every<T>>, usual: T, all: impl IntoIterator<Item = T>) -> Vec<T> {
    match asked {
        None => vec![usual],
        Some(Every::One(one)) => vec![one],
        Some(Every::All) => all.into_iter().collect(),
    }
}
