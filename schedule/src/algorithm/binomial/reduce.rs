//! Reduce: a rank reduces the contributions of its children with its own, the smallest subtree first, in the slot where the latest
//! one landed, and sends the result from there.

use super::{Tree, hops};
use crate::{
    Collective, Job, Rank, Span, Step, Traffic,
    algorithm::{
        Plan,
        chunks::{Lanes, Pattern, Steps},
    },
    partition::{self, block},
};

pub(super) const PLAN: Plan = Plan::new(
    Collective::Reduce,
    |job| Lanes::schedule(job, Reduce::new(job)),
    |job| match Tree::new(job).parent() {
        Some(_) => Traffic { messages: partition::chunks(job.count, job.chunk), elements: job.count },
        None => Traffic::NONE,
    },
    hops,
);

struct Reduce {
    tree: Tree,
    count: usize,
    chunks: usize,
}

impl Reduce {
    fn new(job: &Job<'_>) -> Self {
        Self { tree: Tree::new(job), count: job.count, chunks: partition::chunks(job.count, job.chunk) }
    }
}

impl Pattern for Reduce {
    fn chunks(&self) -> usize {
        self.chunks
    }

    /// One for each child, or one to send what a rank without children has.
    fn turns(&self) -> usize {
        self.tree.children.max(1)
    }

    fn turn(&self, chunk: usize, turn: usize, steps: &mut Steps) {
        let range = block(self.count, self.chunks, chunk);
        let input = Span::input(range.start, range.len());
        let (tree, parent) = (&self.tree, self.tree.parent());
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
        partition::longest(self.count, self.chunks)
    }

    fn sources(&self, visit: &mut dyn FnMut(Rank)) {
        (0..self.tree.children).for_each(|index| visit(self.tree.child(index)));
    }
}
