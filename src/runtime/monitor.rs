//! Watches over the ranks: the failure latch, the store's watch, and the position that this rank reports. Makes the failure of an operation
//! that stopped.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use unisono_engine::{Signature, StalledOperation, Stop, Supervisor, WaitingCall};
use unisono_schedule::Rank;

use super::{current::CurrentOperation, watchdog::Watchdog};
use crate::{
    config::Config,
    error::{Error, Failure, Result},
    position::whereabouts,
    rendezvous::{
        FIRST_REPORT, FailureLatch, NEXT_REPORT, Position, PositionSource, Stage, Store, Watch, report,
    },
    signals::LastWords,
};

/// How long a rank whose transport broke waits for the store to say which rank died, before it reports the transport's error.
const NAMED_WITHIN: Duration = Duration::from_millis(1000);

/// How long to wait for the positions of the ranks.
const POSITIONS: Duration = Duration::from_millis(1000);

/// After this time without progress, this rank asks the store to compare the calls of all ranks; and again whenever the time has doubled.
const DOUBT: Duration = Duration::from_secs(1);

/// The same while a rank is leaving. Others may wait for that rank, and then the comparison is certain.
const DOUBT_LEAVING: Duration = Duration::from_millis(50);

pub(crate) struct Monitor {
    // This and the watchdog are dropped before the watch.
    /// Reports the signal that ends this rank.
    _last_words: Option<LastWords>,
    /// `None` in a world of one rank, as the watch.
    pub watchdog: Option<Watchdog>,
    pub rank: Rank,
    pub latch: Arc<FailureLatch>,
    pub position: Arc<PositionSource>,
    pub current: Arc<CurrentOperation>,
    /// The connection to the store that shows which ranks live.
    pub watch: Option<Arc<Watch>>,
    /// The times that this rank had made no progress when it last asked the store to compare the calls, and when it last logged its wait.
    noted: Mutex<[Duration; 2]>,
}

impl Supervisor for Monitor {
    fn stopped(&self) -> bool {
        self.latch.raised()
    }

    fn waits_longest(&self, call: WaitingCall, waits: Option<Rank>, deadline: Option<Instant>) {
        match call {
            WaitingCall::Handshake => {}
            WaitingCall::Operation(number, signature) => self.current.enter(number, signature.bits()),
            WaitingCall::Message(number, signature) => self.current.beside(number, signature.bits()),
        }
        match waits {
            Some(rank) => self.current.waits_for(rank),
            None => self.current.goes_on(),
        }
        deadline.into_iter().for_each(|deadline| self.current.due_by(deadline));
    }

    fn waits(&self, vainly: Duration) {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        // If a longer time was noted, this is the wait for something else.
        *noted = noted.map(|time| if vainly < time { Duration::ZERO } else { time });
        let [asked, said] = &mut *noted;
        let doubt = if self.latch.somebody_leaves() { DOUBT_LEAVING } else { DOUBT };
        if vainly >= (*asked * 2).max(doubt) {
            *asked = vainly;
            if let Some(watch) = &self.watch {
                watch.doubt();
            }
        }
        self.report_wait(vainly, said);
    }
}

impl Monitor {
    /// Begins to watch over the ranks that meet at this store.
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
        let noted = Mutex::default();
        Ok(Self { watchdog: None, _last_words, rank, latch, position, current, watch, noted })
    }

    /// Warns which rank this one waits for while it makes a group, at least some time after it `said` so. That takes long only if a rank does
    /// not call.
    fn report_wait(&self, vainly: Duration, said: &mut Duration) {
        let next = if said.is_zero() { FIRST_REPORT } else { *said + NEXT_REPORT };
        if vainly < next || !Signature::makes_group(self.current.call()) {
            return;
        }
        *said = vainly;
        let left = self.current.left(Instant::now()).unwrap_or_default();
        crate::log::warn!(
            "rank {} has waited {vainly:.0?} {}; it waits {left:.0?} more (UNISONO_TIMEOUT)",
            self.rank,
            self.current.snapshot()
        );
    }

    /// Ends an attempt to join that failed: tells the other ranks why, and leaves. Returns the error of the attempt: an error of this rank
    /// alone as it is, a failure of the group as all ranks return it.
    pub(crate) fn give_up(self, error: Error) -> Error {
        // If the store does not work, the cause may be the death of a rank.
        let broken = matches!(error, Error::Rendezvous { .. });
        let error = match error {
            Error::Failed(failure) => Error::Failed(self.tell(failure)),
            // All ranks that have come have the same error, and the store tells it to a rank that comes late.
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

    /// The first failure, if the store reports one soon: usually which rank died.
    pub(crate) fn dead(&self) -> Option<Failure> {
        self.latch.wait(NAMED_WITHIN)
    }

    /// Reports a failure to the store. Returns the first one that the store received.
    pub(crate) fn tell(&self, failure: Failure) -> Failure {
        if let Some(first) = self.latch.failure() {
            return first;
        }
        match &self.watch {
            Some(watch) => watch.report(&failure),
            None => {
                self.latch.raise(failure.clone().cleaned());
                self.latch.failure().unwrap_or(failure)
            }
        }
    }

    /// The positions of all ranks, in words.
    pub(crate) fn whereabouts(&self) -> String {
        self.positions().map_or_else(|silent| silent.to_string(), |positions| whereabouts(&positions))
    }

    /// Logs which ranks this one, which is leaving, has waited for, how long, and how much longer it waits.
    pub(crate) fn warn_leaving(&self, waited: Duration, limit: Option<Duration>) {
        let others = self.whereabouts();
        let left = match limit {
            Some(limit) => format!("{:.0?} more (UNISONO_LEAVE_TIMEOUT)", limit.saturating_sub(waited)),
            None => "as long as they live (UNISONO_LEAVE_TIMEOUT sets a limit)".to_owned(),
        };
        crate::log::warn!(
            self.rank,
            "this rank has waited {waited:.0?} to leave with the ranks that have not begun to; it waits {left}: {others}"
        );
    }

    /// True if all ranks are leaving or have left, as far as the store can tell.
    pub(crate) fn all_leave(&self) -> bool {
        let leaves = |position: &Option<Position>| {
            position.as_ref().is_some_and(|position| matches!(position.stage, Stage::Leaves | Stage::Left))
        };
        self.positions().is_ok_and(|positions| !positions.is_empty() && positions.iter().all(leaves))
    }

    /// The positions of all ranks, or the failure that the store does not answer.
    fn positions(&self) -> std::result::Result<Vec<Option<Position>>, Failure> {
        self.watch.as_ref().map_or_else(|| Ok(Vec::new()), |watch| watch.positions(POSITIONS))
    }

    /// The failure of an operation that stopped.
    pub(crate) fn explain(&self, stop: Stop, stalled: StalledOperation) -> Failure {
        let StalledOperation { number, group, id, call, waited } = stalled;
        match stop {
            Stop::Failure(failure) => *failure,
            Stop::Failed => self.latch.failure().unwrap_or_else(|| Failure::Aborted {
                rank: self.rank,
                why: "the failure latch was raised without a reason".to_owned(),
            }),
            Stop::Transport(broken) => {
                // The death of a peer breaks the transport too; the store says which rank died.
                let named = if broken.error.is_own() { None } else { self.latch.wait(NAMED_WITHIN) };
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
