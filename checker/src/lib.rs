//! The checker: executes the schedules of all ranks against an adversary, without a network, and reports the first violation.
//!
//! Elements are symbols: a cell records which element it is and which ranks' contributions are in it. Every flow has
//! [`Setup::depth`] slots, and a put waits until its slot is free, as in the engine. The adversary ([`Policy`]) chooses the next
//! event: a lane of a rank takes a step, a message arrives (in any order, even within a flow), or a sender learns that its put has
//! left. **The source of a put is read when the message arrives**, and writing to the source before is a violation even if the
//! values are the same.
//!
//! For the order of events that was tried, [`check`] proves:
//! - every put is taken, with the same length, and no message is longer than the schedule's limit;
//! - every message that is taken is freed once, and not used afterwards;
//! - every write is awaited where it lands, and nothing reads or writes there in the meantime;
//! - the source of a put in flight is never overwritten, and the input is never written;
//! - every element is reduced with every rank's contribution exactly once, and the last contribution is marked as such; outputs
//!   are complete and right; each rank of a barrier has heard of all others;
//! - all ranks reduce each element of an all_reduce in the same order, so that all get the same bits;
//! - of what ranks show, nothing is read before it is shown, nothing is overwritten before all have read it, and no rank reads it
//!   after its owner has ended. This holds for every order of events: each read and write is compared with all that is not known to
//!   have happened before it or to happen after it (vector clocks; Friedemann Mattern, "Virtual Time and Global States of Distributed
//!   Systems", 1989);
//! - the schedules end, unless a rank has died; then the outputs of those that end are right;
//! - [`Schedule::sources`] names exactly the ranks from which messages are taken.

mod memory;
mod policy;
mod rounds;
mod run;
mod shown;
mod state;
mod writes;

use std::{collections::BTreeSet, fmt};

pub use policy::Policy;

use unisono_schedule::{Job, Rank, Schedule, Shown, Span, Step, Uneven};

/// The job and the adversary of a check.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    /// The job. Its `rank` and `uneven` do not matter, nor its `count` if it is [pairwise](Job::pairwise).
    pub job: Job<'a>,
    /// If blocks are uneven: their lengths, as each rank knows them.
    pub uneven: Option<&'a [Uneven<'a>]>,
    /// The number of slots of each flow.
    pub depth: usize,
    /// If true, input and output share memory. The input lies at the beginning of the output, or, if it is one block and the output
    /// has many, at the rank's block; if the output is one block and the input has many, the output lies in the input.
    pub in_place: bool,
    /// The ranks into whose outputs others may write: bit r for rank r. A write to another rank goes through a slot, as in the
    /// engine. If the job is [shown](Job::shown): the ranks whose elements are read in place; what others show is copied to slots. In a
    /// plan of two levels: the hosts, by the bits of their first ranks, whose ranks show elements; the ranks of others send messages.
    pub writable: u64,
    /// The adversary.
    pub policy: Policy,
    /// The seed of the adversary's choices.
    pub seed: u64,
}

impl<'a> Setup<'a> {
    /// The job of a rank, with its uneven lengths.
    #[must_use]
    pub fn job_of(&self, rank: Rank) -> Job<'a> {
        let uneven = self.uneven.and_then(|all| all.get(rank).copied());
        // A rank other than the root knows its own block.
        let apart = self.job.collective.has_root() && rank != self.job.root;
        let known = uneven.into_iter().flat_map(|it| [it.input, it.output]);
        let known = known.flat_map(|it| it.iter().enumerate().filter(|(of, _)| !apart || *of == rank));
        let count = match self.job.pairwise {
            true => known.map(|(_, len)| *len).max().unwrap_or_default(),
            false => self.job.count,
        };
        let sends =
            || !self.shows(self.job.spread.beside(rank, self.job.ranks).first().copied().unwrap_or(rank));
        let shown = self.job.shown.filter(|_| !(self.job.spread.has_levels(self.job.ranks) && sends()));
        Job { rank, count, uneven, shown, ..self.job }
    }

    /// True if the ranks of the host whose first rank is `first` show each other elements.
    fn shows(&self, first: Rank) -> bool {
        self.writable >> first & 1 == 1
    }

    /// True if others may write into this rank's output.
    fn writable(&self, rank: Rank) -> bool {
        let needed = self.in_place && self.job.collective.exchanges() && !self.puts_aside();
        self.writable >> rank & 1 == 1 && !needed
    }

    /// True if inputs lie in outputs where others write. The engine puts such inputs aside first, except a rank's own block.
    fn puts_aside(&self) -> bool {
        let Job { direct, long, .. } = self.job;
        self.in_place && self.job.collective.exchanges() && direct && long && self.uneven.is_none()
    }
}

/// What one rank has sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Messages, empty ones too.
    pub messages: usize,
    /// Elements in all of them together.
    pub elements: usize,
}

/// The result of a check without violations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// What each rank sent.
    pub traffic: Vec<Traffic>,
    /// The length of the longest chain of messages in which each was sent after the one before had been taken. For a
    /// single chunk this is the number of hops.
    pub hops: usize,
}

/// What is wrong with a schedule, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rank {rank}, lane {lane}, step {step}: {fault}")]
pub struct Violation {
    /// The rank whose schedule it is.
    pub rank: Rank,
    /// Its lane; 0 if the fault concerns all lanes.
    pub lane: usize,
    /// The number of steps that the lane had taken before.
    pub step: usize,
    /// What is wrong.
    pub fault: Fault,
}

/// What can be wrong with a schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A property that must be the same on every rank is not, or is out of range.
    #[error("{what} is {found}, and should be {wanted}")]
    Shape {
        /// The property.
        what: &'static str,
        /// Its value on this rank.
        found: usize,
        /// Its value on rank 0, or the limit of the job.
        wanted: usize,
    },
    /// A message to or from itself or a rank that does not exist.
    #[error("rank {0} is no peer")]
    Peer(Rank),
    /// A span reaches beyond its place.
    #[error("{} reaches beyond its place, which has {room} elements", Show(.span))]
    Bounds {
        /// The span.
        span: Span,
        /// The number of elements of its place.
        room: usize,
    },
    /// A message is longer than the schedule's limit.
    #[error("a message of {len} elements, and the limit is {limit}")]
    TooLong {
        /// Its length.
        len: usize,
        /// [`Schedule::max_message`].
        limit: usize,
    },
    /// A message has another length than its taker expects.
    #[error("takes {wanted} elements from rank {from}, which sent {sent}")]
    Length {
        /// The sender.
        from: Rank,
        /// The length that it sent.
        sent: usize,
        /// The length that the taker expects.
        wanted: usize,
    },
    /// A landed message is used before one was taken or after it was freed.
    #[error("no message from rank {0} is held")]
    NotHeld(Rank),
    /// A message is freed that was not taken or has been freed already.
    #[error("frees a message from rank {0}, and none is held")]
    FreeNothing(Rank),
    /// Messages were taken and never freed.
    #[error("{count} messages from rank {from} are never freed")]
    NeverFreed {
        /// The sender.
        from: Rank,
        /// The number of messages.
        count: usize,
    },
    /// Messages were put and never taken.
    #[error("{count} messages from rank {from} are never taken")]
    NeverTaken {
        /// The sender.
        from: Rank,
        /// The number of messages.
        count: usize,
    },
    /// A step writes elements that a put reads which has not arrived.
    #[error("writes {}, which is still on its way to rank {to} (put at step {put})", Show(.span))]
    InFlight {
        /// The span that is written.
        span: Span,
        /// The receiver of the put.
        to: Rank,
        /// The step of its lane at which it was put.
        put: usize,
    },
    /// A step reads or writes elements to which a peer's write may be landing.
    #[error("uses {}, where a write of rank {from} lands that was not awaited", Show(.span))]
    Landing {
        /// The span that is used.
        span: Span,
        /// The peer that writes there.
        from: Rank,
    },
    /// A write goes to other elements than those where it is awaited.
    #[error("awaits a write of rank {from} in {}, which goes to {to:?}", Show(.span))]
    Elsewhere {
        /// The sender.
        from: Rank,
        /// The span where it is awaited.
        span: Span,
        /// The elements of the receiver's memory to which it goes.
        to: std::ops::Range<usize>,
    },
    /// A write lands on elements that a put of its receiver still reads.
    #[error("writes to rank {to} what that rank's put to rank {reader} still reads")]
    LandsInFlight {
        /// The receiver.
        to: Rank,
        /// The receiver of that put.
        reader: Rank,
    },
    /// A write of no elements.
    #[error("writes nothing to rank {0}")]
    EmptyWrite(Rank),
    /// A write in a schedule that says it has none.
    #[error("writes to rank {0}, and says that it is not direct")]
    NotDirect(Rank),
    /// A source of a direct schedule does not write.
    #[error("is direct, and rank {0}, which is a source, writes nothing here")]
    NoWrite(Rank),
    /// A write is awaited before a message was taken from its sender on its lane.
    #[error("awaits a write of rank {0} before any message of its flow was taken")]
    WriteFirst(Rank),
    /// A step writes the caller's input.
    #[error("writes {}", Show(.0))]
    WritesInput(Span),
    /// A step writes to memory of another rank.
    #[error("writes {}, which is memory of rank {owner}", Show(.span))]
    WritesTheirs {
        /// The span.
        span: Span,
        /// The rank.
        owner: Rank,
    },
    /// A rank views other elements than are shown in the round.
    #[error("views {wanted:?} of rank {from}, which shows {found:?} in that round")]
    Views {
        /// The rank that shows.
        from: Rank,
        /// The elements that are viewed.
        wanted: Box<Shown>,
        /// The elements that are shown.
        found: Box<Shown>,
    },
    /// A rank reads elements that their rank may write at the same time.
    #[error("reads {}, which rank {owner} may write at the same time", Show(.span))]
    ReadsEarly {
        /// The span.
        span: Span,
        /// The rank whose elements they are.
        owner: Rank,
    },
    /// A rank writes elements that another may read at the same time.
    #[error("writes {}, which rank {reader} may read at the same time", Show(.span))]
    StillRead {
        /// The span.
        span: Span,
        /// The rank that reads.
        reader: Rank,
    },
    /// A rank ends while another may still read its elements.
    #[error("ends, and rank {0} may still read its elements")]
    EndsEarly(Rank),
    /// A step shows or views elements in a job of messages, or shows elements of scratch or of another rank.
    #[error("{0:?} does not belong in this job")]
    Kind(Box<Step>),
    /// Spans of one step have different lengths, or overlap without being the same.
    #[error("{} and {} differ in length or overlap", Show(.0), Show(.1))]
    Operands(Span, Span),
    /// Two different elements are reduced together.
    #[error("element {left} is reduced with element {right}")]
    Elements {
        /// The index of one.
        left: usize,
        /// The index of the other.
        right: usize,
    },
    /// Elements are read that were never written.
    #[error("{} is read at {at} before it was written", Show(.span))]
    Undefined {
        /// The span that is read.
        span: Span,
        /// The first element of the span that was not written.
        at: usize,
    },
    /// A contribution is reduced into an element twice.
    #[error("element {element} gets the contribution of rank {rank} twice")]
    Twice {
        /// Which.
        element: usize,
        /// Whose.
        rank: Rank,
    },
    /// `last` is set before all contributions are in, or is not set when they are.
    #[error("element {element} has {present} of {ranks} contributions, and `last` is {last}")]
    Last {
        /// Which.
        element: usize,
        /// The number of contributions in it now.
        present: usize,
        /// The number of all contributions.
        ranks: usize,
        /// What the step says.
        last: bool,
    },
    /// An element of the output is not what the collective promises.
    #[error("output element {at} is {found}, and should be {wanted}")]
    Output {
        /// Its place in the output.
        at: usize,
        /// What is there.
        found: String,
        /// What should be there.
        wanted: String,
    },
    /// Ranks get their results from different orders of reductions, so that roundings may differ.
    #[error("output element {at} was reduced in another order than on rank 0")]
    Order {
        /// Its place in the output.
        at: usize,
    },
    /// An element of an ordered job was not reduced in the order of ranks.
    #[error("output element {at} was not reduced in the order of ranks")]
    Unordered {
        /// Its place in the output.
        at: usize,
    },
    /// A rank leaves a barrier without having heard of these.
    #[error("leaves the barrier without having heard of ranks {0:?}")]
    Unheard(Vec<Rank>),
    /// `sources` names the wrong ranks.
    #[error("takes messages from {taken:?}, and names {named:?} as sources")]
    Sources {
        /// The ranks from which messages were taken.
        taken: BTreeSet<Rank>,
        /// The ranks that [`Schedule::sources`] named, in its order.
        named: Vec<Rank>,
    },
    /// No event is possible, and lanes have not ended.
    #[error("stands still: {0}")]
    Stuck(String),
    /// A lane that had ended returns another step.
    #[error("goes on after its end with {0:?}")]
    NotOver(Box<Step>),
}

/// A span as people read it.
struct Show<'a>(&'a Span);

impl fmt::Display for Show<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}[{}..{}]", self.0.place, self.0.offset, self.0.offset.saturating_add(self.0.len))
    }
}

/// Executes the schedules of all ranks, which are given in the order of ranks, until they end or one violates a rule. At most 64
/// ranks.
///
/// ```
/// use unisono_checker::{Policy, Setup, check};
/// use unisono_schedule::{Collective, Job, algorithm::find};
///
/// let job = Job { chunk: 10, ..Job::new(Collective::AllReduce, 0, 4, 120) };
/// let ring = find("ring").ok_or("no ring")?;
/// let schedules = (0..4).filter_map(|rank| ring.make(&Job { rank, ..job })).collect();
/// let (policy, seed) = (Policy::LatestFirst, 0);
/// let setup = Setup { job, uneven: None, depth: 2, in_place: true, writable: 0, policy, seed };
/// let report = check(schedules, &setup)?;
/// // In each of three rounds a rank sends three of four pieces of 10 elements in both halves of the all_reduce.
/// assert_eq!((report.traffic[0].messages, report.traffic[0].elements), (18, 180));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The first violation; [`Fault::Shape`] for more than 64 ranks.
pub fn check(schedules: Vec<Box<dyn Schedule>>, setup: &Setup<'_>) -> Result<Report, Violation> {
    run::Checker::new(schedules, setup)?.run()
}

/// The number of lanes, the longest message and whether there are writes into outputs, which must be the same on all ranks and
/// within the job's limits.
fn shape(schedules: &[Box<dyn Schedule>], setup: &Setup<'_>) -> Result<(usize, usize, bool), Violation> {
    let ranks = setup.job.ranks;
    let at = |rank, fault| Violation { rank, lane: 0, step: 0, fault };
    let shape = |rank, what, found, wanted| Err(at(rank, Fault::Shape { what, found, wanted }));
    let of = |schedule: &dyn Schedule| {
        let direct = usize::from(schedule.direct());
        [
            ("direct", direct),
            ("lanes", schedule.lanes()),
            ("max_message", schedule.max_message()),
            ("the most that it shows", schedule.shows().unwrap_or(usize::MAX)),
        ]
    };
    let first = schedules.first().filter(|_| schedules.len() == ranks && ranks <= 64);
    let Some(first) = first.map(|schedule| of(&**schedule)) else {
        return shape(0, "the number of schedules", schedules.len(), ranks.min(64));
    };
    let [(_, direct), (_, width), (_, limit), (what, shown)] = first;
    if limit > setup.job.chunk {
        return shape(0, "max_message", limit, setup.job.chunk);
    }
    // A rank shows at least an element of each block.
    if shown < usize::MAX && shown > setup.job.chunk.max(ranks) {
        return shape(0, what, shown, setup.job.chunk);
    }
    if width == 0 || width > setup.job.lanes {
        return shape(0, "lanes", width, setup.job.lanes);
    }
    for (rank, schedule) in schedules.iter().enumerate() {
        for ((what, found), (_, wanted)) in of(&**schedule).into_iter().zip(first) {
            if found != wanted {
                return shape(rank, what, found, wanted);
            }
        }
    }
    Ok((width, limit, direct == 1))
}
