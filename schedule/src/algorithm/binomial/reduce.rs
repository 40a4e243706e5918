//! Reduce: a rank reduces the contributions of its children with its own, the smallest subtree first, in the slot where the latest
//! one landed, and sends the result from there.

use super::{Tree, Vector, hops};
use crate::{
    Collective, Rank, Span, Step, Traffic,
    algorithm::{
        Plan,
        chunks::{Lanes, Pattern, Steps},
    },
    partition,
};

pub(super) const PLAN: Plan = Plan::new(
    Collective::Reduce,
    |job| Lanes::schedule(job, Reduce(Vector::new(job))),
    |job| match Tree::new(job).parent() {
        Some(_) => Traffic { messages: partition::chunks(job.count, job.chunk), elements: job.count },
        None => Traffic::NONE,
    },
    hops,
);

struct Reduce(Vector);

impl Pattern for Reduce {
    fn chunks(&self) -> usize {
        self.0.chunks
    }

    /// One for each child, or one to send what a rank without children has.
    fn turns(&self) -> usize {
        self.0.tree.children.max(1)
    }

    fn turn(&self, chunk: usize, turn: usize, steps: &mut Steps) {
        let range = self.0.slice(chunk);
        let input = Span::input(range.start, range.len());
        let (tree, parent) = (&self.0.tree, self.0.tree.parent());
        if tree.children == 0 {
            if let Some(parent) = parent {
                steps.put(parent, input);
            }
            return;
        }
        let child = tree.child(turn);
        let before = turn.checked_sub(1).map(|before| tree.child(before));
        let theirs = Span::landed(child, range.len());
        let sum = before.map_or(input, |before| Span::landed(before, range.len()));
        let (all, last) = (turn + 1 == tree.children, turn + 1 == tree.children && parent.is_none());
        let into = if last { Span::output(range.start, range.len()) } else { theirs };
        steps.take(child, range.len());
        steps.push(Step::Reduce { a: sum, b: theirs, into, last });
        if let Some(before) = before {
            steps.free(before);
        }
        if all {
            if let Some(parent) = parent {
                steps.put(parent, theirs);
            }
            steps.free(child);
        }
    }

    fn max_message(&self) -> usize {
        self.0.longest()
    }

    fn sources(&self, visit: &mut dyn FnMut(Rank)) {
        (0..self.0.tree.children).for_each(|index| visit(self.0.tree.child(index)));
    }
}
