//! The program `unisono`: reads the command line and hands on to one subcommand.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod bench;
mod doctor;
mod run;

/// Collective communication by one-sided RDMA writes over libfabric.
#[derive(Parser)]
#[command(
    name = "unisono",
    version,
    after_help = "\
Begin with `unisono doctor`, which says what works here, and `unisono bench all_reduce --ranks 4`."
)]
struct Unisono {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Run),
    Bench(bench::Bench),
    Doctor(doctor::Doctor),
    #[command(name = run::guard::NAME, hide = true)]
    Guard(run::guard::Guard),
    #[command(name = doctor::end::NAME, hide = true)]
    DoctorEnd(doctor::end::End),
    #[command(name = doctor::group::NAME, hide = true)]
    DoctorRank(doctor::group::OneRank),
    #[command(name = run::rank::NAME, hide = true)]
    Rank(run::rank::Rank),
}

fn main() -> ExitCode {
    match Unisono::parse().command {
        Command::Run(run) => run.run(),
        Command::Doctor(doctor) => doctor.run(),
        Command::Bench(bench) => bench.run(),
        Command::Guard(guard) => guard.run(),
        Command::DoctorEnd(end) => end.run(),
        Command::DoctorRank(rank) => rank.run(),
        Command::Rank(rank) => rank.run(),
    }
}
