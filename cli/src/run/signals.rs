//! The signals that end a job, or stop it for a while.

use std::{fs, io, thread};

use nix::{
    errno::Errno,
    sys::signal::{SigSet, Signal},
};

/// The signals that ask a process to end, and the one that stops it until it is continued.
const ASKING: [Signal; 5] =
    [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM, Signal::SIGTSTP];

/// Calls `tell` with each signal that asks this process to end or stop, from a separate thread. A signal that was
/// ignored when the process began (SIGHUP under nohup) stays ignored. To be called before there are other
/// threads.
///
/// The signals are blocked and waited for, not handled, because libinfinipath, which comes with Debian's libfabric, installs
/// handlers that end the process when it is loaded.
pub(super) fn watch(tell: impl Fn(i32) + Send + 'static) -> io::Result<()> {
    let ignored = ignored_here();
    let wanted: SigSet = ASKING.into_iter().filter(|&signal| !has(ignored, signal)).collect();
    wanted.thread_block()?;
    let wait = move || {
        loop {
            match wanted.wait() {
                Ok(signal) => tell(signal as i32),
                Err(Errno::EINTR) => {}
                // It fails only for an invalid set.
                Err(_) => return,
            }
        }
    };
    thread::Builder::new().name("signals".into()).spawn(wait).map(drop)
}

/// True if a signal stops a process, and does not end it.
pub(super) fn stops(signal: i32) -> bool {
    signal == Signal::SIGTSTP as i32
}

/// Stops this process; returns when it continues.
pub(super) fn stop_here() {
    // The signal is raised on this thread, so that it stops before the call returns; a signal to the process might stop another
    // thread first. It cannot fail for a valid signal.
    let _ = nix::sys::signal::raise(Signal::SIGSTOP);
}

/// Unblocks, in a rank, the signals that the launcher has blocked for itself and so for its children.
pub(super) fn unblock() -> io::Result<()> {
    Ok(ASKING.into_iter().collect::<SigSet>().thread_unblock()?)
}

/// True if the kernel reaps the children of this process, so that this process does not learn how they ended: if SIGCHLD was
/// ignored when the process began.
pub(super) fn children_are_reaped() -> bool {
    has(ignored_here(), Signal::SIGCHLD)
}

/// The name of a signal: `SIGSEGV`. `None` if it has none, as real-time signals.
pub(super) fn name(signal: i32) -> Option<&'static str> {
    Signal::try_from(signal).ok().map(Signal::as_str)
}

/// The mask of the signals that this process ignores.
fn ignored_here() -> u64 {
    ignored(&fs::read_to_string("/proc/self/status").unwrap_or_default())
}

const fn has(mask: u64, signal: Signal) -> bool {
    mask >> (signal as i32 - 1) & 1 == 1
}

/// The mask of ignored signals in the text of `/proc/self/status`; bit 0 is signal 1.
fn ignored(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_mask_of_ignored_signals() {
        assert_eq!(ignored("Name:\tx\nSigIgn:\t0000000000001001\nSigCgt:\t01\n"), 0x1001);
        assert_eq!(ignored(""), 0);
        assert_eq!(ignored("SigIgn:\tzz\n"), 0);
    }
}
