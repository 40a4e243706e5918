//! What a choice depends on besides the call: how many ranks there are, and how many cores for them.

/// What all ranks know alike of their world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct World {
    /// The world size.
    pub ranks: usize,
    /// How many of them can run at once: on each host its ranks or its cores, whichever are fewer.
    pub cores: usize,
}

impl World {
    /// Of ranks that have a core each.
    #[must_use]
    pub const fn new(ranks: usize) -> Self {
        Self { ranks, cores: ranks }
    }

    /// Whether so few cores are shared by so many ranks that a collective of small messages takes what all its messages
    /// together cost, and not what the longest chain of them does.
    ///
    /// In a star one rank handles each of 2(n-1) messages, which costs it about half of what sending and taking one
    /// costs. All other algorithms have at least n log2 n / 2 messages and up to n log2 n, which the cores share.
    #[must_use]
    pub fn crowded(self) -> bool {
        let doublings = self.ranks.checked_next_power_of_two().map_or(usize::BITS, usize::ilog2);
        self.ranks > 2 && self.cores as u128 <= u128::from(doublings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_with_a_core_each_are_not_crowded() {
        for ranks in [1, 2, 3, 4, 8, 1000, usize::MAX] {
            assert!(!World::new(ranks).crowded(), "{ranks}");
        }
    }

    #[test]
    fn few_cores_for_many_ranks_are_crowded() {
        let crowded = |ranks, cores| World { ranks, cores }.crowded();
        assert!(crowded(3, 2) && crowded(4, 2) && crowded(8, 2) && crowded(8, 3) && crowded(64, 6));
        assert!(!crowded(2, 1) && !crowded(4, 3) && !crowded(8, 4) && !crowded(64, 16));
    }
}
