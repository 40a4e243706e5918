//! Scatter: the blocks of a subtree go down in bundles, the farthest first. A rank forwards them from the slots where they landed:
//! first whole bundles, then the parts of its bundle. The root assembles in scratch the bundle that wraps around the end of its
//! input.

use super::bundles::Bundles;
use crate::{
    Rank, Span,
    algorithm::chunks::{Pattern, PatternShape, Steps},
};

pub(super) struct Scatter(pub(super) Bundles);

impl Scatter {
    /// The root sends the blocks of these places (distance from the root, number) to a child.
    fn send(&self, chunk: usize, child: Rank, places: (usize, usize), steps: &mut Steps) {
        let (one, other) = self.0.spans(chunk, places);
        let first = Span::input(one.start, one.len());
        let Some(other) = other else {
            return steps.put(child, first);
        };
        // Only one message wraps around, and there is one chunk if a message has several blocks: scratch is used once.
        let rest = Span::input(other.start, other.len());
        steps.copy(first, Span::scratch(0, first.len));
        steps.copy(rest, Span::scratch(first.len, rest.len));
        steps.put(child, Span::scratch(0, first.len + rest.len));
    }
}

impl Pattern for Scatter {
    /// A turn for each bundle, including this place's, one for each child that gets a part of that, and one for this rank's block.
    fn shape(&self) -> PatternShape {
        // The elements that can wrap around the end of the root's input; at least one, even if these are empty.
        let Bundles { tree, chunks, .. } = &self.0;
        let wraps = tree.place == 0 && tree.root > 0 && *chunks == 1;
        let scratch = if wraps { self.0.longest().max(1) } else { 0 };
        self.0.shape(self.0.bundles() + self.0.near() + 1, scratch)
    }

    fn turn(&self, chunk: usize, turn: usize, steps: &mut Steps) {
        let (bundles, slice) = (&self.0, self.0.slice(chunk));
        let (parent, len) = (bundles.tree.parent(), slice.len());
        let bundle = (bundles.bundles() - 1).saturating_sub(turn);
        if bundle > 0 {
            let (child, places) = (bundles.toward(bundle), bundles.bundle(bundle));
            let Some(parent) = parent else { return self.send(chunk, child, places, steps) };
            steps.take(parent, places.1 * len);
            steps.put(child, Span::landed(parent, places.1 * len));
            return steps.free(parent);
        }
        let turn = turn + 1 - bundles.bundles();
        if turn == 0 {
            if let Some(parent) = parent {
                steps.take(parent, bundles.own() * len);
            }
        } else if turn <= bundles.near() {
            let index = bundles.near() - turn;
            let (child, places) = (bundles.tree.child(index), bundles.child(index));
            let Some(parent) = parent else { return self.send(chunk, child, places, steps) };
            let part = Span { offset: places.0 * len, ..Span::landed(parent, places.1 * len) };
            steps.put(child, part);
        } else if let Some(parent) = parent {
            steps.copy(Span::landed(parent, len), Span::output(slice.start, len));
            steps.free(parent);
        } else {
            let (own, _) = bundles.spans(chunk, (0, 1));
            steps.copy(Span::input(own.start, len), Span::output(slice.start, len));
        }
    }

    fn sources(&self, visit: &mut dyn FnMut(Rank)) {
        self.0.tree.parent().into_iter().for_each(visit);
    }
}
