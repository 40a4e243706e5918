//! What a process that may regroup does in answer to an event, and the part of one that follows another.

use std::{cmp::Ordering, collections::BTreeSet};

use super::{
    Effects, Epoch, ProcessName, RegroupOptions,
    message::{EpochMessage, RegroupOutcome, RegroupRefusal},
    state::{Asked, Call, Participant, RegroupRole},
};

impl<N: ProcessName> Participant<N> {
    /// The last epoch that it knows to be committed.
    pub fn committed(&self) -> Option<&Epoch<N>> {
        self.committed.as_ref()
    }

    /// True if newcomers wait for this process to regroup.
    pub fn is_asked(&self) -> bool {
        !self.knocking.is_empty()
    }

    /// Others have gone on without this process: from now on it is a newcomer that may join them again.
    pub fn come_back(&mut self) {
        if let Some(epoch) = self.behind.take() {
            (self.former, self.contacts) = (self.committed.take(), epoch.members);
        }
    }

    /// The program regroups, or wants to join.
    pub fn begin(&mut self, options: RegroupOptions) -> Effects<N> {
        let mut effects = Effects::default();
        let call = Call { options, role: RegroupRole::Asks(self.me), silent: BTreeSet::new() };
        self.call = Some(call);
        match self.behind.clone() {
            Some(epoch) => self.finish(RegroupOutcome::LeftBehind(epoch), &mut effects),
            None => self.seek(&mut effects),
        }
        effects
    }

    /// A message has arrived.
    pub fn heard(&mut self, from: N, message: EpochMessage<N>) -> Effects<N> {
        let mut effects = Effects::default();
        if let Some(call) = &mut self.call {
            call.silent.remove(&from);
        }
        match message {
            EpochMessage::Ask { committed, promised, options } => {
                self.asked(from, committed, Asked { promised, options }, &mut effects);
            }
            EpochMessage::Come { committed } => self.called(from, committed, &mut effects),
            EpochMessage::Hold { members } => self.held(from, members, &mut effects),
            EpochMessage::See { other } => self.sent_to(from, other, &mut effects),
            EpochMessage::Propose(epoch) => self.proposed(from, epoch, &mut effects),
            EpochMessage::Promise { number } => self.promised(from, number, &mut effects),
            EpochMessage::Deny { committed, promised } => {
                self.denied(from, committed, promised, &mut effects)
            }
            EpochMessage::Commit(epoch) => self.commits(epoch, &mut effects),
            EpochMessage::Refuse(why) => {
                if self.follows() == Some(from) {
                    self.refuse(why, &mut effects);
                }
            }
        }
        effects
    }

    /// A process has not answered for a while; if it is `dead`, it has certainly ended.
    pub fn lost(&mut self, name: N, dead: bool) -> Effects<N> {
        let mut effects = Effects::default();
        if dead {
            self.dead.insert(name);
            self.knocking.remove(&name);
        }
        let Some(call) = &mut self.call else { return effects };
        call.silent.insert(name);
        match &call.role {
            RegroupRole::Coordinates(_) => self.without(name, &mut effects),
            RegroupRole::Asks(other) | RegroupRole::Promised(other) if *other == name => {
                self.seek(&mut effects)
            }
            _ => {}
        }
        effects
    }

    /// Says again what it waits for: messages may be lost.
    pub fn tick(&mut self) -> Effects<N> {
        let mut effects = Effects::default();
        match self.call.as_ref().map(|call| &call.role) {
            Some(&RegroupRole::Asks(other)) => self.ask(other, &mut effects),
            Some(&RegroupRole::Promised(other)) => {
                let number = self.newest();
                effects.messages.push((other, EpochMessage::Promise { number }));
            }
            Some(RegroupRole::Coordinates(_)) => self.repeat(&mut effects),
            None => {}
        }
        effects
    }

    /// The time for the regroup is over.
    pub fn deadline(&mut self) -> Effects<N> {
        let mut effects = Effects::default();
        match self.call.as_ref().map(|call| &call.role) {
            Some(&(RegroupRole::Asks(other) | RegroupRole::Promised(other))) => {
                self.refuse(RegroupRefusal::NoAnswer(other), &mut effects);
            }
            Some(RegroupRole::Coordinates(_)) => self.give_up(&mut effects),
            None => {}
        }
        effects
    }

    /// The processes from which it waits for an answer.
    pub fn awaits(&self) -> Vec<N> {
        match self.call.as_ref().map(|call| &call.role) {
            Some(&(RegroupRole::Asks(other) | RegroupRole::Promised(other))) => vec![other],
            Some(RegroupRole::Coordinates(_)) => self.unheard(),
            None => Vec::new(),
        }
    }

    /// Asks the first process that may coordinate, or coordinates.
    pub(super) fn seek(&mut self, effects: &mut Effects<N>) {
        let Some(call) = &mut self.call else { return };
        let members = self.committed.as_ref().map_or(&self.contacts, |epoch| &epoch.members);
        let before = members.iter().take_while(|name| **name != self.me);
        let mut able = before.filter(|name| !self.dead.contains(name) && !call.silent.contains(name));
        match able.next().copied() {
            Some(other) => self.follow(other, effects),
            None if self.committed.is_some() => self.coordinate(effects),
            // Those that have gone on without it are dead: its former epoch may go on.
            None if self.former.is_some() && self.contacts.iter().all(|name| self.dead.contains(name)) => {
                self.committed = self.former.take();
                self.seek(effects);
            }
            None => self.refuse(RegroupRefusal::Nobody, effects),
        }
    }

    fn follow(&mut self, other: N, effects: &mut Effects<N>) {
        if let Some(call) = &mut self.call {
            call.role = RegroupRole::Asks(other);
            self.ask(other, effects);
        }
    }

    fn ask(&self, other: N, effects: &mut Effects<N>) {
        let Some(Call { options, .. }) = self.call else { return };
        let (committed, promised) = (self.committed.clone(), self.promised.clone());
        effects.messages.push((other, EpochMessage::Ask { committed, promised, options }));
    }

    /// Compares the last epoch of another process with this one's. Returns true if they are the same now. Tells the other if it knows less.
    fn agrees(&mut self, from: N, theirs: Epoch<N>, effects: &mut Effects<N>) -> bool {
        let Some(ours) = &self.committed else { return false };
        match theirs.number.cmp(&ours.number) {
            Ordering::Equal => theirs == *ours,
            Ordering::Less => {
                effects.messages.push((from, EpochMessage::Commit(ours.clone())));
                false
            }
            Ordering::Greater if theirs.has(self.me) => {
                self.learn(theirs);
                self.seek(effects);
                true
            }
            Ordering::Greater => {
                self.stay_behind(theirs, effects);
                false
            }
        }
    }

    /// Others have committed an epoch without this process.
    fn stay_behind(&mut self, epoch: Epoch<N>, effects: &mut Effects<N>) {
        self.behind = Some(epoch.clone());
        self.finish(RegroupOutcome::LeftBehind(epoch), effects);
    }

    /// A process regroups, or wants to join.
    fn asked(&mut self, from: N, theirs: Option<Epoch<N>>, asked: Asked<N>, effects: &mut Effects<N>) {
        let newcomer = theirs.is_none();
        // A newcomer cannot take others in.
        let able = self.committed.is_some() || self.follows().is_some();
        let agrees = |theirs| self.committed.is_none() || self.agrees(from, theirs, effects);
        if !able || !theirs.is_none_or(agrees) {
            return;
        }
        match self.follows() {
            Some(other) if other != from => effects.messages.push((from, EpochMessage::See { other })),
            // Two newcomers ask each other.
            Some(_) if self.committed.is_none() => {
                if let Some(call) = &mut self.call {
                    call.silent.insert(from);
                }
                self.seek(effects);
            }
            None if self.call.is_some() => self.take_in(from, asked, newcomer, effects),
            None if newcomer => {
                self.knocking.insert(from);
                let members = self.committed.iter().flat_map(|epoch| &epoch.members).copied().collect();
                effects.messages.push((from, EpochMessage::Hold { members }));
            }
            _ => {}
        }
    }

    /// A coordinator calls this process.
    fn called(&mut self, from: N, theirs: Epoch<N>, effects: &mut Effects<N>) {
        if self.committed.is_none() {
            self.knows(vec![from]);
            if matches!(self.call, Some(Call { role: RegroupRole::Asks(_), .. }))
                || self.follows() == Some(from)
            {
                self.follow(from, effects);
            }
            return;
        }
        if !self.agrees(from, theirs, effects) {
            return;
        }
        match self.follows() {
            // It has asked already, and the coordinator may not know.
            Some(other) if other == from || self.is_before(from, other) => self.follow(from, effects),
            Some(other) => effects.messages.push((from, EpochMessage::See { other })),
            None if self.call.is_some() && self.is_before(from, self.me) => self.follow(from, effects),
            // Two coordinate: the other one is to follow this one.
            None if self.call.is_some() => {
                let come = self.committed.clone().map(|committed| (from, EpochMessage::Come { committed }));
                effects.messages.extend(come);
            }
            None => effects.messages.push((from, EpochMessage::Hold { members: Vec::new() })),
        }
    }

    /// A process lives. A newcomer learns which others it may ask; a coordinator, that a process does not ask any more.
    fn held(&mut self, from: N, members: Vec<N>, effects: &mut Effects<N>) {
        self.knocking.remove(&from);
        if self.follows().is_none() {
            self.without(from, effects);
        }
        if self.committed.is_none() && self.follows() == Some(from) && !members.is_empty() {
            let before = self.contacts.clone();
            self.knows(members);
            if self.contacts != before {
                self.seek(effects);
            }
        }
    }

    /// A newcomer learns processes of the running world. It may still need the others that it knows.
    fn knows(&mut self, members: Vec<N>) {
        let before = std::mem::replace(&mut self.contacts, members);
        for name in before {
            if !self.contacts.contains(&name) {
                self.contacts.push(name);
            }
        }
        self.contacts.retain(|name| *name != self.me);
    }

    /// A process follows another one.
    fn sent_to(&mut self, from: N, other: N, effects: &mut Effects<N>) {
        if self.dead.contains(&other) {
            return;
        }
        let goes = self.follows().map_or_else(|| self.is_before(other, self.me), |at| at == from);
        // A newcomer cannot take others in.
        let goes = goes && (other != self.me || self.committed.is_some());
        let Some(call) = self.call.as_mut().filter(|_| goes) else { return };
        call.silent.remove(&other);
        if other == self.me { self.coordinate(effects) } else { self.follow(other, effects) }
    }

    /// A coordinator proposes an epoch.
    fn proposed(&mut self, from: N, epoch: Epoch<N>, effects: &mut Effects<N>) {
        let number = epoch.number;
        let other = self.follows();
        // A newcomer may have asked several.
        let asks = matches!(self.call, Some(Call { role: RegroupRole::Asks(_), .. }));
        let free = self.committed.is_none() && asks;
        let answer = if let Some(other) = other.filter(|other| *other != from && !free) {
            EpochMessage::See { other }
        } else if other.is_none() {
            EpochMessage::Hold { members: Vec::new() }
        } else if self.promised.last() == Some(&epoch) {
            EpochMessage::Promise { number }
        } else if number > self.newest() && epoch.has(self.me) {
            if self.committed.is_none() {
                self.knows(epoch.members.clone());
            }
            self.promised.push(epoch);
            if let Some(call) = &mut self.call {
                call.role = RegroupRole::Promised(from);
            }
            EpochMessage::Promise { number }
        } else {
            EpochMessage::Deny { committed: self.committed.clone(), promised: self.promised.clone() }
        };
        effects.messages.push((from, answer));
    }

    /// An epoch is committed.
    pub(super) fn commits(&mut self, epoch: Epoch<N>, effects: &mut Effects<N>) {
        if self.committed.as_ref().is_some_and(|ours| ours.number >= epoch.number) {
            return;
        }
        if epoch.has(self.me) {
            self.learn(epoch.clone());
            self.finish(RegroupOutcome::Joined(epoch), effects);
        } else if self.committed.is_some() {
            self.stay_behind(epoch, effects);
        } else {
            self.knows(epoch.members);
            self.seek(effects);
        }
    }
}
