//! Reads memory of peers that is neither shared nor registered, where the system allows that (process_vm_readv): bytes are copied once.
//!
//! An endpoint that lets its peers do so tells each of them its process, and a random word and where it lies in its memory
//! ([`ReadPermit`]). A peer that finds the word there may read this process, and reads the right one. Each read ends with the word, in the
//! same call, which reads the memory of one process: if another process has got the number, or this one has started another
//! program, the word is not there. So no other memory is ever taken for that of the peer.
//!
//! The system refuses it to other users, to processes in other namespaces, where a seccomp filter forbids the call, and where Yama
//! (ptrace_scope) restricts it; for the latter, an endpoint that lets its peers read declares that they may (PR_SET_PTRACER).
#![allow(unsafe_code)]

use std::{ptr, sync::Once};

use rustix::{
    io::Errno,
    process::{PTracer, getpid, set_ptracer},
};

use crate::{Error, keys::random, local::Failure};

/// The most bytes of one call: fewer than the system takes.
const MOST: usize = 1 << 30;

/// What an endpoint tells a peer that may read its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadPermit {
    /// The number of the process, or 0 if peers may not read its memory.
    pub(crate) process: u32,
    /// The address of the word, and the word.
    pub(crate) address: u64,
    pub(crate) word: u64,
}

impl ReadPermit {
    pub(crate) const NONE: Self = Self { process: 0, address: 0, word: 0 };

    /// The memory of a peer that has given this permit, if this process gives one too, and the system lets it read that memory. A process
    /// that gives none never asks the system, which may end it for that (seccomp).
    pub(crate) fn of_peer(self, own: Self) -> Option<PeerMemory> {
        (own != Self::NONE).then(|| PeerMemory::of(self)).flatten()
    }

    /// As a message has it.
    pub(crate) fn bytes(&self) -> [u8; 20] {
        let mut bytes = [0; 20];
        let words = [self.address, self.word].map(u64::to_le_bytes);
        let all = self.process.to_le_bytes().into_iter().chain(words.into_iter().flatten());
        bytes.iter_mut().zip(all).for_each(|(place, byte)| *place = byte);
        bytes
    }
}

/// Whether peers may read this process, and the word by which they recognize it.
#[derive(Debug)]
pub(crate) struct OwnPermit(Option<Box<u64>>);

impl OwnPermit {
    /// Lets peers read this process, or not.
    pub(crate) fn new(readable: bool) -> Result<Self, Error> {
        let word = || Ok::<_, Error>(Box::new(u64::from_le_bytes(random()?) | 1));
        readable.then(word).transpose().map(Self)
    }

    /// As [`Self::new`], where the peers are other processes, which this one declares as readers.
    pub(crate) fn of_process(readable: bool) -> Result<Self, Error> {
        static DECLARED: Once = Once::new();
        if readable {
            // Where Yama is not there or does not restrict it, this is refused or does nothing.
            DECLARED.call_once(|| {
                if let Err(error) = set_ptracer(PTracer::Any) {
                    crate::log::debug!(%error, "peers are not declared as readers of this process's memory");
                }
            });
        }
        Self::new(readable)
    }

    /// What the peers are told.
    pub(crate) fn permit(&self) -> ReadPermit {
        let permit = |word: &u64| ReadPermit {
            process: getpid().as_raw_nonzero().get().unsigned_abs(),
            address: ptr::from_ref(word).addr() as u64,
            word: *word,
        };
        self.0.as_deref().map_or(ReadPermit::NONE, permit)
    }
}

/// The memory of a peer that may be read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerMemory(ReadPermit);

/// Why bytes of a peer were not read. What was read of them may be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unread {
    /// The process has ended, or is another.
    Gone,
    /// It has no such bytes.
    Absent,
    Refused(Errno),
}

impl PeerMemory {
    /// The memory of the peer that has given this permit, if the system lets this process read it.
    pub(crate) fn of(permit: ReadPermit) -> Option<Self> {
        let peer = (permit.process != 0).then_some(Self(permit))?;
        // SAFETY: no byte but the word is read.
        let found = unsafe { peer.read_once(permit.address, ptr::null_mut(), 0) };
        found.inspect_err(|why| crate::log::debug!(?why, "memory of a peer cannot be read")).ok()?;
        Some(peer)
    }

    /// Reads `len` bytes from this address of the peer.
    ///
    /// # Safety
    /// `into` is valid for writes of `len` bytes, which nothing else accesses meanwhile.
    pub(crate) unsafe fn read(&self, address: u64, into: *mut u8, len: usize) -> Result<(), Failure> {
        let mut done = 0;
        while done < len {
            let part = (len - done).min(MOST);
            // SAFETY: this part lies in the bytes that the caller has promised.
            let read = unsafe { self.read_once(address.wrapping_add(done as u64), into.add(done), part) };
            read.map_err(|why| self.failure(why, address, len))?;
            done += part;
        }
        Ok(())
    }

    fn failure(&self, why: Unread, address: u64, len: usize) -> Failure {
        match why {
            Unread::Absent if Self::of(self.0).is_some() => Failure::new(
                Errno::FAULT.raw_os_error().into(),
                format!("the peer's process has no {len} bytes at {address:#x}"),
            ),
            Unread::Refused(errno) => Failure::new(
                errno.raw_os_error().into(),
                format!("the peer's memory can no longer be read: {errno}"),
            ),
            Unread::Absent | Unread::Gone => Failure::died(),
        }
    }

    /// Reads bytes, and then the word, in one call.
    ///
    /// # Safety
    /// As for [`Self::read`].
    unsafe fn read_once(&self, address: u64, into: *mut u8, len: usize) -> Result<(), Unread> {
        let Self(ReadPermit { process, address: at, word }) = *self;
        let mut found = 0_u64;
        let piece = |base: *mut u8, len| libc::iovec { iov_base: base.cast(), iov_len: len };
        let theirs = |address: u64, len| {
            let address = usize::try_from(address).map_err(|_| Unread::Absent)?;
            Ok(piece(ptr::without_provenance_mut(address), len))
        };
        let here = [piece(into, len), piece(ptr::from_mut(&mut found).cast(), size_of::<u64>())];
        let there = [theirs(address, len)?, theirs(at, size_of::<u64>())?];
        let process = i32::try_from(process).map_err(|_| Unread::Gone)?;
        // SAFETY: the system writes to `here` alone: bytes that the caller has promised, and the word `found`. It checks what `there`
        // says in the other process.
        let read = unsafe { libc::process_vm_readv(process, here.as_ptr(), 2, there.as_ptr(), 2, 0) };
        match usize::try_from(read) {
            Ok(read) if read == len + size_of::<u64>() && found == word => Ok(()),
            // All of it is there, and it is another process.
            Ok(read) if read >= len => Err(Unread::Gone),
            Ok(_) => Err(Unread::Absent),
            Err(_) => Err(match Errno::from_io_error(&std::io::Error::last_os_error()) {
                Some(Errno::SRCH) => Unread::Gone,
                Some(Errno::FAULT) => Unread::Absent,
                other => Unread::Refused(other.unwrap_or(Errno::IO)),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::tests::guarded::Guarded;

    fn read(peer: PeerMemory, from: *const u8, len: usize) -> Result<Vec<u8>, Failure> {
        let mut bytes = vec![7; len];
        // SAFETY: the vector has this many bytes.
        unsafe { peer.read(from.addr() as u64, bytes.as_mut_ptr(), len) }.map(|()| bytes)
    }

    #[test]
    fn what_is_there_is_read_and_nothing_else() {
        let own = OwnPermit::new(true).unwrap();
        let Some(peer) = PeerMemory::of(own.permit()) else {
            println!("SKIPPED: reading memory of processes: the system refuses it");
            return;
        };
        let bytes: Vec<u8> = (0..100_000_u32).map(|at| (at % 251) as u8).collect();
        for len in [0, 1, 4096, bytes.len()] {
            assert_eq!(read(peer, bytes.as_ptr(), len).unwrap(), bytes[..len]);
        }
        // Behind these bytes there are none.
        let mut last = Guarded::new([9_u8; 16]);
        let at = ptr::from_mut(last.value()).cast::<u8>().cast_const();
        assert_eq!(read(peer, at, 16).unwrap(), [9; 16]);
        for len in [17, 100_000] {
            let absent = read(peer, at, len).unwrap_err();
            assert!(Error::from(absent).to_string().contains(&format!("has no {len} bytes at 0x")));
        }
    }

    #[test]
    fn no_other_process_is_taken_for_the_peer() {
        let own = OwnPermit::new(true).unwrap();
        let permit = own.permit();
        if PeerMemory::of(permit).is_none() {
            println!("SKIPPED: reading memory of processes: the system refuses it");
            return;
        }
        let others = [
            ReadPermit { word: permit.word ^ 2, ..permit },
            ReadPermit { address: permit.address + 1, ..permit },
            ReadPermit { address: 0, ..permit },
            ReadPermit { address: u64::MAX, ..permit },
            ReadPermit { process: u32::MAX, ..permit },
            ReadPermit { process: 1, ..permit },
            ReadPermit::NONE,
        ];
        for other in others {
            assert!(PeerMemory::of(other).is_none(), "{other:?}");
        }
        assert_eq!(OwnPermit::new(false).unwrap().permit(), ReadPermit::NONE);
        let changed = PeerMemory(ReadPermit { word: permit.word ^ 2, ..permit });
        let gone = read(changed, ptr::from_ref(&permit).cast(), 8).unwrap_err();
        assert!(Error::from(gone).to_string().contains("has ended"));
    }
}
