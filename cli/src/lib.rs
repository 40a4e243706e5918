//! The program `unisono`: reads the command line and runs one subcommand.

use std::{
    env::VarError,
    error::Error,
    io::{self, ErrorKind, Write},
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
mod chart;
mod cost;
mod doctor;
mod generate;
mod progress;
mod run;
mod tune;
mod words;

/// Collective communication by one-sided RDMA writes over libfabric.
#[derive(Parser)]
#[command(
    name = "unisono",
    version,
    after_help = "\
Start with `unisono doctor`, which checks this machine, and `unisono bench all_reduce --ranks 4`.
With RUST_LOG=info, every subcommand logs its choices and their reasons to standard error."
)]
struct Unisono {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
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
    #[command(name = cost::measure_rank::NAME, hide = true)]
    MeasureRank(cost::measure_rank::OneRank),
    #[command(name = run::guard::NAME, hide = true)]
    Guard(run::guard::Guard),
    #[command(name = doctor::group::NAME, hide = true)]
    DoctorRank(doctor::group::OneRank),
    #[command(name = run::rank::NAME, hide = true)]
    Rank(run::rank::Rank),
}

/// The log filter if RUST_LOG is not set. The program prints the failure of a group itself.
const UNASKED: &str = "warn,unisono::failure=off";

fn write_error(line: &str) {
    // If standard error is closed, there is no reader.
    drop(io::stderr().write_all(line.as_bytes()));
}

/// The exit status of a subcommand. Prints its error.
fn status<T: Termination, E: Into<Box<dyn Error>>>(name: &str, result: Result<T, E>) -> ExitCode {
    let error = match result {
        Ok(done) => return done.report(),
        Err(error) => error.into(),
    };
    // If a reader such as `head` closed our output, this is no error.
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
    lines.without_time().with_target(false).with_ansi(false).init();
}

fn main() -> ExitCode {
    listen();
    match Unisono::parse().command {
        Command::Run(run) => run.run(),
        Command::Doctor(doctor) => doctor.run(),
        Command::Bench(bench) => bench.run(),
        Command::Broadcast(broadcast) => broadcast.run(),
        Command::Tune(tune) => tune.run(),
        Command::Simulate(simulate) => simulate.run(),
        Command::Explain(explain) => explain.run(),
        Command::Compare(compare) => compare.run(),
        Command::Completions(completions) => completions.run(Unisono::command()),
        Command::Man(man) => man.run(Unisono::command()),
        Command::MeasureRank(rank) => rank.run(),
        Command::Guard(guard) => guard.run(),
        Command::DoctorRank(rank) => rank.run(),
        Command::Rank(rank) => rank.run(),
    }
}
