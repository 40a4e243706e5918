//! The program of a job's ranks. It is looked for before any rank is started, so that a wrong name is reported once and not by every
//! rank.

use std::{env, ffi::OsString, os::unix::ffi::OsStrExt, path::Path};

use rustix::fs::{Access, access};
use serde::{Deserialize, Serialize};

use super::sink::Output;

/// What every rank of a job executes.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Program {
    /// The program, as `exec` takes it: a path, or a name to be found in PATH.
    pub(super) program: OsString,
    pub(super) arguments: Vec<OsString>,
    /// Variables to set in the ranks' environment, besides this process's own and those that every job sets.
    pub(super) environment: Vec<(OsString, OsString)>,
    /// Where the ranks' output goes.
    pub(super) output: Output,
}

impl Program {
    /// Checks that `exec` will find it: a path if it has a slash, otherwise a file in a directory of the ranks' PATH.
    ///
    /// # Errors
    /// The exit status that shells give then, and the reason.
    pub(super) fn find(&self) -> Result<(), (u8, String)> {
        let (mut found, is_path) = (false, self.program.as_bytes().contains(&b'/'));
        let mut fits = |path: &Path| {
            found |= path.exists();
            path.is_file() && access(path, Access::EXEC_OK).is_ok()
        };
        let fit = if is_path {
            fits(Path::new(&self.program))
        } else {
            let given = self.environment.iter().rev().find(|(name, _)| name == "PATH");
            let path = given.map(|(_, path)| path.clone()).or_else(|| env::var_os("PATH"));
            let path = path.unwrap_or_else(|| "/bin:/usr/bin".into());
            !self.program.is_empty()
                && env::split_paths(&path).any(|directory| fits(&directory.join(&self.program)))
        };
        let shown = self.program.display();
        match (fit, found) {
            (true, _) => Ok(()),
            (false, true) => Err((126, format!("{shown} is not an executable program"))),
            (false, false) if is_path => Err((127, format!("there is no program {shown}"))),
            (false, false) => Err((127, format!("there is no program {shown} in the directories of PATH"))),
        }
    }
}
