//! The position that this rank reports to the store's watch, which asks from a separate thread.

use std::{
    sync::{TryLockError, atomic::Ordering, mpsc::sync_channel},
    time::{Duration, Instant},
};

use super::{Runtime, SubmissionEntry};
use crate::rendezvous::{Position, Stage};

/// How long the driver may take to answer: longer than the longest copy or reduction that it does without a look at requests.
const ANSWER: Duration = Duration::from_millis(200);

/// The time between two attempts to lock the engine.
const LOOK: Duration = Duration::from_millis(2);

impl Runtime {
    /// The position of this rank. The driver gives it; if no thread drives, this thread reads it from the engine.
    pub(crate) fn position(&self) -> Position {
        // This is read before the position, which may be of a call from before this rank began to leave.
        let leaves = self.leaves.load(Ordering::Acquire);
        // This rank is blocked only if all threads waited both before and after the position was taken.
        let waited = self.callers.all_wait();
        let position = self.ask_position();
        let blocked = position.blocked.filter(|_| waited && self.callers.all_wait());
        let stage = if leaves && position.stage == Stage::Calls { Stage::Leaves } else { position.stage };
        Position { stage, blocked, ..position }
    }

    fn ask_position(&self) -> Position {
        // The sender stays here, so that a request that is dropped does not end the wait.
        let (answer, answers) = sync_channel(1);
        let (mut asked, until) = (false, Instant::now() + ANSWER);
        loop {
            let slot = match self.engine.try_lock() {
                Ok(slot) => slot,
                Err(TryLockError::Poisoned(slot)) => slot.into_inner(),
                Err(TryLockError::WouldBlock) if Instant::now() >= until => return Position::of(Stage::Busy),
                Err(TryLockError::WouldBlock) => {
                    if !std::mem::replace(&mut asked, true) {
                        self.requests.push((0, SubmissionEntry::Position(answer.clone())));
                        self.wake_driver();
                    }
                    match answers.recv_timeout(LOOK) {
                        Ok(position) => return Position { stage: Stage::Calls, ..position },
                        Err(_) => continue,
                    }
                }
            };
            return match &*slot {
                // No thread drives, so none is blocked.
                Some(engine) => Position { stage: Stage::Calls, blocked: None, ..engine.position() },
                None => self.last_position.get().cloned().unwrap_or_else(|| Position::of(Stage::Calls)),
            };
        }
    }
}
