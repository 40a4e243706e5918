//! A suite of real ranks as real processes: starts itself again as the ranks, and runs its cases over each provider.
//!
//! The suite names its providers, which must run. If `UNISONO_TEST_PROVIDERS` names providers (separated by commas, for instance
//! `verbs`; `default` is what is taken if none is named; `mux` is memory shared between ranks of even numbers and between those of odd ones, and TCP between both), only these
//! run, and must. An argument that is no option selects cases whose name contains it, as in any test; if providers are named, at
//! least one case must run.

use std::{net::Ipv4Addr, process::ExitCode, thread, time::Instant};

use unisono_transport::ofi::Options;

use crate::{
    arguments,
    rank::{self, Role},
};

/// The result of a case: its verdict, or what is wrong.
pub(crate) type Outcome = Result<Verdict, Box<dyn std::error::Error>>;

/// The verdict on a case that did not fail.
#[derive(Debug)]
pub(crate) enum Verdict {
    Passed,
    /// It passed, with this remark.
    Measured(String),
    /// It cannot run here, for this reason.
    Skipped(String),
}

/// Names of cases, and their functions, which get the provider's name.
pub(crate) type Table = &'static [(&'static str, fn(&str) -> Outcome)];

/// A case as a closure.
pub(crate) type Case = Box<dyn Fn(&str) -> Outcome + Send>;

/// Ends a case with a message unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+).into());
        }
    };
}
pub(crate) use ensure;

/// Cases by name.
pub(crate) type Cases = Vec<(String, Case)>;

/// The cases of these tables.
pub(crate) fn of(tables: &[Table]) -> Cases {
    let all = tables.concat().into_iter();
    all.map(|(name, case)| (name.to_owned(), Box::new(case) as Case)).collect()
}

/// True if few cases of each kind shall run: on a slow (emulated) machine, and in `make test`.
pub(crate) fn brief() -> bool {
    [BRIEF, rank::BRIEF].iter().any(|name| std::env::var_os(name).is_some())
}

/// The variable that asks for it. Ranks have another, because the library warns of variables with its prefix that it does not
/// know.
pub(crate) const BRIEF: &str = "UNISONO_TEST_BRIEF";

/// The variable that names providers. Ranks do not need it.
pub(crate) const PROVIDERS: &str = "UNISONO_TEST_PROVIDERS";

/// Runs all cases over every provider, the `waiting` ones concurrently with the others; or runs the role of this process.
pub(crate) fn main(
    (suite, providers): (&str, &str),
    cases: fn(&str) -> Cases,
    waiting: fn(&str) -> Cases,
    roles: &[&[Role]],
) -> ExitCode {
    if let Ok(role) = std::env::var(rank::ROLE) {
        return rank::run(&role, roles);
    }
    let filter = arguments::filter();
    let named = std::env::var(PROVIDERS);
    let mut failed = false;
    for provider in named.as_deref().unwrap_or(providers).split(',') {
        // Software providers stay on the loopback; a NIC cannot reach it and is chosen by the default.
        let towards = (!provider.starts_with("verbs")).then_some(Ipv4Addr::LOCALHOST.into());
        let options =
            Options { provider: Some(provider.into()), towards, arrivals: 1024, ..Options::default() };
        let name = format!("{suite} over {provider}");
        let opened = match provider {
            rank::MUX => Options { provider: Some("shm,tcp".into()), ..options },
            rank::DEFAULT => Options { provider: None, ..options },
            _ => options,
        };
        match unisono::group::open_transport(&opened) {
            Err(error) => {
                println!("FAILED   {name}: it does not open: {error}");
                failed = true;
            }
            Ok(endpoint) => {
                drop(endpoint);
                failed |= judge(provider, &name, &filter, named.is_ok(), cases(provider), waiting(provider));
            }
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// The results of cases.
#[derive(Clone, Copy, Default)]
struct Went {
    count: usize,
    skipped: usize,
    failed: bool,
}

/// Runs all cases over a provider. Returns whether one failed or, if one must run, whether none did.
fn judge(provider: &str, name: &str, filter: &str, must: bool, cases: Cases, waiting: Cases) -> bool {
    let begun = Instant::now();
    let chosen = |mut cases: Cases| {
        cases.retain(|(case, _)| case.contains(filter));
        cases
    };
    let (cases, waiting) = (chosen(cases), chosen(waiting));
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

/// Runs cases, one after the other, and prints the result of each.
fn run(provider: &str, name: &str, cases: Cases) -> Went {
    let mut went = Went::default();
    for (case, run) in cases {
        match one(&format!("{name}: {case}"), || run(provider)) {
            Some(passed) => {
                went.count += 1;
                went.failed |= !passed;
            }
            None => went.skipped += 1,
        }
    }
    went
}

/// Runs a case and prints its result. Returns whether it passed; `None` if it was skipped.
pub(crate) fn one(name: &str, case: impl FnOnce() -> Outcome) -> Option<bool> {
    let begun = Instant::now();
    let outcome = case();
    let seconds = begun.elapsed().as_secs_f32();
    match &outcome {
        Ok(Verdict::Passed) => println!("ok       {name} ({seconds:.2} s)"),
        Ok(Verdict::Measured(what)) => println!("ok       {name} ({seconds:.2} s): {what}"),
        Ok(Verdict::Skipped(why)) => {
            println!("SKIPPED: {name}: {why}");
            return None;
        }
        Err(error) => println!("FAILED   {name} ({seconds:.2} s): {error}"),
    }
    Some(outcome.is_ok())
}
