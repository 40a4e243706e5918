//! What ranks tell each other beside the file: what it is, what went wrong, and that they are still at work.

use std::{
    path::{Path, PathBuf},
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::{Call, Opening};
use crate::{
    error::{Error, Failure, Result},
    file::FileProblem,
    reduce::ReduceOp,
};

/// How often a rank that is at work for long lets the others know, as a part of the time that they wait for it.
const ALIVE: u32 = 4;
/// The longest description of a transfer that a rank reads.
const OPENING: usize = 1 << 16;
/// How much of a path travels, in characters: more than systems allow.
const PATH: usize = 4096;

/// What went well, or what is wrong with which file.
pub(super) type Outcome<T> = std::result::Result<T, Trouble>;

/// What is wrong with a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Trouble {
    file: String,
    problem: FileProblem,
}

impl Trouble {
    pub(super) fn new(file: &Path, problem: FileProblem) -> Self {
        Self { file: file.to_string_lossy().chars().take(PATH).collect(), problem }
    }
}

impl Call<'_> {
    /// Goes on if it went well on all ranks; otherwise all return what the lowest of those where it did not says.
    pub(super) fn agree<T>(&self, mine: Outcome<T>) -> Result<T> {
        let trouble = mine.as_ref().err();
        let said = trouble.map(postcard::to_allocvec).transpose().map_err(|error| self.broken(&error))?;
        let (all, lengths) = self.group.all_gather_v(&said.unwrap_or_default())?;
        let mut rest = &*all;
        for (rank, len) in lengths.into_iter().enumerate() {
            let (said, after) = rest.split_at(len.min(rest.len()));
            rest = after;
            if !said.is_empty() {
                let trouble = postcard::from_bytes(said).map_err(|error| self.broken(&error))?;
                return Err(self.error(rank, trouble));
            }
        }
        mine.map_err(|trouble| self.error(self.group.rank(), trouble))
    }

    fn error(&self, rank: usize, Trouble { file, problem }: Trouble) -> Error {
        Error::File { rank: self.group.global(rank), file: PathBuf::from(file), problem }
    }

    /// What the root tells; `mine` is given there.
    pub(super) fn told(&self, mine: Option<Outcome<Opening>>) -> Result<Opening> {
        let bytes = mine.map(|mine| postcard::to_allocvec(&mine)).transpose();
        let mut bytes = bytes.map_err(|error| self.broken(&error))?.unwrap_or_default();
        let mut len = [bytes.len() as u64];
        self.group.broadcast(&mut len, self.root)?;
        let [len] = len.map(|len| usize::try_from(len).unwrap_or(usize::MAX));
        if len > OPENING {
            return Err(self.broken(&format!("{len} bytes to describe a file, of {OPENING} at most")));
        }
        bytes.resize(len, 0);
        self.group.broadcast(&mut bytes, self.root)?;
        let told: Outcome<Opening> = postcard::from_bytes(&bytes).map_err(|error| self.broken(&error))?;
        let Opening { plan, transfer, origin } = told.map_err(|trouble| self.error(self.root, trouble))?;
        // All look at the same bytes, and see the same.
        let name = plan.name();
        let plan = plan.check().map_err(|it| self.error(self.root, Trouble::new(Path::new(&name), it)))?;
        Ok(Opening { plan, transfer, origin })
    }

    /// What came is not what this library sends.
    fn broken(&self, what: &dyn std::fmt::Display) -> Error {
        let (rank, from) = (self.group.global_rank(), self.group.global(self.root));
        let what = format!("{}: {what}", self.name);
        self.group.shared.fail(Failure::Protocol { rank, from, what })
    }

    /// Does something that may take longer than the others wait, on a thread of its own; all ranks do, and none goes on
    /// before all have done it. It is told to stop if the group is over.
    pub(super) fn meanwhile<T: Send>(&self, work: impl FnOnce(&AtomicBool) -> T + Send) -> Result<T> {
        let stop = AtomicBool::new(false);
        let every = (self.group.config().timeout / ALIVE).min(Duration::from_secs(1));
        thread::scope(|scope| {
            let (tell, done) = mpsc::channel();
            let stop = &stop;
            let work = move || drop(tell.send(work(stop)));
            thread::Builder::new().spawn_scoped(scope, work).map_err(|error| self.no_thread(&error))?;
            let mut found = None;
            loop {
                if found.is_none() {
                    found = match done.recv_timeout(every) {
                        Ok(found) => Some(found),
                        Err(RecvTimeoutError::Timeout) => None,
                        // It has panicked, and so does this thread at the end of the scope.
                        Err(error) => return Err(self.broken(&error)),
                    };
                }
                let mut busy = [u8::from(found.is_none())];
                let told = self.group.all_reduce(&mut busy, ReduceOp::Max);
                told.inspect_err(|_| stop.store(true, Ordering::Relaxed))?;
                match found {
                    Some(found) if busy == [0] => return Ok(found),
                    waiting => found = waiting,
                }
            }
        })
    }

    /// Ends the group: the others count on this rank.
    pub(super) fn no_thread(&self, error: &std::io::Error) -> Error {
        let why = format!("{}: no thread: {error}", self.name);
        self.group.shared.fail(Failure::Aborted { rank: self.group.global_rank(), why })
    }
}
