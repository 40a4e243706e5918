//! Finds the program before any rank is started, so that a wrong name is reported once and not by every rank.

use std::{env, ffi::OsStr, os::unix::ffi::OsStrExt, path::Path};

use rustix::fs::{Access, access};

/// Checks that `exec` will find `name`: a path if it has a slash, otherwise a file in a directory of `path`, or of this
/// process's PATH.
///
/// # Errors
/// The exit status that shells give then, and the reason.
pub(super) fn find(name: &OsStr, path: Option<&OsStr>) -> Result<(), (u8, String)> {
    let (mut found, is_path) = (false, name.as_bytes().contains(&b'/'));
    let mut fits = |path: &Path| {
        found |= path.exists();
        path.is_file() && access(path, Access::EXEC_OK).is_ok()
    };
    let fit = if is_path {
        fits(Path::new(name))
    } else {
        let own = || env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
        let directories = path.map_or_else(own, OsStr::to_owned);
        !name.is_empty() && env::split_paths(&directories).any(|directory| fits(&directory.join(name)))
    };
    let shown = name.display();
    match (fit, found) {
        (true, _) => Ok(()),
        (false, true) => Err((126, format!("{shown} is not an executable program"))),
        (false, false) if is_path => Err((127, format!("there is no program {shown}"))),
        (false, false) => Err((127, format!("there is no program {shown} in the directories of PATH"))),
    }
}
