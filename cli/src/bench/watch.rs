//! `-T`: ends the bench if a size takes too long.

use std::{
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// The additional time that ranks without a report wait.
const AFTER: Duration = Duration::from_secs(2);

/// What is watched, and until when.
type Watched = Arc<Mutex<Option<(String, Instant)>>>;

/// Watches how long a size takes.
#[derive(Debug)]
pub(super) struct Watch {
    limit: Duration,
    now: Watched,
}

impl Watch {
    /// Ends this process when something takes longer than this; prints that if it `reports`.
    pub(super) fn start(limit: Duration, reports: bool) -> std::io::Result<Self> {
        let now = Watched::default();
        let watched = Arc::clone(&now);
        thread::Builder::new().name("limit".into()).spawn(move || {
            loop {
                thread::sleep(Duration::from_millis(10));
                let now = watched.lock().unwrap_or_else(PoisonError::into_inner).clone();
                if let Some((what, until)) = now
                    && Instant::now() > if reports { until } else { until + AFTER }
                {
                    if reports {
                        crate::complain!(
                            "unisono bench: -T {}: {what} is not done after this time",
                            limit.as_secs_f64()
                        );
                    }
                    std::process::exit(1);
                }
            }
        })?;
        Ok(Self { limit, now })
    }

    /// Watches `what` from now on; `None` ends the watch.
    pub(super) fn on(&self, what: Option<String>) {
        let until = Instant::now() + self.limit;
        *self.now.lock().unwrap_or_else(PoisonError::into_inner) = what.map(|what| (what, until));
    }
}
