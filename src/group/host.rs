//! Which machine a process runs on, and what it shares there with others. A machine's name is for people: two may have the
//! same (`localhost`), and containers of one machine have different ones.

use std::{fs, os::unix::fs::MetadataExt};

use serde::{Deserialize, Serialize};

/// Where a process runs.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub(super) struct Host {
    /// What people call it.
    pub name: String,
    /// The running kernel's number, drawn at random when it started (`boot_id`): processes of one kernel share cores and
    /// memory. The name where there is none, as without /proc.
    pub boot: String,
    /// The namespace of its process numbers: one for each container, as a rule. 0 where unknown, here and below.
    pub processes: u64,
    /// The namespace of its network.
    pub network: u64,
    /// The file system at /dev/shm.
    pub shared_memory: u64,
}

impl Host {
    /// This process's.
    pub(super) fn here() -> Self {
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|boot| boot.trim().to_owned());
        let number =
            |path: &str, of: fn(&fs::Metadata) -> u64| fs::metadata(path).map_or(0, |file| of(&file));
        Self {
            boot: boot.ok().filter(|boot| !boot.is_empty()).unwrap_or_else(|| name.clone()),
            name,
            processes: number("/proc/self/ns/pid", MetadataExt::ino),
            network: number("/proc/self/ns/net", MetadataExt::ino),
            shared_memory: number("/dev/shm", MetadataExt::dev),
        }
    }

    /// Whether both run under one kernel, and so share its processors.
    pub(super) fn same_machine(&self, other: &Self) -> bool {
        self.boot == other.boot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_knows_its_machine() {
        let here = Host::here();
        assert!(!here.name.is_empty() && !here.boot.is_empty());
        assert!(here.same_machine(&Host::here()), "the same whenever it is asked");
        #[cfg(target_os = "linux")]
        assert!(here.boot != here.name && here.processes != 0 && here.network != 0, "{here:?}");
    }
}
