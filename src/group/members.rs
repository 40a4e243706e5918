//! The members of a group.

use std::ops::Deref;

use unisono_schedule::Rank;

/// The members of a group, as ranks of the world: a slice of them, by their ranks in the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Members(pub(super) Vec<Rank>);

impl Deref for Members {
    type Target = [Rank];

    fn deref(&self) -> &[Rank] {
        &self.0
    }
}

impl Members {
    /// The rank in the world of a rank of this group; `None` if there is no such rank.
    #[must_use]
    pub fn global(&self, rank: Rank) -> Option<Rank> {
        self.0.get(rank).copied()
    }

    /// The rank in this group of a rank of the world; `None` if it is no member.
    #[must_use]
    pub fn local(&self, global: Rank) -> Option<Rank> {
        self.0.iter().position(|&member| member == global)
    }
}
