//! The order of a group's collective calls if several threads make them. A call of one operation holds the group's state until the
//! operation has begun, because the engine keeps the order of operations; a call of several operations holds it to its end ([`Engaged`]).
//! An asynchronous call that another thread begins meanwhile waits here, and that thread does not.

use std::{
    mem,
    sync::{
        Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicBool, Ordering},
    },
};

use unisono_engine::{CommId, WorkRequest};

use crate::{
    error::{Error, Result},
    runtime::Runtime,
};

/// The state that calls of a group change.
#[derive(Default)]
pub(crate) struct OrderState {
    /// The number of groups that were made from this one.
    pub made: u64,
    pub shutdown: bool,
}

/// The state of a group, and the operations that wait for a call of several operations.
#[derive(Default)]
pub(crate) struct Order {
    state: Mutex<OrderState>,
    /// True if such a call holds the state. It clears this, and then begins the operations that wait.
    engaged: AtomicBool,
    /// True if this rank holds the state because it is leaving.
    leaving: AtomicBool,
    waiting: Mutex<Vec<WorkRequest>>,
}

/// The state of a group for a call of several operations.
pub(crate) struct Engaged<'o> {
    order: &'o Order,
    group: (&'o Runtime, CommId),
    pub state: MutexGuard<'o, OrderState>,
}

impl Drop for Engaged<'_> {
    fn drop(&mut self) {
        self.order.engaged.store(false, Ordering::Release);
        self.order.begin_waiting(self.group);
    }
}

impl Order {
    /// Waits until no other thread holds the state, and returns it.
    pub(crate) fn state(&self, runtime: &Runtime) -> Result<MutexGuard<'_, OrderState>> {
        runtime.check_process()?;
        Ok(match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(state)) => state.into_inner(),
            Err(TryLockError::WouldBlock) => {
                // This waits until the call of another thread has ended.
                let _waiting = runtime.callers.wait();
                self.state.lock().unwrap_or_else(PoisonError::into_inner)
            }
        })
    }

    /// The state for a call of several operations.
    pub(crate) fn engage<'o>(&'o self, group: (&'o Runtime, CommId)) -> Result<Engaged<'o>> {
        let state = self.state(group.0)?;
        self.engaged.store(true, Ordering::Release);
        Ok(Engaged { order: self, group, state })
    }

    /// The state for leaving. An asynchronous call of another thread does not wait until leaving has ended.
    pub(crate) fn leaving(&self, runtime: &Runtime) -> Result<MutexGuard<'_, OrderState>> {
        let state = self.state(runtime)?;
        self.leaving.store(true, Ordering::Release);
        Ok(state)
    }

    /// Begins a collective that no thread waits for yet, after those that other threads have begun.
    pub(crate) fn begin(
        &self,
        call: &'static str,
        task: WorkRequest,
        group: (&Runtime, CommId),
    ) -> Result<()> {
        let (runtime, comm_id) = group;
        let state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(state)) => state.into_inner(),
            Err(TryLockError::WouldBlock) if self.leaving.load(Ordering::Acquire) => {
                runtime.check_calls(call)?;
                return Err(Error::Left { call });
            }
            Err(TryLockError::WouldBlock) if self.engaged.load(Ordering::Acquire) => {
                runtime.check_calls(call)?;
                self.waiting().push(task);
                // Either the engaged call sees this entry, or that call has ended.
                if !self.engaged.load(Ordering::Acquire) {
                    let _state = self.state(runtime)?;
                    self.begin_waiting(group);
                }
                return Ok(());
            }
            Err(TryLockError::WouldBlock) => self.state(runtime)?,
        };
        runtime.check_calls(call)?;
        runtime.begin(comm_id, task);
        drop(state);
        Ok(())
    }

    /// Begins the calls that wait. The caller holds the state.
    fn begin_waiting(&self, (runtime, comm_id): (&Runtime, CommId)) {
        for mut task in mem::take(&mut *self.waiting()) {
            task.completion.restart();
            runtime.begin(comm_id, task);
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<WorkRequest>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
