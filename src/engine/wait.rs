//! Waiting is a policy of its own: poll hot for a while, then give way, then sleep on the transport.
//!
//! With more ranks than cores nobody may poll hot: the one who is waited for needs the core. The same holds
//! where other programs use the cores, which shows when a yielded core comes back late; where it always came
//! back at once, polling takes nothing from anybody and goes on for longer. And patience adapts. A wait that
//! outlasted its hot polling halves that of the next ones, one that did not doubles it; the same with giving
//! way; and now and then a wait tries the whole again, which stays if it sufficed.
//! docs/decisions/048-patience-adapts.md has the figures.

use std::time::{Duration, Instant};

/// How patiently to wait at most, fixed for the life of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Patience {
    /// How long to poll without giving the core away.
    pub spin: Duration,
    /// How long, after that, to poll but yield the core after each fruitless poll.
    pub give_way: Duration,
    /// The same as long as nobody else takes the core.
    pub alone: Duration,
}

/// A yielded core that comes back later than this was taken: more than what interrupts and the system's own threads
/// need, less than the least slice of a thread that computes (0.7 ms on Linux).
const TAKEN: Duration = Duration::from_micros(100);

/// The longest sleep: the failure latch and deadlines are looked at in between.
const NAP: Duration = Duration::from_millis(20);

/// How often patience may be halved.
const HALVINGS: u32 = 6;

/// Every so many waits, patience is whole again for one.
const RETRY: u32 = 32;

/// What to do after a fruitless poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Poll,
    Yield,
    /// Sleep on the transport for at most this long.
    Park(Duration),
}

/// Waits, one after the other: each from its first fruitless poll to the next fruitful one.
#[derive(Debug)]
pub(crate) struct Wait {
    patience: Patience,
    since: Option<Instant>,
    /// What the present wait came to.
    last: Next,
    /// The longest that the core was away in this wait.
    away: Duration,
    /// How often hot polling and giving way were halved.
    spin: u32,
    give_way: u32,
    waits: u32,
}

impl Wait {
    pub(crate) fn new(patience: Patience) -> Self {
        Self { patience, since: None, last: Next::Poll, away: Duration::ZERO, spin: 0, give_way: 0, waits: 0 }
    }

    /// Since when nothing has moved, where something is waited for.
    pub(crate) fn waits(&self) -> Option<Instant> {
        self.since
    }

    /// Something moved.
    pub(crate) fn reset(&mut self) {
        if self.since.take().is_some() {
            // Step by step a patience that is much too short never grew: the next wait would outlast its double.
            let doubled = if self.tries_whole() { HALVINGS } else { 1 };
            let adapt = |halvings: &mut u32, outlasted: bool| {
                *halvings =
                    if outlasted { (*halvings + 1).min(HALVINGS) } else { halvings.saturating_sub(doubled) };
            };
            adapt(&mut self.spin, self.last != Next::Poll);
            adapt(&mut self.give_way, matches!(self.last, Next::Park(_)));
            self.waits = self.waits.wrapping_add(1);
            self.away = Duration::ZERO;
        }
    }

    /// Whether this wait has the whole patience.
    fn tries_whole(&self) -> bool {
        self.waits.is_multiple_of(RETRY)
    }

    /// The core came back so long after it was yielded.
    pub(crate) fn back_after(&mut self, away: Duration) {
        self.away = self.away.max(away);
    }

    /// This much of a patience that was halved so often.
    fn share(&self, patience: Duration, halvings: u32) -> Duration {
        patience / if self.tries_whole() { 1 } else { 1_u32 << halvings }
    }

    /// How long this wait, which may begin now, has lasted.
    fn waited(&mut self, now: Instant) -> Duration {
        now.saturating_duration_since(*self.since.get_or_insert(now))
    }

    /// Nothing moved. Whether that is so short that [`next`](Self::next) says to poll; otherwise it is to be asked what else.
    pub(crate) fn is_hot(&mut self, now: Instant) -> bool {
        let hot = self.waited(now) < self.share(self.patience.spin, self.spin);
        if hot {
            self.last = Next::Poll;
        }
        hot
    }

    /// Nothing moved. `now` is the time.
    pub(crate) fn next(&mut self, now: Instant, deadline: Instant) -> Next {
        if self.is_hot(now) {
            return Next::Poll;
        }
        let waited = self.waited(now);
        let spin = self.share(self.patience.spin, self.spin);
        let give_way = if self.away > TAKEN { self.patience.give_way } else { self.patience.alone };
        self.last = if waited < spin + self.share(give_way, self.give_way) {
            Next::Yield
        } else {
            Next::Park(NAP.min(deadline.saturating_duration_since(now)))
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

    /// What comes of a wait that lasts `micros`, microsecond by microsecond.
    fn wait_for(wait: &mut Wait, micros: u64) -> Vec<Next> {
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
        assert_eq!(wait.next(at(0), deadline), Next::Poll);
        assert_eq!(wait.next(at(63), deadline), Next::Poll);
        assert_eq!(wait.next(at(64), deadline), Next::Yield);
        assert_eq!(wait.next(at(200), deadline), Next::Park(Duration::from_micros(4800)));
        wait.reset();
        assert_eq!(wait.next(at(9000), deadline), Next::Poll);
        assert_eq!(wait.next(at(9500), deadline), Next::Park(Duration::ZERO));
    }

    #[test]
    fn giving_way_lasts_longer_until_the_core_is_taken() {
        let start = Instant::now();
        let deadline = start + Duration::from_secs(5);
        let mut wait = Wait::new(Patience { alone: Duration::from_micros(1024), ..PATIENCE });
        let at = |micros| start + Duration::from_micros(micros);
        assert_eq!(wait.next(at(0), deadline), Next::Poll);
        wait.back_after(Duration::from_micros(2));
        assert_eq!(wait.next(at(64 + 1023), deadline), Next::Yield);
        wait.back_after(Duration::from_millis(1));
        assert!(matches!(wait.next(at(64 + 1023), deadline), Next::Park(_)));
        // The next wait has not been disturbed yet; of this one's length, half of the patience is left.
        wait.reset();
        wait.next(at(2000), deadline);
        assert_eq!(wait.next(at(2000 + 500), deadline), Next::Yield);
        assert!(matches!(wait.next(at(2000 + 32 + 512), deadline), Next::Park(_)));
    }

    #[test]
    fn patience_adapts_and_recovers() {
        let mut wait = Wait::new(PATIENCE);
        // How long a wait polls before it sleeps.
        let mut polls = |micros| {
            wait_for(&mut wait, micros).iter().take_while(|next| !matches!(next, Next::Park(_))).count()
        };
        assert_eq!(polls(1000), 192);
        for _ in 0..10 {
            polls(1000);
        }
        assert_eq!(polls(1000), 3);
        // Giving way suffices where hot polling did not; short waits bring both back.
        polls(2);
        polls(2);
        assert_eq!(polls(1000), 1 + 8);
        polls(0);
        polls(0);
        assert_eq!(polls(1000), 4 + 16);
        // And the whole patience is tried every so often.
        assert_eq!((0..RETRY).filter(|_| polls(1000) == 192).count(), 1);
    }

    #[test]
    fn a_wait_is_hot_as_long_as_it_polls() {
        let start = Instant::now();
        let (deadline, at) = (start + Duration::from_secs(5), |micros| start + Duration::from_micros(micros));
        let mut wait = Wait::new(PATIENCE);
        assert!(wait.is_hot(at(0)) && wait.is_hot(at(63)) && !wait.is_hot(at(64)));
        // To ask changes nothing.
        assert_eq!(wait.next(at(64), deadline), Next::Yield);
        assert!(matches!(wait.next(at(64 + 128), deadline), Next::Park(_)));
        // A wait that was never asked what else to do counts as one that needed nothing else.
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
        // Whether a wait is over before it yields.
        let mut hot = |micros| wait_for(&mut wait, micros).iter().all(|next| *next == Next::Poll);
        for _ in 0..10 {
            hot(1000);
        }
        // Long waits have worn it out; of short ones, which even its double is too short for, all but a few are hot again.
        assert!((0..10 * RETRY).filter(|_| !hot(20)).count() <= RETRY as usize);
        for _ in 0..RETRY {
            assert!(hot(20));
        }
    }
}
