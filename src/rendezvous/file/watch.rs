//! This rank's watch in a directory: a thread that looks again and again.

use std::{
    collections::HashMap,
    fs::File,
    io,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use unisono_transport::fork::{Process, Unshared};

use super::{
    super::{Alarm, LATECOMERS, Position, PositionSource, Watch},
    LOOK, Pause,
    inquiry::Inquiry,
    room::Room,
    tidy,
};
use crate::error::Failure;

/// How long this rank may be unable to look after the others before the store counts as lost.
const TROUBLE: Duration = Duration::from_secs(10);

/// There as soon as a rank leaves.
const LEAVING: &str = "leaving";

/// See the module.
pub(super) struct FileWatch {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Held as long as this rank lives.
    seat: Mutex<Option<Unshared<File>>>,
    process: Process,
    questions: AtomicU64,
}

struct Shared {
    room: Room,
    alarm: Arc<Alarm>,
    position: Arc<PositionSource>,
    /// Whether this rank doubts that the others call the same.
    doubts: AtomicBool,
    /// Whether this rank is going.
    going: Mutex<bool>,
    changed: Condvar,
}

impl FileWatch {
    pub(super) fn begin(
        room: Room,
        seat: Unshared<File>,
        alarm: Arc<Alarm>,
        position: Arc<PositionSource>,
    ) -> io::Result<Self> {
        let (doubts, going, changed) = (AtomicBool::new(false), Mutex::new(false), Condvar::new());
        let shared = Arc::new(Shared { room, alarm, position, doubts, going, changed });
        let thread = thread::Builder::new().name("unisono-watch".into()).spawn({
            let shared = Arc::clone(&shared);
            move || shared.look_until_gone()
        })?;
        let (thread, seat) = (Mutex::new(Some(thread)), Mutex::new(Some(seat)));
        Ok(Self { shared, thread, seat, process: Process::this(), questions: AtomicU64::new(0) })
    }

    /// Ends the thread; `false` if it had been ended before.
    fn stop(&self) -> bool {
        *self.shared.going.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.shared.changed.notify_all();
        let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return false;
        };
        if thread.join().is_err() {
            tracing::error!("the watch's thread panicked");
        }
        true
    }

    fn ask(&self, wait: Duration) -> io::Result<Vec<Option<Position>>> {
        let room = &self.shared.room;
        let ask = format!("{}-{}", room.rank, self.questions.fetch_add(1, Ordering::Relaxed));
        room.write(&format!("asks/{ask}"), b"")?;
        let until = Instant::now() + wait;
        let mut positions = vec![None; room.ranks];
        while room.gather(&ask, &mut positions)? && Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
        }
        room.forget(&ask)?;
        Ok(positions)
    }
}

impl Shared {
    fn look_until_gone(&self) {
        let mut asked = HashMap::new();
        let mut inquiry = Inquiry::default();
        let mut trouble = None;
        let mut going = self.going.lock().unwrap_or_else(PoisonError::into_inner);
        while !*going {
            drop(going);
            // The dead before those that ask: where nothing can be written, deaths can still be found.
            let looked = self.look();
            let answered = self.answer(&mut asked).and(looked);
            match answered.and_then(|()| inquiry.go_on(&self.room, &self.doubts)) {
                Ok(None) => trouble = None,
                Ok(Some(failure)) => {
                    self.alarm.raise(self.room.settle(failure));
                }
                Err(error) => {
                    let since = *trouble.get_or_insert_with(|| {
                        tracing::warn!("rank {} cannot look after the store: {error}", self.room.rank);
                        Instant::now()
                    });
                    // It may be a bad moment of a network file system or of this process; a missing room is not.
                    let missing = matches!(self.room.world(), Ok(None));
                    if missing || since.elapsed() > TROUBLE {
                        let how = format!("{} cannot be read any more: {error}", self.room.path.display());
                        self.alarm.raise(Failure::StoreLost { how });
                    }
                }
            }
            going = self.going.lock().unwrap_or_else(PoisonError::into_inner);
            if !*going {
                let look = if inquiry.is_open() { LOOK / 10 } else { LOOK };
                going = self.changed.wait_timeout(going, look).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    /// Looks after the others, and raises the alarm if the group failed.
    fn look(&self) -> io::Result<()> {
        if let Some(failure) = self.alarm.failure() {
            // Where it could not be told when it was found.
            if self.room.failure()?.is_none() {
                self.room.latch(&failure)?;
            }
        } else if let Some(failure) = self.room.patrol()? {
            self.alarm.raise(failure);
        } else if !self.alarm.somebody_leaves() && self.room.read(LEAVING)?.is_some() {
            self.alarm.leave();
        }
        Ok(())
    }

    /// Answers who asks where this rank positions. `asked` tells whether a question is answered. One that cannot be
    /// answered is no trouble of the group's: it is tried again, and the one who asks waits no longer than it
    /// wanted to.
    fn answer(&self, asked: &mut HashMap<String, bool>) -> io::Result<()> {
        let asks = self.room.names("asks")?;
        asked.retain(|ask, _| asks.contains(ask));
        for ask in asks {
            if asked.get(&ask) == Some(&true) {
                continue;
            }
            let position = format!("positions/{ask}-{}", self.room.rank);
            let written = self.room.write_message(&position, &self.position.position());
            if let Err(error) = &written
                && !asked.contains_key(&ask)
            {
                tracing::warn!("rank {} cannot write {position}: {error}", self.room.rank);
            }
            asked.insert(ask, written.is_ok());
        }
        Ok(())
    }
}

impl Watch for FileWatch {
    fn report(&self, failure: &Failure) -> Failure {
        let first = self.shared.room.settle(failure.clone().cleaned());
        self.shared.alarm.raise(first.clone());
        self.shared.alarm.failure().unwrap_or(first)
    }

    fn positions(&self, wait: Duration) -> Result<Vec<Option<Position>>, Failure> {
        let room = &self.shared.room;
        let mut positions = self.ask(wait).unwrap_or_else(|error| {
            tracing::warn!("rank {} cannot ask where the others are: {error}", room.rank);
            vec![None; room.ranks]
        });
        if let Some(own) = positions.get_mut(room.rank) {
            *own = Some(self.shared.position.position());
        }
        Ok(positions)
    }

    fn doubt(&self) {
        self.shared.doubts.store(true, Ordering::Relaxed);
    }

    fn last_words(&self, failure: &Failure) {
        // The thread would raise the alarm.
        self.stop();
        self.shared.room.settle(failure.clone());
    }

    fn leaves(&self) {
        if let Err(error) = self.shared.room.write(LEAVING, b"") {
            tracing::debug!("rank {} cannot say that it leaves: {error}", self.shared.room.rank);
        }
        self.doubt();
    }

    fn leave(&self) {
        if !self.stop() {
            return;
        }
        let room = &self.shared.room;
        if room.rank == 0 && self.shared.alarm.raised() {
            // Those that have yet to come look for a round whose rank 0 lives.
            let mut pause = Pause::new();
            let until = Instant::now() + LATECOMERS;
            while !room.is_full() && pause.sleep(until) {}
        }
        if let Err(error) = room.write(&format!("left-{}", room.rank), b"") {
            tracing::debug!("rank {} left a store that is gone: {error}", room.rank);
        }
        *self.seat.lock().unwrap_or_else(PoisonError::into_inner) = None;
        tidy(room);
    }
}

impl Drop for FileWatch {
    fn drop(&mut self) {
        if !self.process.is_this() {
            // There is no such thread here to join.
            std::mem::forget(self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take());
            return;
        }
        self.stop();
        if self.seat.lock().unwrap_or_else(PoisonError::into_inner).take().is_some() {
            tidy(&self.shared.room);
        }
    }
}
