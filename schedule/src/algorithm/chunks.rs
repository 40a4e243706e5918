//! The frame that algorithms share: it cuts a collective into chunks, each of which takes the same turns.
//!
//! An algorithm gives the steps of a turn as a pure function of chunk and turn ([`Pattern`]). [`Lanes`] assigns chunk `c` to lane
//! `c mod lanes` and yields the steps one by one. The state of a lane is two integers and the steps of its current turn.

use std::ops::Range;

use crate::{Job, Rank, Schedule, Span, Step};

/// One rank's part in a collective. At least two ranks take part.
pub(super) trait Pattern: Send + 'static {
    /// Its chunks and turns, and the properties of its schedule. They do not change.
    fn shape(&self) -> PatternShape;

    /// The steps of one turn of one chunk.
    fn turn(&self, chunk: usize, turn: usize, steps: &mut Steps);

    /// As [`Schedule::sources`].
    fn sources(&self, visit: &mut dyn FnMut(Rank));

    /// As [`Schedule::written_by`].
    fn written_by(&self, _source: Rank) -> Option<Range<usize>> {
        None
    }
}

/// The numbers of chunks and turns of a pattern, and the properties of its schedule.
#[derive(Default)]
pub(super) struct PatternShape {
    /// The number of chunks; without one there is no step.
    pub chunks: usize,
    /// The number of turns that each chunk takes on this rank.
    pub turns: usize,
    /// The most elements of any message of any rank ([`Schedule::max_message`]).
    pub max_message: usize,
    /// As [`Schedule::direct`].
    pub direct: bool,
    /// As [`Schedule::scratch`].
    pub scratch: usize,
    /// As [`Schedule::shows`].
    pub shows: Option<usize>,
}

/// The most steps of a turn.
const MOST: usize = 6;

/// The steps of one turn.
pub(super) struct Steps {
    steps: [Step; MOST],
    len: usize,
    given: usize,
}

impl Steps {
    const EMPTY: Self = Self { steps: [Step::Settle; MOST], len: 0, given: 0 };

    /// Appends a step. A turn has at most six.
    #[inline]
    pub(super) fn push(&mut self, step: Step) {
        self.steps[self.len] = step;
        self.len += 1;
    }

    #[inline]
    pub(super) fn put(&mut self, to: Rank, from: Span) {
        self.push(Step::Put { to, from });
    }

    #[inline]
    pub(super) fn take(&mut self, from: Rank, len: usize) {
        self.push(Step::Take { from, len });
    }

    /// Sends elements that belong in the output of `to`, from element `at` on: by a write, or through a slot.
    #[inline]
    pub(super) fn hand(&mut self, direct: bool, to: Rank, from: Span, at: usize) {
        self.push(if direct { Step::Write { to, from, at } } else { Step::Put { to, from } });
    }

    /// Receives into the output what [`Self::hand`] sends.
    #[inline]
    pub(super) fn get(&mut self, direct: bool, from: Rank, into: Span) {
        self.relay(direct, from, into, None);
    }

    /// Receives into the output what [`Self::hand`] sends, and hands it to the same place of the ranks `to`. What landed in a
    /// slot is forwarded from there before it is copied, so that the wire works during the copy.
    #[inline]
    pub(super) fn relay(&mut self, direct: bool, from: Rank, into: Span, to: impl IntoIterator<Item = Rank>) {
        let landed = if direct { into } else { Span::landed(from, into.len) };
        if direct {
            self.push(Step::Await { from, into });
        } else {
            self.take(from, into.len);
        }
        for to in to {
            self.hand(direct, to, landed, into.offset);
        }
        if !direct {
            self.copy(landed, into);
            self.free(from);
        }
    }

    /// Takes a contribution and reduces it with this rank's `own` and the earlier ones. The sum lies where the first
    /// contribution, that of rank `first`, landed. Only the last contribution has a `result`, a span of the output: in place,
    /// the output is the input, and must not be written before the headers of all messages have been compared.
    #[inline]
    pub(super) fn accumulate(&mut self, own: Span, from: Rank, first: Rank, result: Option<Span>) {
        let [theirs, sum] = [from, first].map(|rank| Span::landed(rank, own.len));
        let a = if from == first { own } else { sum };
        self.take(from, own.len);
        self.push(Step::Reduce { a, b: theirs, into: result.unwrap_or(sum), last: result.is_some() });
        if from != first {
            self.free(from);
        }
        if result.is_some() {
            self.free(first);
        }
    }

    #[inline]
    pub(super) fn copy(&mut self, from: Span, into: Span) {
        self.push(Step::Copy { from, into });
    }

    #[inline]
    pub(super) fn free(&mut self, from: Rank) {
        self.push(Step::Free { from });
    }
}

/// The schedule of a pattern.
pub(super) struct Lanes<P> {
    pattern: P,
    shape: PatternShape,
    lanes: Vec<Lane>,
}

struct Lane {
    chunk: usize,
    turn: usize,
    steps: Steps,
}

impl<P: Pattern> Lanes<P> {
    /// The schedule with as many lanes as the job allows, but no lane without a chunk.
    pub(super) fn schedule(job: &Job<'_>, pattern: P) -> Box<dyn Schedule> {
        let shape = pattern.shape();
        let lanes = (0..job.lanes.clamp(1, shape.chunks.max(1)))
            .map(|chunk| Lane { chunk, turn: 0, steps: Steps::EMPTY })
            .collect();
        Box::new(Self { pattern, shape, lanes })
    }
}

impl<P: Pattern> Schedule for Lanes<P> {
    fn lanes(&self) -> usize {
        self.lanes.len()
    }

    fn max_message(&self) -> usize {
        self.shape.max_message
    }

    fn direct(&self) -> bool {
        self.shape.direct
    }

    fn scratch(&self) -> usize {
        self.shape.scratch
    }

    fn shows(&self) -> Option<usize> {
        self.shape.shows
    }

    fn sources(&self, visit: &mut dyn FnMut(Rank)) {
        self.pattern.sources(visit);
    }

    fn written_by(&self, source: Rank) -> Option<Range<usize>> {
        self.pattern.written_by(source)
    }

    fn next(&mut self, lane: usize) -> Option<Step> {
        let stride = self.lanes.len();
        let lane = self.lanes.get_mut(lane)?;
        loop {
            if lane.steps.given < lane.steps.len {
                lane.steps.given += 1;
                return Some(lane.steps.steps[lane.steps.given - 1]);
            }
            if lane.turn == self.shape.turns {
                lane.turn = 0;
                lane.chunk += stride;
            }
            if lane.chunk >= self.shape.chunks {
                return None;
            }
            lane.steps.len = 0;
            lane.steps.given = 0;
            self.pattern.turn(lane.chunk, lane.turn, &mut lane.steps);
            lane.turn += 1;
        }
    }
}

/// The schedule of the only rank of a group: the input is the result, even of an average.
pub(super) struct Alone {
    /// The elements of the output.
    pub count: usize,
}

impl Pattern for Alone {
    fn shape(&self) -> PatternShape {
        PatternShape { chunks: usize::from(self.count > 0), turns: 1, ..PatternShape::default() }
    }

    fn turn(&self, _: usize, _: usize, steps: &mut Steps) {
        steps.copy(Span::input(0, self.count), Span::output(0, self.count));
    }

    fn sources(&self, _: &mut dyn FnMut(Rank)) {}
}
