//! The vocabulary of schedules: what one rank does in one collective, as data.
//!
//! An algorithm yields steps, lane by lane and on demand. It knows no tags, credits, addresses or message
//! numbers: messages from one rank to another on one lane form a **flow**, first in first out, and the
//! engine owns its numbering, its slots and its credit. A lane runs its steps strictly in order; lanes are
//! independent of each other, which is where pipelining comes from: chunk `c` goes to lane `c mod lanes`,
//! so that one chunk is reduced while the next is on the wire.
//!
//! A message lands in a slot of its receiver ([`Step::Put`]), where it can be reduced and sent on; or, in a schedule
//! that is [`Schedule::direct`], at once where it belongs in the receiver's output ([`Step::Write`]), which saves
//! copying it there. Where the receiver's memory cannot be written by others, the engine sends writes through slots
//! too and copies.
//!
//! Rules every algorithm keeps, and [`check`] proves:
//! - Which messages lane 0 sends and takes first does not depend on the count: a collective of 0 elements
//!   sends them empty. Messages in slots carry the operation's header, so that ranks that disagree find out
//!   instead of waiting for each other.
//! - A message has at most [`Schedule::max_message`] elements; only writes of a job that allows it ([`Job::long`]) may have
//!   more.
//! - On every flow a [`Step::Put`] is taken before the first [`Step::Write`] is awaited, unless the job is long and that
//!   is the only write, on lane 0. No write is empty, and each source of a direct schedule writes at least once.

pub mod check;
pub mod cost;
mod recorded;

pub(crate) use self::recorded::{Course, Recorded};
use crate::partition::Blocks;

/// A member of a group, counted from 0.
pub type Rank = usize;

/// Where elements lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// What the caller gave. In place, it lies in the output.
    Input,
    /// What the caller gets.
    Output,
    /// [`Schedule::scratch`] elements of the engine's, whose contents nobody knows at first.
    Scratch,
    /// Where the latest message taken from this rank on this lane landed; until the [`Step::Free`] of it.
    Landed(Rank),
}

/// `len` elements of `place` from element `offset` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// Where.
    pub place: Place,
    /// The first element.
    pub offset: usize,
    /// How many; 0 is allowed.
    pub len: usize,
}

impl Span {
    /// Elements of the input.
    #[must_use]
    pub const fn input(offset: usize, len: usize) -> Self {
        Self { place: Place::Input, offset, len }
    }

    /// Elements of the output.
    #[must_use]
    pub const fn output(offset: usize, len: usize) -> Self {
        Self { place: Place::Output, offset, len }
    }

    /// Elements of the scratch.
    #[must_use]
    pub const fn scratch(offset: usize, len: usize) -> Self {
        Self { place: Place::Scratch, offset, len }
    }

    /// The first `len` elements of the latest message taken from `from`.
    #[must_use]
    pub const fn landed(from: Rank, len: usize) -> Self {
        Self { place: Place::Landed(from), offset: 0, len }
    }
}

/// What a lane does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Sends the span's elements as the next message of the flow to `to`. Does not wait for their arrival:
    /// the span must not change until that is certain (a later message proves it, or [`Step::Settle`]).
    Put {
        /// Who gets it.
        to: Rank,
        /// What is sent. If it landed here itself, the slot is kept until it has left.
        from: Span,
    },
    /// Sends the span's elements straight into the output of `to`, from its element `at` on. Does not wait, as
    /// [`Step::Put`] does not.
    Write {
        /// Who gets it.
        to: Rank,
        /// What is sent.
        from: Span,
        /// Where it goes in the output of `to`.
        at: usize,
    },
    /// Waits until the next of the writes from `from` lies in `into`, a span of the output.
    Await {
        /// Who sends it.
        from: Rank,
        /// Where it lands.
        into: Span,
    },
    /// Waits for the next message of the flow from `from`, which has `len` elements.
    Take {
        /// Who sends it.
        from: Rank,
        /// How many elements it has.
        len: usize,
    },
    /// `into = a ⊕ b`, element by element. `into` may be the same span as `a` or `b`, but not overlap
    /// them otherwise.
    Reduce {
        /// One side.
        a: Span,
        /// The other side.
        b: Span,
        /// Where the result goes.
        into: Span,
        /// Whether this was the last contribution to these elements: an average is divided now.
        last: bool,
    },
    /// `into = ((x0 ⊕ x1) ⊕ x2) ...` over the contributions of all ranks in their order, rounded once: `own` is this
    /// rank's, and every other's is where its latest message landed. `into` may be the same span as `own`, but not
    /// overlap it otherwise. An average is divided.
    Fold {
        /// This rank's contribution.
        own: Span,
        /// Where the result goes.
        into: Span,
    },
    /// `into = from`. Nothing happens if they are the same memory (in place).
    Copy {
        /// What is read.
        from: Span,
        /// What is written.
        into: Span,
    },
    /// Gives back the slot of the oldest message taken from `from` and not yet freed.
    Free {
        /// Who sent that message.
        from: Rank,
    },
    /// Waits until this lane's puts no longer need their sources.
    Settle,
}

/// How much is reduced or copied between two polls, in bytes: small enough to keep the wire fed and the data in the inner
/// caches, large enough that a poll (a system call on tcp) costs little beside it.
pub(crate) const SLICE: usize = 64 << 10;

/// How much of a rank's own input is copied between two polls, in bytes: as a rule all of it. What arrives meanwhile would
/// only push it out of the caches, and the write that follows it would leave later (figures: ARCHITECTURE.md, "Puts before
/// reductions").
const OWN: usize = 4 << 20;

impl Step {
    /// How many bytes of a reduction or a copy are done between two polls.
    pub(crate) const fn slice(&self) -> usize {
        match self {
            Self::Copy { from: Span { place: Place::Input, .. }, .. } => OWN,
            _ => SLICE,
        }
    }
}

/// What one rank does in one collective.
pub trait Schedule: Send {
    /// How many lanes there are; at least 1. Alike on every rank.
    fn lanes(&self) -> usize;

    /// The most elements a message may have, alike on every rank; 0 if all messages are empty.
    fn max_message(&self) -> usize;

    /// Whether there are [`Step::Write`]s; alike on every rank.
    fn direct(&self) -> bool;

    /// How many elements of scratch this rank needs.
    fn scratch(&self) -> usize;

    /// Calls `visit` once for every rank from which this rank takes messages, on whatever lane.
    fn sources(&self, visit: &mut dyn FnMut(Rank));

    /// The next step of a lane, or `None` when the lane has ended (and forever after).
    fn next(&mut self, lane: usize) -> Option<Step>;
}

impl dyn Schedule {
    /// Whether its messages go through the small slots of one lane, which hold `eager_bytes`, if its elements have so
    /// many bytes.
    #[must_use]
    pub fn is_small(&self, element_size: usize, eager_bytes: usize) -> bool {
        let message = self.max_message().saturating_mul(element_size);
        self.lanes() == 1 && message <= eager_bytes && !self.direct()
    }
}

/// What one rank sends in one collective.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Messages, empty ones too.
    pub messages: usize,
    /// Elements in all of them together.
    pub elements: usize,
}

impl Traffic {
    /// Nothing is sent.
    pub const NONE: Self = Self { messages: 0, elements: 0 };
}

/// A collective operation, as ranks must agree on it. Blocks lie one after the other in the order of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Collective {
    /// Everyone gets the reduction of all inputs. Input and output: `count` elements.
    AllReduce,
    /// Rank r gets block r of the reduction. Input: a block for every rank, output: one block.
    ReduceScatter,
    /// Everyone gets all inputs. Input: one block, output: a block of every rank.
    AllGather,
    /// Everyone gets the root's data. Output: `count` elements, and the input is the output.
    Broadcast,
    /// Nobody goes on before everybody has come. No elements.
    Barrier,
    /// The root gets the reduction of all inputs. Input: `count` elements; output: as many at the root, none elsewhere.
    Reduce,
    /// The root gets all inputs. Input: one block; output: a block of every rank at the root, nothing elsewhere.
    Gather,
    /// Rank r gets block r of the root's input. Input: a block for every rank at the root, nothing elsewhere; output:
    /// one block.
    Scatter,
    /// Rank r gets block r of everyone's input. Input: a block for every rank; output: a block of every rank.
    AllToAll,
}

impl Collective {
    /// All of them, in the order of their codes on the wire.
    pub const ALL: [Self; 9] = [
        Self::AllReduce,
        Self::ReduceScatter,
        Self::AllGather,
        Self::Broadcast,
        Self::Barrier,
        Self::Reduce,
        Self::Gather,
        Self::Scatter,
        Self::AllToAll,
    ];

    /// Its name, as in torch.distributed.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllGather => "all_gather",
            Self::Broadcast => "broadcast",
            Self::Barrier => "barrier",
            Self::Reduce => "reduce",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::AllToAll => "all_to_all",
        }
    }

    /// The collective of this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|collective| collective.name() == name)
    }

    /// Whether elements are reduced.
    #[must_use]
    pub const fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter | Self::Reduce)
    }

    /// Whether one rank gives or gets more than the others.
    #[must_use]
    pub const fn has_root(self) -> bool {
        matches!(self, Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter)
    }

    /// Whether, in place, what comes from a rank takes the place of what goes to it. Then nobody may write into the
    /// output, where the input still lies.
    #[must_use]
    pub const fn exchanges(self) -> bool {
        matches!(self, Self::AllToAll)
    }

    /// Whether input or output is a block for every rank, so that a job's count is that of one block.
    #[must_use]
    pub const fn has_blocks(self) -> bool {
        matches!(self, Self::ReduceScatter | Self::AllGather | Self::Gather | Self::Scatter | Self::AllToAll)
    }
}

/// How long the blocks are where they are not all alike (the collectives whose names end in `_v`). What a rank need
/// not know, because it neither sends nor receives it, may be 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Uneven<'a> {
    /// The lengths of the input's blocks, by rank, if it has blocks.
    pub input: &'a [usize],
    /// The lengths of the output's blocks, by rank, if it has blocks.
    pub output: &'a [usize],
}

/// What an algorithm makes a schedule of; alike on every rank but for `rank` and `uneven`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Job<'a> {
    /// What is done.
    pub collective: Collective,
    /// The rank whose schedule is wanted.
    pub rank: Rank,
    /// The world size.
    pub ranks: usize,
    /// How many elements the whole has, or one block if there are blocks ([`Collective::has_blocks`]); the longest
    /// one, if they are uneven.
    pub count: usize,
    /// The lengths of the blocks, if they are uneven.
    pub uneven: Option<Uneven<'a>>,
    /// Whose data is handed out, or who gets it, in a collective that has a root; 0 otherwise.
    pub root: Rank,
    /// The most elements a message may have, at least 1.
    pub chunk: usize,
    /// The most lanes a schedule may have, at least 1.
    pub lanes: usize,
    /// Whether a schedule may write straight into outputs, if its algorithm can.
    pub direct: bool,
    /// Whether every rank lets others write into its output, so that writes may be longer than `chunk`; only if `direct`.
    pub long: bool,
    /// Whether contributions are to be reduced in the order of ranks ([`Step::Fold`]); only of algorithms that can.
    pub ordered: bool,
}

impl Job<'_> {
    /// A job with even blocks, root 0 and one lane of messages of any length, through slots.
    #[must_use]
    pub const fn new(collective: Collective, rank: Rank, ranks: usize, count: usize) -> Self {
        Self {
            collective,
            rank,
            ranks,
            count,
            uneven: None,
            root: 0,
            chunk: usize::MAX,
            lanes: 1,
            direct: false,
            long: false,
            ordered: false,
        }
    }

    /// The blocks of the input, if it has blocks.
    #[must_use]
    pub fn input_blocks(&self) -> Blocks {
        self.uneven.map_or_else(|| Blocks::even(self.count), |uneven| Blocks::uneven(uneven.input))
    }

    /// The blocks of the output, if it has blocks.
    #[must_use]
    pub fn output_blocks(&self) -> Blocks {
        self.uneven.map_or_else(|| Blocks::even(self.count), |uneven| Blocks::uneven(uneven.output))
    }

    /// The elements of this rank's input and output; `None` if that does not fit in a `usize`.
    #[must_use]
    pub fn lengths(&self) -> Option<(usize, usize)> {
        let whole = |lengths: Option<&[usize]>| match lengths {
            None => self.ranks.checked_mul(self.count),
            Some(lengths) => lengths.iter().try_fold(0_usize, |sum, &length| sum.checked_add(length)),
        };
        let own = |lengths: Option<&[usize]>| match lengths {
            None => self.count,
            Some(lengths) => lengths.get(self.rank).copied().unwrap_or_default(),
        };
        let (input, output) =
            (self.uneven.map(|uneven| uneven.input), self.uneven.map(|uneven| uneven.output));
        let at_root = self.rank == self.root;
        Some(match self.collective {
            Collective::AllReduce | Collective::Broadcast => (self.count, self.count),
            Collective::Reduce => (self.count, if at_root { self.count } else { 0 }),
            Collective::ReduceScatter => (whole(input)?, own(input)),
            Collective::AllGather => (own(output), whole(output)?),
            Collective::Gather => (own(output), if at_root { whole(output)? } else { 0 }),
            Collective::Scatter => (if at_root { whole(input)? } else { 0 }, own(input)),
            Collective::AllToAll => (whole(input)?, whole(output)?),
            Collective::Barrier => (0, 0),
        })
    }
}
