//! What is chosen for a call, and what follows from it: messages, lanes, writes into outputs.

use crate::{
    Collective,
    algorithm::{Algorithm, Plan, Split},
};

/// From so many bytes on, all that one rank has for another goes in one write where it can ([`writes`]).
const LONG: usize = 64 << 10;

/// An algorithm, and the messages and lanes that its schedule is made with.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// The algorithm; it can do the collective.
    pub algorithm: &'static Algorithm,
    /// The most bytes of a message, a multiple of 64.
    pub chunk_bytes: usize,
    /// The most lanes.
    pub lanes: usize,
}

impl Choice {
    /// A call of `bytes` bytes among `ranks` ranks, in messages that give each of `lanes` lanes one; but not shorter nor
    /// longer than the two bounds `chunk` (bytes).
    #[must_use]
    pub fn cut(
        algorithm: &'static Algorithm,
        collective: Collective,
        ranks: usize,
        bytes: usize,
        chunk: (usize, usize),
        lanes: usize,
    ) -> Self {
        let pieces = algorithm.plan(collective).map_or(1, |plan| plan.split.among(ranks));
        let even = bytes.div_ceil(pieces.saturating_mul(lanes).max(1)).clamp(chunk.0, chunk.1.max(chunk.0));
        Self { algorithm, chunk_bytes: even.checked_next_multiple_of(64).unwrap_or(even), lanes }
    }

    /// The same within a group's configuration: at most `lanes` lanes, and messages of at most `chunk_bytes`; if it wants
    /// one lane, of at most `eager_bytes`, so that they fit the small windows however large the whole is.
    #[must_use]
    pub fn within(self, chunk_bytes: usize, eager_bytes: usize, lanes: usize) -> Self {
        let most = if self.lanes == 1 { eager_bytes.min(chunk_bytes) } else { chunk_bytes };
        Self { chunk_bytes: self.chunk_bytes.min(most), lanes: self.lanes.min(lanes), ..self }
    }

    /// The same for a call of many tensors, which come through slots where a call of one would be written into outputs. An
    /// algorithm that takes a piece of every rank's from all others gives way to one that cuts the same pieces and takes
    /// them from a neighbour, if that is `allowed`: its few slots stay in the caches, and what has come is forwarded from
    /// where it lies (docs/decisions/029-coalesced-in-place.md). Between two ranks there is one neighbour either way.
    #[must_use]
    pub fn coalesced(
        self,
        collective: Collective,
        ranks: usize,
        allowed: impl Fn(&Algorithm) -> bool,
    ) -> Self {
        let cut = |it: &Algorithm, from_all| {
            it.plan(collective).is_some_and(|it| it.split == Split::EachRank && it.from_all == from_all)
        };
        let other = crate::algorithm::ALGORITHMS
            .iter()
            .find(|other| ranks > 2 && cut(self.algorithm, true) && cut(other, false) && allowed(other));
        Self { algorithm: other.unwrap_or(self.algorithm), ..self }
    }
}

/// Whether a collective of so many bytes ([`Job::count`](crate::Job::count) elements) in chunks of at most `chunk_bytes`
/// writes results straight into outputs: one that reduces from eight chunks on, others from two. What is shorter still lies
/// in the caches when it is copied, and a copy costs less than a clear to send
/// (docs/decisions/004-receiver-decides-writes.md). Where registration is not cheap, only registered outputs are written, by
/// a NIC that needs no processor for it: from two chunks and from one on
/// (docs/decisions/005-long-writes.md).
pub(super) const fn direct(
    collective: Collective,
    ranks: usize,
    bytes: usize,
    chunk_bytes: usize,
    cheap_registration: bool,
) -> bool {
    let whole = if collective.has_blocks() { bytes.saturating_mul(ranks) } else { bytes };
    let chunks = match (cheap_registration, collective.reduces()) {
        (true, true) => 8,
        (true, false) | (false, true) => 2,
        (false, false) => 1,
    };
    whole / chunks >= chunk_bytes
}

/// Whether so done a collective writes results straight into outputs, and whether all that one rank has for another goes
/// in one write: where registration is cheap, so that every rank lets others write into its output, from 64 KiB on, by a
/// plan that can. A write waits for a clear to send, which costs more than it saves for less
/// (docs/decisions/005-long-writes.md).
#[must_use]
pub const fn writes(
    plan: &Plan,
    ranks: usize,
    bytes: usize,
    chunk_bytes: usize,
    cheap_registration: bool,
) -> (bool, bool) {
    let long = cheap_registration && plan.whole && bytes >= LONG;
    (long || direct(plan.collective, ranks, bytes, chunk_bytes, cheap_registration), long)
}

/// From how many ranks a rank takes small messages, and chunks, by the usual choices where ranks have a core each: what
/// windows are made for when a group is joined. More than 8 ranks take chunks from all others only at the root of a gather,
/// in an all_to_all, in a reproducible reduction and at the hub of a star: those windows are made when they are first
/// needed.
#[must_use]
pub fn neighbours(ranks: usize) -> (usize, usize) {
    let others = ranks.saturating_sub(1);
    let doublings = usize::try_from(ranks.next_power_of_two().ilog2()).unwrap_or(usize::MAX);
    // Halving takes from a rank for each doubling, two trees from four ranks.
    if ranks <= FEW { (others, others) } else { (others.min(2 * doublings), doublings.max(4)) }
}

/// Among so many ranks each can have windows for chunks from all others.
pub(super) const FEW: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::find;

    #[test]
    fn many_tensors_go_round_the_ring_where_one_goes_in_two_shots() {
        let taken = |name, collective, ranks, no| {
            let choice = Choice { algorithm: find(name).unwrap(), chunk_bytes: 64, lanes: 2 };
            choice.coalesced(collective, ranks, |it| it.name != no).algorithm.name
        };
        let all_reduce = Collective::AllReduce;
        assert_eq!(taken("two_shot", all_reduce, 4, ""), "ring");
        assert_eq!(taken("two_shot", all_reduce, 4, "ring"), "two_shot");
        assert_eq!(taken("two_shot", all_reduce, 2, ""), "two_shot");
        assert_eq!(taken("rabenseifner", all_reduce, 4, ""), "rabenseifner");
        assert_eq!(taken("direct", Collective::AllGather, 4, ""), "direct");
    }

    #[test]
    fn every_lane_gets_a_message_within_the_bounds() {
        let cut = |bytes, chunk, lanes| {
            Choice::cut(find("ring").unwrap(), Collective::AllReduce, 4, bytes, chunk, lanes).chunk_bytes
        };
        assert_eq!(cut(1 << 20, (1 << 10, 1 << 20), 2), 128 << 10, "a quarter of a half");
        assert_eq!(cut(1 << 20, (1 << 10, 4 << 10), 2), 4 << 10);
        assert_eq!(cut(8, (1 << 10, 4 << 10), 2), 1 << 10);
        assert_eq!(cut(usize::MAX, (64, usize::MAX), 1) % 64, 0);
    }
}
