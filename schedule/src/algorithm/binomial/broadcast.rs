//! Broadcast: a rank forwards each message to its children from the slot where it landed, the largest subtree first.

use super::{Family, Tree, Vector, hops};
use crate::{
    Collective, Job, Rank, Schedule, Span,
    algorithm::{
        Plan,
        chunks::{Lanes, Pattern, Shape, Steps},
    },
};

pub(super) const PLAN: Plan =
    Plan::new(Collective::Broadcast, |job| broadcast(job, Tree::new(job).family()), hops);

/// A rank's schedule of a broadcast down any tree.
pub(crate) fn broadcast(job: &Job<'_>, family: Family) -> Box<dyn Schedule> {
    Lanes::schedule(job, Broadcast(Vector::new(job, family)))
}

struct Broadcast(Vector);

impl Pattern for Broadcast {
    fn shape(&self) -> Shape {
        self.0.shape(self.0.family.children.len() + 2)
    }

    fn turn(&self, chunk: usize, turn: usize, steps: &mut Steps) {
        let range = self.0.slice(chunk);
        let (Family { parent, children }, output) = (&self.0.family, Span::output(range.start, range.len()));
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

    fn sources(&self, visit: &mut dyn FnMut(Rank)) {
        self.0.family.parent.into_iter().for_each(visit);
    }
}
