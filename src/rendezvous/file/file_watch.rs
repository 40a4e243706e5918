//! The watch of a rank in a directory: a thread that polls.

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
    super::{FailureLatch, LATECOMERS, Position, PositionSource, Watch},
    LOOK, Pause,
    comparison::Comparison,
    round::Round,
    tidy,
};
use crate::error::Failure;

/// How long this rank may be unable to read the directory before the store counts as lost.
const TROUBLE: Duration = Duration::from_secs(10);

/// The file that exists once a rank is leaving.
const LEAVING: &str = "leaving";

/// See the module.
pub(super) struct FileWatch {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Held while this rank lives.
    lock: Mutex<Option<Unshared<File>>>,
    process: Process,
    questions: AtomicU64,
}

struct Shared {
    round: Round,
    latch: Arc<FailureLatch>,
    position: Arc<PositionSource>,
    /// Whether this rank has asked for a comparison.
    doubts: AtomicBool,
    /// Whether this watch is ending.
    going: Mutex<bool>,
    changed: Condvar,
}

impl FileWatch {
    pub(super) fn begin(
        round: Round,
        lock: Unshared<File>,
        latch: Arc<FailureLatch>,
        position: Arc<PositionSource>,
    ) -> io::Result<Self> {
        let (doubts, going, changed) = (AtomicBool::new(false), Mutex::new(false), Condvar::new());
        let shared = Arc::new(Shared { round, latch, position, doubts, going, changed });
        let thread = thread::Builder::new().name("unisono-watch".into()).spawn({
            let shared = Arc::clone(&shared);
            move || shared.look_until_gone()
        })?;
        let (thread, lock) = (Mutex::new(Some(thread)), Mutex::new(Some(lock)));
        Ok(Self { shared, thread, lock, process: Process::this(), questions: AtomicU64::new(0) })
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
        let round = &self.shared.round;
        let ask = format!("{}-{}", round.rank, self.questions.fetch_add(1, Ordering::Relaxed));
        round.write(&format!("asks/{ask}"), b"")?;
        let until = Instant::now() + wait;
        let mut positions = vec![None; round.ranks];
        while round.gather(&ask, &mut positions)? && Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
        }
        round.forget(&ask)?;
        Ok(positions)
    }
}

impl Shared {
    fn look_until_gone(&self) {
        let mut asked = HashMap::new();
        let mut comparison = Comparison::default();
        let mut trouble = None;
        let mut going = self.going.lock().unwrap_or_else(PoisonError::into_inner);
        while !*going {
            drop(going);
            // First dead ranks, then questions: if nothing can be written, deaths are still found.
            let looked = self.look();
            let answered = self.answer(&mut asked).and(looked);
            match answered.and_then(|()| comparison.go_on(&self.round, &self.doubts)) {
                Ok(None) => trouble = None,
                Ok(Some(failure)) => {
                    self.latch.raise(self.round.settle(failure));
                }
                Err(error) => {
                    let since = *trouble.get_or_insert_with(|| {
                        tracing::warn!("rank {} cannot read the store: {error}", self.round.rank);
                        Instant::now()
                    });
                    // It may be a bad moment of a network file system or of this process; a missing round is not.
                    let missing = matches!(self.round.world(), Ok(None));
                    if missing || since.elapsed() > TROUBLE {
                        let how = format!("{} can no longer be read: {error}", self.round.path.display());
                        self.latch.raise(Failure::StoreLost { how });
                    }
                }
            }
            going = self.going.lock().unwrap_or_else(PoisonError::into_inner);
            if !*going {
                let look = if comparison.is_open() { LOOK / 10 } else { LOOK };
                going = self.changed.wait_timeout(going, look).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    /// Checks the other ranks, and raises the latch if the group has failed.
    fn look(&self) -> io::Result<()> {
        if let Some(failure) = self.latch.failure() {
            // It could not be written when it was found.
            if self.round.failure()?.is_none() {
                self.round.latch(&failure)?;
            }
        } else if let Some(failure) = self.round.patrol()? {
            self.latch.raise(failure);
        } else if !self.latch.somebody_leaves() && self.round.read(LEAVING)?.is_some() {
            self.latch.leave();
        }
        Ok(())
    }

    /// Answers questions for this rank's position. `asked` holds whether a question is answered. An answer that cannot be written
    /// is no failure of the group: it is tried again, and the asking rank waits no longer than it wanted to.
    fn answer(&self, asked: &mut HashMap<String, bool>) -> io::Result<()> {
        let asks = self.round.names("asks")?;
        asked.retain(|ask, _| asks.contains(ask));
        for ask in asks {
            if asked.get(&ask) == Some(&true) {
                continue;
            }
            let position = format!("positions/{ask}-{}", self.round.rank);
            let written = self.round.write_message(&position, &self.position.position());
            if let Err(error) = &written
                && !asked.contains_key(&ask)
            {
                tracing::warn!("rank {} cannot write {position}: {error}", self.round.rank);
            }
            asked.insert(ask, written.is_ok());
        }
        Ok(())
    }
}

impl Watch for FileWatch {
    fn report(&self, failure: &Failure) -> Failure {
        let first = self.shared.round.settle(failure.clone().cleaned());
        self.shared.latch.raise(first.clone());
        self.shared.latch.failure().unwrap_or(first)
    }

    fn positions(&self, wait: Duration) -> Result<Vec<Option<Position>>, Failure> {
        let round = &self.shared.round;
        let mut positions = self.ask(wait).unwrap_or_else(|error| {
            tracing::warn!("rank {} cannot ask for the positions of the other ranks: {error}", round.rank);
            vec![None; round.ranks]
        });
        if let Some(own) = positions.get_mut(round.rank) {
            *own = Some(self.shared.position.position());
        }
        Ok(positions)
    }

    fn doubt(&self) {
        self.shared.doubts.store(true, Ordering::Relaxed);
    }

    fn last_words(&self, failure: &Failure) {
        // The thread would raise the latch.
        self.stop();
        self.shared.round.settle(failure.clone());
    }

    fn leaves(&self) {
        if let Err(error) = self.shared.round.write(LEAVING, b"") {
            tracing::debug!("rank {} cannot say that it leaves: {error}", self.shared.round.rank);
        }
        self.doubt();
    }

    fn leave(&self) {
        if !self.stop() {
            return;
        }
        let round = &self.shared.round;
        if round.rank == 0 && self.shared.latch.raised() {
            // Ranks that come later look for a round whose rank 0 lives.
            let mut pause = Pause::new();
            let until = Instant::now() + LATECOMERS;
            while !round.is_full() && pause.sleep(until) {}
        }
        if let Err(error) = round.write(&format!("left-{}", round.rank), b"") {
            tracing::debug!("rank {} left a store that is gone: {error}", round.rank);
        }
        *self.lock.lock().unwrap_or_else(PoisonError::into_inner) = None;
        tidy(round);
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
        if self.lock.lock().unwrap_or_else(PoisonError::into_inner).take().is_some() {
            tidy(&self.shared.round);
        }
    }
}
