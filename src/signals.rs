//! Reports the signal that ends a rank. Where SIGTERM, SIGINT or SIGHUP has its default action, which is to end the
//! process, a handler takes it while there are groups: they are told first, then the process ends by the signal as it would
//! have. Nobody's own handler is replaced, and one that is installed later, even one that calls this one, has the last word.
//!
//! The handler only writes to a pipe; a thread does the rest. In the child of a `fork` it does what the default would.

#![allow(unsafe_code, reason = "a signal handler is installed by C, and runs where little is allowed")]

use std::{
    ffi::{CStr, c_int},
    io::{self, Read},
    os::{
        fd::{IntoRawFd, OwnedFd},
        unix::net::UnixStream,
    },
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicI32, Ordering},
    },
    thread,
};

use unisono_schedule::Rank;

use crate::{error::Failure, rendezvous::Watch};

/// Those that ask a process to end, and their names.
const ENDING: [(c_int, &str); 3] =
    [(libc::SIGTERM, "SIGTERM"), (libc::SIGINT, "SIGINT"), (libc::SIGHUP, "SIGHUP")];

/// Where the handler writes, and in which process.
static PIPE: AtomicI32 = AtomicI32::new(-1);
static OWNER: AtomicI32 = AtomicI32::new(0);

static STATE: Mutex<State> = Mutex::new(State { ranks: Vec::new(), replaced: Vec::new(), listens: false });

struct State {
    /// Who is to be told, as whom.
    ranks: Vec<(Rank, Weak<Watch>)>,
    /// What the handler stands for.
    replaced: Vec<(c_int, libc::sigaction)>,
    /// Whether the thread is there.
    listens: bool,
}

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// While it lives, the group hears of the signal that ends this rank.
pub(crate) struct LastWords(Weak<Watch>);

impl LastWords {
    /// Where the system does not let a handler be installed, the group only sees the rank die.
    pub(crate) fn of(rank: Rank, watch: &Arc<Watch>) -> Self {
        let watch = Arc::downgrade(watch);
        let mut state = state();
        state.ranks.push((rank, Weak::clone(&watch)));
        if let Err(error) = state.install() {
            tracing::warn!(rank, %error, "a signal will end this rank without a word");
        }
        Self(watch)
    }
}

impl Drop for LastWords {
    fn drop(&mut self) {
        let mut state = state();
        state.ranks.retain(|(_, watch)| !Weak::ptr_eq(watch, &self.0));
        if state.ranks.is_empty() {
            for (signal, old) in std::mem::take(&mut state.replaced) {
                if is_ours(&current(signal)) {
                    replace(signal, &old);
                }
            }
        }
    }
}

impl State {
    fn install(&mut self) -> io::Result<()> {
        let own = pid();
        if !self.listens || OWNER.load(Ordering::Acquire) != own {
            let (ours, theirs) = UnixStream::pair()?;
            theirs.set_nonblocking(true)?;
            thread::Builder::new().name("unisono-signals".into()).spawn(move || listen(ours))?;
            PIPE.store(OwnedFd::from(theirs).into_raw_fd(), Ordering::Release);
            OWNER.store(own, Ordering::Release);
            self.listens = true;
        }
        for (signal, _) in ENDING {
            let old = current(signal);
            if is_default(&old) && !self.replaced.iter().any(|(replaced, _)| *replaced == signal) {
                self.replaced.push((signal, old));
                replace(signal, &ours());
            }
        }
        Ok(())
    }
}

/// Tells the groups of each signal that the handler took, and ends the process by it.
fn listen(mut pipe: UnixStream) {
    let mut byte = [0];
    while pipe.read_exact(&mut byte).is_ok() {
        let signal = c_int::from(byte[0]);
        // Somebody else's handler that calls ours: it is not ours to end the process.
        if !is_ours(&current(signal)) {
            continue;
        }
        let name = ENDING.iter().find(|(number, _)| *number == signal).map_or("a signal", |(_, name)| name);
        let ranks = state().ranks.clone();
        for (rank, watch) in ranks {
            if let Some(watch) = watch.upgrade() {
                tracing::info!(rank, "ends by {name}");
                watch.last_words(&Failure::Ended { rank, signal: name.to_owned() });
            }
        }
        end_by(signal);
    }
}

fn pid() -> i32 {
    rustix::process::getpid().as_raw_pid()
}

extern "C" fn handle(signal: c_int) {
    // SAFETY: `getpid`, `sigaction`, `raise` and `write` are async-signal-safe, the pointers are to this frame, and errno is
    // put back to what the interrupted code left there. The descriptor stays open for good.
    unsafe {
        let errno = libc::__errno_location();
        let kept = *errno;
        if libc::getpid() == OWNER.load(Ordering::Acquire) {
            let byte = signal.to_le_bytes();
            libc::write(PIPE.load(Ordering::Acquire), byte.as_ptr().cast(), 1);
        } else {
            // The child of a fork: it has the handler, but no thread. The signal is blocked until this returns.
            end_by(signal);
        }
        *errno = kept;
    }
}

/// Ends the process by a signal, as if nobody handled it.
fn end_by(signal: c_int) {
    // SAFETY: all zeros is a valid `sigaction`: the default action, no flags, no signals blocked.
    let default: libc::sigaction = unsafe { std::mem::zeroed() };
    replace(signal, &default);
    // SAFETY: `getpid` and `kill` take numbers, and are async-signal-safe.
    unsafe { libc::kill(libc::getpid(), signal) };
}

/// The handler of this file, with calls that it interrupts going on.
fn ours() -> libc::sigaction {
    // SAFETY: all zeros is a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handle as extern "C" fn(c_int) as libc::sighandler_t;
    action.sa_flags = libc::SA_RESTART;
    action
}

fn current(signal: c_int) -> libc::sigaction {
    // SAFETY: all zeros is a valid `sigaction`, into which the call writes what is in force; it changes nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &raw mut action);
        action
    }
}

fn replace(signal: c_int, action: &libc::sigaction) {
    // SAFETY: what is installed is the default, what was in force before, or `handle`, which may run at any time.
    unsafe { libc::sigaction(signal, action, std::ptr::null_mut()) };
}

fn is_ours(action: &libc::sigaction) -> bool {
    action.sa_sigaction == ours().sa_sigaction
}

/// Whether nobody handles the signal. libinfinipath, which Debian's libfabric brings along, does so in every process that loads
/// it, asked or not: it prints addresses and makes of the signal an exit with status 1.
fn is_default(action: &libc::sigaction) -> bool {
    match action.sa_sigaction {
        libc::SIG_DFL => true,
        libc::SIG_IGN => false,
        handler => {
            // SAFETY: the call only looks the address up, and writes to this frame; the name lives as long as the library,
            // which is not unloaded while its handler is installed.
            unsafe {
                let mut found: libc::Dl_info = std::mem::zeroed();
                libc::dladdr(handler as *const _, &raw mut found) != 0
                    && !found.dli_fname.is_null()
                    && CStr::from_ptr(found.dli_fname).to_string_lossy().contains("libinfinipath")
            }
        }
    }
}
