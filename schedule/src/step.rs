//! The steps of a schedule, and the trait through which the engine gets them.

use std::ops::Range;

/// A member of a group, counted from 0.
pub type Rank = usize;

/// The memory of a [`Span`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// The caller's input. In place, it lies in the output.
    Input,
    /// The caller's output.
    Output,
    /// [`Schedule::scratch`] elements of the engine's memory, whose contents are undefined at first.
    Scratch,
    /// The slot of the latest message that this lane took from this rank, until its [`Step::Free`].
    Landed(Rank),
}

/// `len` elements of `place` from element `offset` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// The memory.
    pub place: Place,
    /// The index of the first element.
    pub offset: usize,
    /// The number of elements, which may be 0.
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

/// A step of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Sends the span's elements as the next message of the flow to `to`. Does not wait for their arrival: the span must not change
    /// until a later message proves that they have arrived, or [`Step::Settle`].
    Put {
        /// The receiver.
        to: Rank,
        /// The elements. If they lie in a slot, the slot is not given back before they have left.
        from: Span,
    },
    /// Writes the span's elements into the output of `to`, from its element `at` on. Like [`Step::Put`], does not wait.
    Write {
        /// The receiver.
        to: Rank,
        /// The elements.
        from: Span,
        /// The index of the first element in the output of `to`.
        at: usize,
    },
    /// Waits until the next write from `from` has landed in `into`, a span of the output.
    Await {
        /// The sender.
        from: Rank,
        /// The elements that it writes.
        into: Span,
    },
    /// Waits for the next message of the flow from `from`, which has `len` elements.
    Take {
        /// The sender.
        from: Rank,
        /// The number of its elements.
        len: usize,
    },
    /// `into = a ⊕ b`, element by element. `into` may be the same span as `a` or `b`, but not overlap
    /// them otherwise.
    Reduce {
        /// One operand.
        a: Span,
        /// The other operand.
        b: Span,
        /// The result.
        into: Span,
        /// Whether these elements now have all contributions, so that an average is divided.
        last: bool,
    },
    /// `into = ((x0 ⊕ x1) ⊕ x2) ...` over the contributions of all ranks in the order of ranks, rounded once. `own` is this
    /// rank's contribution, and the latest message from each other rank is that rank's. `into` may be the same span as `own`, but
    /// not overlap it otherwise. An average is divided.
    Fold {
        /// This rank's contribution.
        own: Span,
        /// The result.
        into: Span,
    },
    /// `into = from`. Does nothing if they are the same memory (in place).
    Copy {
        /// The elements that are read.
        from: Span,
        /// The elements that are written.
        into: Span,
    },
    /// Gives back the slot of the oldest message that was taken from `from` and is not freed.
    Free {
        /// The sender of that message.
        from: Rank,
    },
    /// Waits until the sources of this lane's puts and writes are no longer read.
    Settle,
}

/// The bytes that the engine reduces or copies between two polls: few enough that the wire does not become idle and the data stays in
/// the inner caches, and enough that a poll (a system call over TCP) takes little time in comparison.
pub const SLICE: usize = 64 << 10;

impl Step {
    /// The rank to which this step sends, or whose message or slot it concerns.
    #[must_use]
    pub const fn peer(&self) -> Option<Rank> {
        match *self {
            Self::Put { to, .. } | Self::Write { to, .. } => Some(to),
            Self::Take { from, .. } | Self::Await { from, .. } | Self::Free { from } => Some(from),
            Self::Reduce { .. } | Self::Fold { .. } | Self::Copy { .. } | Self::Settle => None,
        }
    }
}

/// The steps of one rank in one collective.
pub trait Schedule: Send {
    /// The number of lanes, at least 1; the same on every rank.
    fn lanes(&self) -> usize;

    /// The most elements of a message, the same on every rank; 0 if all messages are empty.
    fn max_message(&self) -> usize;

    /// Whether there are [`Step::Write`]s; the same on every rank.
    fn direct(&self) -> bool;

    /// The number of elements of scratch that this rank needs.
    fn scratch(&self) -> usize;

    /// Calls `visit` once for every rank from which this rank takes messages on any lane.
    fn sources(&self, visit: &mut dyn FnMut(Rank));

    /// The elements of the output that contain all that a source [writes](Step::Write) there; `None` if these may be any. A rank whose
    /// output lies in several pieces lets a source write only into one.
    fn written_by(&self, _source: Rank) -> Option<Range<usize>> {
        None
    }

    /// The next step of a lane, or `None` when the lane has ended (and forever after).
    fn next(&mut self, lane: usize) -> Option<Step>;
}

impl dyn Schedule {
    /// Whether its messages go through small slots, which hold `eager_bytes` bytes, if an element has `element_size` bytes: it has
    /// one lane, no long message, and no writes.
    #[must_use]
    pub fn is_small(&self, element_size: usize, eager_bytes: usize) -> bool {
        let message = self.max_message().saturating_mul(element_size);
        self.lanes() == 1 && message <= eager_bytes && !self.direct()
    }
}
