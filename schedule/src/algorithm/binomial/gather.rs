//! Gather: the blocks of a subtree go up in bundles, the nearest first. A rank assembles its own bundle in scratch, and forwards
//! the others from the slots where they landed; the root copies all of them to the output.

use super::bundles::Bundles;
use crate::{
    Rank, Span,
    algorithm::chunks::{Pattern, PatternShape, Steps},
};

pub(super) struct Gather(pub(super) Bundles);

impl Gather {
    /// Takes the blocks of these places (distance from this one, number) from a child, and copies them to scratch or the output.
    fn keep(&self, chunk: usize, child: Rank, places: (usize, usize), steps: &mut Steps) {
        let len = self.0.slice(chunk).len();
        let landed = Span::landed(child, places.1 * len);
        steps.take(child, landed.len);
        if self.0.tree.place > 0 {
            steps.copy(landed, Span::scratch(places.0 * len, landed.len));
        } else {
            let (one, other) = self.0.spans(chunk, places);
            steps.copy(Span::landed(child, one.len()), Span::output(one.start, one.len()));
            if let Some(other) = other {
                let rest = Span { offset: one.len(), len: other.len(), ..landed };
                steps.copy(rest, Span::output(other.start, other.len()));
            }
        }
        steps.free(child);
    }

    /// Copies this rank's block to the output, or sends it with those that are in scratch.
    fn own(&self, chunk: usize, steps: &mut Steps) {
        let slice = self.0.slice(chunk);
        let input = Span::input(slice.start, slice.len());
        match (self.0.tree.parent(), self.0.own()) {
            (None, _) => {
                let (own, _) = self.0.spans(chunk, (0, 1));
                steps.copy(input, Span::output(own.start, own.len()));
            }
            (Some(parent), 1) => steps.put(parent, input),
            (Some(parent), own) => {
                steps.copy(input, Span::scratch(0, input.len));
                steps.put(parent, Span::scratch(0, own * input.len));
            }
        }
    }

    /// Takes the message of a bundle.
    fn take(&self, chunk: usize, bundle: usize, steps: &mut Steps) {
        let (_, places) = self.0.bundle(bundle);
        steps.take(self.0.toward(bundle), places * self.0.slice(chunk).len());
    }
}

impl Pattern for Gather {
    /// A turn for the first message of each child, so that these are taken before anything is sent even if there are more; one for
    /// this place's bundle; and one for each other bundle.
    fn shape(&self) -> PatternShape {
        let Bundles { tree, count, .. } = &self.0;
        // There is one chunk if a bundle has several blocks, and scratch even if these are empty.
        let own = self.0.own();
        let scratch = if tree.place > 0 && own > 1 { (own * count).max(1) } else { 0 };
        self.0.shape(tree.children + self.0.bundles(), scratch)
    }

    fn turn(&self, chunk: usize, turn: usize, steps: &mut Steps) {
        let (bundles, children) = (&self.0, self.0.tree.children);
        if turn < bundles.near() {
            self.keep(chunk, bundles.tree.child(turn), bundles.child(turn), steps);
        } else if turn < children {
            // The message stays in its slot until its turn. The root need not wait for all.
            if bundles.tree.place > 0 {
                self.take(chunk, bundles.first_of(turn), steps);
            }
        } else if turn == children {
            self.own(chunk, steps);
        } else {
            let bundle = turn - children;
            let child = bundles.toward(bundle);
            let Some(parent) = bundles.tree.parent() else {
                return self.keep(chunk, child, bundles.bundle(bundle), steps);
            };
            if !bundle.is_power_of_two() {
                self.take(chunk, bundle, steps);
            }
            let (_, places) = bundles.bundle(bundle);
            steps.put(parent, Span::landed(child, places * bundles.slice(chunk).len()));
            steps.free(child);
        }
    }

    fn sources(&self, visit: &mut dyn FnMut(Rank)) {
        self.0.tree.children(visit);
    }
}
