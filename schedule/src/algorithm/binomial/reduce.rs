//! Reduce: a rank reduces the contributions of its children with its own, the smallest subtree first, in the slot where the latest
//! one landed, and sends the result from there.

use super::{Family, Tree, Vector, hops};
use crate::{
    Collective, Job, Rank, Schedule, Span, Step,
    algorithm::{
        Plan,
        chunks::{Lanes, Pattern, Shape, Steps},
    },
};

pub(super) const PLAN: Plan = Plan::new(Collective::Reduce, |job| reduce(job, Tree::new(job).family()), hops);

/// A rank's schedule of a reduce up any tree.
pub(crate) fn reduce(job: &Job<'_>, family: Family) -> Box<dyn Schedule> {
    Lanes::schedule(job, Reduce(Vector::new(job, family)))
}

struct Reduce(Vector);

impl Pattern for Reduce {
    /// A turn for each child; a rank without children has one, to send its contribution.
    fn shape(&self) -> Shape {
        self.0.shape(self.0.family.children.len().max(1))
    }

    fn turn(&self, chunk: usize, turn: usize, steps: &mut Steps) {
        let range = self.0.slice(chunk);
        let input = Span::input(range.start, range.len());
        let (children, parent) = (&self.0.family.children, self.0.family.parent);
        if children.is_empty() {
            if let Some(parent) = parent {
                steps.put(parent, input);
            }
            return;
        }
        let child = children[turn];
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
            if let Some(parent) = parent {
                steps.put(parent, theirs);
            }
            steps.free(child);
        }
    }

    fn sources(&self, visit: &mut dyn FnMut(Rank)) {
        self.0.family.children.iter().copied().for_each(visit);
    }
}
