//! The simulation of what ranks show: a round begins on another rank one latency after it was begun, which it sees in shared memory.

use super::{
    Path,
    run::{Rounds, Simulation},
};
use crate::{Rank, Showing, Shown};

impl Simulation<'_> {
    /// The path by which ranks of a host see what others show.
    fn sight(&self) -> &Path {
        self.setup.fabric.inside.as_ref().unwrap_or(&self.setup.fabric.between)
    }

    /// The time at which a rank sees that others have begun a round, from 1 on, or have settled if there is none; `None` if that is not
    /// known yet. If one rank stands for all, the others do as it does.
    fn seen(&self, actor: usize, from: Option<Rank>, round: Option<usize>) -> Option<f64> {
        let time = |rounds: &Rounds| match round {
            Some(round) => rounds.seen.get(round - 1).copied(),
            None => rounds.settled,
        };
        match from.filter(|&from| from < self.rounds.len()) {
            Some(from) => time(&self.rounds[from]),
            None => {
                let others = self.rounds.iter().enumerate();
                let others = others.filter(|&(other, _)| self.rounds.len() == 1 || self.share(actor, other));
                others.map(|(_, rounds)| time(rounds)).try_fold(0.0, |latest, time| Some(time?.max(latest)))
            }
        }
    }

    /// True if one rank sees what another shows.
    fn share(&self, actor: usize, other: usize) -> bool {
        actor != other && self.ports.same_host(actor, other)
    }

    /// The time at which a rank may begin its next round, if it is known.
    pub(super) fn may_show(&self, actor: usize) -> Option<f64> {
        match self.rounds[actor].seen.len() {
            0 => Some(0.0),
            // A rank that stands for all waits for what it has seen itself.
            round => self.seen(actor, None, Some(round)),
        }
    }

    /// The time at which a rank sees what another shows in this round, if it is known.
    pub(super) fn may_view(&self, actor: usize, from: Rank) -> Option<f64> {
        let one = self.rounds.len() == 1;
        self.seen(actor, Some(from).filter(|_| !one), Some(self.rounds[actor].seen.len().max(1)))
    }

    /// The time at which all others have settled, if it is known.
    pub(super) fn may_end(&self, actor: usize) -> Option<f64> {
        self.seen(actor, None, None)
    }

    /// Begins a round; returns the processor time for it.
    pub(super) fn show(&mut self, actor: usize, shown: &Shown, now: f64) -> f64 {
        let copied = self.setup.showing == Some(Showing::Copied);
        let copy =
            if copied { self.bytes(shown.len() - shown.own.len) / self.setup.fabric.copy } else { 0.0 };
        let Path { latency, send_overhead, .. } = *self.sight();
        let spent = send_overhead + copy;
        let time = now + spent * self.share + latency;
        self.rounds[actor].seen.push(time);
        self.tell(actor, time);
        spent
    }

    /// A rank comes to the end of its schedule.
    pub(super) fn settle(&mut self, actor: usize, now: f64) {
        if self.rounds[actor].settled.is_none() {
            let time = now + self.sight().latency;
            self.rounds[actor].settled = Some(time);
            self.tell(actor, time);
        }
    }

    /// The processor time for seeing what another rank shows.
    pub(super) fn viewed(&self) -> f64 {
        self.sight().receive_overhead
    }

    /// Wakes the others, which may wait for this.
    fn tell(&mut self, actor: usize, time: f64) {
        let others: Vec<_> = (0..self.rounds.len()).filter(|&other| self.share(actor, other)).collect();
        others.into_iter().for_each(|other| self.wake_by(other, time));
    }
}
