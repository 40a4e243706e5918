//! The program `unisono`: reads the command line and runs one subcommand. A library, so that the Python package has the program too.

use std::{
    env::VarError,
    error::Error,
    ffi::OsString,
    io::{self, ErrorKind, Write},
    iter,
    process::{ExitCode, Termination},
};

use clap::{CommandFactory, Parser, Subcommand};
use tracing_subscriber::{EnvFilter, filter::LevelFilter};

/// Writes a line to standard error by one call, so that the lines of several ranks do not mix.
macro_rules! complain {
    ($($line:tt)*) => {
        $crate::write_error(&format!("{}\n", format_args!($($line)*)))
    };
}
pub(crate) use complain;

mod bench;
mod broadcast;
mod cgroup;
mod chart;
mod cost;
mod doctor;
mod generate;
mod invocation;
mod meant;
mod progress;
mod run;
mod tune;
mod words;

pub use invocation::Invocation;

/// Collective communication by one-sided RDMA writes over libfabric.
#[derive(Parser)]
#[command(
    name = "unisono",
    version,
    after_help = "\
Start with `unisono doctor`, which checks this machine, and `unisono bench all_reduce`, which measures it.
With RUST_LOG=info, every subcommand logs its choices and their reasons to standard error."
)]
enum Unisono {
    Run(run::Run),
    Bench(bench::BenchCommand),
    Broadcast(broadcast::Broadcast),
    Doctor(doctor::Doctor),
    Tune(tune::Tune),
    Simulate(cost::simulate::Simulate),
    Explain(cost::explain::Explain),
    Compare(cost::compare::Compare),
    Completions(generate::Completions),
    Man(generate::Man),
}

/// The subcommands that the program starts by itself, each by the NAME of its module. They are separate, so that a mistyped command does
/// not suggest one of them.
#[derive(Parser)]
#[command(name = "unisono")]
enum OwnCommand {
    MeasureOneRank(cost::measure_rank::OneRank),
    RunGuard,
    DoctorOneRank,
    DoctorTopology,
    RunOneRank(run::rank::RunRank),
    RunRanksOfHost,
}

/// The log filter if RUST_LOG is not set. The program prints the failure of a group itself.
const UNASKED: &str = "warn,unisono::failure=off";

fn write_error(line: &str) {
    // If standard error is closed, there is no reader.
    drop(io::stderr().write_all(line.as_bytes()));
}

/// The result of a subcommand, or why it failed.
type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The exit status of a subcommand. Prints its error.
fn status<T: Termination, E: Into<Box<dyn Error>>>(
    name: &str,
    result: std::result::Result<T, E>,
) -> ExitCode {
    let error = match result {
        Ok(done) => return done.report(),
        Err(error) => error.into(),
    };
    // If a reader such as `head` closed the output, this is no error.
    let closed = |error: &io::Error| error.kind() == ErrorKind::BrokenPipe;
    if !error.downcast_ref().is_some_and(closed) {
        complain!("unisono {name}: {error}");
    }
    ExitCode::FAILURE
}

/// Writes the library's log to standard error: warnings, or what RUST_LOG asks for.
fn listen() {
    let asked = || EnvFilter::builder().with_default_directive(LevelFilter::WARN.into());
    let filter = match asked().try_from_env() {
        Ok(filter) => filter,
        Err(error) if error.source().is_some_and(<dyn Error>::is::<VarError>) => EnvFilter::new(UNASKED),
        Err(_) => asked().from_env_lossy(),
    };
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    // It fails only if the process has a subscriber already.
    let _ = lines.without_time().with_target(false).with_ansi(false).try_init();
}

/// Runs the program and returns its exit status. To be called once, on the main thread.
///
/// Standard output is not flushed, because a thread that cannot write it may hold its lock; nothing is lost, because all output ends
/// with the end of a line.
pub fn main(invocation: Invocation) -> ExitCode {
    invocation.install();
    listen();
    let name = OsString::from("unisono");
    let words = iter::once(&name).chain(invocation::arguments());
    let first = invocation::arguments().first().map(|word| word.to_string_lossy());
    let parsed = match first.is_some_and(|word| OwnCommand::has_subcommand(&word)) {
        true => OwnCommand::try_parse_from(words).map(OwnCommand::run),
        false => Unisono::try_parse_from(words).map(Unisono::run),
    };
    match parsed {
        Ok(status) => status,
        Err(error) => {
            // If standard output or error is closed, there is no reader.
            let _ = error.print();
            ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(u8::MAX))
        }
    }
}

impl Unisono {
    fn run(self) -> ExitCode {
        match self {
            Self::Run(run) => status("run", run.run()),
            Self::Doctor(doctor) => status("doctor", doctor.run()),
            Self::Bench(bench) => status("bench", bench.run()),
            Self::Broadcast(broadcast) => status("broadcast", broadcast.run()),
            Self::Tune(tune) => status("tune", tune.run()),
            Self::Simulate(simulate) => status("simulate", simulate.run()),
            Self::Explain(explain) => status("explain", explain.run()),
            Self::Compare(compare) => status("compare", compare.run()),
            Self::Completions(completions) => status("completions", completions.run(Self::command())),
            Self::Man(man) => status("man", man.run(Self::command())),
        }
    }
}

impl OwnCommand {
    fn run(self) -> ExitCode {
        match self {
            Self::MeasureOneRank(rank) => status(cost::measure_rank::NAME, rank.run()),
            Self::RunGuard => run::guard::run(),
            Self::DoctorOneRank => status(doctor::group::NAME, doctor::group::run()),
            Self::DoctorTopology => status(doctor::topology::NAME, doctor::topology::run()),
            Self::RunOneRank(rank) => rank.run(),
            Self::RunRanksOfHost => run::hosts::agent::run(),
        }
    }
}
