//! Ranks in base -2: the numbers by which pairs and trees of ranks are as near each other as they can be ([`super::bine`]).
//!
//! With `bits` digits, base -2 has the numbers of an interval around 0, each once; a rank beyond it is the number below 0 that is as many
//! before the end. A **label** is the Gray code of these digits. Where its last bits are 0, these digits are equal: setting the bit above
//! them flips all digits from there down, and is a step of 1, 1, 3, 5, 11, ... ranks. So a binomial tree over labels is a tree of such
//! steps over ranks.

use super::wrapped;
use crate::Rank;

/// The odd digits, whose weights are negative.
const ODD: usize = usize::MAX / 3 * 2;

/// The label of a rank among 2^bits.
pub(super) const fn label(rank: Rank, bits: usize) -> usize {
    let digits = (rank.wrapping_add(ODD) ^ ODD) & ((1 << bits) - 1);
    digits ^ digits >> 1
}

/// The part of a vector that a rank has among 2^bits when all [partners](partner) have halved theirs: until a level the ranks of its
/// pair have the same part, and from then on parts that differ in the level's bit.
pub(super) const fn part(rank: Rank, bits: usize) -> usize {
    label(if rank.is_multiple_of(2) { rank.wrapping_neg() } else { rank }, bits)
}

/// The rank with this label among 2^bits.
pub(super) fn rank(label: usize, bits: usize) -> Rank {
    let digits = (0..bits).fold(0, |digits, by| digits ^ label >> by);
    (digits ^ ODD).wrapping_sub(ODD) & ((1 << bits) - 1)
}

/// The distance between the ranks of a pair at a level: 1, 1, 3, 5, 11, ..., a third of 2^(level + 1).
const fn distance(level: usize) -> usize {
    ((2 << level) + 1) / 3
}

/// The rank with which a rank exchanges at a level, counted from 0, among an even number of ranks: the nearest, then the one on the other
/// side, and so on; an even rank begins with the rank after it, an odd one with the rank before it.
pub(super) const fn partner(rank: Rank, level: usize, ranks: usize) -> Rank {
    let distance = distance(level);
    let after = rank % 2 == level % 2;
    wrapped(if after { rank + distance } else { rank + ranks - distance }, ranks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_number_ranks() {
        for bits in 0..8 {
            let mut seen = vec![false; 1 << bits];
            for one in 0..1 << bits {
                let label = label(one, bits);
                assert_eq!(rank(label, bits), one);
                assert!(!std::mem::replace(&mut seen[label], true));
            }
        }
    }

    #[test]
    fn an_edge_of_the_tree_is_a_short_step() {
        for bits in 1..8 {
            for child in 1..1 << bits {
                let away = rank(child, bits).abs_diff(rank(child & (child - 1), bits));
                let step = distance(child.trailing_zeros() as usize);
                assert!([step, (1 << bits) - step].contains(&away), "{child} of {bits} bits: {away}");
            }
        }
    }

    #[test]
    fn partners_halve_what_both_have() {
        for bits in 1..8 {
            let ranks = 1 << bits;
            let parts: std::collections::HashSet<_> = (0..ranks).map(|rank| part(rank, bits)).collect();
            assert_eq!(parts.len(), ranks);
            for (one, level) in (0..ranks).flat_map(|rank| (0..bits).map(move |level| (rank, level))) {
                let other = partner(one, level, ranks);
                assert_eq!(partner(other, level, ranks), one);
                let differ = part(one, bits) ^ part(other, bits);
                assert_eq!(differ.trailing_zeros() as usize, level, "{one} and {other} among {ranks}");
            }
        }
    }
}
