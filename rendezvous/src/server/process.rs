//! The process of a rank on this host, and whether it has ended.

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fd::OwnedFd,
    io::Errno,
    process::{Pid, PidfdFlags, pidfd_open, test_kill_process},
};

use super::super::protocol::host_name;

/// A process of this host.
#[derive(Debug)]
pub(super) struct RankProcess {
    id: Pid,
    /// `None` if the kernel has no such descriptors, or none is left.
    descriptor: Option<OwnedFd>,
}

impl RankProcess {
    /// The process with this description, such as `pid 17 on node03`; `None` if it is on another host or in another namespace.
    pub(super) fn find(who: &str) -> Option<Self> {
        let id = who.strip_prefix("pid ")?.strip_suffix(&host_name())?.strip_suffix(" on ")?;
        let id = Pid::from_raw(id.parse().ok()?)?;
        let found = Self { id, descriptor: pidfd_open(id, PidfdFlags::empty()).ok() };
        (!found.has_ended()).then_some(found)
    }

    /// True if it has ended, even if its parent has not waited for it yet.
    pub(super) fn has_ended(&self) -> bool {
        // The descriptor is readable once the process has ended.
        let ended = self.descriptor.as_ref().is_some_and(|descriptor| {
            let mut polled = [PollFd::new(descriptor, PollFlags::IN)];
            poll(&mut polled, Some(&Timespec::default())) == Ok(1)
        });
        ended || test_kill_process(self.id) == Err(Errno::SRCH)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        process::{Command, Stdio},
        thread,
        time::Duration,
    };

    use super::*;
    use crate::protocol::who;

    #[test]
    fn a_process_that_has_ended_is_told_from_one_that_lives() {
        assert!(!RankProcess::find(&who()).unwrap().has_ended());
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let named = format!("pid {} on {}", child.id(), host_name());
        let found = RankProcess::find(&named).unwrap();
        assert!(!found.has_ended());
        child.kill().unwrap();
        while found.descriptor.is_some() && !found.has_ended() {
            thread::sleep(Duration::from_millis(1));
        }
        child.wait().unwrap();
        assert!(found.has_ended());
        for who in [&*named, &format!("pid {} on another-host", std::process::id()), "raw", "pid x on ", ""] {
            assert!(RankProcess::find(who).is_none(), "{who}");
        }
    }
}
