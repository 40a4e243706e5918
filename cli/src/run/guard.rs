//! The hidden subcommand that ends the ranks' process groups if the launcher is killed. The kernel ends the ranks
//! themselves, but not the processes that they have started.

use std::{
    io::{self, Write},
    os::unix::process::CommandExt,
    process::{Child, ChildStdin, Command, ExitCode, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group};

/// What the subcommand is called.
pub(crate) const NAME: &str = "run-guard";

/// What the launcher says when it has ended its ranks itself.
const DONE: &str = "done";

/// How long after killing the ranks it removes the shared memory that they have left.
const SETTLE: Duration = Duration::from_millis(500);

/// Ends process groups when the launcher is gone. Its standard input names them, one a line, and ends with
/// the launcher.
#[derive(clap::Args)]
pub(crate) struct Guard {}

impl Guard {
    pub(crate) fn run(self) -> ExitCode {
        let mut groups = Vec::new();
        for line in io::stdin().lines().map_while(Result::ok) {
            if line == DONE {
                return ExitCode::SUCCESS;
            }
            groups.extend(line.parse().ok().and_then(Pid::from_raw));
        }
        for group in groups {
            // It fails only where nobody is left.
            let _ = kill_process_group(group, Signal::KILL);
        }
        // What they held is let go a moment after they were killed.
        std::thread::sleep(SETTLE);
        unisono_transport::ofi::sweep();
        ExitCode::SUCCESS
    }
}

/// The launcher's connection to its guard.
#[derive(Debug)]
pub(super) struct Hold {
    guard: Child,
    line: ChildStdin,
}

impl Hold {
    /// Starts the guard, out of reach of the signals that a terminal sends to us.
    pub(super) fn start() -> io::Result<Self> {
        let mut command = Command::new(super::ITSELF);
        command.arg0("unisono").arg(NAME).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut guard = command.spawn()?;
        let line = guard.stdin.take().ok_or_else(|| io::Error::other("the guard has no input"))?;
        Ok(Self { guard, line })
    }

    /// Tells the guard of a process group. A guard that was killed is missed, but no reason to end the job.
    pub(super) fn add(&mut self, group: Pid) {
        let _ = writeln!(self.line, "{}", group.as_raw_pid());
    }

    /// Says that nobody is left to be ended.
    pub(super) fn release(mut self) {
        let _ = writeln!(self.line, "{DONE}");
        drop(self.line);
        let _ = self.guard.wait();
    }
}
