//! The hidden subcommand that ends the ranks' process groups if the launcher is killed. The kernel ends the ranks
//! themselves, but not the processes that they have started.

use std::{
    io::{self, Write},
    os::unix::process::CommandExt,
    process::{Child, ChildStdin, ExitCode, Stdio},
};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::invocation;

/// The name of the subcommand.
pub(crate) const NAME: &str = "run-guard";

/// The line that the launcher sends when all ranks have ended.
const DONE: &str = "done";

/// Kills process groups when the launcher has died. Its standard input has one group per line, and is closed when the launcher
/// dies.
pub(crate) fn run() -> ExitCode {
    let mut groups = Vec::new();
    for line in io::stdin().lines().map_while(Result::ok) {
        if line == DONE {
            return ExitCode::SUCCESS;
        }
        groups.extend(line.parse().ok().and_then(Pid::from_raw));
    }
    for group in groups {
        // It fails only if no process is left.
        let _ = kill_process_group(group, Signal::KILL);
    }
    ExitCode::SUCCESS
}

/// The launcher's connection to its guard.
#[derive(Debug)]
pub(super) struct Hold {
    guard: Child,
    line: ChildStdin,
}

impl Hold {
    /// Starts the guard in a separate process group, so that the terminal's signals do not reach it.
    pub(super) fn start() -> io::Result<Self> {
        let mut command = invocation::command();
        command.arg(NAME).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut guard = command.spawn()?;
        let line = guard.stdin.take().ok_or_else(|| io::Error::other("the guard has no input"))?;
        Ok(Self { guard, line })
    }

    /// Tells the guard of a process group. If the guard was killed, the job continues without it.
    pub(super) fn add(&mut self, group: Pid) {
        let _ = writeln!(self.line, "{}", group.as_raw_pid());
    }

    /// Tells the guard that no process is left, and waits for its end.
    pub(super) fn release(mut self) {
        let _ = writeln!(self.line, "{DONE}");
        drop(self.line);
        let _ = self.guard.wait();
    }
}
