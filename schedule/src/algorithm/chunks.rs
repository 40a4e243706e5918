//! The common frame of algorithms: a collective is cut into chunks, and each chunk goes through the same turns.
//!
//! An algorithm gives the steps of a turn as a pure function of chunk and turn ([`Pattern`]). [`Lanes`] assigns chunk `c` to lane
//! `c mod lanes` and yields the steps one by one. The state of a lane is two integers and the steps of its current turn.

use crate::{Job, Rank, Schedule, Span, Step};

/// One rank's part in a collective. At least two ranks take part.
pub(super) trait Pattern: Send + 'static {
    /// How many chunks there are, at least 1.
    fn chunks(&self) -> usize;

    /// How many turns each chunk takes on this rank.
    fn turns(&self) -> usize;

    /// The steps of one turn of one chunk.
    fn turn(&self, chunk: usize, turn: usize, steps: &mut Steps);

    /// The most elements of any message of any rank.
    fn max_message(&self) -> usize;

    /// As [`Schedule::direct`].
    fn direct(&self) -> bool {
        false
    }

    /// As [`Schedule::scratch`].
    fn scratch(&self) -> usize {
        0
    }

    /// As [`Schedule::sources`].
    fn sources(&self, visit: &mut dyn FnMut(Rank));
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
        if direct {
            self.push(Step::Await { from, into });
        } else {
            self.take(from, into.len);
            self.copy(Span::landed(from, into.len), into);
            self.free(from);
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

/// A pattern as a schedule.
pub(super) struct Lanes<P> {
    pattern: P,
    chunks: usize,
    turns: usize,
    lanes: Vec<Lane>,
}

struct Lane {
    chunk: usize,
    turn: usize,
    steps: Steps,
}

impl<P: Pattern> Lanes<P> {
    /// With as many lanes as the job allows, but no lane without a chunk.
    pub(super) fn schedule(job: &Job<'_>, pattern: P) -> Box<dyn Schedule> {
        let (chunks, turns) = (pattern.chunks(), pattern.turns());
        let lanes = (0..job.lanes.clamp(1, chunks.max(1)))
            .map(|chunk| Lane { chunk, turn: 0, steps: Steps::EMPTY })
            .collect();
        Box::new(Self { pattern, chunks, turns, lanes })
    }
}

impl<P: Pattern> Schedule for Lanes<P> {
    fn lanes(&self) -> usize {
        self.lanes.len()
    }

    fn max_message(&self) -> usize {
        self.pattern.max_message()
    }

    fn direct(&self) -> bool {
        self.pattern.direct()
    }

    fn scratch(&self) -> usize {
        self.pattern.scratch()
    }

    fn sources(&self, visit: &mut dyn FnMut(Rank)) {
        self.pattern.sources(visit);
    }

    fn next(&mut self, lane: usize) -> Option<Step> {
        let stride = self.lanes.len();
        let lane = self.lanes.get_mut(lane)?;
        loop {
            if lane.steps.given < lane.steps.len {
                lane.steps.given += 1;
                return Some(lane.steps.steps[lane.steps.given - 1]);
            }
            if lane.turn == self.turns {
                lane.turn = 0;
                lane.chunk += stride;
            }
            if lane.chunk >= self.chunks {
                return None;
            }
            lane.steps.len = 0;
            lane.steps.given = 0;
            self.pattern.turn(lane.chunk, lane.turn, &mut lane.steps);
            lane.turn += 1;
        }
    }
}

/// The schedule of a world of one rank: the input is the result, even of an average.
pub(super) struct Alone {
    copy: Option<Step>,
}

impl Alone {
    pub(super) fn schedule(count: usize) -> Box<dyn Schedule> {
        let copy = Step::Copy { from: Span::input(0, count), into: Span::output(0, count) };
        Box::new(Self { copy: (count > 0).then_some(copy) })
    }
}

impl Schedule for Alone {
    fn lanes(&self) -> usize {
        1
    }

    fn max_message(&self) -> usize {
        0
    }

    fn direct(&self) -> bool {
        false
    }

    fn scratch(&self) -> usize {
        0
    }

    fn sources(&self, _: &mut dyn FnMut(Rank)) {}

    fn next(&mut self, lane: usize) -> Option<Step> {
        if lane == 0 { self.copy.take() } else { None }
    }
}
