//! Files among real processes over libfabric, by the suite of processes that the library has (`tests/processes`).

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test's own defects may end it")]

#[path = "../../../transport/tests/arguments/mod.rs"]
mod arguments;
mod cases;
#[path = "../../../tests/ports/mod.rs"]
mod ports;
#[path = "../../../tests/processes/rank.rs"]
#[allow(dead_code, reason = "not all of it is needed here")]
mod rank;
#[path = "../../../tests/processes/suite.rs"]
#[allow(dead_code, reason = "not all of it is needed here")]
mod suite;
#[path = "../../../tests/processes/world.rs"]
#[allow(dead_code, reason = "not all of it is needed here")]
mod world;

use std::process::ExitCode;

use suite::{Outcome, Table, Verdict, ensure};

fn main() -> ExitCode {
    suite::main(("transfers", "tcp,shm"), |_| suite::of(&[cases::CASES]), |_| Vec::new(), &[cases::ROLES])
}
