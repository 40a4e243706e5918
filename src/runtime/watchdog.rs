//! The watchdog: aborts the process, with an error message, if a call of libfabric does not return.
//!
//! A deadline cannot end a call of libfabric. If a call never returns (a peer that is killed while it holds a spin lock in shared
//! memory leaves it locked), the operation would never end, and the process would spin forever. So a thread samples the driver
//! twice a second. If the group has failed or the deadline has passed, and the driver is in the same call in [`LOOKS`] samples in
//! a row, the process is aborted: memory that libfabric may still write to cannot be returned to the caller.
//!
//! Samples are counted instead of time, because a process that is stopped or suspended takes none; when it continues, the driver
//! has all of them to return. A driver that computes is in no call of libfabric.

use std::{
    io::Write,
    process,
    sync::{
        Arc, OnceLock,
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use unisono_schedule::Rank;
use unisono_transport::{Activity, LibraryCall, Limits, Stay};

use super::current::CurrentOperation;
use crate::{
    error::Failure,
    rendezvous::{FailureLatch, Watch},
};

/// The time between two samples.
const LOOK: Duration = Duration::from_millis(500);

/// The number of samples in a row, after a failure or a deadline, in which the driver must be in the same call.
const LOOKS: u32 = 10;

/// The same for the registration of memory: to pin 100 GB may take half a minute.
const LOOKS_REGISTERING: u32 = 100;

/// The state that the watchdog samples, and the ways by which it reports.
pub(crate) struct Subject {
    pub rank: Rank,
    /// This is set once there is an endpoint.
    pub limits: Arc<OnceLock<Limits>>,
    /// How long an operation may take.
    pub timeout: Duration,
    pub activity: Arc<Activity>,
    pub latch: Arc<FailureLatch>,
    pub current: Arc<CurrentOperation>,
    pub watch: Arc<Watch>,
}

/// The watchdog's thread, which ends when this is dropped.
pub(crate) struct Watchdog {
    /// The thread ends when this is dropped.
    alive: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// # Errors
    /// If the thread cannot be started.
    pub(crate) fn begin(subject: Subject) -> std::io::Result<Self> {
        let (alive, ends) = mpsc::channel();
        let (ready, begun) = mpsc::channel();
        let looks = move || {
            let mut looks = Looks::default();
            drop(ready);
            while ends.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                let failed = subject.latch.raised() || subject.current.is_overdue(Instant::now());
                if let Some(stay) = looks.look(subject.activity.stay(), failed, subject.timeout) {
                    subject.end(stay);
                }
            }
        };
        let thread = thread::Builder::new().name("unisono-watchdog".to_owned()).spawn(looks)?;
        // When a thread begins, it takes the loader's lock, which libfabric may hold for ever while it loads a provider.
        let _: Result<(), _> = begun.recv();
        Ok(Self { alive: Some(alive), thread: Some(thread) })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.alive.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            crate::log::error!("the watchdog's thread panicked");
        }
    }
}

/// The samples so far.
#[derive(Default)]
struct Looks {
    stay: Option<Stay>,
    /// The number of samples in a row in which this stay was found; and the number since the operation should have ended.
    found: u32,
    late: u32,
}

impl Looks {
    /// Adds a sample: the call that the driver is in, and whether its operation should have ended. Returns the stay if it will not end.
    fn look(&mut self, stay: Option<Stay>, failed: bool, timeout: Duration) -> Option<Stay> {
        if self.stay != stay || stay.is_none() {
            *self = Self { stay, found: 0, late: 0 };
        }
        let stay = stay?;
        self.found = self.found.saturating_add(1);
        // If the call alone lasts longer than the timeout, the operation has passed its deadline. Joining has its own deadline.
        if failed || !stay.call.opens() && LOOK.saturating_mul(self.found) > timeout {
            self.late += 1;
        }
        (self.late > patience(stay.call)).then_some(stay)
    }
}

/// The number of samples in a row, after a failure or a deadline, in which the driver must be in this call.
fn patience(call: LibraryCall) -> u32 {
    if call == LibraryCall::Register { LOOKS_REGISTERING } else { LOOKS }
}

/// The reason why the process is aborted: this call of `whose` library did not return, `after` something.
fn reason(call: LibraryCall, whose: &str, after: &str) -> String {
    let (call, seconds) = (call.name(), (LOOK * patience(call)).as_secs());
    format!(
        "{call} of {whose} did not return for {seconds} s {after}; try another provider (UNISONO_PROVIDER) or another \
         version of libfabric"
    )
}

impl Subject {
    /// Reports the call to the user and to the store, and aborts the process.
    fn end(&self, stay: Stay) -> ! {
        let whose = self.limits.get().map_or_else(
            || "libfabric".to_owned(),
            |Limits { provider, version, .. }| format!("{version}'s {provider}"),
        );
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let doing = self.current.snapshot();
        let after = match self.latch.failure() {
            Some(failure) => format!("after the group had failed ({failure})"),
            None => "after its deadline had passed".to_owned(),
        };
        let reason = reason(stay.call, &whose, &after);
        let words = format!(
            "unisono: rank {} on {host}, {doing}: {reason}. This process cannot go on and aborts (SIGABRT)\n",
            self.rank
        );
        // This comes before the log, whose lock the stuck thread may hold.
        let _ = std::io::stderr().write_all(words.as_bytes());
        if !self.latch.raised() {
            self.watch.report(&Failure::Transport {
                rank: self.rank,
                doing: doing.clone(),
                reason: reason.clone(),
            });
        }
        if stay.call.opens() {
            // This does not log, because the thread may hold the log's lock; the message is written already.
            process::abort();
        }
        crate::log::error!(rank = self.rank, %host, %doing, %reason, "the provider does not return; aborting");
        process::abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(300);

    /// The number of the look at which the end comes, if it comes.
    fn ended(looks: usize, timeout: Duration, see: impl Fn(usize) -> (Option<Stay>, bool)) -> Option<usize> {
        let mut seen = Looks::default();
        (1..=looks).find(|&look| {
            let (stay, failed) = see(look);
            seen.look(stay, failed, timeout).is_some()
        })
    }

    fn stay(call: LibraryCall, number: usize) -> Option<Stay> {
        Some(Stay { call, number: number as u64 })
    }

    #[test]
    fn a_call_that_does_not_return_after_a_failure_ends_the_process() {
        let poll = stay(LibraryCall::Poll, 7);
        assert_eq!(ended(100, LONG, |_| (poll, true)), Some(LOOKS as usize + 1));
        // The count begins at the failure.
        assert_eq!(ended(100, LONG, |look| (poll, look > 50)), Some(50 + LOOKS as usize + 1));
        assert_eq!(ended(100, LONG, |_| (poll, false)), None);
    }

    #[test]
    fn a_call_that_outlasts_every_deadline_ends_the_process_without_a_report() {
        let poll = stay(LibraryCall::Poll, 7);
        assert_eq!(ended(100, Duration::from_secs(10), |_| (poll, false)), Some(20 + LOOKS as usize + 1));
    }

    #[test]
    fn who_comes_back_or_computes_goes_on() {
        // The driver makes one call after the other, whatever has failed.
        assert_eq!(ended(1000, LONG, |look| (stay(LibraryCall::Poll, look), true)), None);
        assert_eq!(ended(1000, LONG, |look| (stay(LibraryCall::Poll, look / 9), true)), None);
        // The driver is in no call.
        assert_eq!(ended(1000, LONG, |_| (None, true)), None);
        assert_eq!(
            ended(1000, LONG, |look| (stay(LibraryCall::Close, 1).filter(|_| look % 8 > 0), true)),
            None
        );
        // Pinning memory may take long, but not for ever.
        let register = stay(LibraryCall::Register, 1);
        assert_eq!(ended(60, LONG, |_| (register, true)), None);
        assert!(ended(1000, LONG, |_| (register, true)).is_some());
    }

    #[test]
    fn the_time_that_is_named_is_the_time_that_has_passed() {
        for call in [LibraryCall::Poll, LibraryCall::Register] {
            let looks = ended(1000, LONG, |_| (stay(call, 1), true)).unwrap();
            // The first sample begins the count.
            let passed = LOOK * (u32::try_from(looks).unwrap() - 1);
            let wanted = format!("did not return for {} s after x;", passed.as_secs());
            assert!(
                reason(call, "libfabric", "after x").contains(&wanted),
                "{}",
                reason(call, "libfabric", "after x")
            );
        }
    }
}
