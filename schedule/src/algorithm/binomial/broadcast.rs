//! Broadcast: a rank forwards each message to its children from the slot where it landed, the largest subtree first.

use super::{Tree, hops};
use crate::{
    Collective, Job, Rank, Span, Traffic,
    algorithm::{
        Plan,
        chunks::{Lanes, Pattern, Steps},
    },
    partition::{self, block},
};

pub(super) const PLAN: Plan = Plan::new(
    Collective::Broadcast,
    |job| Lanes::schedule(job, Broadcast::new(job)),
    |job| {
        let children = Tree::new(job).children;
        Traffic {
            messages: partition::chunks(job.count, job.chunk) * children,
            elements: job.count * children,
        }
    },
    hops,
);

struct Broadcast {
    tree: Tree,
    count: usize,
    chunks: usize,
}

impl Broadcast {
    fn new(job: &Job<'_>) -> Self {
        Self { tree: Tree::new(job), count: job.count, chunks: partition::chunks(job.count, job.chunk) }
    }
}

impl Pattern for Broadcast {
    fn chunks(&self) -> usize {
        self.chunks
    }

    fn turns(&self) -> usize {
        self.tree.children + 2
    }

    fn turn(&self, chunk: usize, turn: usize, steps: &mut Steps) {
        let range = block(self.count, self.chunks, chunk);
        let (parent, output) = (self.tree.parent(), Span::output(range.start, range.len()));
        let data = parent.map_or(output, |parent| Span::landed(parent, range.len()));
        match (turn, parent) {
            (0, Some(parent)) => steps.take(parent, range.len()),
            (0, None) => {}
            (turn, _) if turn <= self.tree.children => {
                steps.put(self.tree.child(self.tree.children - turn), data);
            }
            (_, Some(parent)) => {
                steps.copy(data, output);
                steps.free(parent);
            }
            (_, None) => {}
        }
    }

    fn max_message(&self) -> usize {
        partition::longest(self.count, self.chunks)
    }

    fn sources(&self, visit: &mut dyn FnMut(Rank)) {
        self.tree.parent().into_iter().for_each(visit);
    }
}
