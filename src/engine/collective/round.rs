//! The bytes of an operation in place, and where they lie. Where a rank's memory is plain, the operation is cut into rounds, each of
//! as many bytes as a rank copies to its slot at once.

use std::ops::Range;

use unisono_schedule::{Collective, Rank, partition};

use crate::engine::wire::slots::STAGED_BYTES;

/// The bytes of a cache line.
const LINE: usize = 64;

/// A round of an operation in place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    collective: Collective,
    ranks: usize,
    me: Rank,
    /// The bytes of a block: what each rank shares with another.
    block: usize,
    /// The bytes of a block that a round takes, but for the last one.
    chunk: usize,
    /// The number of the round, from 0.
    index: usize,
}

/// A copy: from a block of a rank's operand, bytes of the round, to a place in the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Copy {
    pub from: Rank,
    pub block: usize,
    pub bytes: Range<usize>,
    pub to: usize,
}

impl Round {
    /// The only round of an operation, as long as no memory is plain.
    pub(super) fn new(collective: Collective, (me, ranks): (Rank, usize), block: usize) -> Self {
        Self { collective, ranks, me, block, chunk: block, index: 0 }
    }

    /// The number of blocks that a rank gives.
    pub(super) fn blocks(&self) -> usize {
        match self.collective {
            Collective::ReduceScatter | Collective::AllToAll => self.ranks,
            _ => 1,
        }
    }

    /// Cuts the operation into rounds in which a rank gives at most this many bytes, since some rank's memory is plain; this is the first one.
    pub(super) fn cut(&mut self, most: usize) {
        let most = most.min(STAGED_BYTES) / self.blocks() / LINE * LINE;
        if (1..self.block).contains(&most) {
            self.chunk = most;
        }
    }

    /// The next round, if this is not the last one.
    pub(super) fn next(&self) -> Option<Self> {
        let next = Self { index: self.index + 1, ..*self };
        (next.index * next.chunk < next.block).then_some(next)
    }

    /// The number of rounds before this one.
    pub(super) fn index(&self) -> usize {
        self.index
    }

    /// The bytes of each block.
    pub(super) fn len(&self) -> usize {
        (self.block - self.index * self.chunk).min(self.chunk)
    }

    /// From the beginning of an operand to a byte of the round in one of its blocks.
    pub(super) fn in_operand(&self, block: usize, at: usize) -> usize {
        block * self.block + self.index * self.chunk + at
    }

    /// The same from the beginning of what is staged.
    pub(super) fn in_slot(&self, block: usize, at: usize) -> usize {
        block * self.chunk + at
    }

    /// The block whose bytes a rank reduces.
    pub(super) fn reduced_block(&self) -> usize {
        if self.collective == Collective::ReduceScatter { self.me } else { 0 }
    }

    /// The bytes of that block that a rank reduces. In an all_reduce they begin at cache lines.
    pub(super) fn part(&self, rank: Rank) -> Range<usize> {
        let len = self.len();
        if self.collective == Collective::ReduceScatter {
            return 0..len;
        }
        let lines = partition::block(len.div_ceil(LINE), self.ranks, rank);
        (lines.start * LINE).min(len)..(lines.end * LINE).min(len)
    }

    /// The copies of this rank, by number. They begin with its own and that of the next rank, so that not all read from one.
    pub(super) fn copy(&self, number: usize, root: Rank) -> Option<Copy> {
        let from = (self.me + number) % self.ranks;
        let whole = 0..self.len();
        if self.collective == Collective::Broadcast {
            let copies = usize::from(self.me != root);
            let to = self.in_operand(0, 0);
            return (number < copies).then_some(Copy { from: root, block: 0, bytes: whole, to });
        }
        (number < self.ranks).then(|| match self.collective {
            Collective::AllReduce => {
                let bytes = self.part(from);
                Copy { from, block: 0, to: self.in_operand(0, bytes.start), bytes }
            }
            Collective::AllToAll => Copy { from, block: self.me, bytes: whole, to: self.in_operand(from, 0) },
            _ => Copy { from, block: 0, bytes: whole, to: self.in_operand(from, 0) },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All rounds of an operation.
    fn rounds(first: Round) -> Vec<Round> {
        std::iter::successors(Some(first), Round::next).collect()
    }

    /// The rounds of each rank where memory is plain.
    fn cut(collective: Collective, ranks: usize, (block, most): (usize, usize)) -> Vec<Vec<Round>> {
        let of = |me| {
            let mut round = Round::new(collective, (me, ranks), block);
            assert_eq!(rounds(round).len(), 1, "registered memory is not cut");
            round.cut(most);
            rounds(round)
        };
        (0..ranks).map(of).collect()
    }

    #[test]
    fn every_byte_is_taken_once() {
        use Collective::{AllGather, AllReduce, AllToAll, Broadcast, ReduceScatter};
        for collective in [AllReduce, ReduceScatter, AllGather, AllToAll, Broadcast] {
            let some = [(2, 1), (3, 700), (3, 64), (5, 5000)].map(|it| (it, 1000));
            let large = [(3, 1 << 20), (5, (1 << 20) + 8), (2, (3 << 20) - 4)].map(|it| (it, usize::MAX));
            for ((ranks, block), most) in some.into_iter().chain(large) {
                let root = block % ranks;
                let all = cut(collective, ranks, (block, most));
                let lasts = all.iter().map(Vec::len);
                assert!(lasts.clone().min() == lasts.max(), "{collective:?}: all ranks have as many rounds");
                for (me, rounds) in all.iter().enumerate() {
                    let blocks = rounds[0].blocks();
                    let outputs = if collective == AllGather || collective == AllToAll { ranks } else { 1 };
                    let mut written = vec![0_u8; outputs * block];
                    let mut reduced = vec![0_u8; block];
                    for round in rounds {
                        assert!(
                            blocks * round.len() <= STAGED_BYTES && round.in_slot(blocks, 0) <= STAGED_BYTES
                        );
                        for rank in 0..ranks {
                            for at in round.part(rank) {
                                reduced[round.in_operand(0, at)] += 1;
                            }
                        }
                        // In a reduce_scatter there is nothing to copy.
                        let copies = if collective == ReduceScatter { 0..0 } else { 0..ranks };
                        for copy in copies.map_while(|number| round.copy(number, root)) {
                            assert!(copy.bytes.end <= round.len() && copy.block < blocks);
                            written[copy.to..copy.to + copy.bytes.len()].iter_mut().for_each(|it| *it += 1);
                        }
                    }
                    let copies = collective != ReduceScatter && !(collective == Broadcast && me == root);
                    assert!(
                        written.iter().all(|&times| times == u8::from(copies)),
                        "{collective:?} {ranks} {block}"
                    );
                    let times = if collective == ReduceScatter { ranks } else { 1 };
                    assert!(
                        reduced.iter().all(|&it| usize::from(it) == times),
                        "{collective:?} {ranks} {block}"
                    );
                }
            }
        }
    }

    #[test]
    fn rounds_begin_at_cache_lines() {
        for (ranks, block) in [(3, 3 << 20), (7, 1 << 20), (48, 100_000)] {
            let all = cut(Collective::AllToAll, ranks, (block, usize::MAX));
            assert!(
                all[0].len() > 1 && all[0].iter().all(|round| round.in_operand(0, 0).is_multiple_of(LINE))
            );
        }
    }
}
