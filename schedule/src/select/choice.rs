//! The choice for a call, and what follows from it: messages, lanes, writes into outputs.

use super::shown::PlainMemory;
use crate::{
    Collective,
    algorithm::{Algorithm, Plan, Split},
};

/// The bytes from which all elements that one rank has for another are one write, if possible ([`writes`]).
const LONG: usize = 64 << 10;

/// An algorithm, and the limits of the messages and lanes of its schedule.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// The algorithm, which can do the collective.
    pub algorithm: &'static Algorithm,
    /// The most bytes of a message, a multiple of 64.
    pub chunk_bytes: usize,
    /// The most lanes.
    pub lanes: usize,
    /// If ranks share slots for the call: how elements of plain memory move. `None` if they do not, or if all elements go through slots in
    /// one round.
    pub shown: Option<PlainMemory>,
}

impl Choice {
    /// The choice for a call of `bytes` bytes among `ranks` ranks, with messages so long that each of `lanes` lanes has one, but within
    /// the two bounds `chunk` (bytes).
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
        Self { algorithm, chunk_bytes: even.checked_next_multiple_of(64).unwrap_or(even), lanes, shown: None }
    }

    /// The choice within a group's configuration: at most `lanes` lanes, and messages of at most `chunk_bytes`. If it has one lane,
    /// messages have at most `eager_bytes`, so that they fit into the small windows.
    #[must_use]
    pub fn within(self, chunk_bytes: usize, eager_bytes: usize, lanes: usize) -> Self {
        let most = if self.lanes == 1 { eager_bytes.min(chunk_bytes) } else { chunk_bytes };
        Self { chunk_bytes: self.chunk_bytes.min(most), lanes: self.lanes.min(lanes), ..self }
    }

    /// The choice for a call of many tensors, whose messages go through slots even if a call of one tensor would be written into
    /// outputs. An algorithm in which a rank receives a piece from each other rank is replaced by one that divides the vector into the
    /// same pieces and receives them from a neighbour, if that is `allowed`: its few slots stay in the caches, and messages are
    /// forwarded from where they landed (docs/decisions/029-coalesced-in-place.md). Two ranks are neighbours in both.
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

/// True if a collective of `bytes` bytes ([`Job::count`](crate::Job::count) elements) in chunks of at most `chunk_bytes` writes
/// results into outputs: from eight chunks on if it reduces, from two otherwise. A shorter message is still in the caches when it is
/// copied, and a copy costs less than a clear to send (docs/decisions/004-receiver-decides-writes.md). If registration is not cheap,
/// only registered outputs are written, by a NIC without a processor: from two chunks on if it reduces, from one otherwise
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

/// The values of [`Job::direct`](crate::Job::direct) and [`Job::long`](crate::Job::long) for a collective of `bytes` bytes in chunks of
/// at most `chunk_bytes` bytes. All elements that one rank has for another are one write if the plan can do that, registration is
/// cheap, so that every rank lets others write into its output, and there are 64 KiB or more. For fewer bytes the wait for a clear to
/// send costs more than a write saves (docs/decisions/005-long-writes.md).
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

/// The numbers of ranks from which a rank receives small messages, and chunks, by the usual choices if each rank has a core. Windows
/// for these are made when a group is joined. Among more than 8 ranks, a rank receives chunks from all others only as the root of a
/// gather, in an all_to_all, in a reproducible reduction or as the hub of a star; those windows are made when they are first needed.
#[must_use]
pub fn neighbours(ranks: usize) -> (usize, usize) {
    let others = ranks.saturating_sub(1);
    let doublings = usize::try_from(ranks.next_power_of_two().ilog2()).unwrap_or(usize::MAX);
    // In halving a rank has one source for each doubling, in two trees four.
    if ranks <= FEW { (others, others) } else { (others.min(2 * doublings), doublings.max(4)) }
}

/// The most ranks among which each has windows for chunks from all others.
pub(super) const FEW: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::find;

    #[test]
    fn many_tensors_go_round_the_ring_where_one_goes_in_two_shots() {
        let taken = |name, collective, ranks, no| {
            let choice = Choice { algorithm: find(name).unwrap(), chunk_bytes: 64, lanes: 2, shown: None };
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
