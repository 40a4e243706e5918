//! How the driver waits: it spins (polls without yielding), then polls and yields, then sleeps on the transport.
//!
//! If there are more ranks than cores, no rank may spin, because the rank that it waits for needs the core. The same holds if
//! other programs use the cores. That shows when a yielded core comes back late; if it always came back at once, polling costs
//! nobody anything and continues for longer. The durations adapt: a wait that lasted longer than its spinning halves the
//! spinning of later waits, and a shorter one doubles it; yielding adapts the same way. Some waits use the full durations again,
//! which stay if they sufficed. docs/decisions/048-patience-adapts.md has the figures.

use std::time::{Duration, Instant};

/// The longest durations of a wait's phases, fixed for the life of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Patience {
    /// The time to poll without yielding the core.
    pub spin: Duration,
    /// The time, after that, to poll and yield the core after each poll that brought nothing.
    pub give_way: Duration,
    /// The same if no other thread takes the core.
    pub alone: Duration,
}

/// Another thread took a yielded core if the core comes back later than this: more than interrupts and the system's own threads
/// need, less than the shortest slice of a thread that computes (0.7 ms on Linux).
const TAKEN: Duration = Duration::from_micros(100);

/// The longest sleep. The driver checks the failure latch and deadlines between sleeps.
const NAP: Duration = Duration::from_millis(20);

/// How often a duration may be halved.
const HALVINGS: u32 = 6;

/// One wait in this many uses the full durations.
const RETRY: u32 = 32;

/// The action after a poll that brought nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum IdleAction {
    #[default]
    Poll,
    Yield,
    /// Sleep on the transport for at most this long.
    Park(Duration),
}

/// The waits of an engine, one after the other. A wait lasts from the first round that moved nothing to the next that moved
/// something.
#[derive(Debug, Default)]
pub(crate) struct Wait {
    patience: Patience,
    /// When the present wait began, if the engine waits.
    since: Option<Instant>,
    /// The latest phase of the present wait.
    last: IdleAction,
    /// The longest time after which a yielded core came back in this wait.
    away: Duration,
    /// How often spinning and yielding are halved.
    spin: u32,
    give_way: u32,
    /// The number of waits so far; it wraps.
    waits: u32,
}

impl Wait {
    pub(crate) fn new(patience: Patience) -> Self {
        Self { patience, ..Self::default() }
    }

    /// When the present wait began, if the engine waits.
    pub(crate) fn since(&self) -> Option<Instant> {
        self.since
    }

    /// Something moved: ends the present wait.
    pub(crate) fn reset(&mut self) {
        if self.since.take().is_some() {
            // A wait with the full durations that sufficed restores them at once: a duration that is much too short would not
            // grow step by step, because the next wait would outlast its double.
            let doubled = if self.is_full() { HALVINGS } else { 1 };
            let adapt = |halvings: &mut u32, outlasted: bool| {
                *halvings =
                    if outlasted { (*halvings + 1).min(HALVINGS) } else { halvings.saturating_sub(doubled) };
            };
            adapt(&mut self.spin, self.last != IdleAction::Poll);
            adapt(&mut self.give_way, matches!(self.last, IdleAction::Park(_)));
            self.waits = self.waits.wrapping_add(1);
            self.away = Duration::ZERO;
        }
    }

    /// True if the present wait uses the full durations.
    fn is_full(&self) -> bool {
        self.waits.is_multiple_of(RETRY)
    }

    /// The yielded core came back after this time.
    pub(crate) fn back_after(&mut self, away: Duration) {
        self.away = self.away.max(away);
    }

    /// A duration in the present wait, after this many halvings.
    fn share(&self, duration: Duration, halvings: u32) -> Duration {
        duration / if self.is_full() { 1 } else { 1_u32 << halvings }
    }

    /// The time for which the present wait, which may begin now, has lasted.
    fn waited(&mut self, now: Instant) -> Duration {
        now.saturating_duration_since(*self.since.get_or_insert(now))
    }

    /// Nothing moved. True if [`next`](Self::next) would say to poll; if not, the caller asks it what to do.
    pub(crate) fn is_hot(&mut self, now: Instant) -> bool {
        let hot = self.waited(now) < self.share(self.patience.spin, self.spin);
        if hot {
            self.last = IdleAction::Poll;
        }
        hot
    }

    /// The action after nothing moved. A sleep does not last beyond `deadline`.
    pub(crate) fn next(&mut self, now: Instant, deadline: Instant) -> IdleAction {
        if self.is_hot(now) {
            return IdleAction::Poll;
        }
        let waited = self.waited(now);
        let spin = self.share(self.patience.spin, self.spin);
        let give_way = if self.away > TAKEN { self.patience.give_way } else { self.patience.alone };
        self.last = if waited < spin + self.share(give_way, self.give_way) {
            IdleAction::Yield
        } else {
            IdleAction::Park(NAP.min(deadline.saturating_duration_since(now)))
        };
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience = Patience {
        spin: Duration::from_micros(64),
        give_way: Duration::from_micros(128),
        alone: Duration::from_micros(128),
    };

    /// The result of `next` in each microsecond of a wait of `micros` microseconds.
    fn wait_for(wait: &mut Wait, micros: u64) -> Vec<IdleAction> {
        let start = Instant::now();
        let at = |micros| start + Duration::from_micros(micros);
        let all = (0..=micros).map(|micros| wait.next(at(micros), start + Duration::from_secs(5))).collect();
        wait.reset();
        all
    }

    #[test]
    fn patience_runs_out_in_order() {
        let start = Instant::now();
        let deadline = start + Duration::from_millis(5);
        let mut wait = Wait::new(PATIENCE);
        let at = |micros| start + Duration::from_micros(micros);
        assert_eq!(wait.next(at(0), deadline), IdleAction::Poll);
        assert_eq!(wait.next(at(63), deadline), IdleAction::Poll);
        assert_eq!(wait.next(at(64), deadline), IdleAction::Yield);
        assert_eq!(wait.next(at(200), deadline), IdleAction::Park(Duration::from_micros(4800)));
        wait.reset();
        assert_eq!(wait.next(at(9000), deadline), IdleAction::Poll);
        assert_eq!(wait.next(at(9500), deadline), IdleAction::Park(Duration::ZERO));
    }

    #[test]
    fn giving_way_lasts_longer_until_the_core_is_taken() {
        let start = Instant::now();
        let deadline = start + Duration::from_secs(5);
        let mut wait = Wait::new(Patience { alone: Duration::from_micros(1024), ..PATIENCE });
        let at = |micros| start + Duration::from_micros(micros);
        assert_eq!(wait.next(at(0), deadline), IdleAction::Poll);
        wait.back_after(Duration::from_micros(2));
        assert_eq!(wait.next(at(64 + 1023), deadline), IdleAction::Yield);
        wait.back_after(Duration::from_millis(1));
        assert!(matches!(wait.next(at(64 + 1023), deadline), IdleAction::Park(_)));
        // In the next wait no thread has taken the core yet. The last wait has halved the durations.
        wait.reset();
        wait.next(at(2000), deadline);
        assert_eq!(wait.next(at(2000 + 500), deadline), IdleAction::Yield);
        assert!(matches!(wait.next(at(2000 + 32 + 512), deadline), IdleAction::Park(_)));
    }

    #[test]
    fn patience_adapts_and_recovers() {
        let mut wait = Wait::new(PATIENCE);
        // How many microseconds a wait polls before it sleeps.
        let mut polls = |micros| {
            wait_for(&mut wait, micros).iter().take_while(|next| !matches!(next, IdleAction::Park(_))).count()
        };
        assert_eq!(polls(1000), 192);
        for _ in 0..10 {
            polls(1000);
        }
        assert_eq!(polls(1000), 3);
        // A wait that ends while it yields lengthens yielding; one that ends while it spins lengthens both.
        polls(2);
        polls(2);
        assert_eq!(polls(1000), 1 + 8);
        polls(0);
        polls(0);
        assert_eq!(polls(1000), 4 + 16);
        // One wait in this many uses the full durations.
        assert_eq!((0..RETRY).filter(|_| polls(1000) == 192).count(), 1);
    }

    #[test]
    fn a_wait_is_hot_as_long_as_it_polls() {
        let start = Instant::now();
        let (deadline, at) = (start + Duration::from_secs(5), |micros| start + Duration::from_micros(micros));
        let mut wait = Wait::new(PATIENCE);
        assert!(wait.is_hot(at(0)) && wait.is_hot(at(63)) && !wait.is_hot(at(64)));
        // A call of `is_hot` changes nothing.
        assert_eq!(wait.next(at(64), deadline), IdleAction::Yield);
        assert!(matches!(wait.next(at(64 + 128), deadline), IdleAction::Park(_)));
        // A wait of which only `is_hot` was asked counts as one in which spinning sufficed.
        wait.reset();
        assert!(wait.is_hot(at(1000)) && wait.is_hot(at(1031)) && !wait.is_hot(at(1032)));
        wait.reset();
        assert!(wait.is_hot(at(2000)));
        wait.reset();
        assert!(wait.is_hot(at(3000)) && wait.is_hot(at(3063)));
    }

    #[test]
    fn patience_that_suffices_stays() {
        let mut wait = Wait::new(PATIENCE);
        // True if a wait ends before it yields.
        let mut hot = |micros| wait_for(&mut wait, micros).iter().all(|next| *next == IdleAction::Poll);
        for _ in 0..10 {
            hot(1000);
        }
        // Long waits have halved the durations. Of the short ones that follow, which outlast even the double, few yield.
        assert!((0..10 * RETRY).filter(|_| !hot(20)).count() <= RETRY as usize);
        for _ in 0..RETRY {
            assert!(hot(20));
        }
    }
}
