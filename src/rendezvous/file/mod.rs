//! The store in a directory that all ranks share: no port and no server, for one host or a shared file system.
//!
//! A job meets in a folder named by its id and token, which only its user can access. The permissions, and not the token, keep
//! other users out. Each time rank 0 opens the store it begins a new round, a folder of its own ([`round`]), and names it in
//! `current`. The other ranks join the round in which rank 0 is alive, as its lock shows, so that files of an earlier job have
//! no effect, even with the same token. The last rank to leave removes the round.
//!
//! Ranks poll for changes, at most [`LOOK`] apart, so that a death is known to all after three polls at most. The caches of a
//! network file system may add to that: NFS, mounted by default, takes a file as missing for 30 to 60 s if it was missing at
//! the first look. `lookupcache=positive` avoids it.

mod comparison;
mod file_watch;
mod round;

use std::{
    collections::HashMap,
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use rustix::fs::FlockOperation;
use unisono_transport::fork::Unshared;

use self::{
    file_watch::FileWatch,
    round::{RankState, Round, there},
};
use super::{FailureLatch, PositionSource, Store, Watch, limits};
use crate::{
    config::{Job, Member, StoreAddress, fnv},
    error::{Error, Failure, Refusal, Result},
    launch::{holds, private_directory},
    outside,
};

/// The longest name of a round.
const MAX_CURRENT: u64 = 64;

/// The longest time between two polls of a rank.
const LOOK: Duration = Duration::from_millis(100);

/// How long another rank may hold the counters' lock.
const LOCK: Duration = Duration::from_secs(10);

/// The file system's type where it is NFS (`NFS_SUPER_MAGIC` in linux/magic.h).
const NFS: i128 = 0x6969;

/// Keys and their values.
type Entries = Vec<(String, Vec<u8>)>;

/// A store in a shared directory.
#[derive(Debug)]
pub struct FileStore {
    name: String,
    round: Round,
    /// The lock that shows that this rank lives; the watch takes it over.
    lock: Mutex<Option<Unshared<File>>>,
    /// The keys of value files that were read before, by file name.
    keys: Mutex<HashMap<String, String>>,
    /// The lock of rank 0, so that there is only one.
    _host: Option<Host>,
}

impl FileStore {
    /// Opens the store in `directory`, which is created if it is missing, and waits for rank 0 until the deadline.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] if rank 0 did not come before the deadline or the directory cannot be used,
    /// [`Error::Refused`] if another process has this rank or the settings differ.
    pub fn open(directory: &Path, member: &Member, deadline: Instant) -> Result<Self> {
        let name = StoreAddress::File(directory.into()).to_string();
        let begun = Instant::now();
        let base = directory.join(folder(&member.job));
        let unusable =
            |error: &io::Error| problem(&name, format!("rank {} cannot use it: {error}", member.rank));
        fs::create_dir_all(directory).map_err(|error| unusable(&error))?;
        let insecure =
            |problem| self::problem(&name, format!("rank {} cannot use it: {problem}", member.rank));
        holds(directory).map_err(insecure)?;
        let mut pause = Pause::new();
        loop {
            private_directory(&base).map_err(insecure)?;
            let refused = match Self::once(&name, &base, member) {
                Ok(Ok(store)) => return Ok(store),
                Ok(Err(Refusal::Failed(failure))) => return Err(Error::Failed(*failure)),
                Ok(Err(refusal)) => refusal,
                // Ranks that leave an earlier round remove its files.
                Err(error) if error.kind() == io::ErrorKind::NotFound && Instant::now() < deadline => {
                    Refusal::Left
                }
                Err(error) => return Err(unusable(&error)),
            };
            if refused != Refusal::Left {
                return Err(Error::Refused { store: name, rank: member.rank, refusal: refused });
            }
            if !pause.sleep(deadline) {
                let nfs = rustix::fs::statfs(directory).is_ok_and(|system| i128::from(system.f_type) == NFS);
                let caches = if nfs {
                    " It is on NFS, whose clients may take a minute to see new files; mount it with \
                     lookupcache=positive, or set a longer UNISONO_JOIN_TIMEOUT."
                } else {
                    ""
                };
                let problem = format!(
                    "rank {} found no rank 0 there within {:.1?}; is rank 0 running, and has it the same directory, \
                     shared between their hosts, and the same token?{caches}",
                    member.rank,
                    begun.elapsed()
                );
                return Err(self::problem(&name, problem));
            }
        }
    }

    /// One attempt; after [`Refusal::Left`] a later one may succeed.
    fn once(name: &str, base: &Path, member: &Member) -> io::Result<std::result::Result<Self, Refusal>> {
        let round = |path| Round { path, rank: member.rank, ranks: member.ranks };
        if member.rank >= member.ranks {
            return Ok(Err(Refusal::NoSuchRank { ranks: member.ranks }));
        }
        let (round, lock, host) = if member.rank == 0 {
            let Some(host) = Host::take(base)? else {
                let current = current(base)?.map(round);
                return Ok(Err(match current {
                    Some(round) if !round.has_left(0) && round.state(0)? == RankState::Alive => {
                        Refusal::Duplicate { holder: holder(&round)? }
                    }
                    // Rank 0 is leaving or has just come, or another rank removes a round.
                    _ => Refusal::Left,
                }));
            };
            let round = round(host.next_round()?);
            round.create()?;
            let lock = round.take_rank()?;
            host.announce(&round)?;
            (round, lock, Some(host))
        } else {
            let Some(round) = current(base)?.map(round) else { return Ok(Err(Refusal::Left)) };
            // A round without a living rank 0 is an earlier job's, or over.
            if round.state(0)? != RankState::Alive || round.has_left(member.rank) {
                return Ok(Err(Refusal::Left));
            }
            match round.world()? {
                Some(store) if store != member.ranks => {
                    // A rank that is in neither world is named as such.
                    return Ok(Err(if member.rank >= store {
                        Refusal::NoSuchRank { ranks: store }
                    } else {
                        Refusal::WorldSize { store, ours: member.ranks }
                    }));
                }
                Some(_) => {}
                None => return Ok(Err(Refusal::Left)),
            }
            if let Some(failure) = round.failure()? {
                // Rank 0 need not stay for this rank any longer. If rank 0 has gone, the error does not matter.
                let _ = round.write(&format!("left-{}", round.rank), b"");
                return Ok(Err(Refusal::Failed(Box::new(failure))));
            }
            let lock = round.take_rank()?;
            (round, lock, None)
        };
        let Some(lock) = lock else {
            return Ok(Err(match round.state(round.rank)? {
                RankState::Alive => Refusal::Duplicate { holder: holder(&round)? },
                RankState::Left | RankState::Absent => Refusal::Left,
                RankState::Dead(who) => {
                    let how = format!("{who}: it released its lock in the store before it left the group");
                    Refusal::Failed(Box::new(round.settle(Failure::Died { rank: round.rank, how })))
                }
            }));
        };
        let (lock, keys) = (Mutex::new(Some(lock)), Mutex::default());
        Ok(Ok(Self { name: name.to_owned(), round, lock, keys, _host: host }))
    }

    fn bad(&self, error: &io::Error) -> Error {
        problem(&self.name, error.to_string())
    }

    /// Polls until `look` finds something, the group fails or the deadline passes.
    fn wait<T>(&self, deadline: Instant, look: impl Fn() -> io::Result<Option<T>>) -> Result<Option<T>> {
        let mut pause = Pause::new();
        let mut patrolled = Instant::now();
        loop {
            if let Some(found) = look().map_err(|error| self.bad(&error))? {
                return Ok(Some(found));
            }
            if patrolled.elapsed() >= LOOK {
                patrolled = Instant::now();
                if let Some(failure) = self.round.patrol().map_err(|error| self.bad(&error))? {
                    return Err(Error::Failed(failure));
                }
            }
            if !pause.sleep(deadline) {
                return Ok(None);
            }
        }
    }

    fn value(&self, file: &str) -> io::Result<Option<(String, Vec<u8>)>> {
        let Some(mut bytes) = self.round.read(&format!("values/{file}"))? else { return Ok(None) };
        let (key, from) =
            split(&bytes).ok_or_else(|| super::protocol::invalid(format!("values/{file} is damaged")))?;
        bytes.drain(..from);
        Ok(Some((key, bytes)))
    }

    /// All values whose keys begin with `prefix`, in order, or `None` while there are fewer than `count`.
    fn with(&self, prefix: &str, count: usize) -> io::Result<Option<Entries>> {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = Vec::new();
        for file in self.round.names("values")? {
            if !keys.contains_key(&file) {
                let Some((key, _)) = self.value(&file)? else { continue };
                keys.insert(file.clone(), key);
            }
            if keys.get(&file).is_some_and(|key| key.starts_with(prefix)) {
                found.push(file);
            }
        }
        if found.len() < count {
            return Ok(None);
        }
        let values = found.iter().filter_map(|file| self.value(file).transpose());
        let mut values: Vec<_> = values.collect::<io::Result<_>>()?;
        values.sort();
        Ok(Some(values))
    }
}

impl Store for FileStore {
    fn name(&self) -> &str {
        &self.name
    }

    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        limits(&self.name, key, value.len())?;
        self.round
            .write(&format!("values/{}", file(key)), &join(key, value))
            .map_err(|error| self.bad(&error))
    }

    fn get(&self, key: &str, deadline: Instant) -> Result<Option<Vec<u8>>> {
        limits(&self.name, key, 0)?;
        let file = file(key);
        let value = || match self.value(&file)? {
            Some((found, value)) => same(&file, &found, key).map(|()| Some(value)),
            None => Ok(None),
        };
        self.wait(deadline, value)
    }

    fn collect(&self, prefix: &str, count: usize, deadline: Instant) -> Result<Vec<(String, Vec<u8>)>> {
        limits(&self.name, prefix, 0)?;
        match self.wait(deadline, || self.with(prefix, count))? {
            Some(all) => Ok(all),
            None => Ok(self.with(prefix, 0).map_err(|error| self.bad(&error))?.unwrap_or_default()),
        }
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64> {
        limits(&self.name, key, 0)?;
        let change = || -> io::Result<Option<i64>> {
            let lock = round::lockable(&self.round.path.join("lock"))?;
            // Held while a small file is written; the system releases it if the holder dies.
            let (mut pause, deadline) = (Pause::new(), Instant::now() + LOCK);
            while let Err(error) = rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                if error != rustix::io::Errno::WOULDBLOCK || !pause.sleep(deadline) {
                    return Err(error.into());
                }
            }
            let file = file(key);
            let name = format!("counters/{file}");
            let old = match self.round.message::<(String, i64)>(&name)? {
                Some((found, old)) => same(&file, &found, key).map(|()| old)?,
                None => 0,
            };
            let sum = old.checked_add(delta);
            if let Some(sum) = sum {
                self.round.write_message(&name, &(key, sum))?;
            }
            Ok(sum)
        };
        change()
            .map_err(|error| self.bad(&error))?
            .ok_or_else(|| problem(&self.name, format!("counter {key}: adding {delta} overflows")))
    }

    fn watch(&self, latch: Arc<FailureLatch>, position: Arc<PositionSource>) -> Result<Box<dyn Watch>> {
        let Some(lock) = self.lock.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return Err(problem(
                &self.name,
                "this rank has a watch already; a store starts one watch only".into(),
            ));
        };
        let watch = FileWatch::begin(self.round.clone(), lock, latch, position);
        Ok(Box::new(watch.map_err(|error| self.bad(&error))?))
    }
}

/// A value's file begins with the key and its length.
fn join(key: &str, value: &[u8]) -> Vec<u8> {
    [&(key.len() as u64).to_le_bytes(), key.as_bytes(), value].concat()
}

fn split(bytes: &[u8]) -> Option<(String, usize)> {
    let len = usize::try_from(u64::from_le_bytes(*bytes.first_chunk::<8>()?)).ok()?;
    let end = len.checked_add(8)?;
    Some((String::from_utf8(bytes.get(8..end)?.to_vec()).ok()?, end))
}

/// Checks that a file holds the wanted key: two keys may have the same hash.
fn same(file: &str, found: &str, wanted: &str) -> io::Result<()> {
    if found == wanted {
        return Ok(());
    }
    let problem = format!(
        "{file} holds key {found:?}, and {wanted:?} was asked for, which has the same hash: rename one of these keys"
    );
    Err(super::protocol::invalid(problem))
}

fn file(key: &str) -> String {
    format!("{:016x}", fnv(key.as_bytes()))
}

fn problem(name: &str, problem: String) -> Error {
    Error::Rendezvous { store: name.to_owned(), problem }
}

/// The folder's name. A user who can list the directory sees it, and can test a guess of the token with it.
fn folder(job: &Job) -> String {
    let key =
        blake3::derive_key("unisono 2026-11-26 file store: the folder's key", job.token.reveal().as_bytes());
    format!("unisono-{}", &blake3::keyed_hash(&key, job.id.as_bytes()).to_hex()[..32])
}

/// The round that `current` names.
fn current(base: &Path) -> io::Result<Option<PathBuf>> {
    let Some(name) = there(outside::read_text(&base.join("current"), MAX_CURRENT))? else { return Ok(None) };
    Ok(name.strip_prefix("round-").and_then(|n| n.parse::<u64>().ok()).map(|_| base.join(&name)))
}

/// The process that holds this rank.
fn holder(round: &Round) -> io::Result<String> {
    let who = round.read(&format!("rank-{}", round.rank))?.unwrap_or_default();
    Ok(String::from_utf8_lossy(&who).into_owned())
}

/// The lock that makes a process the job's rank 0.
#[derive(Debug)]
struct Host {
    base: PathBuf,
    _lock: Unshared<File>,
}

impl Host {
    fn take(base: &Path) -> io::Result<Option<Self>> {
        let path = base.join("host");
        let lock = round::lockable(&path)?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            other => other?,
        }
        // Another rank may have removed the file, and with it the lock, meanwhile.
        let same = there(fs::metadata(&path))?
            .is_some_and(|there| lock.metadata().is_ok_and(|own| own.ino() == there.ino()));
        Ok(same.then(|| Self { base: base.to_owned(), _lock: lock.into() }))
    }

    /// The folder of a new round, with a name that no round had before, since ranks remove an old round by its name. Removes
    /// rounds in which no rank lives.
    fn next_round(&self) -> io::Result<PathBuf> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut last = u64::try_from(now.as_nanos()).unwrap_or_default();
        for entry in fs::read_dir(&self.base)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(number) = name.to_str().and_then(|name| name.strip_prefix("round-")?.parse().ok())
            else {
                continue;
            };
            last = last.max(number);
            let round = Round { path: entry.path(), rank: 0, ranks: 0 };
            // Not by its world size: a crash of the host may leave that file empty.
            let seats = round.names("")?;
            let mut ranks = seats.iter().filter_map(|name| name.strip_prefix("rank-")?.parse().ok());
            let anyone = ranks.any(|rank| {
                !matches!(round.state(rank), Ok(RankState::Absent | RankState::Left | RankState::Dead(_)))
            });
            if !anyone {
                fs::remove_dir_all(round.path)?;
            }
        }
        Ok(self.base.join(format!("round-{}", last.saturating_add(1))))
    }

    fn announce(&self, round: &Round) -> io::Result<()> {
        let name = round.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        round.write("name", name.as_bytes())?;
        fs::rename(round.path.join("name"), self.base.join("current"))
    }
}

impl Drop for Host {
    /// Removes the job's folder if there is no round in it.
    fn drop(&mut self) {
        if current(&self.base).ok().flatten().is_some_and(|round| !round.exists()) {
            // A missing file is no error, and a folder that is not empty stays.
            let _ = fs::remove_file(self.base.join("current"));
            let _ = fs::remove_file(self.base.join("host"));
            let _ = fs::remove_dir(&self.base);
        }
    }
}

/// Removes the round, and the job's folder, if no rank lives in it. No rank can join then, since that takes a living rank 0.
fn tidy(round: &Round) {
    let Some(base) = round.path.parent() else { return };
    if (0..round.ranks).any(|rank| matches!(round.state(rank), Err(_) | Ok(RankState::Alive))) {
        return;
    }
    // Other ranks may do the same: a missing file is no error.
    let _ = fs::remove_dir_all(&round.path);
    // If rank 0's store still exists, it removes the rest when it is dropped.
    drop(Host::take(base));
}

/// A pause between polls: short at first, then longer.
struct Pause(Duration);

impl Pause {
    fn new() -> Self {
        Self(Duration::from_micros(200))
    }

    /// `false` if the deadline has passed.
    fn sleep(&mut self, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        thread::sleep(self.0.min(left));
        self.0 = (self.0 * 3 / 2).min(LOOK / 4);
        true
    }
}
