//! Broadcast and reduce, in any tree. In a broadcast, a rank forwards each message to its children from the slot where it landed, the
//! largest subtree first. In a reduce, it reduces the contributions of its children with its own, the smallest subtree first, in the slot
//! where the latest one landed, and sends the result from there.

use std::ops::Range;

use crate::{
    Collective, Job, Rank, Schedule, Span, Step,
    algorithm::chunks::{Lanes, Pattern, PatternShape, Steps},
    partition,
};

/// A rank's neighbours in a tree.
pub(crate) struct TreeNeighbours {
    pub(crate) parent: Option<Rank>,
    /// The children, the one with the smallest subtree first.
    pub(crate) children: Vec<Rank>,
}

/// A rank's schedule of a broadcast or a reduce.
pub(crate) fn schedule(job: &Job<'_>, family: TreeNeighbours) -> Box<dyn Schedule> {
    let (count, chunks) = (job.count, partition::chunks(job.count, job.chunk));
    Lanes::schedule(job, Vector { family, count, chunks, reduces: job.collective == Collective::Reduce })
}

/// A rank's part. The vector is cut into chunks.
struct Vector {
    family: TreeNeighbours,
    count: usize,
    chunks: usize,
    reduces: bool,
}

impl Vector {
    fn broadcast(&self, range: &Range<usize>, turn: usize, steps: &mut Steps) {
        let (TreeNeighbours { parent, children }, output) =
            (&self.family, Span::output(range.start, range.len()));
        let data = parent.map_or(output, |parent| Span::landed(parent, range.len()));
        match (turn, *parent) {
            (0, Some(parent)) => steps.take(parent, range.len()),
            (0, None) => {}
            (turn, _) if turn <= children.len() => steps.put(children[children.len() - turn], data),
            (_, Some(parent)) => {
                steps.copy(data, output);
                steps.free(parent);
            }
            (_, None) => {}
        }
    }

    fn reduce(&self, range: &Range<usize>, turn: usize, steps: &mut Steps) {
        let (TreeNeighbours { parent, children }, input) =
            (&self.family, Span::input(range.start, range.len()));
        let Some(&child) = children.get(turn) else {
            return parent.iter().for_each(|&parent| steps.put(parent, input));
        };
        let before = turn.checked_sub(1).map(|before| children[before]);
        let theirs = Span::landed(child, range.len());
        let sum = before.map_or(input, |before| Span::landed(before, range.len()));
        let all = turn + 1 == children.len();
        let last = all && parent.is_none();
        let into = if last { Span::output(range.start, range.len()) } else { theirs };
        steps.take(child, range.len());
        steps.push(Step::Reduce { a: sum, b: theirs, into, last });
        if let Some(before) = before {
            steps.free(before);
        }
        if all {
            if let Some(parent) = *parent {
                steps.put(parent, theirs);
            }
            steps.free(child);
        }
    }
}

impl Pattern for Vector {
    /// In a reduce, a turn for each child; a rank without children has one, to send its contribution. In a broadcast, one to take the
    /// message, one for each child, and one to copy.
    fn shape(&self) -> PatternShape {
        let children = self.family.children.len();
        let turns = if self.reduces { children.max(1) } else { children + 2 };
        let max_message = partition::longest(self.count, self.chunks);
        PatternShape { chunks: self.chunks, turns, max_message, ..PatternShape::default() }
    }

    fn turn(&self, chunk: usize, turn: usize, steps: &mut Steps) {
        let range = partition::block(self.count, self.chunks, chunk);
        if self.reduces { self.reduce(&range, turn, steps) } else { self.broadcast(&range, turn, steps) }
    }

    fn sources(&self, visit: &mut dyn FnMut(Rank)) {
        if self.reduces {
            self.family.children.iter().copied().for_each(visit);
        } else {
            self.family.parent.into_iter().for_each(visit);
        }
    }
}
