//! How a rank writes its slots: through its caches, or past them.
//!
//! Where the cores of two ranks share a cache, a write through the caches is faster: the other rank then reads from the cache that they
//! share. Where they share none, for instance on two sockets, each line that the other core has read must first come back, and a write past
//! the caches is many times faster (docs/performance.md). Virtual machines do not say where their cores are, and move them. So a rank
//! measures its writes through the caches. If they are slow, it writes past them for some time, and then tries again.

use std::{
    ops::RangeInclusive,
    time::{Duration, Instant},
};

use unisono_schedule::select::shown::SLOT_BYTES;

/// Elements of at least this many bytes may be written past the caches. Shorter ones stay in the store buffers and do not count.
const LEAST: usize = 4 << 10;

/// Writes of at least this many bytes are measured.
const MEASURED: usize = 16 << 10;

/// A write is slow if each line of 64 bytes takes longer than this. Cores that share a cache take 2 to 5 ns, and others 10 to 26 (AMD EPYC,
/// 2026-11-30).
const SLOW: Duration = Duration::from_nanos(8);

/// Writes go past the caches after this many slow ones in a row: one may be slow because the thread had to wait for its core.
const SEVERAL: u32 = 3;

/// The bytes that are written through the caches before writes are measured: all places of both slots, which are new, or have left all
/// caches, so that the first write to each takes longer.
const WARM: usize = 2 * SLOT_BYTES;

/// The bytes that are then written past the caches: the least at first, twice as many each time that writes are slow again, up to the most.
const PAST: RangeInclusive<usize> = 32 << 20..=1 << 30;

/// The way of a rank's next writes, and how many bytes are left until it changes.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Through the caches, to bring the slots there.
    Warm(usize),
    /// Through the caches; this many writes in a row were slow.
    Measured(u32),
    Past(usize),
}

/// The choice for a rank's next writes.
#[derive(Debug)]
pub(crate) struct SlotWrites {
    phase: Phase,
    /// The bytes that go past the caches when writes are found to be slow.
    next: usize,
}

impl Default for SlotWrites {
    fn default() -> Self {
        Self { phase: Phase::Warm(WARM), next: *PAST.start() }
    }
}

impl SlotWrites {
    /// True if the next write, of this many bytes, goes past the caches.
    pub(crate) fn goes_past(&mut self, bytes: usize) -> bool {
        if bytes < LEAST {
            return false;
        }
        match &mut self.phase {
            Phase::Measured(_) => false,
            Phase::Warm(left) if bytes < *left => {
                *left -= bytes;
                false
            }
            Phase::Warm(_) => {
                self.phase = Phase::Measured(0);
                false
            }
            Phase::Past(left) if bytes < *left => {
                *left -= bytes;
                true
            }
            Phase::Past(_) => {
                self.phase = Phase::Warm(WARM);
                true
            }
        }
    }

    /// The time at which a write of this many bytes through the caches begins, if it is measured.
    pub(crate) fn begins(&self, bytes: usize) -> Option<Instant> {
        (bytes >= MEASURED && matches!(self.phase, Phase::Measured(_))).then(Instant::now)
    }

    /// A write of this many bytes that was measured has taken so long.
    pub(crate) fn took(&mut self, bytes: usize, time: Duration) {
        let Phase::Measured(slow) = &mut self.phase else { return };
        let lines = u32::try_from(bytes / 64).unwrap_or(u32::MAX);
        if time <= SLOW.saturating_mul(lines) {
            (*slow, self.next) = (0, *PAST.start());
            return;
        }
        *slow += 1;
        if *slow == SEVERAL {
            self.phase = Phase::Past(self.next);
            self.next = (2 * self.next).min(*PAST.end());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 16 << 10;
    const FAST: Duration = Duration::from_nanos(256 * 3);
    const LATE: Duration = Duration::from_nanos(256 * 12);

    /// Writes until one is measured, which takes so long. Returns the number of bytes that go through the caches before it, and past them.
    fn write(writes: &mut SlotWrites, time: Duration) -> [usize; 2] {
        let mut before = [0; 2];
        loop {
            let past = writes.goes_past(BYTES);
            if !past && writes.begins(BYTES).is_some() {
                writes.took(BYTES, time);
                return before;
            }
            before[usize::from(past)] += BYTES;
        }
    }

    #[test]
    fn slow_writes_are_followed_by_some_past_the_caches() {
        let mut writes = SlotWrites::default();
        let warm = WARM - BYTES;
        assert_eq!(write(&mut writes, LATE), [warm, 0], "new memory is not measured");
        let mut after = |time| write(&mut writes, time);
        assert_eq!(
            [LATE, FAST, LATE, LATE, FAST].map(&mut after),
            [[0; 2]; 5],
            "fewer than three one after the other"
        );
        assert_eq!([LATE; 3].map(&mut after), [[0; 2]; 3]);
        for times in [1, 2, 4, 8, 16, 32, 32] {
            assert_eq!(
                after(LATE),
                [warm, times * (32 << 20)],
                "measured again once the slots are in the caches"
            );
            assert_eq!([LATE; 2].map(&mut after), [[0; 2]; 2]);
        }
        assert_eq!(after(FAST), [warm, 32 << 25]);
        assert_eq!([LATE; 3].map(&mut after), [[0; 2]; 3]);
        assert_eq!(after(FAST), [warm, 32 << 20], "the cores had shared a cache meanwhile");
    }

    #[test]
    fn short_writes_stay_in_the_caches() {
        let mut writes = SlotWrites { phase: Phase::Past(WARM), ..SlotWrites::default() };
        assert!(!writes.goes_past(LEAST - 1) && writes.goes_past(LEAST));
        writes.phase = Phase::Measured(0);
        assert!(writes.begins(MEASURED - 1).is_none() && writes.begins(MEASURED).is_some());
    }
}
