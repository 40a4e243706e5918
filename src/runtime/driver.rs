//! The driver lock: the thread that holds it drives the engine.
//!
//! It is taken and released without another lock. A thread that has to wait for it says so in [`Runtime::waiting`] before it tries once more,
//! and the driver looks there after it has released the lock: so one of the two sees the other.

use std::{
    sync::{MutexGuard, PoisonError, atomic::Ordering},
    time::Instant,
};

use unisono_engine::Supervisor as _;

use super::{Roles, Runtime, Sleep};
use crate::error::Failure;

/// The driver lock, released when dropped.
pub(crate) struct DriverLock<'n> {
    runtime: &'n Runtime,
    /// True if the thread was panicking when it took the lock: then it calls from a destructor.
    unwinding: bool,
}

impl DriverLock<'_> {
    /// Ends the world: the engine may be in any state, so it must not touch the memory of operations any more.
    #[cold]
    fn panicked(&self) {
        let runtime = self.runtime;
        let why = "a thread panicked while it drove the engine".to_owned();
        runtime.end(runtime.abandon(), Failure::Aborted { rank: runtime.rank, why });
    }
}

impl Drop for DriverLock<'_> {
    #[inline]
    fn drop(&mut self) {
        if std::thread::panicking() && !self.unwinding {
            self.panicked();
        }
        let runtime = self.runtime;
        runtime.driven.store(false, Ordering::SeqCst);
        if runtime.waiting.load(Ordering::SeqCst) > 0 || runtime.has_open() {
            runtime.hand_over(runtime.roles());
        }
    }
}

impl Runtime {
    /// The driver lock, if it is free, no thread claims it and no request is submitted.
    #[inline]
    pub(super) fn try_lock_driver(&self) -> Option<DriverLock<'_>> {
        if self.wanted() || !self.requests.is_empty() {
            return None;
        }
        // The world fails only under this lock.
        self.take_driver().filter(|_| !self.closed.load(Ordering::Acquire) || self.roles().failed.is_none())
    }

    /// The driver lock, if it is free.
    #[inline]
    pub(super) fn take_driver(&self) -> Option<DriverLock<'_>> {
        self.driven.compare_exchange(false, true, Ordering::SeqCst, Ordering::SeqCst).ok()?;
        Some(DriverLock { runtime: self, unwinding: std::thread::panicking() })
    }

    /// Asks the driver to release the driver lock, and takes it then.
    pub(super) fn claim_driver(&self) -> DriverLock<'_> {
        self.claims.fetch_add(1, Ordering::Relaxed);
        let mut roles = self.roles();
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let lock = loop {
            if let Some(lock) = self.take_driver() {
                break lock;
            }
            self.wake_driver();
            roles = self.sleep(roles, None);
        };
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        self.claims.fetch_sub(1, Ordering::Relaxed);
        lock
    }

    /// Sleeps until something has changed. This thread counts among those that wait.
    pub(super) fn sleep<'d>(
        &self,
        roles: MutexGuard<'d, Roles>,
        until: Option<Instant>,
    ) -> MutexGuard<'d, Roles> {
        match until.map(|until| until.saturating_duration_since(Instant::now())) {
            None => self.changed.wait(roles).unwrap_or_else(PoisonError::into_inner),
            Some(left) => self.changed.wait_timeout(roles, left).unwrap_or_else(PoisonError::into_inner).0,
        }
    }

    /// Wakes a thread that may drive, now that this one neither drives nor waits.
    pub(super) fn hand_over(&self, roles: MutexGuard<'_, Roles>) {
        let (waiting, sleeps) = (self.waiting.load(Ordering::SeqCst) > 0, roles.sleep == Sleep::Deep);
        // A woken thread takes the same lock.
        drop(roles);
        if waiting {
            self.changed.notify_all();
        } else if sleeps && self.has_open() {
            self.rested.notify_one();
        }
    }
}
