//! Tells a process from its children: a child of `fork` has copies of its parent's open descriptors and memory, but none of its
//! threads.
//!
//! An object that belongs to one process records it ([`Process`]); if it is used or dropped in a child, it changes nothing.
//! Descriptors by which others see that a process lives (connections, locks) must not stay open in its children: in a child they lead
//! to `/dev/null` ([`Unshared`]).
#![allow(unsafe_code)]

use std::{
    cell::UnsafeCell,
    ops::{Deref, DerefMut},
    os::fd::{AsFd, AsRawFd, IntoRawFd, RawFd},
    sync::{
        Once,
        atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering},
    },
};

/// The number of forks between this process and the first that called [`Process::this`].
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The descriptor of `/dev/null`, or -1.
static NULL: AtomicI32 = AtomicI32::new(-1);

static DESCRIPTORS: Descriptors =
    Descriptors { locked: AtomicBool::new(false), all: UnsafeCell::new(Vec::new()) };

/// The descriptors that children do not keep. The lock may be taken by a thread before it forks and released by its child.
struct Descriptors {
    locked: AtomicBool,
    all: UnsafeCell<Vec<RawFd>>,
}

// SAFETY: `all` is touched only under the lock.
unsafe impl Sync for Descriptors {}

impl Descriptors {
    fn lock(&self) {
        while self.locked.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            std::hint::spin_loop();
        }
    }

    fn unlock(&self) {
        self.locked.store(false, Ordering::Release);
    }

    fn with(&self, act: impl FnOnce(&mut Vec<RawFd>)) {
        self.lock();
        // SAFETY: the lock is held, and `act` does not come back here.
        act(unsafe { &mut *self.all.get() });
        self.unlock();
    }
}

unsafe extern "C" fn before() {
    DESCRIPTORS.lock();
}

unsafe extern "C" fn in_parent() {
    DESCRIPTORS.unlock();
}

/// Makes only calls that a signal handler may make.
unsafe extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the lock was taken by the thread that forked, the only one there is now.
    let all = unsafe { &mut *DESCRIPTORS.all.get() };
    let null = NULL.load(Ordering::Relaxed);
    for &descriptor in all.iter().filter(|_| null >= 0) {
        // SAFETY: both are numbers; the one that is replaced is open, since it is taken off the list before it is closed.
        unsafe { libc::dup3(null, descriptor, libc::O_CLOEXEC) };
    }
    all.clear();
    DESCRIPTORS.unlock();
}

/// A process, as distinct from its children by `fork`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u32);

impl Process {
    /// This process.
    #[must_use]
    pub fn this() -> Self {
        static PREPARED: Once = Once::new();
        PREPARED.call_once(|| {
            match std::fs::OpenOptions::new().read(true).write(true).open("/dev/null") {
                Ok(null) => NULL.store(null.into_raw_fd(), Ordering::Relaxed),
                Err(error) => crate::log::warn!(%error, "children will keep connections: no /dev/null"),
            }
            // SAFETY: the handlers touch only static data, and make only calls that are allowed after a fork.
            let result = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
            if result != 0 {
                crate::log::warn!(
                    result,
                    "children will not know that they were forked: pthread_atfork failed"
                );
            }
        });
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// True if it is this process, and not one from which this process was forked. It takes one load.
    #[inline]
    #[must_use]
    pub fn is_this(self) -> bool {
        FORKS.load(Ordering::Relaxed) == self.0
    }
}

/// Owns a descriptor that forked children do not keep: there it leads to `/dev/null`.
#[derive(Debug)]
pub struct Unshared<T> {
    // This is the first field, so that it leaves the list before the descriptor is closed.
    _listed: Listed,
    inner: T,
}

#[derive(Debug)]
struct Listed(RawFd);

impl Drop for Listed {
    fn drop(&mut self) {
        DESCRIPTORS.with(|all| {
            if let Some(at) = all.iter().position(|&descriptor| descriptor == self.0) {
                all.swap_remove(at);
            }
        });
    }
}

impl<T: AsFd> From<T> for Unshared<T> {
    fn from(inner: T) -> Self {
        let _ = Process::this();
        let descriptor = inner.as_fd().as_raw_fd();
        DESCRIPTORS.with(|all| all.push(descriptor));
        Self { _listed: Listed(descriptor), inner }
    }
}

impl<T> Deref for Unshared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for Unshared<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}
