//! The state of a process that may regroup, and what follows from it.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Effects, Epoch, ProcessName, RegroupOptions,
    message::{RegroupOutcome, RegroupRefusal},
};

/// A process of an epoch, or a newcomer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Participant<N> {
    pub(super) me: N,
    /// The last epoch that it knows to be committed; `None` for a newcomer.
    pub(super) committed: Option<Epoch<N>>,
    /// The proposals that it has promised since, the lowest number first.
    pub(super) promised: Vec<Epoch<N>>,
    /// A newcomer: the processes that it can ask.
    pub(super) contacts: Vec<N>,
    /// Newcomers that have asked while this process did not regroup.
    pub(super) knocking: BTreeSet<N>,
    /// Processes that have certainly ended.
    pub(super) dead: BTreeSet<N>,
    /// Its last epoch, if others have gone on without it and it has come back as a newcomer.
    pub(super) former: Option<Epoch<N>>,
    /// An epoch that others have committed without this process.
    pub(super) behind: Option<Epoch<N>>,
    pub(super) call: Option<Call<N>>,
}

/// A regroup under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Call<N> {
    pub(super) options: RegroupOptions,
    pub(super) role: RegroupRole<N>,
    /// Processes that have not answered.
    pub(super) silent: BTreeSet<N>,
}

/// What a process does in a regroup.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum RegroupRole<N> {
    /// It has asked this process.
    Asks(N),
    /// It has promised the latest proposal of this process.
    Promised(N),
    /// Others ask it.
    Coordinates(Coordinates<N>),
}

/// What a process has said when it asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Asked<N> {
    /// The proposals that it has promised since the last epoch.
    pub(super) promised: Vec<Epoch<N>>,
    pub(super) options: RegroupOptions,
}

/// The state of a coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Coordinates<N> {
    /// The others that have asked, with the proposals that they have promised.
    pub(super) asked: BTreeMap<N, Vec<Epoch<N>>>,
    /// The proposal, and those that have promised it.
    pub(super) proposal: Option<(Epoch<N>, BTreeSet<N>)>,
}

impl<N: ProcessName> Participant<N> {
    /// A process of a committed epoch.
    pub fn of(me: N, epoch: Epoch<N>) -> Self {
        Self { committed: Some(epoch), ..Self::newcomer(me, Vec::new()) }
    }

    /// A process that wants to join a running world, of which it knows these processes.
    pub fn newcomer(me: N, contacts: Vec<N>) -> Self {
        Self {
            me,
            committed: None,
            promised: Vec::new(),
            contacts,
            knocking: BTreeSet::new(),
            dead: BTreeSet::new(),
            former: None,
            behind: None,
            call: None,
        }
    }

    /// The process that it follows.
    pub(super) fn follows(&self) -> Option<N> {
        match self.call.as_ref()?.role {
            RegroupRole::Asks(other) | RegroupRole::Promised(other) => Some(other),
            RegroupRole::Coordinates(_) => None,
        }
    }

    /// The highest number of an epoch that it has promised, or knows to be committed.
    pub(super) fn newest(&self) -> u64 {
        let all = self.committed.iter().chain(&self.promised);
        all.map(|epoch| epoch.number).max().unwrap_or_default()
    }

    /// True if a process is before another in the last epoch. A newcomer is after all processes of the epoch.
    pub(super) fn is_before(&self, one: N, other: N) -> bool {
        let place = |name| self.committed.as_ref()?.members.iter().position(|it| *it == name);
        match (place(one), place(other)) {
            (Some(one), Some(other)) => one < other,
            (one, None) => one.is_some(),
            (None, Some(_)) => false,
        }
    }

    /// Learns that an epoch is committed, in which this process is.
    pub(super) fn learn(&mut self, epoch: Epoch<N>) {
        self.promised.retain(|promised| promised.number > epoch.number);
        (self.committed, self.former) = (Some(epoch), None);
    }

    pub(super) fn finish(&mut self, outcome: RegroupOutcome<N>, effects: &mut Effects<N>) {
        if self.call.take().is_some() {
            effects.outcome = Some(outcome);
        }
    }

    pub(super) fn refuse(&mut self, why: RegroupRefusal<N>, effects: &mut Effects<N>) {
        self.finish(RegroupOutcome::Refused { why, promised: !self.promised.is_empty() }, effects);
    }
}
