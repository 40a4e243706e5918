//! Records how the program was started: its arguments, and the command that starts it again. It starts itself as the ranks of a
//! job.

use std::{
    env,
    ffi::{OsStr, OsString},
    os::unix::{ffi::OsStrExt, process::CommandExt},
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
        let mut arguments = env::args_os();
        let name = arguments.next().unwrap_or_default();
        let linked = std::fs::read_link(EXECUTABLE).is_ok();
        Self::new(vec![executable(linked, &name)], arguments.collect())
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

/// This executable: the link, or where there is none (no /proc, as in a bare chroot) the name that it was started by.
fn executable(linked: bool, name: &OsStr) -> OsString {
    if linked {
        return EXECUTABLE.into();
    }
    // A name without a directory is looked for in PATH; another is of this directory, which a child may not start in.
    let has_directory = name.as_bytes().contains(&b'/');
    let whole = has_directory.then(|| std::path::absolute(name).ok()).flatten();
    whole.map_or_else(|| name.to_owned(), Into::into)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_proc_the_program_is_found_by_the_name_that_it_was_started_by() {
        let of = |linked, name: &str| executable(linked, name.as_ref()).into_string().unwrap();
        assert_eq!(of(true, "/usr/bin/unisono"), EXECUTABLE);
        assert_eq!(of(false, "/usr/bin/unisono"), "/usr/bin/unisono");
        assert_eq!(of(false, "unisono"), "unisono");
        let here = env::current_dir().unwrap();
        assert_eq!(of(false, "target/unisono"), here.join("target/unisono").to_str().unwrap());
    }
}
