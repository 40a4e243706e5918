//! `unisono run`: starts the ranks of a job on this machine or on several hosts, and ends all if one fails.

use std::{ffi::OsString, io, process::ExitCode, thread};

pub(crate) mod end;
mod frames;
pub(crate) mod guard;
pub(crate) mod hosts;
pub(crate) mod job;
mod lines;
mod port;
mod program;
pub(crate) mod rank;
mod ranks;
mod signals;
mod sink;

use end::End;
use hosts::{assign::HostSpec, launcher};
use job::Job;
use program::Program;
use sink::Output;
use unisono::Config;

use crate::words;

/// Examples in the help.
const EXAMPLES: &str = "\
Examples:
  unisono run ./program                             a rank for each core
  unisono run -n 4 ./program --its-option
  unisono run -n 4 --provider tcp --timeout 30s -- ./program --its-option
  unisono run --hosts node1,node2 -n 8 ./program    4 ranks on each host
  unisono run --hosts node1:4,me@node2:2 ./program  4 and 2";

/// Starts a program as ranks 0 to N-1 on this machine, or on several hosts by ssh.
///
/// The environment of each rank has its rank, the world size and the address of the store (UNISONO_*), and what torchrun sets (RANK,
/// WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT). The first rank that fails ends the job, and the exit
/// status is that of this rank: 128 + n if signal n killed it, 126 or 127 if the program could not be started; 1 if all ended
/// with 0, but one left its world with a failure of which its program did not know. Ctrl-C ends all ranks; Ctrl-Z stops
/// them, and fg or bg continues them. The standard input of ranks is empty. If processes that ranks started outlive them, their
/// output is forwarded until there is none for half a second.
///
/// With --hosts, `ssh HOST true` must work without a question, and unisono must be installed on each host, in PATH or at the same
/// path as here. Ranks begin in this directory, if the host has it, with this environment except for the variables of this host, login or
/// terminal.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Run {
    /// The number of ranks [default: one for each core that this process may use, by its affinity and its control group's quota].
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    ranks: Option<u32>,
    /// Start the ranks on these hosts by ssh, host after host: names as ssh takes them, and the number of ranks on each. Without numbers, the ranks of -n are spread evenly; without -n, there is a rank for each core of a host.
    #[arg(long, value_name = "HOST[:N],...", value_delimiter = ',')]
    hosts: Vec<HostSpec>,
    /// The provider that the ranks use, for instance tcp, shm or verbs (sets UNISONO_PROVIDER).
    #[arg(long, value_parser = crate::meant::parse_provider)]
    provider: Option<String>,
    /// How long a rank waits for another one, for instance 300, 5s or 200ms (sets UNISONO_TIMEOUT).
    #[arg(long, value_name = "TIME", value_parser = duration)]
    timeout: Option<OsString>,
    /// Let ranks write to the terminal directly, instead of in lines with the prefix `[rank] `.
    #[arg(long)]
    no_prefix: bool,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// The number of cores that this process may use, by its affinity and the quotas of its control groups.
pub(crate) fn cores() -> u32 {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    u32::try_from(cores).unwrap_or(u32::MAX).min(65536)
}

/// Parses a time, and checks it as the ranks will.
fn duration(text: &str) -> Result<OsString, String> {
    let timeout = unisono::config::parse_duration(text)?;
    Config { timeout, ..Config::default() }.validate().map_err(|error| error.to_string())?;
    Ok(text.into())
}

impl Run {
    pub(crate) fn run(self) -> io::Result<ExitCode> {
        let mut words = self.program.into_iter();
        let program = words.next().unwrap_or_default();
        let settings =
            [("UNISONO_PROVIDER", self.provider.map(OsString::from)), ("UNISONO_TIMEOUT", self.timeout)];
        let environment =
            settings.into_iter().filter_map(|(name, value)| Some((name.into(), value?))).collect();
        let hosts = !self.hosts.is_empty();
        let output = match (self.no_prefix, hosts) {
            (false, _) => Output::Prefixed,
            (true, true) => Output::Plain,
            (true, false) => Output::Passed,
        };
        let program = Program { program, arguments: words.collect(), environment, output };
        if hosts {
            return launcher::run(&self.hosts, self.ranks, program).map(End::exit_code);
        }
        if let Err((status, problem)) = program.find() {
            crate::complain!("unisono run: {problem}");
            return Ok(ExitCode::from(status));
        }
        let ranks = self.ranks.unwrap_or_else(|| {
            let cores = cores();
            let ranks = words::some(cores as usize, "rank");
            crate::complain!(
                "unisono run: {ranks} on this host, one for each core that this process may use; -n N starts N"
            );
            cores
        });
        Job { ranks, program }.run().map(End::exit_code)
    }
}
