//! Reports the signal that ends a rank. While there are groups, SIGTERM, SIGINT and SIGHUP have a handler if their action is the
//! default, which is to end the process: this rank first reports the signal to the other ranks, and then the signal ends the process as
//! it would have. A handler of the program is not replaced. One that is installed later, and may call this one, decides whether the process ends.
//!
//! The handler only writes to a pipe; a thread does the rest. In a forked child it does what the default action does.
//!
//! Debian's libfabric loads libinfinipath, which installs a handler in every process as it is loaded: on a signal that ends the process
//! it prints addresses, writes a file `PROGRAM.80s-PID,HOST.btr` into the working directory, and exits with status 1. Each signal that
//! has it gets its default action back when this library has been loaded ([`RESTORE`]), before a program's handler could call it.

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

/// The signals that ask a process to end, and their names.
const ENDING: [(c_int, &str); 3] =
    [(libc::SIGTERM, "SIGTERM"), (libc::SIGINT, "SIGINT"), (libc::SIGHUP, "SIGHUP")];

/// The signals for which libinfinipath installs its handler.
const FOREIGN: [c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGABRT, libc::SIGINT, libc::SIGTERM];

/// The pipe that the handler writes to, and the process that has its thread.
static PIPE: AtomicI32 = AtomicI32::new(-1);
static OWNER: AtomicI32 = AtomicI32::new(0);

static STATE: Mutex<State> = Mutex::new(State { ranks: Vec::new(), replaced: Vec::new(), listens: false });

struct State {
    /// The ranks of this process, and the watches by which they tell the others.
    ranks: Vec<(Rank, Weak<Watch>)>,
    /// The actions that the handler replaces.
    replaced: Vec<(c_int, libc::sigaction)>,
    /// True if the thread has been started.
    listens: bool,
}

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// While it lives, a signal that ends this rank is first reported to the other ranks.
pub(crate) struct LastWords(Weak<Watch>);

impl LastWords {
    /// If no handler can be installed, the other ranks only learn that this rank died.
    pub(crate) fn of(rank: Rank, watch: &Arc<Watch>) -> Self {
        let watch = Arc::downgrade(watch);
        let mut state = state();
        state.ranks.push((rank, Weak::clone(&watch)));
        if let Err(error) = state.install() {
            crate::log::warn!(rank, %error, "a signal that ends this rank will not be reported");
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
            if old.sa_sigaction == libc::SIG_DFL
                && !self.replaced.iter().any(|(replaced, _)| *replaced == signal)
            {
                self.replaced.push((signal, old));
                replace(signal, &ours());
            }
        }
        Ok(())
    }
}

/// Tells the other ranks of each signal that the handler takes, and ends the process by it.
fn listen(mut pipe: UnixStream) {
    let mut byte = [0];
    while pipe.read_exact(&mut byte).is_ok() {
        let signal = c_int::from(byte[0]);
        // Another handler has called ours: it decides whether the process ends.
        if !is_ours(&current(signal)) {
            continue;
        }
        let name = ENDING.iter().find(|(number, _)| *number == signal).map_or("a signal", |(_, name)| name);
        let ranks = state().ranks.clone();
        for (rank, watch) in ranks {
            if let Some(watch) = watch.upgrade() {
                crate::log::info!(rank, "ends by {name}");
                watch.last_words(&Failure::Ended { rank, signal: name.to_owned() });
            }
        }
        end_by(signal);
    }
}

/// The loader calls this after it has initialized the libraries that this one needs, and before `main`.
#[used]
// SAFETY: the section holds the addresses of functions that the loader calls (System V ABI, "Initialization and Termination Functions"),
// and `restore_defaults` uses nothing that has to be initialized before.
#[unsafe(link_section = ".init_array")]
static RESTORE: extern "C" fn() = restore_defaults;

/// Gives each signal its default action that has libinfinipath's handler: nothing but loading the library chose that one.
extern "C" fn restore_defaults() {
    for signal in FOREIGN {
        if is_foreign(&current(signal)) {
            replace(signal, &default());
        }
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
            // A forked child has the handler, but no thread. The signal is blocked until this returns.
            end_by(signal);
        }
        *errno = kept;
    }
}

/// Ends the process by a signal, as its default action does.
fn end_by(signal: c_int) {
    replace(signal, &default());
    // SAFETY: `getpid` and `kill` take numbers, and are async-signal-safe.
    unsafe { libc::kill(libc::getpid(), signal) };
}

/// The default action.
fn default() -> libc::sigaction {
    // SAFETY: all zeros is a valid `sigaction`: the default action, no flags, no signals blocked.
    unsafe { std::mem::zeroed() }
}

/// The action that calls the handler of this file; system calls that it interrupts are restarted.
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

/// True if the handler is libinfinipath's.
fn is_foreign(action: &libc::sigaction) -> bool {
    if [libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction) {
        return false;
    }
    // SAFETY: the call only looks the address up, and writes to this frame; the name lives as long as the library, which is not
    // unloaded while its handler is installed.
    unsafe {
        let mut found: libc::Dl_info = std::mem::zeroed();
        libc::dladdr(action.sa_sigaction as *const _, &raw mut found) != 0
            && !found.dli_fname.is_null()
            && CStr::from_ptr(found.dli_fname).to_string_lossy().contains("libinfinipath")
    }
}
