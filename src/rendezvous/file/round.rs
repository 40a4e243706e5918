//! The directory of one round of a job. Its files appear complete or not at all; locks show which ranks live.
//!
//! | file | what it is |
//! |---|---|
//! | `world` | the world size |
//! | `rank-R` | locked by rank R as long as it lives; says which process that is |
//! | `left-R` | rank R has left, or came after the group had failed and learned why |
//! | `failure` | the group's first failure |
//! | `values/`, `counters/` | one file per key, named by the key's hash; it begins with the key |
//! | `asks/A` | a request for all positions; rank R answers in `positions/A-R` |
//! | `leaving` | exists once a rank is leaving |
//! | `comparing`, `compared` | held by the rank that compares all positions; the number of comparisons made |

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::fs::{FlockOperation, OFlags};
use serde::{Serialize, de::DeserializeOwned};
use unisono_schedule::Rank;
use unisono_transport::fork::Unshared;

use super::super::protocol;
use crate::{
    error::Failure,
    outside,
    position::{Position, Stage},
};

/// The number of this process's next temporary file.
static LAST: AtomicU64 = AtomicU64::new(0);

/// The directory of a round, used by one rank.
#[derive(Clone, Debug)]
pub(super) struct Round {
    pub(super) path: PathBuf,
    pub(super) rank: Rank,
    pub(super) ranks: usize,
}

/// The state of a rank.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RankState {
    Absent,
    Alive,
    Left,
    /// Its process, as its file describes it.
    Dead(String),
}

impl Round {
    /// Creates the directory; for rank 0.
    pub(super) fn create(&self) -> io::Result<()> {
        for part in ["values", "counters", "asks", "positions"] {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(self.path.join(part))?;
        }
        self.write("world", self.ranks.to_string().as_bytes())
    }

    /// The world size that rank 0 has.
    pub(super) fn world(&self) -> io::Result<Option<usize>> {
        let Some(text) = self.read("world")? else { return Ok(None) };
        let number = std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok());
        number.map(Some).ok_or_else(|| {
            protocol::invalid(format!("{} is not a world size", self.path.join("world").display()))
        })
    }

    /// Takes this rank and returns its lock; `None` if the rank is taken. The file is locked before it appears, so that nobody
    /// ever sees it unlocked while this rank lives.
    pub(super) fn take_rank(&self) -> io::Result<Option<Unshared<File>>> {
        let (temporary, file) = self.temporary(protocol::who().as_bytes())?;
        let file = Unshared::from(file);
        let locked = rustix::fs::flock(&*file, FlockOperation::NonBlockingLockExclusive);
        locked.inspect_err(|_| discard(&temporary))?;
        Ok(self.link(&temporary, &format!("rank-{}", self.rank))?.then_some(file))
    }

    pub(super) fn state(&self, rank: Rank) -> io::Result<RankState> {
        let left = || self.path.join(format!("left-{rank}")).try_exists();
        let Some((file, _)) = there(outside::open(&self.path.join(format!("rank-{rank}"))))? else {
            return Ok(RankState::Absent);
        };
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(RankState::Alive),
            other => other?,
        }
        // `left-R` is written before the lock is released.
        if left()? {
            return Ok(RankState::Left);
        }
        let mut who = Vec::new();
        file.take(protocol::MAX_WHO as u64).read_to_end(&mut who)?;
        Ok(RankState::Dead(String::from_utf8_lossy(&who).into_owned()))
    }

    /// Whether this rank has left.
    pub(super) fn has_left(&self, rank: Rank) -> bool {
        self.path.join(format!("left-{rank}")).exists()
    }

    /// Whether every rank has come, or learned that the group has failed.
    pub(super) fn is_full(&self) -> bool {
        let came = |rank| self.path.join(format!("rank-{rank}")).exists() || self.has_left(rank);
        (0..self.ranks).all(came)
    }

    pub(super) fn failure(&self) -> io::Result<Option<Failure>> {
        Ok(self.message("failure")?.map(Failure::cleaned))
    }

    /// Keeps a failure if it is the first, and returns the first one.
    pub(super) fn latch(&self, failure: &Failure) -> io::Result<Failure> {
        let (temporary, _) = self.temporary(&encode(failure)?)?;
        if self.link(&temporary, "failure")? {
            return Ok(failure.clone());
        }
        self.failure()?.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// As [`latch`](Self::latch), but returns `failure` itself if it cannot be written, as on a full disk.
    pub(super) fn settle(&self, failure: Failure) -> Failure {
        self.latch(&failure).unwrap_or_else(|error| {
            tracing::warn!("rank {} cannot tell the others that {failure}: {error}", self.rank);
            failure
        })
    }

    /// Returns the group's failure. If there is none, checks that the next rank that has not left still lives, and records its
    /// death. Each living rank checks one other, so that together they check all, at a cost that does not grow with the world.
    pub(super) fn patrol(&self) -> io::Result<Option<Failure>> {
        if let Some(failure) = self.failure()? {
            return Ok(Some(failure));
        }
        for rank in (self.rank + 1..self.ranks).chain(0..self.rank) {
            match self.state(rank)? {
                RankState::Alive => break,
                RankState::Dead(who) => {
                    let how = format!("{who}: it released its lock in the store before it left the group");
                    return Ok(Some(self.settle(Failure::Died { rank, how })));
                }
                RankState::Left | RankState::Absent => {}
            }
        }
        Ok(None)
    }

    /// Creates an empty file of that name; `false` if one exists.
    pub(super) fn claim(&self, name: &str) -> io::Result<bool> {
        let (temporary, _) = self.temporary(b"")?;
        self.link(&temporary, name)
    }

    /// Reads new answers to a question. Returns whether answers are still missing.
    pub(super) fn gather(&self, ask: &str, positions: &mut [Option<Position>]) -> io::Result<bool> {
        let mut waiting = false;
        for (rank, position) in positions.iter_mut().enumerate().filter(|(_, position)| position.is_none()) {
            *position = self.message(&format!("positions/{ask}-{rank}"))?.map(Position::cleaned);
            if position.is_none() {
                match self.state(rank)? {
                    RankState::Alive => waiting = true,
                    RankState::Left => *position = Some(Position::of(Stage::Left)),
                    RankState::Absent | RankState::Dead(_) => {}
                }
            }
        }
        Ok(waiting)
    }

    /// Removes a question and its answers.
    pub(super) fn forget(&self, ask: &str) -> io::Result<()> {
        there(fs::remove_file(self.path.join(format!("asks/{ask}"))))?;
        for rank in 0..self.ranks {
            there(fs::remove_file(self.path.join(format!("positions/{ask}-{rank}"))))?;
        }
        Ok(())
    }

    /// Writes a file that appears complete.
    pub(super) fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let (temporary, _) = self.temporary(bytes)?;
        fs::rename(&temporary, self.path.join(name)).inspect_err(|_| discard(&temporary))
    }

    pub(super) fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        there(outside::read(&self.path.join(name), protocol::MAX_FRAME as u64))
    }

    /// Writes a message to a file that appears complete.
    pub(super) fn write_message(&self, name: &str, message: &impl Serialize) -> io::Result<()> {
        self.write(name, &encode(message)?)
    }

    pub(super) fn message<M: DeserializeOwned>(&self, name: &str) -> io::Result<Option<M>> {
        self.read(name)?.map(|bytes| protocol::decode(&bytes)).transpose()
    }

    /// The names in a part of the round.
    pub(super) fn names(&self, part: &str) -> io::Result<Vec<String>> {
        let entries = fs::read_dir(self.path.join(part))?;
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    /// A new file with these bytes, under a name that no other process uses: in containers, processes of several ranks may have
    /// the same process id on hosts of the same name.
    fn temporary(&self, bytes: &[u8]) -> io::Result<(PathBuf, File)> {
        loop {
            let number = LAST.fetch_add(1, Ordering::Relaxed);
            let path = self.path.join(format!("tmp-{}-{number}", self.rank));
            match OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path) {
                Ok(file) => {
                    io::Write::write_all(&mut &file, bytes).inspect_err(|_| discard(&path))?;
                    return Ok((path, file));
                }
                // Left by a process that crashed, or made by a second process with this rank, which is not admitted.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Gives a file its name; `false` if another file has it.
    fn link(&self, temporary: &Path, name: &str) -> io::Result<bool> {
        let linked = fs::hard_link(temporary, self.path.join(name));
        fs::remove_file(temporary)?;
        match linked {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Opens a file to be locked, or creates it. A FIFO in its place is an error, and not waited for.
pub(super) fn lockable(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
}

/// Removes a temporary file after an error.
fn discard(temporary: &Path) {
    if let Err(error) = fs::remove_file(temporary) {
        tracing::debug!("{} stays: {error}", temporary.display());
    }
}

fn encode(message: &impl Serialize) -> io::Result<Vec<u8>> {
    postcard::to_allocvec(message).map_err(protocol::invalid)
}

/// `None` for a file that is not there.
pub(super) fn there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_are_writing_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let round = Round { path: directory.path().into(), rank: 3, ranks: 8 };
        let next = LAST.load(Ordering::Relaxed);
        let others: Vec<PathBuf> =
            (next..next + 8).map(|number| round.path.join(format!("tmp-3-{number}"))).collect();
        others.iter().for_each(|other| fs::write(other, "another's").unwrap());
        round.write("world", b"8").unwrap();
        assert_eq!(round.world().unwrap(), Some(8));
        for other in others {
            assert_eq!(fs::read(other).unwrap(), b"another's");
        }
    }

    #[test]
    fn files_that_never_end_are_errors() {
        let directory = tempfile::tempdir().unwrap();
        let round = Round { path: directory.path().into(), rank: 0, ranks: 2 };
        round.create().unwrap();
        for name in ["failure", "rank-1", "values/a"] {
            let path = round.path.join(name);
            rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        }
        round.failure().unwrap_err();
        round.state(1).unwrap_err();
        round.read("values/a").unwrap_err();
        let fifo = round.path.join("lock");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert!(lockable(&fifo).is_err(), "it is not waited for");
        File::create(round.path.join("values/b")).unwrap().set_len(1 << 42).unwrap();
        assert_eq!(round.read("values/b").unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }

    #[test]
    fn what_cannot_be_written_leaves_nothing_behind() {
        let directory = tempfile::tempdir().unwrap();
        let round = Round { path: directory.path().into(), rank: 0, ranks: 2 };
        round.write("asks/0-0", b"").unwrap_err();
        assert_eq!(round.names("").unwrap(), [""; 0]);
    }
}
