//! The algorithms: pure functions that yield schedules. One file each, one line each in [`ALGORITHMS`].
//!
//! What each costs is in
//! `docs/algorithms.md`, and the checker holds it to that.

mod binomial;
mod bruck;

mod chunks;
mod direct;
mod dissemination;

mod rabenseifner;
mod recursive_doubling;
mod ring;

mod star;

mod tree;

mod two_shot;

use crate::{Collective, Job, Schedule, Traffic, cost::Alike};

/// An algorithm and what it can do.
#[derive(Debug)]
pub struct Algorithm {
    /// Its name, for instance `ring`.
    pub name: &'static str,
    /// Its code on the wire, never used for another.
    pub code: u8,
    /// What it is good for, in a line.
    pub summary: &'static str,
    /// The collectives it can do.
    pub plans: &'static [Plan],
}

/// How an algorithm does one collective, and what that costs. The functions want a job of at least two
/// ranks, with `rank` and `root` below `ranks`, and `chunk` and `lanes` at least 1.
pub struct Plan {
    /// Which.
    pub collective: Collective,
    /// Whether blocks may be uneven.
    pub uneven: bool,
    /// Whether contributions may be reduced in the order of ranks ([`Job::ordered`]).
    pub ordered: bool,
    make: fn(&Job<'_>) -> Box<dyn Schedule>,
    traffic: fn(&Job<'_>) -> Traffic,
    hops: fn(usize) -> usize,
    alike: fn(usize) -> Option<Alike>,
    /// How many slots each flow needs at least; with fewer it may come to a standstill.
    pub depth: usize,
}

/// All algorithms.
pub const ALGORITHMS: &[Algorithm] = &[
    Algorithm {
        name: "direct",
        code: 1,
        summary: "everyone to everyone in one hop: small messages, few ranks",
        plans: direct::PLANS,
    },
    Algorithm {
        name: "ring",
        code: 2,
        summary: "around the ring in pipelined chunks: large messages",
        plans: ring::PLANS,
    },
    Algorithm {
        name: "recursive_doubling",
        code: 3,
        summary: "all to a partner twice as far each hop: small all_reduce among many ranks",
        plans: recursive_doubling::PLANS,
    },
    Algorithm {
        name: "binomial",
        code: 4,
        summary: "along a binomial tree: small broadcast, reduce, gather and scatter among many ranks",
        plans: binomial::PLANS,
    },
    Algorithm {
        name: "dissemination",
        code: 5,
        summary: "tell the rank 1, 2, 4, ... after: barrier among many ranks",
        plans: dissemination::PLANS,
    },
    Algorithm {
        name: "two_shot",
        code: 6,
        summary: "reduce a piece of everybody's, hand it to everybody: middling and large all_reduce, few ranks",
        plans: two_shot::PLANS,
    },
    Algorithm {
        name: "tree",
        code: 7,
        summary: "up and down two binary trees in pipelined chunks: large messages among many ranks",
        plans: tree::PLANS,
    },
    Algorithm {
        name: "rabenseifner",
        code: 8,
        summary: "halve the vector, then double it: middling messages, and large ones among many ranks",
        plans: rabenseifner::PLANS,
    },
    Algorithm {
        name: "bruck",
        code: 9,
        summary: "bundles of blocks to a rank twice as far each hop: small all_gather and all_to_all, many ranks",
        plans: bruck::PLANS,
    },
    Algorithm {
        name: "star",
        code: 10,
        summary: "all to one rank and its results back: small messages among ranks that share cores",
        plans: star::PLANS,
    },
];

/// The algorithm of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Algorithm> {
    ALGORITHMS.iter().find(|algorithm| algorithm.name == name)
}

/// The algorithm of this code.
#[must_use]
pub fn from_code(code: u8) -> Option<&'static Algorithm> {
    ALGORITHMS.iter().find(|algorithm| algorithm.code == code)
}

impl Algorithm {
    /// How it does this collective, if it can.
    #[must_use]
    pub fn plan(&self, collective: Collective) -> Option<&'static Plan> {
        self.plans.iter().find(|plan| plan.collective == collective)
    }

    /// Whether it can do this collective.
    #[must_use]
    pub fn supports(&self, collective: Collective) -> bool {
        self.plan(collective).is_some()
    }

    /// This rank's schedule of the job; `None` if the algorithm cannot do the collective.
    #[must_use]
    pub fn make(&self, job: &Job<'_>) -> Option<Box<dyn Schedule>> {
        self.plan(job.collective).map(|plan| plan.make(job))
    }
}

impl Plan {
    /// This rank's schedule. In a world of one, nothing but a copy of the input to the output.
    #[must_use]
    pub fn make(&self, job: &Job<'_>) -> Box<dyn Schedule> {
        debug_assert!(job.rank < job.ranks && job.root < job.ranks && job.chunk > 0 && job.lanes > 0);
        if job.ranks > 1 {
            return (self.make)(job);
        }
        chunks::Alone::schedule(match job.collective {
            Collective::Broadcast => 0,
            _ => job.lengths().map_or(0, |(_, outputs)| outputs),
        })
    }

    /// What this rank sends.
    #[must_use]
    pub fn traffic(&self, job: &Job<'_>) -> Traffic {
        if job.ranks > 1 { (self.traffic)(job) } else { Traffic::NONE }
    }

    /// The longest chain of messages each of which waits for the one before, for one chunk.
    #[must_use]
    pub fn hops(&self, ranks: usize) -> usize {
        if ranks > 1 { (self.hops)(ranks) } else { 0 }
    }

    /// In what way all of so many ranks do the same at the same time, if they do: then the cost model runs one of them
    /// alone. Who sends what to whom is held to that by a test; that they do it at the same time follows.
    #[must_use]
    pub fn alike(&self, ranks: usize) -> Option<Alike> {
        if ranks > 1 { (self.alike)(ranks) } else { None }
    }
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plan").field("collective", &self.collective).field("depth", &self.depth).finish()
    }
}
