//! Watches over the ranks: the failure latch, the store's watch, the position that this rank reports; and explains in words why
//! an operation stopped.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use unisono_schedule::Rank;

use super::{current::CurrentOperation, watchdog::Watchdog};
use crate::{
    call::Signature,
    config::Config,
    engine::{Call, StalledOperation, Stop, Supervisor},
    error::{Error, Failure, Result},
    rendezvous::{FailureLatch, Position, PositionSource, Store, Watch, report, whereabouts},
    signals::LastWords,
};

/// How long a broken transport waits for the store to say who died before it reports itself.
const NAMED_WITHIN: Duration = Duration::from_millis(1000);

/// How long the ranks' positions are gathered for.
const POSITIONS: Duration = Duration::from_millis(1000);

/// After how long a wait in vain the store is to compare what all ranks call; and again when it has doubled.
const DOUBT: Duration = Duration::from_secs(1);

/// The same where a rank leaves: it may be the one that is waited for, and then that is known without doubt.
const DOUBT_LEAVING: Duration = Duration::from_millis(50);

pub(crate) struct Monitor {
    // These go before the watch.
    /// Once it has gone, a signal ends this rank without a word.
    _last_words: Option<LastWords>,
    /// A world of one has none.
    pub watchdog: Option<Watchdog>,
    pub rank: Rank,
    pub latch: Arc<FailureLatch>,
    pub position: Arc<PositionSource>,
    pub current: Arc<CurrentOperation>,
    /// A world of one has none.
    pub watch: Option<Arc<Watch>>,
    /// How long this rank had waited in vain when it last had the store compare what all ranks call.
    asked: Mutex<Duration>,
}

impl Supervisor for Monitor {
    fn stopped(&self) -> bool {
        self.latch.raised()
    }

    fn waits_longest(&self, call: Call, waits: Option<Rank>) {
        match call {
            Call::Greeting => {}
            Call::Operation(number, signature) => self.current.enter(number, signature.bits()),
            Call::Message(number, signature) => self.current.beside(number, signature.bits()),
        }
        match waits {
            Some(rank) => self.current.waits_for(rank),
            None => self.current.goes_on(),
        }
    }

    fn waits(&self, vainly: Duration) {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if vainly < *asked {
            // For something else than the last time.
            *asked = Duration::ZERO;
        }
        let doubt = if self.latch.somebody_leaves() { DOUBT_LEAVING } else { DOUBT };
        if vainly >= (*asked * 2).max(doubt) {
            *asked = vainly;
            if let Some(watch) = &self.watch {
                watch.doubt();
            }
        }
    }

    fn until(&self, deadline: Instant) {
        self.current.due_by(deadline);
    }
}

impl Monitor {
    /// Begins to watch over the group whose store this is.
    pub(crate) fn begin(config: &Config, store: Option<&Store>) -> Result<Self> {
        let rank = config.rank;
        let latch = Arc::new(FailureLatch::new());
        let position = Arc::new(PositionSource::new());
        let watch = store.map(|store| store.watch(Arc::clone(&latch), Arc::clone(&position))).transpose()?;
        let current = Arc::new(CurrentOperation::new(Signature::call_of));
        let watch: Option<Arc<Watch>> = watch.map(Arc::from);
        if let Some(watch) = &watch {
            watch.be_patient(config.timeout.max(config.join_timeout));
        }
        let _last_words = watch.as_ref().map(|watch| LastWords::of(rank, watch));
        let asked = Mutex::default();
        Ok(Self { watchdog: None, _last_words, rank, latch, position, current, watch, asked })
    }

    /// Ends a joining that failed: the others are told why, and then this rank goes. Gives what it returns: an error of its
    /// own as it is, a failure of the group in the words of all.
    pub(crate) fn give_up(self, error: Error) -> Error {
        // Where the store does not do what it should, somebody may have died.
        let broken = matches!(error, Error::Rendezvous { .. });
        let error = match error {
            Error::Failed(failure) => Error::Failed(self.tell(failure)),
            // All who were there have come to the same, and whoever is late is told so.
            Error::Missing { .. } => error,
            _ => match broken.then(|| self.latch.wait(NAMED_WITHIN)).flatten() {
                Some(failure) => Error::Failed(failure),
                None => {
                    self.tell(Failure::Joining { rank: self.rank, why: error.to_string() });
                    error
                }
            },
        };
        if let Some(watch) = &self.watch {
            watch.leave();
        }
        error
    }

    /// This rank leaves, and makes no other call.
    pub(crate) fn leaves(&self) {
        if let Some(watch) = &self.watch {
            watch.leaves();
        }
    }

    /// Who died, if the store comes to know that soon.
    pub(crate) fn dead(&self) -> Option<Failure> {
        self.latch.wait(NAMED_WITHIN)
    }

    /// Tells the store, and gives back the failure that it heard of first.
    pub(crate) fn tell(&self, failure: Failure) -> Failure {
        if let Some(first) = self.latch.failure() {
            return first;
        }
        match &self.watch {
            Some(watch) => watch.report(&failure),
            None => {
                self.latch.raise(failure.clone());
                self.latch.failure().unwrap_or(failure)
            }
        }
    }

    /// Where all ranks are, in words.
    pub(crate) fn whereabouts(&self) -> String {
        self.positions().map_or_else(|silent| silent.to_string(), |positions| whereabouts(&positions))
    }

    /// Where all ranks are, or that the store does not answer.
    fn positions(&self) -> std::result::Result<Vec<Option<Position>>, Failure> {
        self.watch.as_ref().map_or_else(|| Ok(Vec::new()), |watch| watch.positions(POSITIONS))
    }

    /// Why an operation stopped.
    pub(crate) fn explain(&self, stop: Stop, stalled: StalledOperation) -> Failure {
        let StalledOperation { number, group, id, call, waited } = stalled;
        match stop {
            Stop::Failure(failure) => *failure,
            Stop::Failed => self.latch.failure().unwrap_or_else(|| Failure::Aborted {
                rank: self.rank,
                why: "the failure latch was raised without a reason".to_owned(),
            }),
            Stop::Transport(broken) => {
                // A dead peer breaks the wire too; the store knows better who it was.
                let named = self.latch.wait(NAMED_WITHIN);
                named.unwrap_or_else(|| Failure::Transport {
                    rank: self.rank,
                    doing: number.map_or_else(|| call.clone(), |op| format!("op {op} {call}")),
                    reason: broken.to_string(),
                })
            }
            Stop::Deadline => {
                let positions = match self.positions() {
                    Ok(positions) => positions,
                    Err(silent) => return silent,
                };
                match number {
                    Some(op) => {
                        let report = report(id, op, &positions);
                        let group = group.as_deref().unwrap_or_default().into();
                        Failure::Deadline { group, op, call, rank: self.rank, waited, report }
                    }
                    None => Failure::Undelivered {
                        call,
                        rank: self.rank,
                        waited,
                        report: whereabouts(&positions),
                    },
                }
            }
        }
    }
}
