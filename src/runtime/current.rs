//! The call that this rank is in. Its engine writes this without a lock, and the watchdog reads it, even if the engine is stuck in a call
//! of libfabric. The position that other ranks get has more detail, and comes from the driver (`position.rs`).

use std::{
    sync::atomic::{AtomicU64, Ordering, fence},
    time::{Duration, Instant},
};

use unisono_schedule::Rank;

/// The bit of a phase that marks the wait for a message.
const BESIDE: u64 = 1 << 63;

/// The place of a rank that has entered no operation.
const NOWHERE: &str = "before its first call";

/// The call that this rank is in. There is one writer (the engine), and any number of readers.
///
/// A write is a few relaxed stores. A reader may see the fields of one moment mixed with those of the next, except that the operation's
/// number and call always belong together.
#[derive(Debug)]
pub(crate) struct CurrentOperation {
    /// Twice the operation's number, plus one while inside it, plus two so that 0 means "none yet"; with [`BESIDE`] while
    /// waiting for a message after that operation.
    phase: AtomicU64,
    call: [AtomicU64; 3],
    /// 0, or one more than the rank waited for.
    waits: AtomicU64,
    /// 0, or one more than the deadline of the wait, in milliseconds from `since`.
    due: AtomicU64,
    since: Instant,
    render: fn([u64; 3]) -> String,
}

impl CurrentOperation {
    /// The state before any operation. `render`, called by readers only, turns the call, as the engine encodes it, into text such
    /// as `all_reduce(f32, sum)`.
    pub(crate) fn new(render: fn([u64; 3]) -> String) -> Self {
        Self {
            phase: AtomicU64::new(0),
            call: [const { AtomicU64::new(0) }; 3],
            waits: AtomicU64::new(0),
            due: AtomicU64::new(0),
            since: Instant::now(),
            render,
        }
    }

    /// Enters operation `op`.
    pub(crate) fn enter(&self, op: u64, call: [u64; 3]) {
        self.go((op << 1) + 3, call);
    }

    /// Waits for a message, after operation `op` or before any.
    pub(crate) fn beside(&self, op: Option<u64>, call: [u64; 3]) {
        self.go(BESIDE | after(op), call);
    }

    fn go(&self, phase: u64, call: [u64; 3]) {
        // A reader that sees a new call also sees the phase cleared or renewed, and reads again.
        self.phase.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        for (word, value) in self.call.iter().zip(call) {
            word.store(value, Ordering::Relaxed);
        }
        self.waits.store(0, Ordering::Relaxed);
        self.due.store(0, Ordering::Relaxed);
        self.phase.store(phase, Ordering::Release);
    }

    /// Finishes operation `op`, or a message after it; `None`: a message before any operation.
    pub(crate) fn finish(&self, op: Option<u64>) {
        self.waits.store(0, Ordering::Relaxed);
        self.due.store(0, Ordering::Relaxed);
        self.phase.store(after(op), Ordering::Release);
    }

    /// Sets the deadline of the wait.
    pub(crate) fn due_by(&self, deadline: Instant) {
        let millis = deadline.saturating_duration_since(self.since).as_millis();
        self.due.store(u64::try_from(millis).unwrap_or(u64::MAX - 1) + 1, Ordering::Relaxed);
    }

    pub(crate) fn is_overdue(&self, now: Instant) -> bool {
        let due = self.due.load(Ordering::Relaxed);
        due > 0 && now.saturating_duration_since(self.since).as_millis() >= u128::from(due)
    }

    /// How long this rank still waits; `None` if it has no deadline.
    pub(crate) fn left(&self, now: Instant) -> Option<Duration> {
        let due = self.due.load(Ordering::Relaxed).checked_sub(1)?;
        Some(Duration::from_millis(due).saturating_sub(now.saturating_duration_since(self.since)))
    }

    /// The call, as the engine encodes it; for the engine's own thread.
    pub(crate) fn call(&self) -> [u64; 3] {
        self.call.each_ref().map(|word| word.load(Ordering::Relaxed))
    }

    /// The operation waits for `rank`.
    pub(crate) fn waits_for(&self, rank: Rank) {
        self.waits.store(rank as u64 + 1, Ordering::Relaxed);
    }

    /// The operation waits for no rank.
    pub(crate) fn goes_on(&self) {
        self.waits.store(0, Ordering::Relaxed);
    }

    /// The call that this rank is in now, in words, and the rank that it waits for: `in op 3 all_reduce(f32, sum), waiting for rank 2`.
    pub(crate) fn snapshot(&self) -> String {
        let mut phase = self.phase.load(Ordering::Acquire);
        // The engine may be entering an operation: its few stores take nanoseconds, unless it is descheduled between them; then the
        // snapshot has no call.
        let call = (0..1000).find_map(|_| {
            let call = self.call();
            fence(Ordering::Acquire);
            let before = std::mem::replace(&mut phase, self.phase.load(Ordering::Acquire));
            std::hint::spin_loop();
            (phase == before && phase != 0).then_some(call)
        });
        let Some(call) = call else { return NOWHERE.to_owned() };
        let op = (phase & !BESIDE).checked_sub(2).map(|phase| phase >> 1);
        let call = (self.render)(call);
        let place = match op {
            _ if phase & BESIDE != 0 => format!("in {call}"),
            Some(op) if phase & 1 == 1 => format!("in op {op} {call}"),
            Some(op) => format!("after op {op} {call}"),
            None => NOWHERE.to_owned(),
        };
        match self.waits.load(Ordering::Relaxed).checked_sub(1) {
            Some(rank) => format!("{place}, waiting for rank {rank}"),
            None => place,
        }
    }
}

/// The phase after operation `op`; before any, if `None`.
fn after(op: Option<u64>) -> u64 {
    op.map_or(0, |op| (op << 1) + 2)
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread};

    use super::*;

    #[test]
    fn what_waits_is_overdue_after_its_deadline_and_until_it_ends() {
        let (doing, second) = (CurrentOperation::new(|_| "barrier".to_owned()), Duration::from_secs(1));
        let overdue = |after| doing.is_overdue(Instant::now() + after);
        doing.enter(4, [0; 3]);
        doing.waits_for(2);
        assert!(!overdue(1000 * second), "no deadline is known");
        doing.due_by(Instant::now() + 10 * second);
        assert!(!overdue(9 * second) && overdue(11 * second));
        assert_eq!(doing.snapshot(), "in op 4 barrier, waiting for rank 2");
        doing.finish(Some(4));
        assert!(!overdue(11 * second));
        assert_eq!(doing.snapshot(), "after op 4 barrier");
        doing.due_by(Instant::now());
        doing.enter(5, [0; 3]);
        assert!(!overdue(second));
    }

    #[test]
    fn a_message_is_waited_for_beside_operations() {
        let doing = CurrentOperation::new(|[call, ..]| format!("recv {call}"));
        doing.beside(None, [7, 0, 0]);
        doing.waits_for(2);
        assert_eq!(doing.snapshot(), "in recv 7, waiting for rank 2");
        doing.finish(None);
        assert_eq!(doing.snapshot(), "before its first call");
        doing.beside(Some(3), [8, 0, 0]);
        assert_eq!(doing.snapshot(), "in recv 8");
        doing.finish(Some(3));
        assert_eq!(doing.snapshot(), "after op 3 recv 8");
    }

    #[test]
    fn a_snapshot_never_mixes_one_call_with_anothers_number() {
        let doing = Arc::new(CurrentOperation::new(|call| format!("{} {} {}", call[0], call[1], call[2])));
        assert_eq!(doing.snapshot(), NOWHERE);
        let last = 200_000;
        let writer = thread::spawn({
            let doing = Arc::clone(&doing);
            move || {
                for op in 0..=last {
                    doing.enter(op, [op * 3, op * 5, op * 7]);
                    doing.waits_for(7);
                    doing.finish(Some(op));
                }
            }
        });
        loop {
            let text = doing.snapshot();
            if text == NOWHERE {
                continue;
            }
            let (place, call) = text.split_once(" op ").unwrap();
            let numbers = call.trim_end_matches(", waiting for rank 7").split(' ');
            let numbers: Vec<u64> = numbers.map(|number| number.parse().unwrap()).collect();
            let op = numbers[0];
            assert_eq!(numbers, [op, op * 3, op * 5, op * 7], "{text}");
            if place == "after" && op == last {
                break;
            }
        }
        writer.join().unwrap();
    }
}
