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
//! - A message has at most [`Schedule::max_message`] elements.
//! - On every flow a [`Step::Put`] is taken before the first [`Step::Write`] is awaited. No write is empty, and each
//!   source of a direct schedule writes at least once.

pub mod check;
pub mod cost;

/// A member of a group, counted from 0.
pub type Rank = usize;

/// Where elements lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// What the caller gave. In place, it lies in the output.
    Input,
    /// What the caller gets.
    Output,
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

/// What one rank does in one collective.
pub trait Schedule: Send {
    /// How many lanes there are; at least 1. Alike on every rank.
    fn lanes(&self) -> usize;

    /// The most elements a message may have, alike on every rank; 0 if all messages are empty.
    fn max_message(&self) -> usize;

    /// Whether there are [`Step::Write`]s; alike on every rank.
    fn direct(&self) -> bool;

    /// Calls `visit` once for every rank from which this rank takes messages, on whatever lane.
    fn sources(&self, visit: &mut dyn FnMut(Rank));

    /// The next step of a lane, or `None` when the lane has ended (and forever after).
    fn next(&mut self, lane: usize) -> Option<Step>;
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

/// A collective operation, as ranks must agree on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Collective {
    /// Everyone gets the reduction of all inputs. Input and output: `count` elements.
    AllReduce,
    /// Rank r gets block r of the reduction. Input: `ranks * count` elements, output: `count`.
    ReduceScatter,
    /// Everyone gets all inputs in the order of ranks. Input: `count` elements, output: `ranks * count`.
    AllGather,
    /// Everyone gets the root's data. Output: `count` elements, and the input is the output.
    Broadcast,
    /// Nobody goes on before everybody has come. No elements.
    Barrier,
}

impl Collective {
    /// All of them, in the order of their codes on the wire.
    pub const ALL: [Self; 5] =
        [Self::AllReduce, Self::ReduceScatter, Self::AllGather, Self::Broadcast, Self::Barrier];

    /// Its name, as in torch.distributed.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllGather => "all_gather",
            Self::Broadcast => "broadcast",
            Self::Barrier => "barrier",
        }
    }

    /// The collective of this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|collective| collective.name() == name)
    }

    /// The elements of input and output, for a job's `count`; `None` if that does not fit in a `usize`.
    #[must_use]
    pub fn lengths(self, ranks: usize, count: usize) -> Option<(usize, usize)> {
        Some(match self {
            Self::AllReduce | Self::Broadcast => (count, count),
            Self::ReduceScatter => (ranks.checked_mul(count)?, count),
            Self::AllGather => (count, ranks.checked_mul(count)?),
            Self::Barrier => (0, 0),
        })
    }
}

/// What an algorithm makes a schedule of; alike on every rank but for `rank`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Job {
    /// What is done.
    pub collective: Collective,
    /// The rank whose schedule is wanted.
    pub rank: Rank,
    /// The world size.
    pub ranks: usize,
    /// How many elements, as [`Collective`] says.
    pub count: usize,
    /// Whose data a broadcast hands out; 0 otherwise.
    pub root: Rank,
    /// The most elements a message may have, at least 1.
    pub chunk: usize,
    /// The most lanes a schedule may have, at least 1.
    pub lanes: usize,
    /// Whether a schedule may write straight into outputs, if its algorithm can.
    pub direct: bool,
}
