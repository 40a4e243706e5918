//! `unisono run`: the ranks of a job on this machine, started together and ended together.

use std::{ffi::OsString, process::ExitCode};

pub(crate) mod guard;
pub(crate) mod job;
mod lines;
mod program;
pub(crate) mod rank;
mod signals;

use clap::builder::NonEmptyStringValueParser;
use job::{End, Job, Output};
use unisono::Config;

/// This program, also when its file has been replaced by a newer one: then the link stays good, and its path does not.
pub(crate) const ITSELF: &str = "/proc/self/exe";

/// What people begin with.
const EXAMPLES: &str = "\
Examples:
  unisono run -n 4 ./program --its-option
  unisono run -n 4 --provider tcp --timeout 30s -- ./program --its-option";

/// Starts a program as ranks 0 to N-1 on this machine.
///
/// Each rank finds its number and where to meet the others in its environment (UNISONO_* and torchrun's RANK,
/// WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE). The first rank that fails ends the job, and its exit status
/// is ours: 128 + n if signal n killed it, 126 or 127 if the program could not be started. Ctrl-C ends all; Ctrl-Z
/// stops all, and fg or bg continues them. Ranks have no standard input: they read its end at once.
/// Output of processes that ranks leave behind is passed on until it has been silent for half a second.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Run {
    /// How many ranks to start.
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    ranks: u32,
    /// The libfabric provider that the ranks use, for instance tcp, shm or verbs (sets UNISONO_PROVIDER).
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    provider: Option<String>,
    /// How long a rank waits for another: 300, 5s, 200ms (sets UNISONO_TIMEOUT).
    #[arg(long, value_name = "TIME", value_parser = duration)]
    timeout: Option<OsString>,
    /// Pass the ranks' output through as it comes, instead of line by line behind `[rank] `.
    #[arg(long)]
    no_prefix: bool,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// A time, as the ranks will read it; refused here if they would refuse it.
fn duration(text: &str) -> Result<OsString, String> {
    let timeout = unisono::config::parse_duration(text)?;
    Config { timeout, ..Config::default() }.validate().map_err(|error| error.to_string())?;
    Ok(text.into())
}

impl Run {
    pub(crate) fn run(self) -> ExitCode {
        let mut words = self.program.into_iter();
        let program = words.next().unwrap_or_default();
        if let Err(problem) = program::find(&program) {
            crate::complain!("unisono run: {problem}");
            return ExitCode::from(problem.status());
        }
        let settings =
            [("UNISONO_PROVIDER", self.provider.map(OsString::from)), ("UNISONO_TIMEOUT", self.timeout)];
        let job = Job {
            ranks: self.ranks,
            program,
            arguments: words.collect(),
            environment: settings.into_iter().filter_map(|(name, value)| Some((name, value?))).collect(),
            output: if self.no_prefix { Output::Passed } else { Output::Prefixed },
        };
        crate::status("run", job.run().map(End::exit_code))
    }
}
