//! Broadcast: a rank forwards each message to its children from the slot where it landed, the largest subtree first.

use super::{Vector, hops};
use crate::{
    Collective, Rank, Span,
    algorithm::{
        Plan,
        chunks::{Lanes, Pattern, Shape, Steps},
    },
};

pub(super) const PLAN: Plan =
    Plan::new(Collective::Broadcast, |job| Lanes::schedule(job, Broadcast(Vector::new(job))), hops);

struct Broadcast(Vector);

impl Pattern for Broadcast {
    fn shape(&self) -> Shape {
        self.0.shape(self.0.tree.children + 2)
    }

    fn turn(&self, chunk: usize, turn: usize, steps: &mut Steps) {
        let range = self.0.slice(chunk);
        let (parent, output) = (self.0.tree.parent(), Span::output(range.start, range.len()));
        let data = parent.map_or(output, |parent| Span::landed(parent, range.len()));
        match (turn, parent) {
            (0, Some(parent)) => steps.take(parent, range.len()),
            (0, None) => {}
            (turn, _) if turn <= self.0.tree.children => {
                steps.put(self.0.tree.child(self.0.tree.children - turn), data);
            }
            (_, Some(parent)) => {
                steps.copy(data, output);
                steps.free(parent);
            }
            (_, None) => {}
        }
    }

    fn sources(&self, visit: &mut dyn FnMut(Rank)) {
        self.0.tree.parent().into_iter().for_each(visit);
    }
}
