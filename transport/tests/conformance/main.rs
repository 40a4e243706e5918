//! One suite for every transport: each implementation of `Transport` must pass all cases.
//!
//! `inproc`, `sim`, `shm`, `mux` (shm beside another) and `ofi:tcp` must run. If `UNISONO_TEST_PROVIDERS` names others (separated by commas: providers of
//! libfabric, for instance `verbs`, or what [`Between::named`] has beside), these and no others run, and must. An argument that is no option
//! selects cases whose name contains it, as with any test; where providers are named, it must select one.

#[path = "../arguments/mod.rs"]
mod arguments;
mod kit;
mod landing;
mod lifetime;
mod mapping;
mod processes;
mod reading;
mod refusal;
#[path = "../sim/mod.rs"]
mod sim;
mod waiting;

use std::{
    panic::{self, AssertUnwindSafe},
    process::ExitCode,
    time::Instant,
};

use kit::{Between, Case, Kind, PROVIDERS};

/// One case: its name, and what it does.
const CASES: &[(&str, Case)] = &[
    ("puts of every size land whole", landing::every_size),
    ("sources are gathered", landing::gathered),
    ("copies land as they were", landing::copies),
    ("immediates of every value arrive", landing::immediates),
    ("a flood is stopped, and flows on", landing::flood),
    ("thousands of small puts", landing::small_flood),
    ("both directions at once", landing::both_ways),
    ("three endpoints, each to each and to itself", landing::each_to_each),
    ("several threads", landing::threads),
    ("no source out of bounds", refusal::out_of_bounds),
    ("no malformed put", refusal::malformed),
    ("no unregistered source where one is needed", refusal::unregistered),
    ("no foreign address", refusal::foreign_address),
    ("an address has one peer", refusal::one_peer_per_address),
    ("a key that was guessed opens nothing", refusal::guessed_keys),
    ("a source let go at once is still sent", lifetime::source_let_go),
    ("what was reported as sent outlives its endpoint", lifetime::reported),
    ("dropped in every order", lifetime::drop_orders),
    ("what nobody has read does no harm", lifetime::unread),
    ("regions come and go beside the traffic", lifetime::regions_beside_traffic),
    ("memory at the place of other memory is written", lifetime::place_of_others),
    ("a region taken back is not written", lifetime::taken_back),
    ("a region that outlives its endpoint is not written", lifetime::outlives),
    ("a peer that is gone is no hang", lifetime::peer_gone),
    ("parking ends with the timeout", waiting::timeout),
    ("parking ends with an arrival", waiting::arrival),
    ("parking ends when it is woken", waiting::wake),
    ("parking ends with another descriptor", waiting::beside),
    ("memory of a peer's is read in place", mapping::read_in_place),
    ("memory that was not allocated is not mapped", mapping::registered),
    ("a region that is not there is not mapped", mapping::nowhere),
    ("mapped memory outlives what it is of", mapping::outlives),
    ("memory of a peer's process is read where it lies", reading::exact),
    ("memory that a peer does not have is not read", reading::absent),
    ("memory of a peer that is closed is not read", reading::closed),
    ("parking does not sleep if it is ready", mapping::ready),
    ("parking ends when a peer notifies", mapping::notified),
    ("what comes between the look and the sleep is not lost", mapping::between),
    ("no notice is lost in many rounds", mapping::many_rounds),
];

/// The result of one transport: how many cases passed, or those that failed.
type Verdict = Result<usize, Vec<String>>;

fn main() -> ExitCode {
    if let Some(provider) = std::env::var_os(processes::CHILD) {
        return processes::child(&provider.to_string_lossy());
    }
    let filter = arguments::filter();
    let level = tracing_subscriber::EnvFilter::try_from_default_env();
    if let Ok(level) = level {
        tracing_subscriber::fmt().with_env_filter(level).init();
    }
    let mut names = CASES.iter().map(|case| case.0).chain(processes::CASES.iter().map(|case| case.0));
    let mut failed = std::env::var_os(PROVIDERS).is_some() && names.all(|name| !name.contains(&filter));
    if failed {
        println!("FAILED   {filter:?} must run here, and no case has it in its name");
    }
    for kind in Kind::all() {
        let name = &kind.name;
        failed |= report(name, || judge(&kind, &filter));
        if let Some(between) = kind.between {
            failed |= report(&format!("{name} between processes"), || judge_processes(between, &filter));
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Runs and prints; says whether it failed.
fn report(name: &str, run: impl FnOnce() -> Verdict) -> bool {
    let began = Instant::now();
    let verdict = run();
    let seconds = began.elapsed().as_secs_f32();
    match verdict {
        Ok(count) => println!("RAN      {name}: {count} cases in {seconds:.2} s"),
        Err(cases) => {
            cases.iter().for_each(|case| println!("FAILED   {name}: {case}"));
            return true;
        }
    }
    false
}

/// The cases that need another process.
fn judge_processes(between: Between, filter: &str) -> Verdict {
    let chosen = processes::CASES.iter().filter(|(name, _)| name.contains(filter));
    let outcomes: Vec<_> = chosen.map(|(name, case)| (name, case(between))).collect();
    let count = outcomes.len();
    let failures: Vec<String> = outcomes
        .into_iter()
        .filter_map(|(name, outcome)| outcome.err().map(|error| format!("{name}: {error}")))
        .collect();
    if failures.is_empty() { Ok(count) } else { Err(failures) }
}

fn judge(kind: &Kind, filter: &str) -> Verdict {
    if let Err(error) = kind.opener().pair() {
        return Err(vec![format!("it does not open: {error}")]);
    }
    let chosen = CASES.iter().filter(|(name, _)| name.contains(filter));
    let mut count = 0;
    let mut failures = Vec::new();
    for (name, case) in chosen {
        count += 1;
        let began = Instant::now();
        let outcome = panic::catch_unwind(AssertUnwindSafe(|| case(&mut kind.opener())));
        let seconds = began.elapsed().as_secs_f32();
        if seconds > 1.0 {
            println!("SLOW     {}: {name} took {seconds:.2} s", kind.name);
        }
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(error)) => failures.push(format!("{name}: {error}")),
            Err(_) => failures.push(format!("{name}: it panicked")),
        }
    }
    if failures.is_empty() { Ok(count) } else { Err(failures) }
}
