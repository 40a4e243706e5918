//! The ranks' side: runs the role for which the suite started this process.

use std::{
    error::Error,
    fmt,
    io::Write,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use rustix::{
    process::{Signal, getpid, kill_process, set_parent_process_death_signal},
    time::{ClockId, clock_gettime},
};
use unisono::{Config, Failure, ProcessGroup, config::StoreAddress, rendezvous::Store};
use unisono_transport::{mux::Mux, ofi::Options, shm};

use crate::world::PATIENCE;

/// The variable with the seconds after which a rank ends itself, if these are not [`PATIENCE`].
pub(crate) const LIMIT: &str = "PROCESSES_LIMIT";

/// The variable that makes a process a rank: its role, and the role's arguments.
pub(crate) const ROLE: &str = "PROCESSES_ROLE";
/// The environment variable that asks for few cases of each kind.
pub(crate) const BRIEF: &str = "PROCESSES_BRIEF";
/// The stores of the groups it joins, one after the other.
pub(crate) const STORES: &str = "PROCESSES_STORES";

/// The name of shared memory and TCP together in `UNISONO_TEST_PROVIDERS`.
pub(crate) const MUX: &str = "mux";

/// The name of the default provider.
pub(crate) const DEFAULT: &str = "default";

/// What a rank does, or its error.
pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// How a role ends.
pub(crate) type Outcome = Result<()>;

/// A role's name, and its function, which gets the arguments.
pub(crate) type Role = (&'static str, fn(&str) -> Outcome);

/// Runs one of these roles, `NAME` or `NAME ARGUMENTS`.
pub(crate) fn run(message: &str, roles: &[&[Role]]) -> ExitCode {
    // Neither an end of the suite nor a call that hangs leaves it running.
    let tied = set_parent_process_death_signal(Some(Signal::KILL));
    thread::spawn(|| {
        let limit = std::env::var(LIMIT).ok().and_then(|limit| limit.parse().ok());
        thread::sleep(limit.map_or(PATIENCE, Duration::from_secs));
        eprintln!("the watchdog ends this rank");
        std::process::exit(99);
    });
    let (name, arguments) = message.split_once(' ').unwrap_or((message, ""));
    let role = roles.concat().into_iter().find(|role| role.0 == name);
    let outcome = match (tied, role) {
        (Err(error), _) => Err(error.into()),
        (Ok(()), None) => Err(format!("there is no role {name}").into()),
        (Ok(()), Some((_, role))) => role(arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{message}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The configuration with which this process joins the `number`-th of its groups.
pub(crate) fn config(number: usize) -> Result<Config> {
    let stores = std::env::var(STORES)?;
    let store = stores.split(' ').nth(number).ok_or("more groups than stores")?;
    Ok(Config { store: Some(StoreAddress::parse(store)?), ..Config::from_env()? })
}

/// Joins the only group of this process.
pub(crate) fn join() -> Result<ProcessGroup> {
    Ok(join_with(config(0)?)?)
}

/// Joins like `ProcessGroup::join`. Over [`MUX`], ranks of even and of odd numbers count as two hosts.
pub(crate) fn join_with(config: Config) -> unisono::Result<ProcessGroup> {
    if config.provider.as_deref() != Some(MUX) {
        return ProcessGroup::join(config);
    }
    let config = Config { provider: Some("shm,tcp".to_owned()), ..config };
    let store = config.store.as_ref();
    let within = Instant::now() + config.join_timeout;
    let store = store.map(|store| Store::open(store, &config.member(), within)).transpose();
    let store = store.map_err(|error| config.cannot_join(error))?;
    let tcp = Options { provider: Some("tcp".to_owned()), ..unisono::group::transport_options(&config) };
    let (shm, scope) = (shm::Endpoint::open()?, config.rank as u128 % 2);
    let mux = Mux::new(scope, Some(shm), unisono::group::open_transport(&tcp)?);
    ProcessGroup::with(config, Box::new(mux), store)
}

/// Waits until all ranks have called it. A rank that still waits may already get the failure of the others' next call; its next call returns it.
pub(crate) fn meet(group: &ProcessGroup) {
    drop(group.barrier());
}

/// Prints a line for the parent: a keyword and a value.
pub(crate) fn say(key: &str, what: impl fmt::Display) {
    // One write, so that a kill cannot cut the line. If the parent has ended, the line is lost.
    let line = format!("{key} {}\n", what.to_string().replace('\n', " "));
    let _ = std::io::stdout().write_all(line.as_bytes());
}

/// Microseconds on a clock that all processes share.
pub(crate) fn now() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000 + now.tv_nsec / 1000
}

/// Prints the time, and ends or stops this process at once.
pub(crate) fn signal_myself(signal: Signal) -> Outcome {
    say("signalled", now());
    Ok(kill_process(getpid(), signal)?)
}

/// The failure of a call that had to fail.
pub(crate) fn failure(result: unisono::Result<()>) -> Result<Failure> {
    match result {
        Err(unisono::Error::Failed(failure)) => Ok(failure),
        Err(error) => Err(format!("not a failure of the group: {error}").into()),
        Ok(()) => Err("a call that had to fail did not".into()),
    }
}

/// Makes calls until one fails. Prints the time and the failure, and checks that the next call fails with the same failure.
pub(crate) fn until_failure(
    group: &ProcessGroup,
    mut call: impl FnMut(&ProcessGroup) -> unisono::Result<()>,
) -> Result<Failure> {
    let begun = Instant::now();
    let result = loop {
        let result = call(group);
        if result.is_err() || begun.elapsed() > Duration::from_secs(60) {
            break result;
        }
    };
    say("failed", now());
    let first = failure(result)?;
    say("failure", &first);
    let again = failure(group.barrier())?;
    if again != first {
        return Err(format!("a later call fails otherwise: {again}").into());
    }
    Ok(first)
}
