//! `unisono tune`: measures every algorithm on this machine or in this job, and writes a tuning file.

mod decide;
pub(crate) mod measure;
pub(crate) mod output;

use std::{
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

use unisono::{ProcessGroup, Reduction, dtype::Dtype};
use unisono_schedule::{
    Collective,
    select::{Choice, shown::PlainMemory, table::Table},
};

use self::decide::Measured;
use crate::{
    Result,
    bench::{self, progress::Progress},
    cost::{self, Case},
    run::job::Job,
    words,
};

/// The smallest size of a whole vector that is tuned, in bytes.
const SMALLEST: usize = 8;

/// Examples in the help.
const EXAMPLES: &str = "\
Examples:
  unisono tune --ranks 4 --provider tcp --collective all_reduce --output all_reduce.tuning
  mpirun -n 16 unisono tune --output cluster.tuning        among machines
  UNISONO_TUNING=cluster.tuning srun -n 16 PROGRAM         uses the file, which every rank needs";

/// Measures every algorithm and writes the fastest ones to a tuning file, for UNISONO_TUNING.
///
/// With --ranks it starts that many ranks on this machine. Otherwise it is one rank of the job that its environment describes,
/// and rank 0 writes the file. The file applies to groups of the same number of ranks. Run it on the hosts and with the
/// provider, chunk and lanes of the programs that will use the file. A collective takes about half a minute. For more than 8
/// ranks it skips algorithms in which a rank receives chunks from more ranks than it may have memory for, unless they are the default.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Tune {
    /// Start this many ranks on this machine
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=65536))]
    ranks: Option<u32>,
    /// The provider: tcp, shm, verbs or an exact name of libfabric's (as UNISONO_PROVIDER)
    #[arg(long, value_parser = crate::meant::parse_provider)]
    provider: Option<String>,
    /// The collectives to tune, separated by commas [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = crate::cost::parse_collective)]
    collective: Vec<Collective>,
    /// The smallest size in bytes, of the whole vector, as in unisono bench. The file does not affect smaller sizes, except that
    /// sizes below 8 bytes are treated as 8
    #[arg(short = 'b', long, value_name = "BYTES", default_value = "8", value_parser = unisono::config::parse_size)]
    min_bytes: usize,
    /// The largest size in bytes; larger sizes use its row
    #[arg(short = 'e', long, value_name = "BYTES", default_value = "32M", value_parser = unisono::config::parse_size)]
    max_bytes: usize,
    /// The factor from one size to the next
    #[arg(short = 'f', long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..))]
    factor: u32,
    /// The element type: f16, bf16, f32, f64, i8 to i64, u8 to u64
    #[arg(short, long, value_name = "TYPE", default_value = "f32", value_parser = bench::parse_dtype)]
    dtype: Dtype,
    /// The file to write. It is rewritten after each collective, so that an interrupted run leaves the results so far
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

impl Tune {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self.ranks {
            Some(ranks) => self.start(ranks),
            None => self.tune().map(|()| ExitCode::SUCCESS),
        }
    }

    /// Starts the ranks, each of which runs this without `--ranks`.
    fn start(&self, ranks: u32) -> Result<ExitCode> {
        // The output is checked before ranks are started and minutes are spent on measuring.
        bench::check_sizes(self.min_bytes, self.max_bytes)?;
        output::check(&self.output)?;
        Ok(Job::again(ranks).run()?.exit_code())
    }

    /// Runs one rank.
    fn tune(&self) -> Result<()> {
        let group = ProcessGroup::from_env_with(|config| {
            config.provider = self.provider.clone().or_else(|| config.provider.take());
            // The file of an earlier run is not used, because it may be the one to be replaced.
            config.tuning = None;
            config.reduction = Reduction::Fastest;
        })?;
        self.tune_in(&group).inspect_err(|error| drop(group.abort(&error.to_string())))
    }

    fn tune_in(&self, group: &ProcessGroup) -> Result<()> {
        bench::check_sizes(self.min_bytes, self.max_bytes)?;
        if group.size() < 2 {
            return Err("there is nothing to tune on one rank: --ranks 4".into());
        }
        let writes = group.rank() == 0;
        if writes {
            output::check(&self.output)?;
        }
        let all: &[Collective] = if self.collective.is_empty() { &Collective::ALL } else { &self.collective };
        let cases: Vec<(Collective, Vec<Case>)> =
            all.iter().map(|&collective| (collective, self.cases(collective, group.size()))).collect();
        let progress = Progress::new(cases.iter().map(|(_, cases)| cases.len()).sum(), writes);
        let limits = group.limits();
        let made = format!(
            "by unisono {} on {} ranks over {} ({}), {}",
            env!("CARGO_PKG_VERSION"),
            group.size(),
            limits.provider,
            limits.version,
            self.dtype.name()
        );
        let mut said = Ok(());
        let mut say = |line: String| {
            if writes && said.is_ok() {
                said = writeln!(io::stdout(), "{line}");
            }
        };
        say(format!("# measured {made}"));
        say("# medians of single calls after a barrier, slowest rank".to_owned());
        say(format!(
            "#{:>14} {:>12}  {:<19} {:>7} {:>5} {:>10}  {:<19} {:>10}  {}",
            "collective", "bytes", "fastest", "chunk", "lanes", "time", "next", "time", "by default"
        ));
        let (mut rows, mut shown) = (Vec::new(), Vec::new());
        for (index, (collective, cases)) in cases.iter().enumerate() {
            let mut found = self.below(group, cases)?;
            for case in cases {
                progress.size(case.whole());
                let ways = measure::candidates(group, case)?;
                let seconds = measure::seconds(group, case, &ways, &progress)?;
                let ways = ways.iter().map(|way| way.choice).zip(seconds).collect();
                let measured = Measured { bytes: case.bytes(), given: case.given(), ways };
                let default = name(&group.choice(case.collective, case.count, case.dtype)?);
                progress.done(|| say(line(case, &measured, default)));
                found.push(measured);
            }
            rows.extend(decide::rows(*collective, group.size(), &found));
            shown.extend(decide::shown(*collective, group.size(), &found));
            // What was written to a pipe cannot be replaced.
            let last = index + 1 == all.len();
            if writes && (last || output::is_plain(&self.output)) {
                let table = Table::new(rows.clone(), shown.clone()).to_string();
                // The comment goes behind the first line, which names the format.
                let text = table.replacen('\n', &format!("\n# measured {made}\n"), 1);
                output::write(&self.output, &text)?;
            }
        }
        progress.end();
        said.map_err(|error| format!("writing the results: {error}"))?;
        // The barrier makes an error of rank 0 reach all ranks.
        Ok(group.barrier()?)
    }

    /// The library's choices for sizes below those to be measured, as if they were the fastest, so that the table does not change
    /// them.
    fn below(&self, group: &ProcessGroup, cases: &[Case]) -> Result<Vec<Measured>> {
        let Some(first) = cases.first() else { return Ok(Vec::new()) };
        let sizes = bench::sweep(SMALLEST, self.min_bytes, 2).into_iter();
        let cases = sizes.map(|bytes| Case::new(first.collective, first.ranks, bytes, first.dtype));
        let below = cases.filter(|case| case.bytes() < first.bytes());
        let unmeasured = |case: Case| {
            let choice = measure::usual(group, &case)?;
            let messages = Choice { shown: choice.shown.map(|_| PlainMemory::Messages), ..choice };
            // Of ways that take as long, the first counts.
            let ways = vec![(choice, 0.0), (messages, 0.0)];
            Ok(Measured { bytes: case.bytes(), given: case.given(), ways })
        };
        below.map(unmeasured).collect()
    }

    /// The cases of a collective, without those of as many elements as the one before.
    fn cases(&self, collective: Collective, ranks: usize) -> Vec<Case> {
        let sizes = match collective {
            Collective::Barrier => vec![0],
            _ => bench::sweep(self.min_bytes, self.max_bytes, self.factor),
        };
        cost::distinct(sizes, |bytes| Case::new(collective, ranks, bytes, self.dtype))
    }
}

/// The name of a choice in the report.
fn name(choice: &Choice) -> &'static str {
    match decide::way(choice) {
        PlainMemory::Messages => choice.algorithm.name,
        PlainMemory::Copied(_) => "slots",
        PlainMemory::Read => "read in place",
    }
}

/// The line of the report about a size.
fn line(case: &Case, measured: &Measured, default: &str) -> String {
    let mut sorted = measured.ways.clone();
    sorted.sort_by(|one, other| one.1.total_cmp(&other.1));
    let Some((best, seconds)) = sorted.first().copied() else { return String::new() };
    let other = sorted.iter().find(|(way, _)| name(way) != name(&best));
    let (next, later) =
        other.map_or_else(|| ("-", "-".to_owned()), |(way, time)| (name(way), words::time(*time)));
    let (chunk, lanes) = match decide::way(&best) {
        PlainMemory::Messages => (words::size(best.chunk_bytes), best.lanes.to_string()),
        PlainMemory::Copied(bytes) => (words::size(bytes), "-".to_owned()),
        PlainMemory::Read => ("-".to_owned(), "-".to_owned()),
    };
    format!(
        " {:>14} {:>12}  {:<19} {:>7} {lanes:>5} {:>10}  {next:<19} {later:>10}  {default}",
        case.collective.name(),
        case.whole(),
        name(&best),
        chunk,
        words::time(seconds)
    )
}
