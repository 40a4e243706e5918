//! The algorithms: pure functions that make schedules. Each has a file, which names its source, and an entry in [`ALGORITHMS`].
//!
//! `docs/algorithms.md` has the cost of each: messages, elements, hops, slots, scratch. A test compares it with the schedules.

mod bine;
mod binomial;
mod bruck;
mod chunks;
mod compose;
pub(crate) mod direct;
mod dissemination;
mod grid;
mod halving;
mod hosts;
mod negabinary;
mod pat;
mod rabenseifner;
mod recursive_doubling;
mod ring;
mod shown;
mod star;
mod tree;
mod two_shot;

use self::chunks::{Alone, Lanes};
use crate::{Collective, Job, Rank, Schedule, Showing, cost::Alike};

/// An algorithm and what it can do.
#[derive(Debug)]
pub struct Algorithm {
    /// Its name, for instance `ring`.
    pub name: &'static str,
    /// Its code on the wire, which no other algorithm ever gets.
    pub code: u8,
    /// How it works and for which sizes and numbers of ranks, in one line.
    pub summary: &'static str,
    /// The collectives that it can do.
    pub plans: &'static [Plan],
}

/// An algorithm's properties for one collective. Its functions require a job with `rank` and `root` below `ranks`, and `chunk` and
/// `lanes` at least 1.
#[derive(Debug)]
pub struct Plan {
    /// The collective.
    pub collective: Collective,
    /// If true, blocks may be uneven.
    pub uneven: bool,
    /// If true, two ranks need to know only the lengths of their blocks for each other ([`Job::pairwise`]).
    pub pairwise: bool,
    /// If true, contributions may be reduced in the order of ranks ([`Job::ordered`]).
    pub ordered: bool,
    make: fn(&Job<'_>) -> Box<dyn Schedule>,
    hops: fn(usize) -> usize,
    alike: fn(usize) -> Option<Alike>,
    /// The least number of slots of each flow; with fewer the schedule may deadlock.
    pub depth: usize,
    /// The number of messages into which a lane's unit of work is cut.
    pub split: Split,
    /// If true, a rank may send all its elements for another rank in one write into that rank's output ([`Job::long`]).
    pub whole: bool,
    /// If true, some rank receives messages from all others, and so needs a window for each.
    pub from_all: bool,
    /// How ranks can show elements instead of sending messages ([`Job::shown`]).
    pub shows: &'static [Showing],
    /// If true, this is a plan of two levels, and ranks of a host can show each other elements of scratch ([`Job::shown`]), while
    /// messages go between hosts.
    pub shows_inside: bool,
    /// If true, other plans have as many hops and send as many bytes, but this one sends more of them between near ranks. The cost model
    /// chooses it only if it saves more than the model's error.
    pub near: bool,
    /// For a plan that distinguishes the messages inside a host from those between hosts ([`Job::spread`]): the plan that replaces
    /// it if there is one host, or no host has two ranks. It has that plan's other properties.
    pub flat: Option<&'static Self>,
}

/// The number of equal messages into which a lane's unit of work is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// One: a chunk is a message.
    Whole,
    /// Two: halves of a vector, or one for each of two trees.
    Two,
    /// One for each rank.
    EachRank,
}

impl Split {
    /// The number of messages in a world of `ranks` ranks; at least 1.
    #[must_use]
    pub const fn among(self, ranks: usize) -> usize {
        match self {
            Self::Whole => 1,
            Self::Two => 2,
            Self::EachRank if ranks > 1 => ranks,
            Self::EachRank => 1,
        }
    }
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
    Algorithm {
        name: "leader",
        code: 11,
        summary: "one rank of each host speaks for it: small messages between hosts of several ranks",
        plans: hosts::LEADER,
    },
    Algorithm {
        name: "lanes",
        code: 12,
        summary: "a piece of the vector between hosts by each rank of a host: large messages between hosts of several ranks",
        plans: hosts::LANES,
    },
    Algorithm {
        name: "bine",
        code: 13,
        summary: "trees and butterflies of near ranks: small and middling messages where near ranks have the shorter way",
        plans: bine::PLANS,
    },
    Algorithm {
        name: "pat",
        code: 14,
        summary: "few blocks to far ranks, many to near ones: small and middling all_gather and reduce_scatter, many ranks",
        plans: pat::PLANS,
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
    /// Its properties for a collective; `None` if it cannot do it.
    #[must_use]
    pub fn plan(&self, collective: Collective) -> Option<&'static Plan> {
        self.plans.iter().find(|plan| plan.collective == collective)
    }

    /// True if it can do this collective.
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
    /// The plan of an algorithm without special properties: equal blocks, any order of reduction, one message for each chunk, one
    /// slot for each flow.
    const fn new(
        collective: Collective,
        make: fn(&Job<'_>) -> Box<dyn Schedule>,
        hops: fn(usize) -> usize,
    ) -> Self {
        Self {
            collective,
            make,
            hops,
            uneven: false,
            pairwise: false,
            ordered: false,
            alike: |_| None,
            depth: 1,
            split: Split::Whole,
            whole: false,
            from_all: false,
            shows: &[],
            shows_inside: false,
            near: false,
            flat: None,
        }
    }

    /// The plan of a collective in a list.
    pub(crate) const fn of(plans: &'static [Self], collective: Collective) -> &'static Self {
        let mut at = 0;
        while plans[at].collective as u8 != collective as u8 {
            at += 1;
        }
        &plans[at]
    }

    /// A plan of two levels, which `flat` replaces where there is one level. No stage needs more than two slots.
    const fn levels(flat: &'static Self, make: fn(&Job<'_>) -> Box<dyn Schedule>) -> Self {
        Self {
            hops: flat.hops,
            depth: 2,
            split: flat.split,
            from_all: flat.from_all,
            flat: Some(flat),
            shows_inside: flat.collective.has_blocks() && !flat.collective.has_root(),
            ..Self::new(flat.collective, make, flat.hops)
        }
    }

    /// This rank's schedule. In a world of one it only copies the input to the output.
    #[must_use]
    pub fn make(&self, job: &Job<'_>) -> Box<dyn Schedule> {
        debug_assert!(job.rank < job.ranks && job.root < job.ranks && job.chunk > 0 && job.lanes > 0);
        if let Some(flat) = self.flat.filter(|_| !job.spread.has_levels(job.ranks)) {
            return flat.make(job);
        }
        if job.ranks > 1 {
            return (self.make)(job);
        }
        let count = match job.collective {
            Collective::Broadcast => 0,
            _ => job.lengths().map_or(0, |(_, outputs)| outputs),
        };
        Lanes::schedule(job, Alone { count })
    }

    /// The form in which ranks of a host show each other elements of scratch, of `size` bytes, while messages go between hosts, if they
    /// do. `shared` is true if they share memory.
    #[must_use]
    pub fn inside(&self, job: &Job<'_>, size: usize, shared: bool) -> Option<Showing> {
        let many = job.count.saturating_mul(job.ranks).saturating_mul(size) >= SHOWN_INSIDE;
        let even = job.uneven.is_none() && !job.pairwise;
        let shows = shared && many && even && self.shows_inside && job.spread.has_levels(job.ranks);
        shows.then_some(Showing::InPlace)
    }

    /// The hops of one chunk among `ranks` ranks: the length of the longest chain of messages in which each depends on the one before.
    #[must_use]
    pub fn hops(&self, ranks: usize) -> usize {
        if ranks > 1 { (self.hops)(ranks) } else { 0 }
    }

    /// The symmetry of the ranks' schedules, if they have one; then the cost model simulates one rank alone. A test compares the
    /// schedules of all ranks.
    pub(crate) fn alike(&self, ranks: usize) -> Option<Alike> {
        if ranks > 1 { (self.alike)(ranks) } else { None }
    }
}

/// The least bytes of all blocks of a rank that ranks of a host show each other. Messages carry fewer bytes sooner than all ranks
/// can agree.
const SHOWN_INSIDE: usize = 1 << 20;

/// ⌈log2 n⌉ for n ranks: the hops until all have what one had, if each rank sends to one other in a hop.
const fn doublings(ranks: usize) -> usize {
    ranks.next_power_of_two().ilog2() as usize
}

/// `number` modulo `ranks`, for a number below twice `ranks`.
const fn wrapped(number: usize, ranks: usize) -> Rank {
    if number >= ranks { number - ranks } else { number }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plans() -> impl Iterator<Item = (&'static str, &'static Plan)> {
        ALGORITHMS.iter().flat_map(|it| it.plans.iter().map(|plan| (it.name, plan)))
    }

    #[test]
    fn names_and_codes_are_unique() {
        for (index, one) in ALGORITHMS.iter().enumerate() {
            let others = &ALGORITHMS[..index];
            assert!(
                others.iter().all(|other| other.name != one.name && other.code != one.code),
                "{}",
                one.name
            );
            assert!(find(one.name).is_some_and(|found| found.code == one.code));
        }
    }

    #[test]
    fn plans_say_whether_a_rank_takes_from_all() {
        for (name, plan) in plans() {
            for ranks in [9, 12, 16, 33] {
                let sources = (0..ranks).map(|rank| {
                    let mut sources = 0;
                    let count = if plan.collective == Collective::Barrier { 0 } else { 1000 };
                    let job = Job { chunk: 100, ..Job::new(plan.collective, rank, ranks, count) };
                    plan.make(&job).sources(&mut |_| sources += 1);
                    sources
                });
                let most = sources.max().unwrap();
                assert_eq!(plan.from_all, most == ranks - 1, "{name} {plan:?}: {most} of {ranks}");
            }
        }
    }

    #[test]
    fn as_many_pieces_as_a_plan_says_fill_a_lane() {
        for (name, plan) in plans().filter(|(_, plan)| plan.split != Split::Whole) {
            let lanes = |ranks, count| {
                let job = Job { chunk: 100, lanes: 2, ..Job::new(plan.collective, 0, ranks, count) };
                plan.make(&job).lanes()
            };
            for ranks in [4, 8] {
                let full = 100 * plan.split.among(ranks);
                assert_eq!(lanes(ranks, full + 1), 2, "{name} {plan:?}");
                assert_eq!(lanes(ranks, full), 1, "{name} {plan:?}");
            }
        }
    }

    #[test]
    fn what_is_moved_in_chunks_is_written_but_for_a_head_on_each_lane() {
        for (name, plan) in plans().filter(|(_, plan)| plan.whole) {
            for (lanes, count) in [(1, 14), (2, 27), (2, 1000), (4, 999)] {
                let of = |rank| {
                    let job =
                        Job { chunk: 100, lanes, direct: true, ..Job::new(plan.collective, rank, 3, count) };
                    let mut schedule = plan.make(&job);
                    (0..schedule.lanes())
                        .flat_map(|lane| std::iter::from_fn(|| schedule.next(lane)).collect::<Vec<_>>())
                        .fold((0, 0), |(put, written), step| match step {
                            crate::Step::Put { from, .. } => (put + from.len, written),
                            crate::Step::Write { from, .. } => (put, written + from.len),
                            _ => (put, written),
                        })
                };
                for (put, written) in (0..3).map(of).filter(|it| *it != (0, 0)) {
                    let peers = (put + written) / count;
                    assert_eq!(put + written, peers * count, "{name} {plan:?}");
                    assert_eq!(put, peers * lanes * 13, "an eighth of 100: {name} {plan:?}");
                }
            }
        }
    }

    #[test]
    fn what_a_source_writes_lies_where_a_plan_says() {
        for ((name, plan), long) in plans().flat_map(|plan| [false, true].map(|long| (plan, long))) {
            for (ranks, root) in [(2, 1), (5, 3)] {
                let mut known = false;
                for rank in 0..ranks {
                    let count = if plan.collective == Collective::Barrier { 0 } else { 1000 };
                    let job = Job::new(plan.collective, rank, ranks, count);
                    let job = Job { chunk: 100, direct: true, long, root, ..job };
                    let mut schedule = plan.make(&job);
                    while let Some(step) = schedule.next(0) {
                        if let crate::Step::Await { from, into } = step
                            && let Some(range) = schedule.written_by(from)
                        {
                            known = true;
                            let within = range.start <= into.offset && into.offset + into.len <= range.end;
                            assert!(within, "{name} {plan:?}: {step:?} outside {range:?}");
                        }
                    }
                }
                // A whole write needs a known place.
                assert!(known || !plan.whole, "{name} {plan:?}");
            }
        }
    }

    #[test]
    fn only_plans_that_say_so_write_whole_blocks() {
        for (name, plan) in plans().filter(|(_, plan)| plan.collective != Collective::Barrier) {
            let job = Job { chunk: 100, direct: true, long: true, ..Job::new(plan.collective, 0, 4, 10_000) };
            let mut schedule = plan.make(&job);
            let steps = std::iter::from_fn(|| schedule.next(0));
            let longest = steps.filter_map(|step| match step {
                crate::Step::Write { from, .. } => Some(from.len),
                crate::Step::Await { into, .. } => Some(into.len),
                _ => None,
            });
            assert_eq!(plan.whole, longest.max().unwrap_or(0) > 100, "{name} {plan:?}");
        }
    }
}
