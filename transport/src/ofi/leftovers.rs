//! What a killed process leaves behind, and the next one with its number stumbles over.
//!
//! libfabric's `shm` names an endpoint's memory after the process, `PID:UID:NUMBER` in /dev/shm. A process that is killed
//! cannot remove it; when its number comes round again, libfabric finds memory whose owner lives, for it is the one
//! that asks, and `fi_enable` says "busy" (prov/shm and prov/util's smr_create, 1.17 to 2.5).

use std::{fs, path::Path, sync::Once};

/// Removes what an earlier process with this one's number has left, once, before this one opens its first endpoint. What
/// another user of libfabric in this process has opened, such as an MPI, is mapped here, and stays.
pub(super) fn sweep() {
    static SWEPT: Once = Once::new();
    SWEPT.call_once(|| {
        if let Ok(maps) = fs::read("/proc/self/maps") {
            sweep_in(Path::new("/dev/shm"), std::process::id(), &String::from_utf8_lossy(&maps));
        }
    });
}

/// The same in any directory, for any process with these mappings. What cannot be read or removed is left for libfabric
/// to complain of.
fn sweep_in(directory: &Path, pid: u32, maps: &str) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let in_use = |name: &str| {
            maps.lines().any(|line| line.rsplit_once('/').is_some_and(|(_, mapped)| mapped == name))
        };
        if name.to_str().is_some_and(|name| is_of(name, pid) && !in_use(name)) {
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
    fn only_what_has_the_own_number_and_is_not_in_use_is_swept() {
        let directory = tempfile::tempdir().unwrap();
        let names = [
            "71:0:0",
            "71:1000:3",
            "71:1000:4",
            "711:0:0",
            "7:0:0",
            "71:0",
            "71:0:0:0",
            "71",
            "71:x:0",
            "psm_71",
        ];
        for name in names {
            fs::write(directory.path().join(name), "").unwrap();
        }
        let maps = "7f00-7f01 rw-s 00000000 00:18 5    /dev/shm/71:1000:4\n7f01-7f02 rw-s 00000000 00:18 6    \
                    /dev/shm/71:1000:30\n7ffd-7ffe rw-p 00000000 00:00 0 [stack]\n";
        sweep_in(directory.path(), 71, maps);
        let left = |name: &&str| directory.path().join(name).exists();
        let left: Vec<_> = names.into_iter().filter(left).collect();
        assert_eq!(left, ["71:1000:4", "711:0:0", "7:0:0", "71:0", "71:0:0:0", "71", "71:x:0", "psm_71"]);
        sweep_in(&directory.path().join("nowhere"), 71, "");
    }
}
