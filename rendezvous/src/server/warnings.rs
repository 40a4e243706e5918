//! Warnings about connections that do not belong to the job. A few are logged one by one, and the others are counted, because any program
//! can connect as often as it likes.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

/// The number of warnings that are logged one by one in an interval.
const SINGLY: u32 = 8;

/// The length of an interval.
const INTERVAL: Duration = Duration::from_secs(10);

/// Counts warnings.
#[derive(Debug, Default)]
pub(super) struct Warnings {
    /// The end of the interval.
    until: Option<Instant>,
    printed: u32,
    /// The number of warnings that were not logged, and the last address.
    more: Option<(u64, SocketAddr)>,
}

impl Warnings {
    /// Logs a warning about `peer` with the text of `what`, or counts it.
    pub(super) fn tell(&mut self, now: Instant, peer: SocketAddr, what: impl FnOnce() -> String) {
        self.expire(now);
        self.until.get_or_insert(now + INTERVAL);
        if self.printed < SINGLY {
            self.printed += 1;
            unisono_transport::log::warn!(%peer, "the store {}", what());
        } else {
            let (more, last) = self.more.get_or_insert((0, peer));
            *more += 1;
            *last = peer;
        }
    }

    /// The time at which `expire` is to be called.
    pub(super) fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Logs the count of an interval that is over. If that interval had warnings that were only counted, the next interval only counts.
    pub(super) fn expire(&mut self, now: Instant) {
        if self.until.is_some_and(|until| until <= now) {
            let quiet = !self.sum_up();
            self.until = (!quiet).then(|| now + INTERVAL);
            self.printed = if quiet { 0 } else { SINGLY };
        }
    }

    /// Logs the number of warnings that were not logged, if any.
    fn sum_up(&mut self) -> bool {
        let Some((more, last)) = self.more.take() else { return false };
        unisono_transport::log::warn!(
            "the store dropped or refused {more} more connections within {INTERVAL:?}, the last from {last}"
        );
        true
    }
}

impl Drop for Warnings {
    fn drop(&mut self) {
        self.sum_up();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_counted() {
        let (mut warnings, begun) = (Warnings::default(), Instant::now());
        let peer: SocketAddr = "127.0.0.1:1".parse().unwrap();
        for millis in 0..25_000 {
            warnings.tell(begun + Duration::from_millis(millis), peer, || "drops it".to_owned());
            assert!(
                warnings.printed <= SINGLY && warnings.printed >= u32::try_from(millis).unwrap().min(SINGLY)
            );
        }
        assert_eq!(warnings.more.map(|(more, _)| more), Some(5_000), "two intervals have been summed up");
        warnings.expire(begun + Duration::from_secs(30));
        assert!(warnings.until().is_some());
        warnings.expire(begun + Duration::from_secs(40));
        assert_eq!(
            (warnings.until(), warnings.printed),
            (None, 0),
            "all is told again after a quiet interval"
        );
    }
}
