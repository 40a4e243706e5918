//! The ranks' side: what a process does that the suite started on a host, by its role.

use std::{error::Error, fmt, io::Write, process::ExitCode, thread, time::Instant};

use rustix::process::{Signal, set_parent_process_death_signal};
use unisono::{Config, ProcessGroup};

use crate::{alone, cuts, world::PATIENCE, worlds};

/// The variable that makes a process a rank: its role, and what the role needs to know.
pub(crate) const ROLE: &str = "HOSTS_ROLE";
/// The stores of the groups that it joins; roles here join one, which the environment names.
pub(crate) const STORES: &str = "HOSTS_STORES";

/// How a role ends.
pub(crate) type Outcome = Result<(), Box<dyn Error>>;

/// A role by its name; given what else it was told.
pub(crate) type Role = (&'static str, fn(&str) -> Outcome);

/// Plays a role, `NAME` or `NAME ARGUMENTS`.
pub(crate) fn run(told: &str) -> ExitCode {
    // Neither an end of the suite nor a call that hangs leaves it running.
    let tied = set_parent_process_death_signal(Some(Signal::KILL));
    thread::spawn(|| {
        thread::sleep(PATIENCE);
        eprintln!("the watchdog ends this rank");
        std::process::exit(99);
    });
    let (name, arguments) = told.split_once(' ').unwrap_or((told, ""));
    let role = [worlds::ROLES, alone::ROLES, cuts::ROLES].concat().into_iter().find(|role| role.0 == name);
    let outcome = match (tied, role) {
        (Err(error), _) => Err(error.into()),
        (Ok(()), None) => Err(format!("there is no role {name}").into()),
        (Ok(()), Some((_, role))) => role(arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{told}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Joins the group that the environment describes. Tells how long that took, in milliseconds, and why it failed.
pub(crate) fn join() -> Result<ProcessGroup, Box<dyn Error>> {
    let begun = Instant::now();
    let joined = Config::from_env().and_then(ProcessGroup::join);
    say("joining took", begun.elapsed().as_millis());
    Ok(joined.inspect_err(|error| say("error", error))?)
}

/// Tells the parent something under a keyword.
pub(crate) fn say(key: &str, what: impl fmt::Display) {
    // One write, so that a kill cannot cut the line; a parent that is gone does not listen.
    let line = format!("{key} {}\n", what.to_string().replace('\n', " "));
    let _ = std::io::stdout().write_all(line.as_bytes());
}
