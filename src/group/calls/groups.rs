//! Groups of some of a group's ranks.

use unisono_schedule::Rank;

use crate::{
    error::Result,
    group::{ProcessGroup, members::Members},
};

/// # Groups of some ranks
impl ProcessGroup {
    /// Splits this group, as `MPI_Comm_split` does: ranks that give the same color form a group, ordered by key and, if keys
    /// are equal, by their ranks in this group. A rank without a color joins no group and gets `None`. Every rank of this group
    /// must call it.
    ///
    /// Calls of the new groups run concurrently with calls of this group and of each other. A failure in one group ends all
    /// groups of all its processes. If calls of dozens of groups run at once, all ranks should begin them in the same order,
    /// because the number of messages that a process can receive at once is bounded.
    ///
    /// ```
    /// # use unisono::{Config, ProcessGroup};
    /// # use unisono_transport::inproc::Hub;
    /// # fn main() -> unisono::Result<()> {
    /// # let world = ProcessGroup::with(Config::default(), Box::new(Hub::new().open()), None)?;
    /// // The ranks with even numbers, and those with odd ones; within each the highest rank first.
    /// let half = world.split(Some(world.rank() as u64 % 2), -(world.rank() as i64))?;
    /// assert_eq!(half.map(|half| half.size()), Some(world.size().div_ceil(2)));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) on all members of a group if they already are in 4096 groups, taken together. If one member has no
    /// memory for the group, [`Error::Transport`](crate::Error::Transport) there, and [`Error::Argument`](crate::Error::Argument), which names that rank, on the other members;
    /// other ranks get no error. [`Error::Failed`](crate::Error::Failed) if the ranks disagree on the call, or the group has failed.
    pub fn split(&self, color: Option<u64>, key: i64) -> Result<Option<Self>> {
        Ok(self.handle.split(color, key)?.map(Self::of))
    }

    /// Makes a group of these ranks of this group, in this order. Every rank of this group must call it with the same list;
    /// ranks that are not on the list get `None`.
    ///
    /// # Errors
    /// As [`split`](Self::split), and [`Error::Argument`](crate::Error::Argument) if the list is empty, or has a rank twice or one that does not exist.
    pub fn new_group(&self, ranks: &[Rank]) -> Result<Option<Self>> {
        Ok(self.handle.new_group(ranks)?.map(Self::of))
    }

    /// Makes a group of these ranks of this group, in this order, as `MPI_Comm_create_group` does: only the members call it, all
    /// with the same list and tag. Other ranks do nothing, and members may meanwhile be in other calls of this group by other
    /// threads. ([`new_group`](Self::new_group) is a collective call of all ranks of this group.)
    ///
    /// The tag distinguishes groups that threads make at the same time. Groups that a thread makes one after the other may have
    /// the same tag, if all ranks of several of them make these in the same order. No tag of a message is meant by it.
    ///
    /// The new group has the configuration's options, not those of this handle
    /// ([`with_algorithms`](Self::with_algorithms) and its siblings). Dropping it waits for no rank.
    ///
    /// ```
    /// # use unisono::{Config, ProcessGroup, ReduceOp};
    /// # use unisono_transport::inproc::Hub;
    /// # fn main() -> unisono::Result<()> {
    /// # let world = ProcessGroup::with(Config::default(), Box::new(Hub::new().open()), None)?;
    /// // The ranks with even numbers.
    /// let even: Vec<_> = (0..world.size()).step_by(2).collect();
    /// if even.contains(&world.rank()) {
    ///     let group = world.create_group(&even, 0)?;
    ///     group.all_reduce(&mut [1.0_f32; 1000], ReduceOp::Sum)?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if the list is empty, has a rank twice or one that does not exist, or if this rank is not in it; and
    /// on all members if they already are in 4096 groups, taken together. If one member has no memory for the group,
    /// [`Error::Transport`](crate::Error::Transport) there and [`Error::Argument`](crate::Error::Argument) on the others. [`Error::Failed`](crate::Error::Failed) with [`Failure::Members`](crate::Failure::Members) if two
    /// members have other lists; with [`Failure::Undelivered`](crate::Failure::Undelivered), which names the ranks that called nothing or something else, if a
    /// member does not come before the deadline; with [`Failure::Deadlock`](crate::Failure::Deadlock) if it waits for this rank in another call; or if
    /// the group has failed.
    pub fn create_group(&self, ranks: &[Rank], tag: u64) -> Result<Self> {
        self.handle.create_group(ranks, tag).map(Self::of)
    }

    /// The ranks in the world of all members, by rank.
    #[must_use]
    pub fn members(&self) -> &Members {
        &self.handle.shared.members
    }

    /// The group's name, the same on all its members: `world`, or the name of the parent group, the number of groups made of
    /// that before, and the color: `world/0:2` is color 2 of the world's first split.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.handle.shared.name
    }
}
