//! Ranks on several hosts: network namespaces with links between them that can be cut, filtered and narrowed.
//!
//! `make test-hosts` runs it. It needs root, Linux' namespaces and iproute2, and is SKIPPED with the reason if one is missing. A
//! case makes its hosts ([`Hosts`]), starts ranks on them, and checks their output. An argument that is no option selects cases
//! whose name contains it. `UNISONO_TEST_PROVIDERS` names providers, with spaces between them: `tcp` and, with memory shared within a
//! host, `shm,tcp` if it is not set.
//!
//! A new case is a function in its own file here, and a row in that file's `CASES`; what its ranks do is a row of
//! `ROLES`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test's own defects may end it")]

mod alone;
#[path = "../../transport/tests/arguments/mod.rs"]
mod arguments;
mod cuts;
mod forgetful;
mod idle;
#[allow(
    dead_code,
    reason = "not every state of the suite has a case for each thing that can be done to hosts"
)]
mod network;
#[path = "../ports/mod.rs"]
#[allow(dead_code, reason = "shared with the suite of processes, which uses more of it")]
mod ports;
#[path = "../processes/rank.rs"]
#[allow(dead_code, reason = "shared with the suite of processes, which uses more of it")]
mod rank;
mod reach;
mod slow_link;
#[path = "../processes/suite.rs"]
#[allow(dead_code, reason = "shared with the suite of processes, which uses more of it")]
mod suite;
#[path = "../processes/world.rs"]
#[allow(dead_code, reason = "shared with the suite of processes, which uses more of it")]
mod world;
mod worlds;

use std::{
    process::ExitCode,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::Instant,
};

use network::Hosts;
use rank::say;
pub(crate) use suite::{Outcome, Table, Verdict, ensure};
use unisono::{Config, ProcessGroup};

/// The number of cases that run at once: each has its own hosts, and mostly waits.
const AT_ONCE: usize = 4;

const TABLES: &[Table] = &[cuts::CASES, idle::CASES, worlds::CASES, alone::CASES, reach::CASES];
/// Measurements, which run one after the other when all cases have ended.
const BENCHES: Table = slow_link::CASES;

fn main() -> ExitCode {
    if let Ok(role) = std::env::var(rank::ROLE) {
        return rank::run(&role, &[worlds::ROLES, alone::ROLES, cuts::ROLES, idle::ROLES, slow_link::ROLES]);
    }
    // As part of `cargo test`, this would double the suite's time, and run as root although nobody asked for it.
    if std::env::var_os("UNISONO_TEST_HOSTS").is_none() {
        println!("SKIPPED: hosts: `make test-hosts` runs them");
        return ExitCode::SUCCESS;
    }
    if let Err(why) = Hosts::possible() {
        println!("SKIPPED: hosts: {why}");
        return ExitCode::SUCCESS;
    }
    let filter = arguments::filter();
    let providers = std::env::var("UNISONO_TEST_PROVIDERS").unwrap_or_else(|_| "tcp shm,tcp".into());
    let (begun, count, failed) = (Instant::now(), AtomicUsize::new(0), AtomicBool::new(false));
    for (table, at_once) in [(TABLES.concat(), AT_ONCE), (BENCHES.to_vec(), 1)] {
        let cases = || table.iter().filter(|(case, _)| case.contains(&filter));
        let cases: Vec<_> =
            providers.split_whitespace().flat_map(|provider| cases().map(move |it| (provider, it))).collect();
        let next = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..at_once {
                scope.spawn(|| {
                    while let Some((provider, (case, run))) = cases.get(next.fetch_add(1, Ordering::Relaxed))
                    {
                        let name = format!("hosts over {provider}: {case}");
                        if let Some(passed) = suite::one(&name, || run(provider)) {
                            count.fetch_add(1, Ordering::Relaxed);
                            failed.fetch_or(!passed, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
    }
    let (count, failed) = (count.into_inner(), failed.into_inner());
    if failed {
        return ExitCode::FAILURE;
    }
    println!("RAN      hosts: {count} cases in {:.2} s", begun.elapsed().as_secs_f32());
    ExitCode::SUCCESS
}

/// Joins the group that the environment describes. Prints the time that this took, in milliseconds, and the error.
fn join() -> Result<ProcessGroup, Box<dyn std::error::Error>> {
    let begun = Instant::now();
    let joined = Config::from_env().and_then(ProcessGroup::join);
    say("joining took", begun.elapsed().as_millis());
    Ok(joined.inspect_err(|error| say("error", error))?)
}
