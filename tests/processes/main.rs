//! Real ranks as real processes over libfabric: the collectives against an oracle, messages, failures, refusals at join.
//!
//! The suite starts itself again as the ranks, which meet at stores that it serves. `tcp` must run; `shm` is skipped
//! with the reason where the machine has none. If `UNISONO_TEST_PROVIDERS` names providers (separated by commas, for
//! instance `verbs`), these and no others run, and must. `UNISONO_TEST_RANKS` says with how many ranks to run the
//! collectives, 1,2,3,4,8 if it is not set; with `UNISONO_TEST_BRIEF` they are tried with fewer types and counts. `UNISONO_TEST_GAP` says how many seconds
//! ranks leave apart, 6 if it is not set; `UNISONO_TEST_CASES` and `UNISONO_TEST_SEED` are the random campaign's. An
//! argument that is no option selects cases whose name contains it, as with any test; where providers are named, one at
//! least must run.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test's own defects may end it")]

#[path = "../../transport/tests/arguments/mod.rs"]
mod arguments;
mod blocks;
mod chaos;
mod collectives;
mod ending;
mod failures;
mod files;
mod forking;
mod groups;
mod joining;
mod leaving;
mod memlock;
mod messages;
mod mismatch;
mod numbers;
mod objects;
mod pinning;
#[path = "../ports/mod.rs"]
mod ports;
mod rank;
mod signals;
mod strangers;
mod stuck;
mod world;

use std::{net::Ipv4Addr, process::ExitCode, thread, time::Instant};

use unisono_transport::{
    Error,
    ofi::{Ofi, Options},
};

/// How a case ends: well, perhaps with a remark for the reader, or with what is wrong.
type Outcome = Result<Verdict, Box<dyn std::error::Error>>;

/// What there is to say of a case that did not fail.
#[derive(Debug)]
enum Verdict {
    Passed,
    /// It passed, and this was measured.
    Measured(String),
    /// It has no sense here.
    Skipped(String),
}

/// Cases by name; each is given the provider's.
type Table = &'static [(&'static str, fn(&str) -> Outcome)];

/// A case that knows more than the provider's name.
type Case = Box<dyn Fn(&str) -> Outcome + Send>;

/// Ends a case with a message unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+).into());
        }
    };
}
pub(crate) use ensure;

fn cases() -> Vec<(String, Case)> {
    let ranks = std::env::var("UNISONO_TEST_RANKS").unwrap_or_else(|_| "1,2,3,4,8".into());
    let mut cases: Vec<(String, Case)> = Vec::new();
    for ranks in ranks.split(',').map(|ranks| ranks.parse().expect("UNISONO_TEST_RANKS holds numbers")) {
        let case: Case = Box::new(move |provider| collectives::case(provider, ranks));
        cases.push((format!("collectives, {ranks} ranks"), case));
    }
    let tables = [
        messages::CASES,
        objects::CASES,
        pinning::CASES,
        files::CASES,
        groups::CASES,
        failures::CASES,
        mismatch::CASES,
        joining::CASES,
        ending::CASES,
        signals::CASES,
        memlock::CASES,
        strangers::CASES,
        chaos::CASES,
        stuck::CASES,
    ];
    cases.extend(of(&tables));
    cases
}

/// Cases that mostly wait; they run beside the others.
fn waiting() -> Vec<(String, Case)> {
    of(&[forking::CASES, leaving::CASES, stuck::WAITING]).collect()
}

fn of(tables: &[Table]) -> impl Iterator<Item = (String, Case)> + use<> {
    tables.concat().into_iter().map(|(name, case)| (name.to_owned(), Box::new(case) as Case))
}

fn main() -> ExitCode {
    if let Ok(role) = std::env::var(rank::ROLE) {
        return rank::run(&role);
    }
    let filter = arguments::filter();
    let named = std::env::var("UNISONO_TEST_PROVIDERS");
    let mut failed = false;
    for provider in named.as_deref().unwrap_or("tcp,shm").split(',') {
        // Software providers stay on the loopback; a card has no way to it and chooses for itself.
        let towards = (!provider.starts_with("verbs")).then_some(Ipv4Addr::LOCALHOST.into());
        let options =
            Options { provider: Some(provider.into()), towards, arrivals: 1024, ..Options::default() };
        let name = format!("processes over {provider}");
        match Ofi::open(&options) {
            Err(error @ Error::NoProvider { .. }) if named.is_err() && provider == "shm" => {
                println!("SKIPPED  {name}: {error}")
            }
            Err(error) => {
                println!("FAILED   {name}: it does not open: {error}");
                failed = true;
            }
            Ok(endpoint) => {
                drop(endpoint);
                failed |= judge(provider, &name, &filter, named.is_ok());
            }
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// How cases went.
#[derive(Clone, Copy, Default)]
struct Went {
    count: usize,
    skipped: usize,
    failed: bool,
}

/// Runs all cases over a provider; says whether any failed, or, if some must run, none did.
fn judge(provider: &str, name: &str, filter: &str, must: bool) -> bool {
    let begun = Instant::now();
    let chosen = |mut cases: Vec<(String, Case)>| {
        cases.retain(|(case, _)| case.contains(filter));
        cases
    };
    let (cases, waiting) = (chosen(cases()), chosen(waiting()));
    let [one, other] = thread::scope(|scope| {
        let waiting = scope.spawn(|| run(provider, name, waiting));
        [run(provider, name, cases), waiting.join().expect("no case panics")]
    });
    let count = one.count + other.count;
    let mut failed = one.failed || other.failed;
    if must && count == 0 {
        let why = match one.skipped + other.skipped {
            0 => "no case has it in its name",
            _ => "every case that has it in its name was skipped",
        };
        println!("FAILED   {name}: {filter:?} must run here, and {why}");
        failed = true;
    }
    if !failed {
        println!("RAN      {name}: {count} cases in {:.2} s", begun.elapsed().as_secs_f32());
    }
    failed
}

/// Runs cases, one after the other, and prints how each went.
fn run(provider: &str, name: &str, cases: Vec<(String, Case)>) -> Went {
    let mut went = Went::default();
    for (case, run) in cases {
        let begun = Instant::now();
        let outcome = run(provider);
        let seconds = begun.elapsed().as_secs_f32();
        match outcome {
            Ok(Verdict::Passed) => println!("ok       {name}: {case} ({seconds:.2} s)"),
            Ok(Verdict::Measured(what)) => println!("ok       {name}: {case} ({seconds:.2} s): {what}"),
            Ok(Verdict::Skipped(why)) => {
                println!("SKIPPED  {name}: {case}: {why}");
                went.skipped += 1;
                continue;
            }
            Err(error) => {
                println!("FAILED   {name}: {case} ({seconds:.2} s): {error}");
                went.failed = true;
            }
        }
        went.count += 1;
    }
    went
}
