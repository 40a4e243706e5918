//! Epochs: which processes make up the world, and how those that remain agree on the next list of them. Pure: no clock, no socket.
//!
//! A world is a list of processes with a number, its **epoch**. Each process is a [`Participant`], which gets what happens as method calls and
//! answers with messages to send. When ranks regroup:
//!
//! 1. A process **asks** the first process of the list that it does not know to be dead or silent. A process that finds all those before it
//!    dead or silent **coordinates**. It calls those that have not asked, and waits until each process of the list has asked, is known to
//!    be dead, or is silent.
//! 2. It **proposes** the next epoch: those that have asked, and newcomers. Each of them **promises** to take part in no proposal of that
//!    number or below any more. If one is lost, the coordinator proposes the others under a higher number.
//! 3. When all have promised, the epoch is **committed**, and the coordinator tells them.
//!
//! Messages may be late, repeated, in any order or lost: a member says what it waits for again ([`Participant::tick`]).
//!
//! # One world goes on
//! A proposal needs a **quorum** of the last epoch that any of its processes knows to be committed, and of each proposal that one of them has
//! promised since, because that may have been committed without its knowledge: more than half of the processes, or half of them with the
//! first, or all that are not known to be dead. Only processes that have certainly ended may count as dead.
//!
//! Two proposals that have a quorum by number have a process in common, which takes part in the later one only. Processes that go on because
//! all others are dead have none in common with those, who may have committed an epoch before they died. But then nobody is left of it,
//! unless it took newcomers in. So an epoch remembers those that it left out and that may live
//! ([`LeftOut`]), and it cannot go on when none is left of those that they know: they may find all others dead, and go on.
//!
//! Leslie Lamport, "The part-time parliament", ACM Transactions on Computer Systems 16(2), 1998, on promises; Diego Ongaro and John
//! Ousterhout, "In search of an understandable consensus algorithm", USENIX Annual Technical Conference, 2014, section 6, on a quorum of both
//! the old list and the new one.

mod coordinator;
mod follower;
mod message;
mod state;
#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, fmt::Debug};

pub use message::{Effects, EpochMessage, RegroupOutcome, RegroupRefusal};
use serde::{Deserialize, Serialize};
pub use state::Participant;

/// The number of an epoch of processes that go on because all others are dead is this much higher: those may have committed epochs before
/// they died.
const SKIPPED: u64 = 1 << 20;

/// The name of a process, which no other ever has.
pub trait ProcessName: Copy + Ord + Debug {}

impl<N: Copy + Ord + Debug> ProcessName for N {}

/// A list of processes with a number. Of two epochs of a world the later has the higher number.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Epoch<N> {
    /// Its number, from 0.
    pub number: u64,
    /// The processes, by rank.
    pub members: Vec<N>,
    /// Those that were left out, in this epoch or before, and may live.
    pub left_out: Vec<LeftOut<N>>,
}

/// Processes of a list that a later one left out, although they may live.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LeftOut<N> {
    /// These processes.
    pub names: Vec<N>,
    /// The processes of the list that went on. As long as one of them lives, those that were left out cannot go on themselves.
    pub by: Vec<N>,
}

impl<N: ProcessName> LeftOut<N> {
    /// True if those that were left out cannot go on beside these processes.
    fn allows(&self, next: &[N], dead: &BTreeSet<N>) -> bool {
        self.is_settled(next, dead) || self.by.iter().any(|name| next.contains(name))
    }

    /// True if this says all that another one says.
    fn implies(&self, other: &Self) -> bool {
        other.names.iter().all(|name| self.names.contains(name))
            && self.by.iter().all(|name| other.by.contains(name))
    }

    /// True if all of them are dead, or back.
    fn is_settled(&self, next: &[N], dead: &BTreeSet<N>) -> bool {
        self.names.iter().all(|name| dead.contains(name) || next.contains(name))
    }
}

impl<N: ProcessName> Epoch<N> {
    /// The first epoch of a world.
    pub fn first(members: Vec<N>) -> Self {
        Self { number: 0, members, left_out: Vec::new() }
    }

    /// True if the process is in the list.
    pub fn has(&self, name: N) -> bool {
        self.members.contains(&name)
    }

    /// The number of processes that are among these.
    fn count(&self, present: &[N]) -> usize {
        self.members.iter().filter(|name| present.contains(name)).count()
    }

    /// True if these are more than half, or half with the first.
    fn has_majority(&self, present: &[N]) -> bool {
        let (here, all) = (self.count(present), self.members.len());
        2 * here > all || 2 * here == all && self.members.first().is_some_and(|first| present.contains(first))
    }

    /// True if these processes may decide what follows this epoch.
    fn has_quorum(&self, present: &[N], dead: &BTreeSet<N>) -> bool {
        let alone = || self.members.iter().all(|name| present.contains(name) || dead.contains(name));
        (self.has_majority(present) || alone()) && self.left_out.iter().all(|left| left.allows(present, dead))
    }

    /// Those that are left out if these processes go on.
    fn leaves_out(&self, next: &[N], dead: &BTreeSet<N>) -> Vec<LeftOut<N>> {
        let (by, gone): (Vec<N>, Vec<N>) = self.members.iter().partition(|name| next.contains(name));
        let names: Vec<N> = gone.into_iter().filter(|name| !dead.contains(name)).collect();
        let before = self.left_out.iter().filter(|left| !left.is_settled(next, dead)).map(|left| {
            let by = left.by.iter().filter(|name| next.contains(name)).copied().collect();
            LeftOut { names: left.names.clone(), by }
        });
        let now = (!names.is_empty()).then_some(LeftOut { names, by });
        before.chain(now).collect()
    }
}

/// Which processes may decide what follows an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Quorum {
    /// More than half, or half with the first, or all that are not known to be dead.
    #[default]
    Majority,
    /// Any. If a world is cut in two, both halves go on, without each other.
    Any,
}

/// The ranks that newcomers get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Places {
    /// Those after all that remain, which keep their order and close the holes.
    #[default]
    Last,
    /// Those of processes that are gone, and then those after all that remain.
    Holes,
}

/// What the ranks that regroup want; the same on all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RegroupOptions {
    /// The least number of processes of the next epoch.
    pub least: usize,
    /// Which processes may decide.
    pub quorum: Quorum,
    /// The ranks of newcomers.
    pub places: Places,
}
