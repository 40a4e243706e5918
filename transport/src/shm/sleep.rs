//! Sleep and wake between processes.
//!
//! An endpoint that sleeps says so in a word that its peers can only read, and then waits for its sockets and for its waker. A peer
//! that has written something looks at that word and, if its owner sleeps, sends it a message. The word counts, so that each peer
//! wakes a sleeper once. Messages go through sockets rather than an eventfd of the sleeper, because a peer that had it could make
//! others' writes to it block.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{Ordering, fence},
    },
    time::Duration,
};

use rustix::{buffer::spare_capacity, event::epoll, io::Errno};

use super::board::Board;
use crate::{Error, eventfd::timespec, fork::Unshared};

/// The most descriptors that are looked at in one call.
const BATCH: usize = 64;

/// The word by which this endpoint says that it sleeps: odd while it does.
#[derive(Debug)]
pub(super) struct Sleeper {
    /// The descriptor of the board.
    pub(super) file: OwnedFd,
    /// The board on which the word is.
    pub(super) board: Arc<Board>,
    epoch: u64,
}

impl Sleeper {
    pub(super) fn new() -> Result<Self, Error> {
        let (file, board) = Board::new()?;
        Ok(Self { file, board: Arc::new(board), epoch: 0 })
    }

    /// From now on peers wake this endpoint. Afterwards it must look for what they wrote before. Returns the epoch.
    pub(super) fn begin(&mut self) -> u64 {
        self.end();
        // Either a peer sees the epoch after it has written, or this endpoint sees what was written.
        fence(Ordering::SeqCst);
        self.epoch
    }

    /// The next epoch begins, in which this endpoint does not sleep.
    pub(super) fn end(&mut self) {
        self.epoch += 1;
        self.board.sleep().store(self.epoch, Ordering::Relaxed);
    }
}

/// A peer's word.
#[derive(Debug)]
pub(super) struct PeerSleep {
    pub(super) board: Arc<Board>,
    /// The latest epoch in which this endpoint has woken the peer.
    pub(super) woken: u64,
}

impl PeerSleep {
    /// True if the peer sleeps and was not woken by this endpoint yet. What was written is published before, and a fence is between.
    #[inline]
    pub(super) fn must_be_woken(&mut self) -> bool {
        let epoch = self.board.sleep().load(Ordering::Relaxed);
        epoch % 2 == 1 && std::mem::replace(&mut self.woken, epoch) != epoch
    }
}

/// Waits for any of many descriptors, each of which has a number.
#[derive(Debug)]
pub(super) struct Poller(Unshared<OwnedFd>);

impl Poller {
    pub(super) fn new() -> Result<Self, Error> {
        let made = epoll::create(epoll::CreateFlags::CLOEXEC);
        made.map(|fd| Self(fd.into())).map_err(|error| Error::system("epoll_create", "to sleep", error))
    }

    pub(super) fn add(&self, fd: impl AsFd, number: u64) -> Result<(), Error> {
        let added = epoll::add(self.0.as_fd(), fd, epoll::EventData::new_u64(number), epoll::EventFlags::IN);
        added.map_err(|error| Error::system("epoll_ctl", "to sleep", error))
    }

    pub(super) fn remove(&self, fd: impl AsFd) {
        if let Err(error) = epoll::delete(self.0.as_fd(), fd) {
            crate::log::debug!(%error, "a descriptor is no longer waited for, and was not");
        }
    }

    /// The numbers of descriptors that are ready, after at most this time.
    pub(super) fn wait(&self, timeout: Duration) -> Result<Vec<u64>, Error> {
        let mut ready = Vec::with_capacity(BATCH);
        match epoll::wait(self.0.as_fd(), spare_capacity(&mut ready), Some(&timespec(timeout))) {
            Ok(_) | Err(Errno::INTR) => Ok(ready.iter().map(|event| event.data.u64()).collect()),
            Err(error) => Err(Error::system("epoll_wait", "to sleep", error)),
        }
    }
}

impl AsFd for Poller {
    /// Readable while any of them is ready.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Wake, eventfd::EventFd};

    #[test]
    fn a_sleeper_is_woken_once_by_each() {
        let mut sleeper = Sleeper::new().unwrap();
        let mut peers =
            [0; 2].map(|_| PeerSleep { board: Arc::new(Board::of_peer(&sleeper.file).unwrap()), woken: 0 });
        for _ in 0..3 {
            assert!(!peers[0].must_be_woken());
            sleeper.begin();
            for peer in &mut peers {
                assert!(peer.must_be_woken());
                assert!(!peer.must_be_woken());
            }
            sleeper.end();
        }
    }

    #[test]
    fn what_is_ready_is_told_until_it_is_taken() {
        let (poller, waker) = (Poller::new().unwrap(), EventFd::new().unwrap());
        poller.add(&waker, 7).unwrap();
        assert_eq!(poller.wait(Duration::ZERO).unwrap(), [0_u64; 0]);
        waker.wake();
        waker.wake();
        assert_eq!(poller.wait(Duration::from_secs(5)).unwrap(), [7]);
        assert_eq!(poller.wait(Duration::ZERO).unwrap(), [7]);
        waker.reset().unwrap();
        assert_eq!(poller.wait(Duration::ZERO).unwrap(), [0_u64; 0]);
        poller.remove(&waker);
    }
}
