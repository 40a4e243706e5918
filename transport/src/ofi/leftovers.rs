//! What a killed process leaves behind, and the next one with its number stumbles over.
//!
//! libfabric's `shm` names an endpoint's memory after the process, `PID:UID:NUMBER` in /dev/shm. A process that is killed
//! cannot remove it; when its number comes round again, libfabric finds memory whose owner lives, for it is the one
//! that asks, and `fi_enable` says "busy" (prov/shm and prov/util's smr_create, 1.17 to 2.5).

use std::{fs, path::Path, sync::Once};

/// Removes what an earlier process with this one's number has left, once, before this one opens its first endpoint.
pub(super) fn sweep() {
    static SWEPT: Once = Once::new();
    SWEPT.call_once(|| sweep_in(Path::new("/dev/shm"), std::process::id()));
}

/// The same in any directory, for any process. What cannot be read or removed is left for libfabric to complain of.
fn sweep_in(directory: &Path, pid: u32) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if name.to_str().is_some_and(|name| is_of(name, pid)) {
            match fs::remove_file(entry.path()) {
                Ok(()) => tracing::debug!(?name, "removed what a process that was killed had left"),
                Err(error) => {
                    tracing::warn!(?name, %error, "cannot remove what a process that was killed has left")
                }
            }
        }
    }
}

fn is_of(name: &str, pid: u32) -> bool {
    let mut parts = name.split(':');
    let number = |part: Option<&str>| part.and_then(|part| part.parse::<u32>().ok());
    number(parts.next()) == Some(pid)
        && number(parts.next()).is_some()
        && number(parts.next()).is_some()
        && parts.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_own_number_is_swept() {
        let directory = tempfile::tempdir().unwrap();
        let names = ["71:0:0", "71:1000:3", "711:0:0", "7:0:0", "71:0", "71:0:0:0", "71", "71:x:0", "psm_71"];
        for name in names {
            fs::write(directory.path().join(name), "").unwrap();
        }
        sweep_in(directory.path(), 71);
        let left = |name: &&str| directory.path().join(name).exists();
        let left: Vec<_> = names.into_iter().filter(left).collect();
        assert_eq!(left, ["711:0:0", "7:0:0", "71:0", "71:0:0:0", "71", "71:x:0", "psm_71"]);
        sweep_in(&directory.path().join("nowhere"), 71);
    }
}
