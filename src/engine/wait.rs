//! Waiting is a policy of its own: poll hot for a while, then give way, then sleep on the transport.
//!
//! With more ranks than cores nobody may poll hot: the one who is waited for needs the core. What the
//! defaults rest on is in ARCHITECTURE.md ("Waiting").

use std::time::{Duration, Instant};

/// How patiently to wait, fixed for the life of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Patience {
    /// How long to poll without giving the core away.
    pub spin: Duration,
    /// How long, after that, to poll but yield the core after each fruitless poll.
    pub give_way: Duration,
}

/// The longest sleep: alarms and deadlines are looked at in between.
const NAP: Duration = Duration::from_millis(20);

/// What to do after a fruitless poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Poll,
    Yield,
    /// Sleep on the transport for at most this long.
    Park(Duration),
}

/// One wait: from the first fruitless poll to the next fruitful one.
#[derive(Debug, Default)]
pub(crate) struct Wait {
    since: Option<Instant>,
}

impl Wait {
    /// Something moved.
    pub(crate) fn reset(&mut self) {
        self.since = None;
    }

    /// Nothing moved. `now` is the time.
    pub(crate) fn next(&mut self, patience: Patience, now: Instant, deadline: Instant) -> Next {
        let since = *self.since.get_or_insert(now);
        let waited = now.saturating_duration_since(since);
        if waited < patience.spin {
            Next::Poll
        } else if waited < patience.spin + patience.give_way {
            Next::Yield
        } else {
            Next::Park(NAP.min(deadline.saturating_duration_since(now)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_runs_out_in_order() {
        let patience = Patience { spin: Duration::from_micros(10), give_way: Duration::from_micros(20) };
        let start = Instant::now();
        let deadline = start + Duration::from_millis(5);
        let mut wait = Wait::default();
        let at = |micros| start + Duration::from_micros(micros);
        assert_eq!(wait.next(patience, at(0), deadline), Next::Poll);
        assert_eq!(wait.next(patience, at(9), deadline), Next::Poll);
        assert_eq!(wait.next(patience, at(10), deadline), Next::Yield);
        assert_eq!(wait.next(patience, at(30), deadline), Next::Park(Duration::from_micros(4970)));
        wait.reset();
        assert_eq!(wait.next(patience, at(40), deadline), Next::Poll);
        assert_eq!(wait.next(patience, at(9000), deadline), Next::Park(Duration::ZERO));
    }
}
