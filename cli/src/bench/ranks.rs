//! The pairs of ranks: rank i of the first half and rank i of the second.

/// The rank with which a rank exchanges messages, and whether it sends first; `None` if it has no partner.
pub(super) fn partner(rank: usize, ranks: usize) -> Option<(usize, bool)> {
    let pairs = ranks / 2;
    match rank {
        rank if rank < pairs => Some((rank + pairs, true)),
        rank if rank < 2 * pairs => Some((rank - pairs, false)),
        _ => None,
    }
}

/// The partner of rank 0; `None` if it has none.
pub(crate) fn second(ranks: usize) -> Option<usize> {
    partner(0, ranks).map(|(second, _)| second)
}

#[cfg(test)]
mod tests {
    use super::partner;

    #[test]
    fn pairs_are_mutual_and_each_has_one_that_begins() {
        for ranks in 0..10 {
            let alone = (0..ranks).filter(|&rank| partner(rank, ranks).is_none()).count();
            assert_eq!(alone, ranks % 2);
            for rank in 0..ranks {
                if let Some((other, first)) = partner(rank, ranks) {
                    assert_eq!(partner(other, ranks), Some((rank, !first)), "{rank} of {ranks}");
                }
            }
        }
        assert_eq!(partner(1, 4), Some((3, true)));
    }
}
