//! How the program was started: its arguments, and what starts it again. It starts itself as the ranks of a job.

use std::{
    env,
    ffi::{OsStr, OsString},
    os::unix::process::CommandExt,
    process::Command,
    sync::OnceLock,
};

/// This executable. Unlike its path, the link stays valid if the file is replaced by a newer one.
const EXECUTABLE: &str = "/proc/self/exe";

/// The invocation that [`crate::main`] was given.
static INVOCATION: OnceLock<Invocation> = OnceLock::new();

/// How the program was started.
#[derive(Clone, Debug)]
pub struct Invocation {
    again: Vec<OsString>,
    arguments: Vec<OsString>,
}

impl Default for Invocation {
    /// The invocation of a process whose executable is the program.
    fn default() -> Self {
        Self::new(vec![EXECUTABLE.into()], env::args_os().skip(1).collect())
    }
}

impl Invocation {
    /// An invocation with these `arguments`. `again` is the command that starts the program once more when arguments are added: an
    /// interpreter and what it needs to find the program.
    pub fn new(again: Vec<OsString>, arguments: Vec<OsString>) -> Self {
        Self { again, arguments }
    }

    /// Makes this the invocation of the process, unless it has one.
    pub(crate) fn install(self) {
        INVOCATION.get_or_init(|| self);
    }

    fn installed() -> &'static Self {
        INVOCATION.get_or_init(Self::default)
    }
}

/// The arguments that the program was started with.
pub(crate) fn arguments() -> &'static [OsString] {
    &Invocation::installed().arguments
}

/// The words of a command that starts the program again.
pub(crate) fn words() -> &'static [OsString] {
    &Invocation::installed().again
}

/// A command that starts the program again, so far without arguments.
pub(crate) fn command() -> Command {
    let mut words = words().iter();
    let program = words.next().map_or_else(|| OsStr::new(EXECUTABLE), OsString::as_os_str);
    let mut command = Command::new(program);
    if program == EXECUTABLE {
        command.arg0("unisono");
    }
    command.args(words);
    command
}

/// The same as text, for errors.
pub(crate) fn shown() -> String {
    words().join(OsStr::new(" ")).to_string_lossy().into_owned()
}
