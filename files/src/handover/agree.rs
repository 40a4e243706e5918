//! Exchanges messages besides the file: its description, the ranks' problems, and signs of life during long work.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use unisono::{ProcessGroup, ReduceOp, schedule::Rank};

use crate::error::{Error, FileResult, Problem, Result};

/// During long work, ranks tell each other that they are alive after this part of the timeout.
const ALIVE: u32 = 4;
/// The most bytes that a rank accepts as the root's description of a transfer.
const DESCRIPTION: usize = 1 << 16;
/// The most characters of a path that are sent: more than systems allow.
const PATH: usize = 4096;

/// A result, or a file and what is wrong with it.
pub(super) type RankOutcome<T> = std::result::Result<T, Trouble>;

/// What is wrong with a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Trouble {
    file: String,
    problem: Problem,
}

impl Trouble {
    pub(super) fn new(file: &Path, problem: Problem) -> Self {
        Self { file: file.to_string_lossy().chars().take(PATH).collect(), problem }
    }
}

/// The ranks of a transfer, seen from one of them.
#[derive(Clone, Copy)]
pub(super) struct TransferRanks<'g> {
    pub group: &'g ProcessGroup,
    /// The rank that has the file.
    pub root: Rank,
}

impl TransferRanks<'_> {
    /// True if this rank has the file.
    pub(super) fn is_root(&self) -> bool {
        self.group.rank() == self.root
    }

    /// Succeeds if all ranks have succeeded; otherwise all return the trouble of the lowest rank that has one. All ranks call it.
    pub(super) fn agree<T>(&self, mine: RankOutcome<T>) -> Result<T> {
        let trouble = mine.as_ref().err();
        let said = trouble.map(postcard::to_allocvec).transpose().map_err(|error| self.broken(&error))?;
        let (all, lengths) = self.group.all_gather_v(&said.unwrap_or_default())?;
        if let Some(rank) = lengths.iter().position(|&len| len > 0) {
            // Its words come first.
            let trouble = postcard::from_bytes(&all).map_err(|error| self.broken(&error))?;
            return Err(self.error(rank, trouble));
        }
        mine.map_err(|trouble| self.error(self.group.rank(), trouble))
    }

    /// As [`Self::agree`], for problems with this file.
    pub(super) fn agree_on<T>(&self, file: &Path, mine: FileResult<T>) -> Result<T> {
        self.agree(mine.map_err(|problem| Trouble::new(file, problem)))
    }

    /// The error of a rank's trouble, as all ranks return it.
    pub(super) fn error(&self, rank: Rank, Trouble { file, problem }: Trouble) -> Error {
        Error::File { rank: self.group.members()[rank], file: PathBuf::from(file), problem }
    }

    /// The root's value, or its trouble, on all ranks. Only the root gives `mine`.
    pub(super) fn told_by_root<T: Serialize + DeserializeOwned>(
        &self,
        mine: Option<RankOutcome<T>>,
    ) -> Result<T> {
        let bytes = mine.map(|mine| postcard::to_allocvec(&mine)).transpose();
        let mut bytes = bytes.map_err(|error| self.broken(&error))?.unwrap_or_default();
        let mut len = [bytes.len() as u64];
        self.group.broadcast(&mut len, self.root)?;
        let [len] = len.map(|len| usize::try_from(len).unwrap_or(usize::MAX));
        if len > DESCRIPTION {
            return Err(self.broken(&format!("{len} bytes, of {DESCRIPTION} at most")));
        }
        bytes.resize(len, 0);
        self.group.broadcast(&mut bytes, self.root)?;
        let outcome: RankOutcome<T> = postcard::from_bytes(&bytes).map_err(|error| self.broken(&error))?;
        outcome.map_err(|trouble| self.error(self.root, trouble))
    }

    /// Aborts the group, because this crate never sends the bytes that arrived.
    fn broken(&self, what: &dyn fmt::Display) -> Error {
        let root = self.group.members()[self.root];
        self.group.abort(&format!("the description of the file of rank {root} is invalid: {what}")).into()
    }

    /// Aborts the group, because a thread that the others depend on cannot be started.
    pub(super) fn no_thread(&self, error: &io::Error) -> Error {
        self.group.abort(&format!("copying a file: no thread: {error}")).into()
    }

    /// Aborts the group, because a thread that the others depend on has panicked.
    pub(super) fn panicked(&self) -> Error {
        self.group.abort("copying a file: a thread that reads or writes has panicked").into()
    }

    /// Does work that may take longer than the timeout, on another thread. All ranks call it, and it returns when all have done
    /// their work. If the group fails meanwhile, the work is told to stop.
    pub(super) fn meanwhile<T: Send>(&self, work: impl FnOnce(&AtomicBool) -> T + Send) -> Result<T> {
        let stop = AtomicBool::new(false);
        let every = (self.group.config().timeout / ALIVE).min(Duration::from_secs(1));
        thread::scope(|scope| {
            let (tell, done) = mpsc::channel();
            let stop = &stop;
            let work = move || drop(tell.send(work(stop)));
            let spawned = thread::Builder::new().spawn_scoped(scope, work);
            spawned.map_err(|error| self.no_thread(&error))?;
            let mut found = None;
            loop {
                if found.is_none() {
                    found = match done.recv_timeout(every) {
                        Ok(found) => Some(found),
                        Err(RecvTimeoutError::Timeout) => None,
                        Err(RecvTimeoutError::Disconnected) => return Err(self.panicked()),
                    };
                }
                let mut busy = [u8::from(found.is_none())];
                let agreed = self.group.all_reduce(&mut busy, ReduceOp::Max);
                agreed.inspect_err(|_| stop.store(true, Ordering::Relaxed))?;
                if busy == [0]
                    && let Some(found) = found
                {
                    return Ok(found);
                }
            }
        })
    }
}
