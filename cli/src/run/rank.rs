//! The hidden subcommand that starts a rank: it makes the kernel kill the rank if the launcher dies, then executes the program.

use std::{
    ffi::OsString,
    io,
    os::unix::process::CommandExt,
    process::{Command, ExitCode},
};

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use super::signals;

/// The name of the subcommand.
pub(crate) const NAME: &str = "run-one-rank";

/// Becomes the program, as a child that dies with the launcher.
#[derive(clap::Args)]
pub(crate) struct RunRank {
    /// The launcher's process number.
    launcher: i32,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

impl RunRank {
    /// Returns only if the program could not be started.
    pub(crate) fn run(self) -> ExitCode {
        if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
            crate::complain!(
                "unisono run: cannot have the kernel kill the rank if the launcher dies: {error}"
            );
            return ExitCode::FAILURE;
        }
        if let Err(error) = signals::unblock() {
            crate::complain!("unisono run: cannot unblock signals for the rank: {error}");
            return ExitCode::FAILURE;
        }
        // If the launcher died before that took effect, no signal will come.
        if getppid().map(Pid::as_raw_pid) != Some(self.launcher) {
            return ExitCode::FAILURE;
        }
        let mut words = self.program.into_iter();
        let program = words.next().unwrap_or_default();
        let error = Command::new(&program).args(words).exec();
        let missing = error.kind() == io::ErrorKind::NotFound;
        // The launcher has checked that the program is there.
        let what =
            if missing { "; the file is there, but not the interpreter or loader that it names" } else { "" };
        crate::complain!("unisono run: cannot start {}: {error}{what}", program.display());
        ExitCode::from(if missing { 127 } else { 126 })
    }
}
