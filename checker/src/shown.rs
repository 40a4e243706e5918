//! Records what ranks have shown and read in the checker.
//!
//! Every rank has a vector clock: for each rank, the latest of its steps that is known to have happened before. A read of another
//! rank's memory must happen after all writes of these elements that have happened, and every write must happen after all reads.

use super::{
    Setup,
    memory::{Cell, SpanLocation, everyone},
    state::Past,
};
use unisono_schedule::{Rank, Shown};

/// The slots of a rank to which the engine copies what it shows.
pub(super) const SLOTS: usize = 2;

/// What ranks have shown and read.
pub(super) struct Shows {
    /// For each rank, the ranks with which it shares memory and itself, as bits: those of its host.
    near: Vec<u64>,
    /// If true, there are several such groups, and each shows scratch.
    pub(super) inside: bool,
    /// For each rank, the latest known step of every rank.
    pub(super) clocks: Vec<Vec<u64>>,
    /// For each rank, its rounds.
    pub(super) rounds: Vec<Vec<Round>>,
    /// For each rank, the ranks whose elements it views in this round.
    pub(super) viewed: Vec<Vec<Rank>>,
    /// For each rank, its clock when it came to [`Step::Settle`](unisono_schedule::Step::Settle).
    pub(super) settled: Vec<Option<Vec<u64>>>,
    /// For each rank, the contents of its slots.
    pub(super) slots: Vec<[Vec<Cell>; SLOTS]>,
    /// For each rank, the uses of its memory with which a later one may conflict.
    pub(super) uses: Vec<Vec<Use>>,
}

pub(super) struct Round {
    pub(super) shown: Shown,
    pub(super) clock: Vec<u64>,
    pub(super) past: Past,
}

/// A read or write of a rank's memory.
pub(super) struct Use {
    pub(super) by: Rank,
    /// The step of that rank.
    pub(super) at: u64,
    pub(super) found: SpanLocation,
    pub(super) writes: bool,
}

impl Shows {
    pub(super) fn new(setup: &Setup<'_>) -> Self {
        let job = &setup.job;
        let (ranks, inside) = (job.ranks, job.spread.has_levels(job.ranks));
        let near = |rank| match job.spread.beside(rank, ranks) {
            _ if !inside => everyone(ranks),
            host if setup.shows(host[0]) => host.iter().fold(0, |all, rank| all | 1 << rank),
            _ => 1 << rank,
        };
        Self {
            near: (0..ranks).map(near).collect(),
            inside,
            clocks: vec![vec![0; ranks]; ranks],
            rounds: (0..ranks).map(|_| Vec::new()).collect(),
            viewed: vec![Vec::new(); ranks],
            settled: vec![None; ranks],
            slots: (0..ranks).map(|_| [Vec::new(), Vec::new()]).collect(),
            uses: (0..ranks).map(|_| Vec::new()).collect(),
        }
    }

    /// True if two ranks share memory.
    pub(super) fn share(&self, rank: Rank, other: Rank) -> bool {
        self.near[rank] >> other & 1 == 1
    }

    /// The ranks that share memory with this one, and itself.
    pub(super) fn sharers(&self, rank: Rank) -> impl Iterator<Item = Rank> + use<> {
        let near = self.near[rank];
        (0..self.near.len()).filter(move |other| near >> other & 1 == 1)
    }

    /// True if all other ranks have begun the round before the next one of this rank.
    pub(super) fn may_show(&self, rank: Rank) -> bool {
        self.sharers(rank).all(|other| self.rounds[other].len() >= self.rounds[rank].len())
    }

    /// True if `from` has begun the round in which `rank` is.
    pub(super) fn has_shown(&self, rank: Rank, from: Rank) -> bool {
        self.rounds[from].len() >= self.rounds[rank].len()
    }

    /// True if all ranks have come to their [`Step::Settle`]. Where messages go between hosts, that step waits for puts alone.
    pub(super) fn all_settled(&self) -> bool {
        self.inside || self.settled.iter().all(Option::is_some)
    }

    /// The time of a rank's next step.
    pub(super) fn tick(&mut self, rank: Rank) -> u64 {
        self.clocks[rank][rank] += 1;
        self.clocks[rank][rank]
    }

    /// A rank learns what another knew.
    pub(super) fn learn(&mut self, rank: Rank, other: &[u64]) {
        self.clocks[rank].iter_mut().zip(other).for_each(|(known, theirs)| *known = (*known).max(*theirs));
    }

    /// Notes a use of a rank's memory. Returns the rank of an earlier one that may happen at the same time, if one of the two writes.
    pub(super) fn uses(&mut self, owner: Rank, this: Use) -> Option<Rank> {
        let known = &self.clocks[this.by];
        let conflicts =
            |it: &&Use| (it.writes || this.writes) && it.found.overlaps(&this.found) && known[it.by] < it.at;
        let other = self.uses[owner].iter().find(conflicts).map(|it| it.by);
        self.uses[owner].push(this);
        other
    }

    /// Forgets uses that all others know of, and so can no longer conflict with anything.
    pub(super) fn forget(&mut self, owner: Rank) {
        let near = self.near[owner];
        let Self { clocks, uses, .. } = self;
        let readers = || clocks.iter().enumerate().filter(|(reader, _)| near >> reader & 1 == 1);
        uses[owner].retain(|it| readers().any(|(_, known)| known[it.by] < it.at));
    }
}
