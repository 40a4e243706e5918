//! Where this rank stands, for the watch, which asks from a thread of its own.

use std::{
    sync::{Arc, TryLockError, atomic::Ordering},
    time::{Duration, Instant},
};

use super::{Node, Wish};
use crate::{
    engine::Question,
    rendezvous::{Stage, Stand},
};

/// How long whoever drives may take to answer: longer than it copies or reduces at a time.
const ANSWER: Duration = Duration::from_millis(200);

/// How often it is looked whether somebody drives.
const LOOK: Duration = Duration::from_millis(2);

impl Node {
    /// Where this rank stands: whoever drives says it, or this thread, if nobody does.
    pub(in super::super) fn stand(&self) -> Stand {
        // Before it is asked: where it stood a moment before it left may be within a call that it has made since.
        let leaves = self.leaves.load(Ordering::Acquire);
        // Whoever does not wait before and after did not meanwhile, if nothing moved.
        let waited = self.callers.all_wait();
        let stand = self.ask_stand();
        let blocked = stand.blocked.filter(|_| waited && self.callers.all_wait());
        let stage = if leaves && stand.stage == Stage::Calls { Stage::Leaves } else { stand.stage };
        Stand { stage, blocked, ..stand }
    }

    fn ask_stand(&self) -> Stand {
        let question = Arc::new(Question::default());
        let mut desk = self.desk();
        desk.wishes.push_back((0, Wish::Stand(Arc::clone(&question))));
        self.asked.store(true, Ordering::Release);
        if desk.asleep {
            self.waker.wake();
        }
        drop(desk);
        let until = Instant::now() + ANSWER;
        let answer = loop {
            if let Some(stand) = question.wait(LOOK) {
                break Stand { stage: Stage::Calls, ..stand };
            }
            let slot = match self.engine.try_lock() {
                Ok(slot) => slot,
                Err(TryLockError::Poisoned(slot)) => slot.into_inner(),
                Err(TryLockError::WouldBlock) if Instant::now() < until => continue,
                Err(TryLockError::WouldBlock) => break Stand::of(Stage::Busy),
            };
            break match &*slot {
                // Nobody drives: nobody waits for anything.
                Some(engine) => Stand { stage: Stage::Calls, blocked: None, ..engine.position() },
                None => Stand::of(Stage::Calls),
            };
        };
        let mut desk = self.desk();
        desk.wishes.retain(|(_, wish)| !matches!(wish, Wish::Stand(other) if Arc::ptr_eq(other, &question)));
        self.asked.store(!desk.wishes.is_empty(), Ordering::Release);
        answer
    }
}
