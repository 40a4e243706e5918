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
    /// The slot of the latest message that this lane took from this rank, until its [`Step::Free`]; or the elements of this rank that
    /// this lane [views](Step::View), one block after the other, until its next [`Step::Show`] or its end.
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

/// The elements that a rank shows at once: `blocks` spans of equal length, the first of which is `first`. Each begins `stride` elements
/// after the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shown {
    /// The first block, in the rank's input or output, or in scratch where messages go between hosts.
    pub first: Span,
    /// The number of blocks.
    pub blocks: usize,
    /// The elements from the beginning of a block to that of the next.
    pub stride: usize,
    /// The elements that no other rank reads, by number: those that a rank has for itself between those for others.
    pub own: Own,
}

/// `len` of the elements that a rank shows, from number `at` on, which only this rank needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Own {
    /// The number of the first one.
    pub at: usize,
    /// How many there are; 0 if others may read all elements.
    pub len: usize,
}

impl Shown {
    /// No elements.
    pub const NOTHING: Self = Self::one(Span::input(0, 0));

    /// The elements of one span.
    #[must_use]
    pub const fn one(first: Span) -> Self {
        Self { first, blocks: 1, stride: 0, own: Own { at: 0, len: 0 } }
    }

    /// The elements of some blocks. Blocks without a gap between them are one.
    #[must_use]
    pub const fn several(first: Span, blocks: usize, stride: usize) -> Self {
        if stride == first.len {
            return Self::one(Span { len: blocks.saturating_mul(stride), ..first });
        }
        Self { first, blocks, stride, own: Own { at: 0, len: 0 } }
    }

    /// The same elements, of which others do not read these.
    #[must_use]
    pub const fn but(self, own: Own) -> Self {
        Self { own, ..self }
    }

    /// The longest stretch of elements from number `at` on, up to number `end`, that lie one after the other and others may read: its
    /// number, and where it lies. `None` if there is none.
    #[must_use]
    pub fn stretch(&self, at: usize, end: usize) -> Option<(usize, Span)> {
        let Own { at: start, len } = self.own;
        let skips = len > 0 && (start..start.saturating_add(len)).contains(&at);
        let at = if skips { start + len } else { at };
        let end = if len > 0 && at < start { end.min(start) } else { end };
        if at >= end {
            return None;
        }
        // A division takes longer than all else here.
        let block = if at < self.first.len { 0 } else { at.checked_div(self.first.len)? };
        let (there, from) = (self.block(block), at - block * self.first.len);
        let len = (there.len - from).min(end - at);
        Some((at, Span { offset: there.offset.saturating_add(from), len, ..there }))
    }

    /// The number of elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.blocks.saturating_mul(self.first.len)
    }

    /// True if there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where a block lies.
    #[must_use]
    pub const fn block(&self, index: usize) -> Span {
        let offset = self.first.offset.saturating_add(index.saturating_mul(self.stride));
        Span { offset, ..self.first }
    }

    /// Where `len` of the elements lie, from number `at` on. `None` if they are not in one block, or others do not read them.
    #[must_use]
    pub fn within(&self, at: usize, len: usize) -> Option<Span> {
        if at < self.own.at.saturating_add(self.own.len) && self.own.at < at.saturating_add(len) {
            return None;
        }
        let block = if self.blocks > 1 { at.checked_div(self.first.len).unwrap_or(0) } else { 0 };
        let from = at - block * self.first.len;
        let whole = block < self.blocks && from.checked_add(len).is_some_and(|end| end <= self.first.len);
        let first = self.block(block);
        whole.then(|| Span { offset: first.offset.saturating_add(from), len, ..first })
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
        /// If true, these elements now have all contributions, and an average is divided.
        last: bool,
    },
    /// Shows elements to all other ranks, which share memory with this one, and begins the lane's next round. All ranks have the
    /// same number of rounds. Waits until all others have begun the round before. What this rank viewed in that round is given back.
    ///
    /// Where the engine copies the elements to a slot, they may change after this step. Where others read them in place
    /// ([`Showing::InPlace`](crate::Showing::InPlace)), they must not change until a later round or [`Step::Settle`] proves that
    /// these have been read.
    Show {
        /// The elements, which may be none.
        shown: Shown,
    },
    /// Waits until another rank has shown these elements in this round.
    View {
        /// The rank.
        from: Rank,
        /// Its elements.
        shown: Shown,
    },
    /// `into = ((x0 ⊕ x1) ⊕ x2) ...` over the contributions of all ranks in the order of ranks, rounded once. `own` is this
    /// rank's contribution, and the latest message from each other rank has that rank's, from element `at` on. `into` may be the same
    /// span as `own`, but not overlap it otherwise. An average is divided.
    Fold {
        /// This rank's contribution.
        own: Span,
        /// The index of the first element in the message of each other rank.
        at: usize,
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
    /// Waits until the sources of this lane's puts and writes are no longer read. In a schedule without messages: until all other
    /// ranks have come to their `Settle`, and so read nothing any more. It is then the last step of all ranks.
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
            Self::Take { from, .. }
            | Self::Await { from, .. }
            | Self::View { from, .. }
            | Self::Free { from } => Some(from),
            Self::Reduce { .. }
            | Self::Fold { .. }
            | Self::Copy { .. }
            | Self::Show { .. }
            | Self::Settle => None,
        }
    }
}

/// The steps of one rank in one collective.
pub trait Schedule: Send {
    /// The number of lanes, at least 1; the same on every rank.
    fn lanes(&self) -> usize;

    /// The most elements of a message, the same on every rank; 0 if all messages are empty.
    fn max_message(&self) -> usize;

    /// True if there are [`Step::Write`]s; the same on every rank.
    fn direct(&self) -> bool;

    /// The number of elements of scratch that this rank needs.
    fn scratch(&self) -> usize;

    /// The most elements that a rank [shows](Step::Show) at once, the same on every rank; `None` if it sends messages instead, or
    /// between hosts.
    fn shows(&self) -> Option<usize> {
        None
    }

    /// Calls `visit` once for every rank from which this rank takes messages on any lane, or, if there are no messages, whose elements it
    /// views.
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
    /// True if its messages go through small slots, which hold `eager_bytes` bytes, if an element has `element_size` bytes: it has
    /// one lane, no long message, and no writes.
    #[must_use]
    pub fn is_small(&self, element_size: usize, eager_bytes: usize) -> bool {
        let message = self.max_message().saturating_mul(element_size);
        self.lanes() == 1 && message <= eager_bytes && !self.direct()
    }
}
