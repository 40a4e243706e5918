//! Algorithms of several stages, each of which is an algorithm among some of the ranks: a collective is cut into chunks, and each
//! chunk passes through all stages.
//!
//! A pattern gives the stage of a chunk as a pure function ([`Stages`]): the plan, the ranks that take part, and the places of its
//! input and output. [`Composed`] makes the schedule of the plan when the chunk gets there, and translates ranks and spans of the
//! stage into those of the whole collective. Chunk `c` is the work of lane `c mod lanes`, which takes the stages one after the other;
//! so one chunk is inside a host while another is between hosts.
//!
//! No stage waits for a later one, and all ranks take the stages of a lane in the same order. So the messages of two stages may use the
//! same flow, and the slots that suffice for each stage alone suffice for all.

use std::sync::Arc;

use super::{Plan, chunks::PatternShape};
use crate::{Job, Place, Rank, Schedule, Span, Step, Uneven};

/// One rank's part in a collective of several stages. At least two ranks take part.
pub(super) trait Stages: Send + 'static {
    /// Its chunks, its stages (turns), and the properties of its schedule; as scratch, the elements that each lane needs besides those
    /// of the stages' schedules. They do not change.
    fn shape(&self) -> PatternShape;

    /// A stage of a chunk on this rank; `None` if it does not take part. Of one stage, no chunk is longer than chunk 0.
    fn stage(&self, chunk: usize, stage: usize) -> Option<StagePart>;
}

/// What a rank does in a stage.
pub(super) enum StagePart {
    Among(AlgorithmStage),
    /// Steps in the memory of the whole, of a schedule of one lane.
    Steps(Box<dyn Iterator<Item = Step> + Send>),
}

/// An algorithm among some of the ranks.
pub(super) struct AlgorithmStage {
    /// The algorithm's plan.
    pub plan: &'static Plan,
    /// The ranks that take part.
    pub members: Arc<[Rank]>,
    /// This rank and the root, as indices of `members`.
    pub rank: usize,
    pub root: usize,
    /// The elements of the vector; or, if there are blocks, the length of each member's block.
    pub lengths: Lengths,
    /// The first elements of the stage's input and output. Scratch is that of the lane.
    pub input: At,
    pub output: At,
    /// If true, the vector has all contributions after the stage.
    pub last: bool,
    /// If true, the stage overwrites elements that earlier messages of this lane may still read, and waits until these have left.
    pub settle: bool,
}

/// The elements of a stage.
pub(super) enum Lengths {
    Vector(usize),
    Blocks(Vec<usize>),
    /// Of an all_to_all: the blocks of this member's input, and of its output.
    Exchange(Vec<usize>, Vec<usize>),
}

/// A place in memory.
#[derive(Clone, Copy)]
pub(super) struct At {
    pub place: Place,
    pub offset: usize,
}

/// The schedule of a pattern.
pub(super) struct Composed<P> {
    pattern: P,
    shape: PatternShape,
    /// The elements of scratch of each lane.
    room: usize,
    sources: Vec<Rank>,
    lanes: Vec<Lane>,
}

struct Lane {
    chunk: usize,
    stage: usize,
    running: Option<Running>,
}

/// A stage whose steps are taken.
enum Running {
    Among(Inner),
    Steps(Box<dyn Iterator<Item = Step> + Send>),
}

/// An algorithm whose steps are taken.
struct Inner {
    stage: AlgorithmStage,
    schedule: Box<dyn Schedule>,
    /// The first element of the lane's scratch, and of that of the schedule.
    lane: usize,
    scratch: usize,
}

impl At {
    pub(super) const INPUT: Self = Self { place: Place::Input, offset: 0 };
    pub(super) const OUTPUT: Self = Self { place: Place::Output, offset: 0 };

    pub(super) const fn scratch(offset: usize) -> Self {
        Self { place: Place::Scratch, offset }
    }

    /// This many elements after it.
    pub(super) const fn plus(self, elements: usize) -> Self {
        Self { offset: self.offset + elements, ..self }
    }
}

impl AlgorithmStage {
    /// A stage whose root, if it has one, is the first member.
    pub(super) const fn new(
        plan: &'static Plan,
        members: Arc<[Rank]>,
        rank: usize,
        lengths: Lengths,
        input: At,
        output: At,
    ) -> Self {
        Self { plan, members, rank, root: 0, lengths, input, output, last: false, settle: false }
    }

    /// The schedule of this rank, with messages of at most `most` elements.
    fn make(&self, most: usize) -> Box<dyn Schedule> {
        let longest = |lengths: &[usize]| lengths.iter().copied().max().unwrap_or(0);
        let (count, uneven) = match &self.lengths {
            Lengths::Vector(count) => (*count, None),
            Lengths::Blocks(all) => {
                let (count, uneven) = (longest(all), Uneven { input: all, output: all });
                (count, all.iter().any(|&len| len != count).then_some(uneven))
            }
            Lengths::Exchange(input, output) => {
                (longest(input).max(longest(output)), Some(Uneven { input, output }))
            }
        };
        let job = Job {
            root: self.root,
            chunk: most.max(1),
            uneven,
            pairwise: matches!(self.lengths, Lengths::Exchange(..)),
            ..Job::new(self.plan.collective, self.rank, self.members.len(), count)
        };
        self.plan.make(&job)
    }
}

impl<P: Stages> Composed<P> {
    /// The schedule with as many lanes as the job allows, but no lane without a chunk.
    pub(super) fn schedule(job: &Job<'_>, pattern: P) -> Box<dyn Schedule> {
        let shape = pattern.shape();
        let (mut sources, mut scratch) = (Vec::new(), 0);
        for part in (0..shape.turns).filter_map(|stage| pattern.stage(0, stage)) {
            let StagePart::Among(stage) = part else { continue };
            let schedule = stage.make(shape.max_message);
            debug_assert!(schedule.lanes() == 1 && schedule.max_message() <= shape.max_message.max(1));
            scratch = schedule.scratch().max(scratch);
            schedule.sources(&mut |source| sources.push(stage.members[source]));
        }
        sources.sort_unstable();
        sources.dedup();
        let lanes = (0..job.lanes.clamp(1, shape.chunks.max(1)))
            .map(|chunk| Lane { chunk, stage: 0, running: None })
            .collect();
        Box::new(Self { room: shape.scratch.saturating_add(scratch), pattern, shape, sources, lanes })
    }
}

impl<P: Stages> Schedule for Composed<P> {
    fn lanes(&self) -> usize {
        self.lanes.len()
    }

    fn max_message(&self) -> usize {
        self.shape.max_message
    }

    fn direct(&self) -> bool {
        false
    }

    fn scratch(&self) -> usize {
        self.room.saturating_mul(self.lanes.len())
    }

    fn sources(&self, visit: &mut dyn FnMut(Rank)) {
        self.sources.iter().copied().for_each(visit);
    }

    fn next(&mut self, index: usize) -> Option<Step> {
        let stride = self.lanes.len();
        let lane = self.lanes.get_mut(index)?;
        loop {
            if let Some(running) = &mut lane.running {
                if let Some(step) = running.next() {
                    return Some(step);
                }
                lane.running = None;
            }
            if lane.stage == self.shape.turns {
                lane.stage = 0;
                lane.chunk += stride;
            }
            if lane.chunk >= self.shape.chunks {
                return None;
            }
            let at = index * self.room;
            lane.running = self.pattern.stage(lane.chunk, lane.stage).map(|part| match part {
                StagePart::Among(stage) => {
                    let schedule = stage.make(self.shape.max_message);
                    Running::Among(Inner { stage, schedule, lane: at, scratch: at + self.shape.scratch })
                }
                StagePart::Steps(steps) => Running::Steps(steps),
            });
            lane.stage += 1;
        }
    }
}

impl Running {
    /// The next step, among the ranks and in the memory of the whole.
    fn next(&mut self) -> Option<Step> {
        match self {
            Self::Among(inner) => inner.next(),
            Self::Steps(steps) => steps.next(),
        }
    }
}

impl Inner {
    fn next(&mut self) -> Option<Step> {
        if std::mem::take(&mut self.stage.settle) {
            return Some(Step::Settle);
        }
        loop {
            let step = self.schedule.next(0)?;
            // Empty messages, for instance those of a barrier, carry nothing.
            let empty = matches!(self.stage.lengths, Lengths::Vector(0));
            if !(empty && matches!(step, Step::Reduce { .. } | Step::Copy { .. })) {
                return Some(self.moved(step));
            }
        }
    }

    fn moved(&self, step: Step) -> Step {
        let (rank, span) = (|rank: Rank| self.stage.members[rank], |span| self.span(span));
        match step {
            Step::Put { to, from } => Step::Put { to: rank(to), from: span(from) },
            Step::Take { from, len } => Step::Take { from: rank(from), len },
            Step::Free { from } => Step::Free { from: rank(from) },
            Step::Reduce { a, b, into, last } => {
                Step::Reduce { a: span(a), b: span(b), into: span(into), last: last && self.stage.last }
            }
            Step::Copy { from, into } => Step::Copy { from: span(from), into: span(into) },
            // Stages neither write into outputs nor reduce in the order of ranks, and show nothing.
            Step::Write { .. }
            | Step::Await { .. }
            | Step::Show { .. }
            | Step::View { .. }
            | Step::Fold { .. }
            | Step::Settle => step,
        }
    }

    fn span(&self, span: Span) -> Span {
        let At { place, offset } = match span.place {
            Place::Input => self.stage.input,
            Place::Output => self.stage.output,
            Place::Scratch => return Span { offset: self.scratch + span.offset, ..span },
            Place::Landed(from) => return Span { place: Place::Landed(self.stage.members[from]), ..span },
        };
        let base = if place == Place::Scratch { self.lane } else { 0 };
        Span { place, offset: base + offset + span.offset, len: span.len }
    }
}
