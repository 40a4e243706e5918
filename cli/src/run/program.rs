//! Finds the program before any rank is started, so that a wrong name is reported once and not by every rank.

use std::{
    env,
    ffi::{OsStr, OsString},
    fmt,
    os::unix::ffi::OsStrExt,
    path::Path,
};

use rustix::fs::{Access, access};

/// Why a program cannot be started.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Problem {
    /// There is no such file.
    Missing(OsString),
    /// The file is a directory, or may not be executed.
    NotExecutable(OsString),
}

impl Problem {
    /// The exit status as shells give it.
    pub(super) fn status(&self) -> u8 {
        match self {
            Self::Missing(_) => 127,
            Self::NotExecutable(_) => 126,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(name) if name.as_bytes().contains(&b'/') => {
                write!(f, "there is no program {}", name.display())
            }
            Self::Missing(name) => {
                write!(f, "there is no program {} in the directories of PATH", name.display())
            }
            Self::NotExecutable(name) => {
                write!(f, "{} is not an executable program", name.display())
            }
        }
    }
}

/// Checks that `exec` will find `name`: a path if it has a slash, otherwise a file in a directory of PATH.
pub(super) fn find(name: &OsStr) -> Result<(), Problem> {
    let mut found = false;
    let mut fits = |path: &Path| {
        found |= path.exists();
        path.is_file() && access(path, Access::EXEC_OK).is_ok()
    };
    let fit = if name.as_bytes().contains(&b'/') {
        fits(Path::new(name))
    } else {
        let directories = env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
        !name.is_empty() && env::split_paths(&directories).any(|directory| fits(&directory.join(name)))
    };
    match (fit, found) {
        (true, _) => Ok(()),
        (false, true) => Err(Problem::NotExecutable(name.to_owned())),
        (false, false) => Err(Problem::Missing(name.to_owned())),
    }
}
