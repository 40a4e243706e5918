//! The failure latch of a group: raised once, by the first failure, and read on the hot path.

use std::{
    sync::{
        Condvar, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use unisono_core::error::Failure;

/// Keeps the first failure of a group. The engine reads [`FailureLatch::raised`] in its loop; the watch raises it.
///
/// An engine that sees a failure itself calls [`Watch::report`](super::Watch::report) and does not raise the latch, so that
/// every rank ends with the failure that the store received first.
#[derive(Debug, Default)]
pub struct FailureLatch {
    failure: OnceLock<Failure>,
    leaving: AtomicBool,
    /// Locked while the failure is set, and by who waits for it.
    lock: Mutex<()>,
    changed: Condvar,
}

impl FailureLatch {
    /// A latch that is not raised.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps and logs `failure` if it is the first, and then returns true.
    pub fn raise(&self, failure: Failure) -> bool {
        let lock = self.lock.lock();
        if self.failure.set(failure.clone()).is_err() {
            return false;
        }
        self.changed.notify_all();
        drop(lock);
        // This logs without the lock: logging may wait for the dynamic linker, which a thread that loads libfabric's providers may hold for
        // ever.
        // The separate target lets a program that prints its errors itself filter this line.
        unisono_transport::log::error!(target: "unisono::failure", "the group has failed: {failure}");
        true
    }

    /// True if the group has failed: one atomic load.
    #[inline]
    #[must_use]
    pub fn raised(&self) -> bool {
        self.failure.get().is_some()
    }

    /// Notes that a rank is leaving: a wait for it cannot end.
    pub fn leave(&self) {
        self.leaving.store(true, Ordering::Relaxed);
    }

    /// True if a rank is leaving or has left.
    #[must_use]
    pub fn somebody_leaves(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    /// The failure, if there is one.
    #[must_use]
    pub fn failure(&self) -> Option<Failure> {
        self.failure.get().cloned()
    }

    /// Waits for a failure, at most for `timeout`.
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> Option<Failure> {
        let lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_timeout_while(lock, timeout, |()| !self.raised()));
        self.failure()
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread};

    use super::*;

    fn died(rank: usize) -> Failure {
        Failure::Died { rank, how: "test".into() }
    }

    #[test]
    fn the_first_failure_stays() {
        let latch = FailureLatch::new();
        assert!(!latch.raised() && latch.failure().is_none());
        assert!(latch.raise(died(1)));
        assert!(!latch.raise(died(2)));
        assert!(latch.raised());
        assert_eq!(latch.failure(), Some(died(1)));
    }

    #[test]
    fn waiting_ends_with_the_failure_or_with_the_timeout() {
        let latch = Arc::new(FailureLatch::new());
        assert_eq!(latch.wait(Duration::from_millis(5)), None);
        let waiter = thread::spawn({
            let latch = Arc::clone(&latch);
            move || latch.wait(Duration::from_secs(60))
        });
        latch.raise(died(3));
        assert_eq!(waiter.join().unwrap(), Some(died(3)));
    }
}
