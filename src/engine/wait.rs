//! Waiting is a policy of its own: poll hot for a while, then give way, then sleep on the transport.
//!
//! With more ranks than cores nobody may poll hot: the one who is waited for needs the core. The same holds
//! where other programs use the cores, which nobody can know beforehand; so patience adapts. A wait that had
//! to sleep in the end halves what the next ones spend before they sleep, one that had not doubles it, and
//! now and then a wait tries the whole again. ARCHITECTURE.md ("Waiting") has the figures.

use std::time::{Duration, Instant};

/// How patiently to wait at most, fixed for the life of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Patience {
    /// How long to poll without giving the core away.
    pub spin: Duration,
    /// How long, after that, to poll but yield the core after each fruitless poll.
    pub give_way: Duration,
}

/// The longest sleep: alarms and deadlines are looked at in between.
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
    parked: bool,
    halvings: u32,
    waits: u32,
}

impl Wait {
    pub(crate) fn new(patience: Patience) -> Self {
        Self { patience, since: None, parked: false, halvings: 0, waits: 0 }
    }

    /// Something moved.
    pub(crate) fn reset(&mut self) {
        if self.since.take().is_some() {
            self.waits = self.waits.wrapping_add(1);
            self.halvings = match std::mem::take(&mut self.parked) {
                true => (self.halvings + 1).min(HALVINGS),
                false => self.halvings.saturating_sub(1),
            };
        }
    }

    /// Nothing moved. `now` is the time.
    pub(crate) fn next(&mut self, now: Instant, deadline: Instant) -> Next {
        let since = *self.since.get_or_insert(now);
        let waited = now.saturating_duration_since(since);
        let share = if self.waits.is_multiple_of(RETRY) { 1 } else { 1 << self.halvings };
        let Patience { spin, give_way } = self.patience;
        if waited < spin / share {
            Next::Poll
        } else if waited < (spin + give_way) / share {
            Next::Yield
        } else {
            self.parked = true;
            Next::Park(NAP.min(deadline.saturating_duration_since(now)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience =
        Patience { spin: Duration::from_micros(64), give_way: Duration::from_micros(128) };

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
    fn patience_adapts_and_recovers() {
        let start = Instant::now();
        let deadline = start + Duration::from_secs(5);
        let mut wait = Wait::new(PATIENCE);
        // How long a wait that lasts `micros` polls before it sleeps.
        let mut polls = |micros: u64| {
            let spent = (0..=micros)
                .take_while(|&micros| {
                    !matches!(wait.next(start + Duration::from_micros(micros), deadline), Next::Park(_))
                })
                .count();
            wait.reset();
            spent
        };
        assert_eq!(polls(1000), 192);
        for _ in 0..10 {
            polls(1000);
        }
        assert_eq!(polls(1000), 3);
        // Short waits bring it back, and so does the whole patience that is tried every so often.
        polls(1);
        polls(1);
        assert_eq!(polls(1000), 12);
        assert_eq!((0..RETRY).filter(|_| polls(1000) == 192).count(), 1);
    }
}
