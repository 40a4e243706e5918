//! The steps of a schedule, and the trait by which an engine asks for them.

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
pub const SLICE: usize = 64 << 10;

impl Step {
    /// The rank that this step sends to, or whose message or slot it is about.
    #[must_use]
    pub const fn peer(&self) -> Option<Rank> {
        match *self {
            Self::Put { to, .. } | Self::Write { to, .. } => Some(to),
            Self::Take { from, .. } | Self::Await { from, .. } | Self::Free { from } => Some(from),
            Self::Reduce { .. } | Self::Fold { .. } | Self::Copy { .. } | Self::Settle => None,
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
