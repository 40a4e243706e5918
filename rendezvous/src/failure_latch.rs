//! The failure latch of a group: raised once, by the first failure, and read on the hot path.

use std::{
    sync::{
        Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use unisono_core::error::Failure;

/// Keeps the first failure of a group. The engine reads [`FailureLatch::raised`] in its loop; the watch raises it.
///
/// An engine that sees a failure itself calls [`Watch::report`](super::Watch::report) and does not raise the latch, so that
/// every rank ends with the failure that the store received first.
#[derive(Debug, Default)]
pub struct FailureLatch {
    raised: AtomicBool,
    failure: Mutex<Option<Failure>>,
    leaving: AtomicBool,
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
        let mut slot = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.is_some() {
            return false;
        }
        *slot = Some(failure.clone());
        self.raised.store(true, Ordering::Release);
        self.changed.notify_all();
        drop(slot);
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
        self.raised.load(Ordering::Acquire)
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
        if !self.raised() {
            return None;
        }
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for a failure, at most for `timeout`.
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> Option<Failure> {
        // A year is long enough, and the sum does not overflow.
        let until = Instant::now() + timeout.min(Duration::from_secs(365 * 86400));
        let mut slot = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if slot.is_some() || left.is_zero() {
                return slot.clone();
            }
            slot = self.changed.wait_timeout(slot, left).unwrap_or_else(PoisonError::into_inner).0;
        }
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
