//! Finds the ranks on this host, and the provider by which they reach each other.

use unisono::group::describe_transport;

use super::{
    environment::LaunchInfo, machine::Machine, picture, report::Section, self_test::SelfTest, shared::SHM,
};
use crate::words::{host, some};

/// Judges the ranks of a job: those that a launcher started, this process among them, or those of this host that are asked about.
/// `here` is their number on this host, if it is known. `None` if there are no ranks.
pub(super) fn judge(
    launched: Option<&LaunchInfo>,
    here: Option<usize>,
    machine: &Machine,
    self_test: &SelfTest,
) -> Option<Section> {
    let mut section = Section::new("ranks");
    let name = host();
    let place = machine.hardware.as_ref().ok().map(picture::place);
    match (launched, here) {
        (Some(launch), here) => {
            section.note(placed(launch, here, &name));
            let place = place.map_or_else(String::new, |place| format!("; it may use {place}"));
            section.note(format!("this is rank {}{place}", launch.rank));
        }
        (None, Some(here)) => section.note(format!("{} on this host ({name})", some(here, "rank"))),
        (None, None) => return None,
    }
    let several = launched.is_some_and(|launch| here.is_none_or(|here| here < launch.ranks));
    if let Some(provider) = provider(self_test, several) {
        section.ok(describe_transport(&provider));
    }
    Some(section)
}

/// Which of the ranks are on this host.
fn placed(launch: &LaunchInfo, here: Option<usize>, name: &str) -> String {
    let ranks = some(launch.ranks, "rank");
    let Some(here) = here else {
        return format!("{ranks}; the launcher does not say how many are on this host ({name})");
    };
    if here >= launch.ranks {
        return format!("{ranks}, all on this host ({name})");
    }
    let first = launch.local_rank.and_then(|local| launch.rank.checked_sub(local));
    let which = match first {
        Some(first) if here > 1 && first + here <= launch.ranks => {
            format!("; where ranks are numbered host by host, {first} to {}", first + here - 1)
        }
        _ => String::new(),
    };
    format!("{ranks}, {here} of them on this host ({name}){which}")
}

/// The name, as a group has it, of the provider by which ranks of one host or of several reach each other, if it works here.
fn provider(self_test: &SelfTest, several: bool) -> Option<String> {
    let inside = &self_test.on_one_host()?.provider;
    if !several {
        return Some(inside.clone());
    }
    let between = &self_test.between_hosts()?.provider;
    Some(if inside == SHM && between != SHM { format!("{SHM},{between}") } else { between.clone() })
}
