//! A handle of a group as the calls use it, blocking or not: the data that it shares with the group's other handles, and the options of its
//! calls.

use std::{fmt::Display, sync::Arc, time::Duration};

use unisono_schedule::Rank;

use super::{
    plan::{CallOptions, PlanOptions, argument},
    shared::{GroupState, Membership},
};
use crate::{
    config::{Config, YEAR},
    error::{Error, Failure, Result},
    object::ObjectError,
};

#[derive(Clone)]
pub(crate) struct Handle {
    pub shared: Arc<GroupState>,
    pub options: CallOptions,
    /// `None` in the handle of an asynchronous call: such a handle does not keep the group alive.
    membership: Option<Arc<Membership>>,
}

impl Handle {
    /// The first handle of a group; `parent` is the group that it was made from, `None` for the world.
    pub(super) fn of(shared: GroupState, options: CallOptions, parent: Option<&Self>) -> Self {
        let (shared, parent) = (Arc::new(shared), parent.and_then(|parent| parent.membership.clone()));
        let membership = Some(Arc::new(Membership { shared: Arc::clone(&shared), parent }));
        Self { shared, options, membership }
    }

    pub(crate) fn rank(&self) -> Rank {
        self.shared.planner.rank
    }

    pub(crate) fn size(&self) -> usize {
        self.shared.planner.topology.ranks
    }

    pub(crate) fn config(&self) -> &Config {
        &self.shared.runtime.config
    }

    /// This process's rank in the world.
    pub(crate) fn global_rank(&self) -> Rank {
        self.shared.runtime.rank
    }

    /// The rank in the world of a rank of this group; `rank` itself if there is no such rank.
    pub(crate) fn global(&self, rank: Rank) -> Rank {
        self.shared.members.get(rank).copied().unwrap_or(rank)
    }

    pub(super) fn with_options(&self, options: CallOptions) -> Self {
        Self { options, ..self.clone() }
    }

    pub(super) fn with_plan(&self, plan: PlanOptions) -> Self {
        self.with_options(CallOptions { plan, ..self.options })
    }

    /// A handle for an asynchronous call. It does not keep the group alive.
    pub(super) fn under_way(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), options: self.options, membership: None }
    }

    /// The failure of the group if this rank cannot continue a call that the other ranks continue.
    pub(crate) fn aborted(&self, call: &str, why: impl Display) -> Error {
        Error::Failed(Failure::Aborted { rank: self.global_rank(), why: format!("{call}: {why}") })
    }

    /// The error about a value of a rank, which should have been a `T`.
    pub(crate) fn not_a<T: ?Sized>(&self, call: &'static str, from: Rank, problem: ObjectError) -> Error {
        Error::Object { call, rank: self.global(from), type_name: std::any::type_name::<T>(), problem }
    }

    /// The failure of the group if a rank has sent what no rank sends.
    pub(crate) fn malformed(&self, call: &str, from: Rank, what: impl Display) -> Error {
        let (rank, from) = (self.global_rank(), self.global(from));
        Error::Failed(Failure::Protocol { rank, from, what: format!("{call}: {what}") })
    }

    /// The options of this handle, with this timeout if there is one.
    pub(super) fn options_for(&self, call: &'static str, timeout: Option<Duration>) -> Result<CallOptions> {
        timeout.map_or(Ok(()), |timeout| check_timeout(call, timeout))?;
        Ok(CallOptions { timeout: timeout.or(self.options.timeout), ..self.options })
    }
}

/// An error unless a call can have this timeout.
pub(super) fn check_timeout(call: &'static str, timeout: Duration) -> Result<()> {
    if !timeout.is_zero() && timeout <= YEAR {
        return Ok(());
    }
    Err(argument(call, format!("the timeout is {timeout:?}; it must be longer than 0 and at most a year")))
}
