//! Divides elements into blocks, rounds, pieces and chunks. All lengths and positions are in elements.

use std::{ops::Range, sync::Arc};

/// Part `index` of `total` elements that are divided into `parts` parts: the first `total % parts` parts have one element more than
/// the others. The parts in order cover `0..total` exactly. If `parts` is 0, or `index` is not below it, the range is empty.
///
/// ```
/// # use unisono_schedule::partition::block;
/// assert_eq!([0, 1, 2].map(|index| block(8, 3, index)), [0..3, 3..6, 6..8]);
/// ```
#[must_use]
pub const fn block(total: usize, parts: usize, index: usize) -> Range<usize> {
    if parts == 0 || index >= parts {
        return total..total;
    }
    let parts = Parts::of(total, parts);
    parts.start(index)..parts.start(index + 1)
}

/// The length of the longest [`block`], which is block 0.
pub(crate) const fn longest(total: usize, parts: usize) -> usize {
    total.div_ceil(if parts == 0 { 1 } else { parts })
}

/// The number of chunks of at most `limit` elements into which `total` elements are divided. At least 1, so that a collective of
/// no elements still exchanges its (empty) messages.
pub(crate) const fn chunks(total: usize, limit: usize) -> usize {
    let chunks = total.div_ceil(if limit == 0 { 1 } else { limit });
    if chunks == 0 { 1 } else { chunks }
}

/// The number of rounds in which `total` elements are moved, if a round has `pieces` pieces of at most `limit` elements; at least 1.
pub(crate) const fn rounds(total: usize, pieces: usize, limit: usize) -> usize {
    chunks(total, limit.saturating_mul(pieces))
}

/// Piece `piece` of round `round`: [`block`] of a [`block`].
pub(crate) const fn piece(
    total: usize,
    rounds: usize,
    round: usize,
    pieces: usize,
    piece: usize,
) -> Range<usize> {
    let whole = block(total, rounds, round);
    let part = block(whole.end - whole.start, pieces, piece);
    whole.start + part.start..whole.start + part.end
}

/// The ranges of `torch.chunk`: all have the length of the longest [`block`] except the last, so that there may be fewer than
/// `parts`. If `total` is 0, there are `parts` empty ranges.
///
/// ```
/// # use unisono_schedule::partition::alike;
/// assert!(alike(5, 4).eq([0..2, 2..4, 4..5]));
/// ```
pub fn alike(total: usize, parts: usize) -> impl ExactSizeIterator<Item = Range<usize>> {
    let len = longest(total, parts);
    let count = if total == 0 { parts } else { chunks(total, len) };
    (0..count).map(move |index| {
        let start = len * index;
        start..start.saturating_add(len).min(total)
    })
}

/// The ranges of `torch.tensor_split`, whose bounds are the elements `before`, in the order given. A negative bound counts from the
/// end, a bound outside `0..=total` is replaced by the nearest end, and a range that would end before it begins is empty.
///
/// ```
/// # use unisono_schedule::partition::cuts;
/// assert!(cuts(7, &[2, -1]).eq([0..2, 2..6, 6..7]));
/// ```
pub fn cuts(total: usize, before: &[isize]) -> impl ExactSizeIterator<Item = Range<usize>> {
    let place = move |cut: isize| match usize::try_from(cut) {
        Ok(cut) => cut.min(total),
        Err(_) => total.saturating_sub(cut.unsigned_abs()),
    };
    (0..before.len() + 1).map(move |index| {
        let start = index.checked_sub(1).and_then(|last| before.get(last)).map_or(0, |&cut| place(cut));
        let end = before.get(index).map_or(total, |&cut| place(cut));
        start..end.max(start)
    })
}

/// The sizes of all [`piece`]s, computed once, so that finding a piece needs no division.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pieces {
    rounds: Parts,
    /// The pieces of a round, and those of a round that has one element more.
    pieces: [Parts; 2],
}

#[derive(Clone, Copy, Debug)]
struct Parts {
    size: usize,
    longer: usize,
}

impl Parts {
    const fn of(total: usize, parts: usize) -> Self {
        let parts = if parts == 0 { 1 } else { parts };
        Self { size: total / parts, longer: total % parts }
    }

    const fn start(self, index: usize) -> usize {
        self.size * index + if index < self.longer { index } else { self.longer }
    }
}

impl Pieces {
    /// `total` elements in `rounds` rounds of `pieces` pieces each.
    pub(crate) const fn of(total: usize, rounds: usize, pieces: usize) -> Self {
        let rounds = Parts::of(total, rounds);
        Self {
            rounds,
            pieces: [Parts::of(rounds.size, pieces), Parts::of(rounds.size.saturating_add(1), pieces)],
        }
    }

    /// The elements of consecutive pieces of a round.
    pub(crate) const fn range(&self, round: usize, pieces: &Range<usize>) -> Range<usize> {
        let parts = self.pieces[if round < self.rounds.longer { 1 } else { 0 }];
        let whole = self.rounds.start(round);
        whole + parts.start(pieces.start)..whole + parts.start(pieces.end)
    }
}

/// The most elements that `run` consecutive parts have, if `total` elements are divided into `parts` [`block`]s. `run` is at most
/// `parts`.
pub(crate) const fn most(total: usize, parts: usize, run: usize) -> usize {
    let parts = if parts == 0 { 1 } else { parts };
    let longer = if total % parts < run { total % parts } else { run };
    total / parts * run + longer
}

/// The greatest total for which `run` consecutive ones of `parts` parts have at most `limit` elements. `run` is at least 1 and below
/// `parts`.
pub(crate) const fn fitting(parts: usize, run: usize, limit: usize) -> usize {
    let run = if run == 0 { 1 } else { run };
    (limit / run).saturating_mul(parts).saturating_add(limit % run)
}

/// Consecutive blocks of elements, one for each rank.
#[derive(Clone, Debug)]
pub(crate) enum Blocks {
    /// Blocks of equal length.
    Even(usize),
    /// The beginning of each block, then the end of the last.
    Uneven(Arc<[usize]>),
}

impl Blocks {
    /// Blocks of these lengths. Positions beyond `usize::MAX` are replaced by `usize::MAX`.
    pub(crate) fn uneven(lengths: &[usize]) -> Self {
        let mut end = 0_usize;
        let ends = lengths.iter().map(|&len| {
            end = end.saturating_add(len);
            end
        });
        Self::Uneven(std::iter::once(0).chain(ends).collect())
    }

    /// The range of a rank's block. It is empty if the blocks are uneven and there is none for this rank.
    pub(crate) fn of(&self, rank: usize) -> Range<usize> {
        match self {
            Self::Even(len) => rank * len..(rank + 1) * len,
            Self::Uneven(ends) => match (ends.get(rank), ends.get(rank + 1)) {
                (Some(&start), Some(&end)) => start..end,
                _ => 0..0,
            },
        }
    }

    /// The length of a rank's block.
    pub(crate) fn len(&self, rank: usize) -> usize {
        match *self {
            Self::Even(len) => len,
            Self::Uneven(_) => self.of(rank).len(),
        }
    }

    /// The range of chunk `chunk` of the `chunks` chunks of a rank's block.
    pub(crate) fn chunk(&self, rank: usize, chunks: usize, chunk: usize) -> Range<usize> {
        let whole = self.of(rank);
        let part = block(whole.len(), chunks, chunk);
        whole.start + part.start..whole.start + part.end
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn splits_are_those_of_torch() {
        let alike = |total, parts| alike(total, parts).collect::<Vec<_>>();
        assert_eq!(alike(11, 6), [0..2, 2..4, 4..6, 6..8, 8..10, 10..11]);
        assert_eq!(alike(5, 4), [0..2, 2..4, 4..5]);
        assert_eq!(alike(0, 2), [0..0, 0..0]);
        assert_eq!(alike(3, usize::MAX), [0..1, 1..2, 2..3]);
        let most = usize::MAX;
        assert_eq!(alike(most, 2), [0..most / 2 + 1, most / 2 + 1..most]);
        assert!(alike(3, 0).len() <= 1 && alike(0, 0).is_empty());
        let cuts = |before: &[isize]| cuts(7, before).collect::<Vec<_>>();
        assert_eq!(cuts(&[]), vec![0..7; 1]);
        assert_eq!(cuts(&[2, -1]), [0..2, 2..6, 6..7]);
        assert_eq!(cuts(&[isize::MAX, isize::MIN, 3]), [0..7, 7..7, 0..3, 3..7]);
    }

    proptest! {
        #[test]
        fn blocks_cover_exactly_in_order(total in 0usize..100_000, parts in 1usize..2_000) {
            let mut at = 0;
            for index in 0..parts {
                let block = block(total, parts, index);
                prop_assert_eq!(block.start, at);
                prop_assert!(block.len() == total / parts || block.len() == longest(total, parts));
                if index > 0 {
                    prop_assert!(block.len() <= super::block(total, parts, index - 1).len());
                }
                at = block.end;
            }
            prop_assert_eq!(at, total);
            prop_assert_eq!(block(total, parts, 0).len(), longest(total, parts));
        }

        #[test]
        fn huge_totals_do_not_overflow(total in any::<usize>(), parts in 1usize..5_000, part in any::<usize>()) {
            let index = part % parts;
            let mine = block(total, parts, index);
            prop_assert!(mine.start <= mine.end && mine.end <= total);
            let next = if index + 1 < parts { block(total, parts, index + 1).start } else { total };
            prop_assert_eq!(mine.end, next);
        }

        #[test]
        fn chunks_keep_the_limit(total in 0usize..100_000, limit in 1usize..5_000) {
            let count = chunks(total, limit);
            prop_assert!(count >= 1);
            prop_assert!(longest(total, count) <= limit);
            prop_assert!(count == 1 || (count - 1) * limit < total, "no chunk too many");
        }

        #[test]
        fn pieces_cover_exactly_and_keep_the_limit(
            total in 0usize..20_000, pieces in 1usize..40, limit in 1usize..300,
        ) {
            let rounds = rounds(total, pieces, limit);
            let mut at = 0;
            for round in 0..rounds {
                for index in 0..pieces {
                    let piece = piece(total, rounds, round, pieces, index);
                    prop_assert_eq!(piece.start, at);
                    prop_assert!(piece.len() <= limit);
                    at = piece.end;
                }
            }
            prop_assert_eq!(at, total);
        }

        #[test]
        fn pieces_are_the_same_many_at_a_time(
            total in 0usize..20_000, parts in 1usize..40, rounds in 1usize..20, from in 0usize..40, len in 1usize..40,
        ) {
            let (first, pieces) = (from % parts, Pieces::of(total, rounds, parts));
            let range = first..parts.min(first + len);
            for round in 0..rounds {
                let (start, end) = (
                    piece(total, rounds, round, parts, range.start).start,
                    piece(total, rounds, round, parts, range.end - 1).end,
                );
                prop_assert_eq!(pieces.range(round, &range), start..end);
            }
        }

        #[test]
        fn what_fits_is_as_much_as_can_be(
            parts in 2usize..40, run in 1usize..40, limit in 1usize..300, total in 0usize..2_000,
        ) {
            let run = run.min(parts - 1);
            let widest = (0..=parts - run).map(|first| Pieces::of(total, 1, parts).range(0, &(first..first + run)).len());
            prop_assert_eq!(widest.max(), Some(most(total, parts, run)));
            let fits = fitting(parts, run, limit);
            prop_assert!(fits >= 1 && most(fits, parts, run) <= limit);
            prop_assert!(most(fits + 1, parts, run) > limit);
        }
    }

    #[test]
    fn blocks_may_be_uneven() {
        let blocks = Blocks::uneven(&[3, 0, 5]);
        assert_eq!([blocks.of(0), blocks.of(1), blocks.of(2), blocks.of(3)], [0..3, 3..3, 3..8, 0..0]);
        assert_eq!(blocks.chunk(2, 2, 1), 6..8);
        assert_eq!(Blocks::uneven(&[usize::MAX, 7]).of(1), usize::MAX..usize::MAX);
        assert_eq!(Blocks::Even(4).chunk(2, 4, 1), 9..10);
    }

    #[test]
    fn nonsense_gives_empty_ranges() {
        assert_eq!(block(7, 0, 0), 7..7);
        assert_eq!(block(7, 3, 3), 7..7);
        assert_eq!(chunks(0, 0), 1);
        assert_eq!(chunks(5, usize::MAX), 1);
        assert_eq!(rounds(usize::MAX, 17, usize::MAX), 1);
    }
}
