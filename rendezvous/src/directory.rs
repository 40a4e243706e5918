//! A directory that all ranks share, in which rank 0 publishes where it serves the store: ranks need not agree on a port beforehand.
//!
//! A job has a folder there, named by its id and token, which only its user can access. The permissions, and not the token, keep other
//! users out. Rank 0 takes a lock in it, so that there is only one rank 0, and writes down its host, a port and a secret, which is the
//! token of this store. The other ranks read that file again until the store admits them: the file of an earlier job leads to no store that
//! knows its secret. Rank 0 removes the folder when its store has ended.
//!
//! The caches of a network file system may delay ranks. NFS, mounted by default, treats a file as missing for 30 to 60 s if it was missing
//! when a rank first looked. `lookupcache=positive` avoids this.

use std::{
    fs::{self, File, OpenOptions},
    io,
    net::{Ipv4Addr, SocketAddr, ToSocketAddrs},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FlockOperation, OFlags, flock, statfs},
    io::Errno,
};
use unisono_core::outside;
use unisono_transport::fork::Unshared;

use super::{StoreServer, protocol::host_name, seal};
use crate::{
    config::{JobIdentity, Member, Token},
    launch::{holds, private_directory},
};

/// The file that says where the store is, and its largest length.
const ADDRESS: &str = "address";
const MAX_ADDRESS: u64 = 1024;

/// The file that rank 0 locks.
const LOCK: &str = "host";

/// The type of the file system NFS (`NFS_SUPER_MAGIC` in linux/magic.h).
const NFS: i128 = 0x6969;

type Result<T> = std::result::Result<T, String>;

/// The folder of a job.
pub(super) struct Folder(PathBuf);

impl Folder {
    /// Meets in this directory, which must exist: a missing one may be a typing mistake, or the file system that the hosts share is not
    /// mounted. A user who can list it sees the name of the folder, and can test a guess of the token with it.
    pub(super) fn of(directory: &Path, job: &JobIdentity) -> Result<Self> {
        let there = fs::metadata(directory).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                "there is no such directory on this host; correct UNISONO_STORE, or make the directory"
                    .to_owned()
            }
            _ => error.to_string(),
        })?;
        if !there.is_dir() {
            return Err("it is not a directory; wanted one that all ranks share".to_owned());
        }
        holds(directory)?;
        let purpose = "unisono 2026-11-26 file store: the folder's key";
        let key = blake3::derive_key(purpose, job.token.reveal().as_bytes());
        let name = &blake3::keyed_hash(&key, job.id.as_bytes()).to_hex()[..32];
        let folder = Self(directory.join(format!("unisono-{name}")));
        private_directory(&folder.0)?;
        Ok(folder)
    }

    /// The advice in the error of a rank that finds no rank 0 there.
    pub(super) fn advice(&self) -> &'static str {
        let nfs = statfs(&self.0).is_ok_and(|system| i128::from(system.f_type) == NFS);
        if nfs {
            "is rank 0 running, and has it the same directory and the same token? The directory is on NFS, whose clients may take \
             a minute to see new files; mount it with lookupcache=positive, or set a longer UNISONO_JOIN_TIMEOUT"
        } else {
            "is rank 0 running, and has it the same directory, shared between their hosts, and the same token? If no variable names \
             the directory it is below /tmp, or TMPDIR where /tmp cannot be used: set UNISONO_STORE=file:///DIRECTORY to one that all \
             ranks see"
        }
    }

    /// Makes this process rank 0; `None` if another process is.
    pub(super) fn take(&self) -> Result<Option<RankZeroLock>> {
        private_directory(&self.0)?;
        let path = self.0.join(LOCK);
        let taken = || -> io::Result<_> {
            let lock = writable(&path)?;
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) => return Ok(None),
                locked => locked?,
            }
            // The process that held the lock may have removed the file since.
            let same = fs::metadata(&path)?.ino() == lock.metadata()?.ino();
            Ok(same.then(|| RankZeroLock { folder: self.0.clone(), _lock: lock.into() }))
        };
        match taken() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            taken => taken.map_err(|error| error.to_string()),
        }
    }

    /// As [`published`](Self::published), with the secret as the token of this member.
    pub(super) fn find(&self, member: &mut Member) -> Result<Vec<SocketAddr>> {
        let (addresses, secret) = self.published()?;
        member.job.token = secret;
        Ok(addresses)
    }

    /// The addresses at which rank 0 serves the store, and the store's secret.
    fn published(&self) -> Result<(Vec<SocketAddr>, Token)> {
        private_directory(&self.0)?;
        let text =
            outside::read_text(&self.0.join(ADDRESS), MAX_ADDRESS).map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => "rank 0 has not come there".to_owned(),
                _ => error.to_string(),
            })?;
        let mut words = text.split_whitespace();
        let (Some(host), Some(Ok(port)), Some(secret)) =
            (words.next(), words.next().map(str::parse::<u16>), words.next())
        else {
            return Err("what rank 0 has written there is invalid".to_owned());
        };
        let here = (host == host_name()).then(|| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        // The host of rank 0 may be unable to resolve its name.
        let elsewhere = (host, port).to_socket_addrs().into_iter().flatten();
        Ok((here.into_iter().chain(elsewhere).collect(), secret.into()))
    }
}

/// A server in this process, and its folder, which is removed after the server has ended.
pub(super) type Served = (StoreServer, Option<RankZeroLock>);

/// This process is rank 0 as long as this value lives.
#[derive(Debug)]
pub(super) struct RankZeroLock {
    folder: PathBuf,
    _lock: Unshared<File>,
}

impl RankZeroLock {
    /// Publishes the port of this host at which the store is served, and the store's secret.
    pub(super) fn publish(&self, port: u16, secret: &Token) -> io::Result<()> {
        let (new, file) = (self.folder.join("new"), self.folder.join(ADDRESS));
        let text = format!("{} {port} {}", host_name(), secret.reveal());
        io::Write::write_all(&mut writable(&new)?, text.as_bytes())?;
        fs::rename(new, file)
    }
}

impl Drop for RankZeroLock {
    fn drop(&mut self) {
        // An error means that the file is already missing.
        for file in [ADDRESS, LOCK] {
            let _ = fs::remove_file(self.folder.join(file));
        }
        let _ = fs::remove_dir(&self.folder);
    }
}

/// A new random token.
pub(super) fn secret() -> io::Result<Token> {
    Ok(blake3::Hash::from(seal::nonce()?).to_hex().as_str().into())
}

/// Opens or makes a file that only this user can read. Does not block if the file is a FIFO.
fn writable(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.custom_flags(OFlags::NONBLOCK.bits().cast_signed()).write(true).create(true).truncate(true);
    options.mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, mknodat};

    use super::*;

    #[test]
    fn files_that_never_end_are_errors() {
        let directory = tempfile::tempdir().unwrap();
        let folder = Folder::of(directory.path(), &JobIdentity::from("test")).unwrap();
        for name in [ADDRESS, LOCK] {
            mknodat(CWD, folder.0.join(name), FileType::Fifo, 0o600.into(), 0).unwrap();
        }
        folder.published().unwrap_err();
        folder.take().unwrap_err();
        fs::remove_file(folder.0.join(ADDRESS)).unwrap();
        File::create(folder.0.join(ADDRESS)).unwrap().set_len(1 << 42).unwrap();
        folder.published().unwrap_err();
    }

    #[test]
    fn there_is_one_rank_0_and_nothing_stays_of_it() {
        let directory = tempfile::tempdir().unwrap();
        let folder = Folder::of(directory.path(), &JobIdentity::from("test")).unwrap();
        assert!(folder.published().unwrap_err().contains("rank 0 has not come"));
        for port in [7, 8] {
            let host = folder.take().unwrap().unwrap();
            assert!(folder.take().unwrap().is_none());
            let secret = secret().unwrap();
            host.publish(port, &secret).unwrap();
            let (addresses, read) = folder.published().unwrap();
            assert_eq!((addresses[0], read), (SocketAddr::from((Ipv4Addr::LOCALHOST, port)), secret));
            drop(host);
            assert_eq!(directory.path().read_dir().unwrap().count(), 0);
        }
    }
}
