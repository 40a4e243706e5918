//! The coordinator's part of a regroup: it gathers those that ask, proposes the next epoch, and commits it when all have promised.

use std::collections::BTreeSet;

use super::{
    Effects, Epoch, LeftOut, Places, ProcessName, Quorum, SKIPPED,
    message::{EpochMessage, RegroupOutcome, RegroupRefusal},
    state::{Asked, Call, Coordinates, Participant, RegroupRole},
};

impl<N: ProcessName> Participant<N> {
    fn coordinating(&self) -> Option<(&Call<N>, &Coordinates<N>)> {
        let call = self.call.as_ref()?;
        match &call.role {
            RegroupRole::Coordinates(state) => Some((call, state)),
            _ => None,
        }
    }

    fn coordinates(&mut self) -> Option<&mut Coordinates<N>> {
        match &mut self.call.as_mut()?.role {
            RegroupRole::Coordinates(state) => Some(state),
            _ => None,
        }
    }

    /// Begins to coordinate, unless it does already.
    pub(super) fn coordinate(&mut self, effects: &mut Effects<N>) {
        let asked = self.knocking.iter().map(|&name| (name, Vec::new())).collect();
        match &mut self.call {
            Some(Call { role: RegroupRole::Coordinates(_), .. }) | None => {}
            Some(call) => {
                call.role = RegroupRole::Coordinates(Coordinates { asked, proposal: None });
                self.consider(effects);
                // A proposal has gone out already.
                if self.coordinating().is_some_and(|(_, state)| state.proposal.is_none()) {
                    self.repeat(effects);
                }
            }
        }
    }

    /// Another process has asked.
    pub(super) fn take_in(&mut self, from: N, asked: Asked<N>, newcomer: bool, effects: &mut Effects<N>) {
        let (me, Some(call)) = (self.me, &mut self.call) else { return };
        if !newcomer && asked.options != call.options {
            let why = RegroupRefusal::Differ { one: (me, call.options), other: (from, asked.options) };
            self.refuse_all(why, effects);
            return;
        }
        let RegroupRole::Coordinates(state) = &mut call.role else { return };
        let known = state.asked.insert(from, asked.promised);
        match &mut state.proposal {
            // It may not have got the proposal, or waits for another one and so has forgotten it.
            Some((epoch, promised)) if known.is_some() && epoch.has(from) => {
                promised.remove(&from);
                effects.messages.push((from, EpochMessage::Propose(epoch.clone())));
            }
            proposal => {
                *proposal = None;
                self.consider(effects);
            }
        }
    }

    /// A process does not answer any more.
    pub(super) fn without(&mut self, name: N, effects: &mut Effects<N>) {
        let Some(state) = self.coordinates() else { return };
        state.asked.remove(&name);
        if state.proposal.as_ref().is_none_or(|(epoch, _)| epoch.has(name)) {
            state.proposal = None;
            self.consider(effects);
        }
    }

    /// The processes of the last epoch that have not asked, and are neither dead nor silent.
    fn missing(&self) -> Vec<N> {
        let (Some(epoch), Some((call, state))) = (&self.committed, self.coordinating()) else {
            return Vec::new();
        };
        let known = |name: &N| {
            *name == self.me
                || state.asked.contains_key(name)
                || self.dead.contains(name)
                || call.silent.contains(name)
        };
        epoch.members.iter().filter(|name| !known(name)).copied().collect()
    }

    /// The processes from which a coordinator waits for an answer.
    pub(super) fn unheard(&self) -> Vec<N> {
        if let Some((epoch, promised)) = self.coordinating().and_then(|(_, state)| state.proposal.as_ref()) {
            return epoch.members.iter().filter(|name| !promised.contains(name)).copied().collect();
        }
        let missing = self.missing();
        if missing.is_empty() { self.absent() } else { missing }
    }

    /// All processes of lists that have not asked: if those that have may not decide, the others may be dead, or come back.
    fn absent(&self) -> Vec<N> {
        let Some((_, state)) = self.coordinating() else { return Vec::new() };
        let lists = self.lists();
        let left_out = lists.iter().flat_map(|epoch| &epoch.left_out).flat_map(|left| &left.names);
        let all: BTreeSet<N> =
            lists.iter().flat_map(|epoch| &epoch.members).chain(left_out).copied().collect();
        let absent =
            |name: &N| *name != self.me && !state.asked.contains_key(name) && !self.dead.contains(name);
        all.into_iter().filter(absent).collect()
    }

    /// Says again what it waits for.
    pub(super) fn repeat(&mut self, effects: &mut Effects<N>) {
        let unheard = self.unheard();
        let Some(committed) = self.committed.clone() else { return };
        let Some(state) = self.coordinates() else { return };
        let message = match &state.proposal {
            Some((epoch, _)) => EpochMessage::Propose(epoch.clone()),
            None => EpochMessage::Come { committed },
        };
        effects.messages.extend(unheard.into_iter().map(|name| (name, message.clone())));
    }

    /// Proposes the next epoch if all that may come have come, and they may decide.
    fn consider(&mut self, effects: &mut Effects<N>) {
        if !self.missing().is_empty() || self.obstacle().is_some() {
            return;
        }
        let (me, Some(members)) = (self.me, self.next()) else { return };
        let lists = self.lists();
        let skipped = if lists.iter().all(|epoch| epoch.has_majority(&members)) { 1 } else { SKIPPED };
        let number = lists.iter().map(|epoch| epoch.number).max().unwrap_or_default() + skipped;
        let mut left_out: Vec<LeftOut<N>> = Vec::new();
        for left in lists.into_iter().flat_map(|epoch| epoch.leaves_out(&members, &self.dead)) {
            if !left_out.iter().any(|known| known.implies(&left)) {
                left_out.retain(|known| !left.implies(known));
                left_out.push(left);
            }
        }
        let epoch = Epoch { number, members, left_out };
        self.promised.push(epoch.clone());
        if let Some(state) = self.coordinates() {
            state.proposal = Some((epoch, BTreeSet::from([me])));
        }
        self.commit_if_promised(effects);
        self.repeat(effects);
    }

    /// The processes of the next epoch, by rank.
    fn next(&self) -> Option<Vec<N>> {
        let (epoch, (call, state)) = (self.committed.as_ref()?, self.coordinating()?);
        let stays = |name: &N| *name == self.me || state.asked.contains_key(name);
        let mut newcomers = state.asked.keys().filter(|name| !epoch.has(**name)).copied();
        let mut next: Vec<N> = match call.options.places {
            Places::Last => epoch.members.iter().filter(|name| stays(name)).copied().collect(),
            Places::Holes => {
                let place = |name: &N| if stays(name) { Some(*name) } else { newcomers.next() };
                epoch.members.iter().filter_map(place).collect()
            }
        };
        next.extend(newcomers);
        Some(next)
    }

    /// The last epoch that is known to be committed, and the proposals that any has promised since.
    fn lists(&self) -> Vec<&Epoch<N>> {
        let (Some(committed), Some((_, state))) = (&self.committed, self.coordinating()) else {
            return Vec::new();
        };
        let promised = self.promised.iter().chain(state.asked.values().flatten());
        std::iter::once(committed).chain(promised.filter(|epoch| epoch.number > committed.number)).collect()
    }

    /// Why those that have asked cannot go on, if they cannot.
    fn obstacle(&self) -> Option<RegroupRefusal<N>> {
        let (next, call) = (self.next()?, self.call.as_ref()?);
        let lacks = |epoch: &&&Epoch<N>| {
            call.options.quorum == Quorum::Majority && !epoch.has_quorum(&next, &self.dead)
        };
        if let Some(epoch) = self.lists().iter().find(lacks) {
            let silent = call.silent.iter().filter(|name| !self.dead.contains(name)).copied().collect();
            let (all, present) = (epoch.members.len(), epoch.count(&next));
            return Some(RegroupRefusal::NoQuorum { epoch: epoch.number, all, present, silent });
        }
        let (present, least) = (next.len(), call.options.least);
        (present < least).then_some(RegroupRefusal::TooFew { present, least })
    }

    /// A process has promised the proposal of this number.
    pub(super) fn promised(&mut self, from: N, number: u64, effects: &mut Effects<N>) {
        if let Some(committed) = self.committed.as_ref().filter(|it| it.number >= number) {
            effects.messages.push((from, EpochMessage::Commit(committed.clone())));
            return;
        }
        let (committed, Some(call)) = (self.committed.clone(), &mut self.call) else { return };
        match &mut call.role {
            RegroupRole::Asks(other) | RegroupRole::Promised(other) if *other != from => {
                effects.messages.push((from, EpochMessage::See { other: *other }));
            }
            RegroupRole::Coordinates(Coordinates { asked, proposal }) => match proposal {
                Some((epoch, promised)) if epoch.number == number && epoch.has(from) => {
                    promised.insert(from);
                    self.commit_if_promised(effects);
                }
                Some((epoch, _)) if epoch.has(from) => {
                    effects.messages.push((from, EpochMessage::Propose(epoch.clone())));
                }
                _ if asked.contains_key(&from) => {}
                _ => effects
                    .messages
                    .extend(committed.map(|committed| (from, EpochMessage::Come { committed }))),
            },
            _ => {}
        }
    }

    /// A process cannot promise, because it knows more.
    pub(super) fn denied(
        &mut self,
        from: N,
        theirs: Option<Epoch<N>>,
        promised: Vec<Epoch<N>>,
        effects: &mut Effects<N>,
    ) {
        if let Some(epoch) = theirs {
            self.commits(epoch, effects);
        }
        let newest = self.newest();
        let Some(state) = self.coordinates() else { return };
        let higher = promised.iter().any(|epoch| epoch.number >= newest);
        if let Some(known) = state.asked.get_mut(&from) {
            *known = promised;
            if higher {
                state.proposal = None;
                self.consider(effects);
            }
        }
    }

    fn commit_if_promised(&mut self, effects: &mut Effects<N>) {
        let Some(Coordinates { proposal: Some((epoch, promised)), .. }) = self.coordinates() else { return };
        if !epoch.members.iter().all(|name| promised.contains(name)) {
            return;
        }
        let epoch = epoch.clone();
        let others = epoch.members.iter().filter(|name| **name != self.me);
        effects.messages.extend(others.map(|name| (*name, EpochMessage::Commit(epoch.clone()))));
        self.knocking.retain(|name| !epoch.has(*name));
        self.learn(epoch.clone());
        self.finish(RegroupOutcome::Joined(epoch), effects);
    }

    /// The time is over: tells those that have asked why there is no next epoch.
    pub(super) fn give_up(&mut self, effects: &mut Effects<N>) {
        let missing = self.missing();
        let why = if missing.is_empty() {
            let silent = || RegroupRefusal::NoAnswer(self.unheard().first().copied().unwrap_or(self.me));
            self.obstacle().unwrap_or_else(silent)
        } else {
            RegroupRefusal::Missing(missing)
        };
        self.refuse_all(why, effects);
    }

    fn refuse_all(&mut self, why: RegroupRefusal<N>, effects: &mut Effects<N>) {
        if let Some(state) = self.coordinates() {
            let asked: Vec<N> = state.asked.keys().copied().collect();
            effects.messages.extend(asked.into_iter().map(|name| (name, EpochMessage::Refuse(why.clone()))));
        }
        self.refuse(why, effects);
    }
}
