//! Reduce: a rank reduces the contributions of its children with its own, the smallest subtree first, in the slot where the latest
//! one landed, and sends the result from there.

use super::{Vector, hops};
use crate::{
    Collective, Rank, Span, Step,
    algorithm::{
        Plan,
        chunks::{Lanes, Pattern, Shape, Steps},
    },
};

pub(super) const PLAN: Plan =
    Plan::new(Collective::Reduce, |job| Lanes::schedule(job, Reduce(Vector::new(job))), hops);

struct Reduce(Vector);

impl Pattern for Reduce {
    /// A turn for each child, or one to send what a rank without children has.
    fn shape(&self) -> Shape {
        self.0.shape(self.0.tree.children.max(1))
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

    fn sources(&self, visit: &mut dyn FnMut(Rank)) {
        self.0.tree.children(visit);
    }
}
