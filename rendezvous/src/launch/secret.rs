//! The job's token, and checks that only this user can access its file and the store's directories.

use std::{
    fs::{self, Metadata},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::Path,
};

use unisono_core::{error::Result, outside};

use super::variables::{Lookup, wrong};
use crate::config::Token;

/// The longest token in a file, in bytes.
const MAX_TOKEN: u64 = 4096;

/// The bits of a mode that give access to users other than the owner.
const OTHERS: u32 = 0o077;

/// The job's secret: `UNISONO_TOKEN`, or the contents of the file that `UNISONO_TOKEN_FILE` names. `variable` returns the value of a
/// variable.
///
/// # Errors
/// [`Error::Config`](unisono_core::Error::Config) if both are set, or the file can be read by other users, or is empty.
pub fn token(variable: Lookup<'_>) -> Result<Token> {
    let name = "UNISONO_TOKEN_FILE";
    let (text, file) = (variable("UNISONO_TOKEN"), variable(name));
    let Some(file) = file else { return Ok(text.unwrap_or_default().into()) };
    if text.is_some() {
        return Err(wrong(variable, name, "UNISONO_TOKEN is set too; unset one of them".into()));
    }
    read(Path::new(&file)).map_err(|problem| wrong(variable, name, problem))
}

fn read(path: &Path) -> std::result::Result<Token, String> {
    let (file, metadata) = outside::open(path).map_err(|error| format!("cannot read it: {error}"))?;
    let user = rustix::process::geteuid().as_raw();
    if metadata.uid() != 0 {
        owned(&metadata, user)?;
    }
    closed(&metadata)?;
    let text = outside::read_open(file, MAX_TOKEN).and_then(outside::text);
    let text = text.map_err(|error| format!("cannot read it: {error}"))?;
    match text.trim_end_matches(['\n', '\r']) {
        "" => Err("it is empty; wanted the token".into()),
        text => Ok(text.into()),
    }
}

/// Creates a directory that only this user can access, or checks that an existing one is such a directory.
pub fn private_directory(path: &Path) -> std::result::Result<(), String> {
    let metadata = made(path)?;
    let wrong = |problem: String| format!("{}: {problem}", path.display());
    if !metadata.is_dir() {
        return Err(wrong("it is not a directory".into()));
    }
    owned(&metadata, rustix::process::geteuid().as_raw()).and_then(|()| closed(&metadata)).map_err(wrong)
}

/// Creates a directory, or returns the existing file or directory of this name.
fn made(path: &Path) -> std::result::Result<Metadata, String> {
    loop {
        match fs::DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(format!("cannot create {}: {error}", path.display()));
            }
            _ => {}
        }
        // The metadata are those of a link itself, because its owner could change its target.
        match fs::symlink_metadata(path) {
            // A job that ends may have just removed the directory in which the next one meets.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            found => return found.map_err(|error| format!("{}: {error}", path.display())),
        }
    }
}

/// Checks that other users cannot replace the entries of a directory: it is not writable by all, or it is sticky.
pub fn holds(path: &Path) -> std::result::Result<(), String> {
    let metadata = fs::metadata(path).map_err(|error| format!("{}: {error}", path.display()))?;
    if metadata.mode() & 0o1002 == 0o002 {
        return Err(format!(
            "{} has mode {:04o}: all users may replace what is in it; remove their write permission (chmod o-w), or make \
             it sticky (chmod +t)",
            path.display(),
            metadata.mode() & 0o7777
        ));
    }
    Ok(())
}

fn owned(metadata: &Metadata, user: u32) -> std::result::Result<(), String> {
    if metadata.uid() == user {
        return Ok(());
    }
    Err(format!("it belongs to user {}, and this process runs as user {user}", metadata.uid()))
}

fn closed(metadata: &Metadata) -> std::result::Result<(), String> {
    let mode = metadata.mode() & 0o7777;
    if mode & OTHERS == 0 {
        return Ok(());
    }
    Err(format!("its mode {mode:04o} gives access to users other than its owner; remove that with chmod go="))
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicBool, Ordering},
        thread,
    };

    use super::*;

    #[test]
    fn a_directory_may_go_while_it_is_made() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("private");
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let _may_be_missing = fs::remove_dir(&path);
                }
            });
            let made = (0..20_000).try_for_each(|_| private_directory(&path));
            over.store(true, Ordering::Relaxed);
            made.unwrap();
        });
    }
}
