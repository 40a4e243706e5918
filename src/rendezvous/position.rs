//! Where a rank stands: written by its engine without a lock, read by its watch while the engine computes
//! or is stuck, and put into words once the stands of all ranks are known.

use std::{
    fmt::{self, Write as _},
    sync::atomic::{AtomicU64, Ordering, fence},
    time::Instant,
};

use serde::{Deserialize, Serialize};

use crate::{
    error::{clean, list},
    schedule::Rank,
};

/// How many ranks a report describes one by one; the others are counted.
const DETAILS: usize = 16;

/// How much is told of a call, in characters.
const MAX_CALL: usize = 300;

/// The bit of a place that says that a message is waited for.
const BESIDE: u64 = 1 << 63;

/// Where this rank stands. One writer (the engine), any number of readers.
///
/// Writing is a few relaxed stores. A reader may see the fields of one moment mixed with those of the next,
/// except that the operation's number and call always belong together.
#[derive(Debug)]
pub struct Position {
    /// Twice the operation's number, plus one while inside it, plus two so that 0 means "none yet"; with [`BESIDE`] while
    /// waiting for a message after that operation.
    place: AtomicU64,
    call: [AtomicU64; 2],
    steps: AtomicU64,
    /// 0, or one more than the rank waited for.
    waits: AtomicU64,
    lane: AtomicU64,
    /// 0, or the deadline of what is waited for in milliseconds from `since`, and one more.
    due: AtomicU64,
    since: Instant,
    render: fn([u64; 2]) -> String,
}

impl Position {
    /// A position before any operation. `render` turns the call, as the engine encodes it, into words such
    /// as `all_reduce(f32, sum)`; it is called by readers only.
    #[must_use]
    pub fn new(render: fn([u64; 2]) -> String) -> Self {
        Self {
            place: AtomicU64::new(0),
            call: [AtomicU64::new(0), AtomicU64::new(0)],
            steps: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            lane: AtomicU64::new(0),
            due: AtomicU64::new(0),
            since: Instant::now(),
            render,
        }
    }

    /// Enters operation `op`.
    pub fn enter(&self, op: u64, call: [u64; 2]) {
        self.go((op << 1) + 3, call);
    }

    /// Waits for a message, after operation `op` or before any.
    pub fn beside(&self, op: Option<u64>, call: [u64; 2]) {
        self.go(BESIDE | after(op), call);
    }

    fn go(&self, place: u64, call: [u64; 2]) {
        // A reader that sees a new call also sees the place cleared or renewed, and reads again.
        self.place.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        self.call[0].store(call[0], Ordering::Relaxed);
        self.call[1].store(call[1], Ordering::Relaxed);
        self.steps.store(0, Ordering::Relaxed);
        self.waits.store(0, Ordering::Relaxed);
        self.due.store(0, Ordering::Relaxed);
        self.place.store(place, Ordering::Release);
    }

    /// Has finished operation `op`, or a message after it; or a message before any.
    pub fn finish(&self, op: Option<u64>) {
        self.waits.store(0, Ordering::Relaxed);
        self.due.store(0, Ordering::Relaxed);
        self.place.store(after(op), Ordering::Release);
    }

    /// Waits until then at most.
    pub fn due_by(&self, deadline: Instant) {
        let millis = deadline.saturating_duration_since(self.since).as_millis();
        self.due.store(u64::try_from(millis).unwrap_or(u64::MAX - 1) + 1, Ordering::Relaxed);
    }

    /// Whether what it waits for was due before `now`.
    #[must_use]
    pub fn is_overdue(&self, now: Instant) -> bool {
        let due = self.due.load(Ordering::Relaxed);
        due > 0 && now.saturating_duration_since(self.since).as_millis() >= u128::from(due)
    }

    /// Has done this many steps of the operation.
    pub fn steps(&self, done: u64) {
        self.steps.store(done, Ordering::Relaxed);
    }

    /// Can do nothing until `rank` does something on `lane`.
    pub fn waits_for(&self, rank: Rank, lane: usize) {
        self.lane.store(lane as u64, Ordering::Relaxed);
        self.waits.store(rank as u64 + 1, Ordering::Relaxed);
    }

    /// Waits for nobody.
    pub fn goes_on(&self) {
        self.waits.store(0, Ordering::Relaxed);
    }

    /// What can be told others.
    #[must_use]
    pub fn snapshot(&self) -> Stand {
        let mut place = self.place.load(Ordering::Acquire);
        // The engine may be entering just now: the few stores it needs take nanoseconds unless it is
        // descheduled between them, and then the stand is told without a call.
        let call = (0..1000).find_map(|_| {
            let call = [self.call[0].load(Ordering::Relaxed), self.call[1].load(Ordering::Relaxed)];
            fence(Ordering::Acquire);
            let before = std::mem::replace(&mut place, self.place.load(Ordering::Acquire));
            std::hint::spin_loop();
            (place == before && place != 0).then_some(call)
        });
        let Some(call) = call else {
            return Stand { place: Place::Nowhere, call: String::new(), steps: 0, waits_for: None };
        };
        let op = (place & !BESIDE).checked_sub(2).map(|place| place >> 1);
        let waits = self.waits.load(Ordering::Relaxed);
        let lane = self.lane.load(Ordering::Relaxed);
        Stand {
            place: match op {
                _ if place & BESIDE != 0 => Place::Beside(op),
                Some(op) if place & 1 == 1 => Place::In(op),
                Some(op) => Place::After(op),
                None => Place::Nowhere,
            },
            call: (self.render)(call),
            steps: self.steps.load(Ordering::Relaxed),
            waits_for: waits
                .checked_sub(1)
                .and_then(|rank| Some((usize::try_from(rank).ok()?, usize::try_from(lane).ok()?))),
        }
    }
}

/// The place of who has finished operation `op`, or none yet.
fn after(op: Option<u64>) -> u64 {
    op.map_or(0, |op| (op << 1) + 2)
}

/// Between, in or after operations, which are counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    /// Has not entered an operation yet.
    Nowhere,
    /// Is in this one.
    In(u64),
    /// Has finished this one and entered no other.
    After(u64),
    /// Waits for a message; has finished this operation before, if any.
    Beside(Option<u64>),
    /// Has left the group in good order.
    Left,
}

/// Where a rank stood when asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stand {
    /// In which operation.
    pub place: Place,
    /// That operation's call; empty if there is none.
    pub call: String,
    /// How many steps of it are done.
    pub steps: u64,
    /// The rank without which it cannot go on, and the lane on which it waits.
    pub waits_for: Option<(Rank, usize)>,
}

impl fmt::Display for Stand {
    /// What it does, for instance `in op 3 all_reduce(f32, sum), waiting for rank 2`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Place::Nowhere => write!(f, "before its first call")?,
            Place::In(op) => write!(f, "in op {op} {}", self.call)?,
            Place::After(op) => write!(f, "after op {op} {}", self.call)?,
            Place::Beside(_) => write!(f, "in {}", self.call)?,
            Place::Left => write!(f, "after it left the group")?,
        }
        match self.waits_for {
            Some((rank, _)) => write!(f, ", waiting for rank {rank}"),
            None => Ok(()),
        }
    }
}

impl Stand {
    /// The stand of a rank that left in good order.
    #[must_use]
    pub const fn left() -> Self {
        Self { place: Place::Left, call: String::new(), steps: 0, waits_for: None }
    }

    /// The same with a call that disturbs no terminal, whoever has named it.
    pub(super) fn cleaned(mut self) -> Self {
        self.call = clean(&self.call, MAX_CALL);
        self
    }

    /// Whether this rank has entered operation `op` or a later one.
    fn reached(&self, op: u64) -> bool {
        matches!(self.place, Place::In(at) | Place::After(at) | Place::Beside(Some(at)) if at >= op)
    }
}

/// Says in one line who has not entered operation `op` and who is stuck behind whom; `stands[r]` is what
/// rank r told, or `None` if it gave no answer.
///
/// For instance: `rank 2 has not entered it (it finished op 16 all_gather(f32)); ranks 0, 1, 3 are in it:
/// rank 0 waits for rank 2 (lane 1, 5 steps done), ...`.
#[must_use]
pub fn report(op: u64, stands: &[Option<Stand>]) -> String {
    let mut parts = Vec::new();
    let known = || stands.iter().enumerate().filter_map(|(rank, stand)| Some((rank, stand.as_ref()?)));
    let (mut silent, mut left, mut inside) = (Vec::new(), Vec::new(), Vec::new());
    for (rank, stand) in stands.iter().enumerate() {
        match stand.as_ref().map(|stand| stand.place) {
            None => silent.push(rank),
            Some(Place::Left) => left.push(rank),
            Some(Place::In(at)) if at == op => inside.push(rank),
            Some(_) => {}
        }
    }

    // Those that stand at the same place are named together.
    let mut places: Vec<(String, Vec<Rank>)> = Vec::new();
    for (rank, stand) in known() {
        let call = if stand.call.is_empty() { String::new() } else { format!(" {}", stand.call) };
        let words = match stand.place {
            Place::Nowhere => "not entered it (nor any operation before)".to_owned(),
            Place::After(at) if at < op => {
                format!("not entered it (finished op {at}{call} and called nothing since)")
            }
            Place::In(at) if at < op => {
                format!("not entered it (is still in op {at}{call}{})", waiting(stand))
            }
            Place::Beside(Some(at)) if at >= op => format!("finished it (is in{call}{})", waiting(stand)),
            Place::Beside(_) => format!("not entered it (is in{call}{})", waiting(stand)),
            Place::After(at) if at == op => "finished it".to_owned(),
            Place::In(at) | Place::After(at) if at > op => format!("finished it (is at op {at}{call})"),
            _ => continue,
        };
        match places.iter_mut().find(|(known, _)| *known == words) {
            Some((_, ranks)) => ranks.push(rank),
            None => places.push((words, vec![rank])),
        }
    }
    places.sort_by_key(|(words, _)| words.starts_with("finished"));
    let more = places.len().saturating_sub(DETAILS);
    for (words, ranks) in places.iter().take(DETAILS) {
        parts.push(format!("{} {} {words}", named(ranks), if ranks.len() == 1 { "has" } else { "have" }));
    }
    if more > 0 {
        parts.push(format!("{more} more such"));
    }
    if !left.is_empty() {
        parts.push(format!("{} left the group", named(&left)));
    }
    if !silent.is_empty() {
        parts.push(format!("{} gave no answer (stopped, or cut off)", named(&silent)));
    }
    if !inside.is_empty() {
        let mut part = format!("{} {} in it", named(&inside), if inside.len() == 1 { "is" } else { "are" });
        for (i, &rank) in inside.iter().take(DETAILS).enumerate() {
            let Some(Some(stand)) = stands.get(rank) else { continue };
            let _ = write!(part, "{} rank {rank}{}", if i == 0 { ":" } else { "," }, doing(stand));
        }
        if inside.len() > DETAILS {
            let _ = write!(part, ", and {} more", inside.len() - DETAILS);
        }
        parts.push(part);
    }
    let culprits = behind(op, stands, &inside);
    if !culprits.is_empty() {
        parts.push(culprits);
    }
    parts.join("; ")
}

/// Says in one line where every rank stands, whatever is asked of it; `stands` as in [`report`].
///
/// For instance: `rank 0 called send(f32, to 1, tag 7), waits for rank 1; rank 1 finished barrier() and called nothing since`.
#[must_use]
pub fn whereabouts(stands: &[Option<Stand>]) -> String {
    let mut places: Vec<(String, Vec<Rank>)> = Vec::new();
    for (rank, stand) in stands.iter().enumerate() {
        let words = match stand {
            None => "gave no answer (stopped, or cut off)".to_owned(),
            Some(stand) => match stand.place {
                Place::Left => "left the group".to_owned(),
                Place::Nowhere => "called nothing yet".to_owned(),
                Place::In(_) | Place::Beside(_) => format!("called {}{}", stand.call, waiting(stand)),
                Place::After(_) => format!("finished {} and called nothing since", stand.call),
            },
        };
        match places.iter_mut().find(|(known, _)| *known == words) {
            Some((_, ranks)) => ranks.push(rank),
            None => places.push((words, vec![rank])),
        }
    }
    let more = places.len().saturating_sub(DETAILS);
    let told = places.iter().take(DETAILS).map(|(words, ranks)| format!("{} {words}", named(ranks)));
    let mut parts: Vec<String> = told.collect();
    if more > 0 {
        parts.push(format!("{more} more such"));
    }
    parts.join("; ")
}

/// `rank 3` or `ranks 0, 3, 5–9`.
fn named(ranks: &[Rank]) -> String {
    format!("{} {}", if ranks.len() == 1 { "rank" } else { "ranks" }, list(ranks))
}

/// What a rank inside the operation does.
fn doing(stand: &Stand) -> String {
    match stand.waits_for {
        Some((rank, lane)) => format!(" waits for rank {rank} (lane {lane}, {} steps done)", stand.steps),
        None => format!(" waits for nobody ({} steps done)", stand.steps),
    }
}

/// The same for a rank that is in an earlier operation.
fn waiting(stand: &Stand) -> String {
    stand.waits_for.map(|(rank, _)| format!(", waits for rank {rank}")).unwrap_or_default()
}

/// Follows who waits for whom: the ranks at which all waiting ends, or the circle in which it turns.
fn behind(op: u64, stands: &[Option<Stand>], inside: &[Rank]) -> String {
    let mut ends: Vec<(Rank, Vec<Rank>)> = Vec::new();
    let mut circle: Option<Vec<Rank>> = None;
    let next = |rank: Rank| {
        let stand = stands.get(rank)?.as_ref().filter(|stand| stand.reached(op))?;
        stand.waits_for.map(|(rank, _)| rank)
    };
    for &start in inside.iter().take(1024) {
        let mut path = vec![start];
        let mut at = start;
        while let Some(to) = next(at) {
            if let Some(from) = path.iter().position(|&rank| rank == to) {
                let mut turn = path.split_off(from);
                let low = turn.iter().enumerate().min_by_key(|(_, rank)| **rank).map_or(0, |(i, _)| i);
                turn.rotate_left(low);
                circle.get_or_insert(turn);
                path.clear();
                break;
            }
            path.push(to);
            at = to;
        }
        if path.len() > 1 {
            match ends.iter_mut().find(|(end, _)| *end == at) {
                Some((_, behind)) => behind.push(start),
                None => ends.push((at, vec![start])),
            }
        }
    }
    let mut words = Vec::new();
    for (end, behind) in ends.iter().take(DETAILS) {
        words.push(format!(
            "{} {} stuck behind rank {end}",
            named(behind),
            if behind.len() == 1 { "is" } else { "are" }
        ));
    }
    if let Some(turn) = circle {
        let chain: Vec<String> = turn.iter().chain(turn.first()).map(ToString::to_string).collect();
        words.push(format!("ranks {} wait for each other in a circle", chain.join(" → ")));
    }
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread, time::Duration};

    use super::*;

    fn stand(place: Place, waits_for: Option<Rank>) -> Option<Stand> {
        Some(Stand { place, call: "barrier".into(), steps: 1, waits_for: waits_for.map(|rank| (rank, 0)) })
    }

    #[test]
    fn a_message_is_waited_for_beside_operations() {
        let position = Position::new(|[call, _]| format!("recv {call}"));
        position.beside(None, [7, 0]);
        position.waits_for(2, 0);
        let before = position.snapshot();
        assert_eq!((before.place, before.call.as_str()), (Place::Beside(None), "recv 7"));
        position.finish(None);
        assert_eq!(position.snapshot().place, Place::Nowhere);
        position.beside(Some(3), [8, 0]);
        let after = position.snapshot();
        assert_eq!(after.place, Place::Beside(Some(3)));
        position.finish(Some(3));
        assert_eq!(position.snapshot().place, Place::After(3));
        let stands = [Some(before), Some(after), None];
        assert_eq!(
            report(3, &stands),
            "rank 0 has not entered it (is in recv 7, waits for rank 2); rank 1 has finished it (is in recv 8); \
             rank 2 gave no answer (stopped, or cut off)"
        );
        assert_eq!(
            whereabouts(&stands),
            "rank 0 called recv 7, waits for rank 2; rank 1 called recv 8; rank 2 gave no answer (stopped, or cut off)"
        );
    }

    #[test]
    fn what_waits_is_overdue_after_its_deadline_and_until_it_ends() {
        let (position, second) = (Position::new(|_| "barrier".to_owned()), Duration::from_secs(1));
        let overdue = |after| position.is_overdue(Instant::now() + after);
        position.enter(4, [0; 2]);
        position.waits_for(2, 0);
        assert!(!overdue(1000 * second), "no deadline is known");
        position.due_by(Instant::now() + 10 * second);
        assert!(!overdue(9 * second) && overdue(11 * second));
        assert_eq!(position.snapshot().to_string(), "in op 4 barrier, waiting for rank 2");
        position.finish(Some(4));
        assert!(!overdue(11 * second));
        assert_eq!(position.snapshot().to_string(), "after op 4 barrier");
        position.due_by(Instant::now());
        position.enter(5, [0; 2]);
        assert!(!overdue(second));
    }

    #[test]
    fn a_snapshot_never_mixes_one_call_with_anothers_number() {
        let position = Arc::new(Position::new(|call| format!("{} {}", call[0], call[1])));
        assert_eq!(position.snapshot().place, Place::Nowhere);
        let last = 200_000;
        let writer = thread::spawn({
            let position = Arc::clone(&position);
            move || {
                for op in 0..=last {
                    position.enter(op, [op * 3, op * 5]);
                    position.waits_for(7, 2);
                    position.finish(Some(op));
                }
            }
        });
        loop {
            let stand = position.snapshot();
            match stand.place {
                Place::Nowhere => assert!(stand.call.is_empty()),
                Place::In(op) | Place::After(op) => assert_eq!(stand.call, format!("{} {}", op * 3, op * 5)),
                Place::Left | Place::Beside(_) => panic!("{stand:?}"),
            }
            if stand.place == Place::After(last) {
                break;
            }
        }
        writer.join().unwrap();
    }

    #[test]
    fn a_report_finds_the_end_of_the_line() {
        // 0 → 1 → 2 → 3, which is a step behind.
        let stands = [
            stand(Place::In(5), Some(1)),
            stand(Place::In(5), Some(2)),
            stand(Place::In(5), Some(3)),
            stand(Place::In(4), Some(0)),
        ];
        let report = report(5, &stands);
        assert!(
            report.starts_with("rank 3 has not entered it (is still in op 4 barrier, waits for rank 0)"),
            "{report}"
        );
        assert!(report.ends_with("ranks 0–2 are stuck behind rank 3"), "{report}");
    }

    #[test]
    fn a_report_finds_a_circle() {
        let circle = [Some(1), Some(2), Some(0), Some(1)].map(|rank| stand(Place::In(0), rank));
        let report = report(0, &circle);
        assert!(report.ends_with("ranks 0 → 1 → 2 → 0 wait for each other in a circle"), "{report}");
        assert!(!report.contains("has not entered"), "{report}");
    }

    #[test]
    fn a_report_tells_of_those_ahead_and_stays_short() {
        let ahead = [stand(Place::In(3), Some(1)), stand(Place::After(3), None), stand(Place::In(4), None)];
        let told = report(3, &ahead);
        assert!(
            told.contains("rank 1 has finished it; rank 2 has finished it (is at op 4 barrier)"),
            "{told}"
        );
        let many: Vec<_> = (0..10_000).map(|rank| stand(Place::In(rank % 100), Some(0))).collect();
        assert!(report(50, &many).len() < 20_000);
        assert_eq!(report(0, &[]), "");
    }
}
