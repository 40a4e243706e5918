//! Which host a process runs on, and what it shares there with other processes. A host's name is for people: two hosts may have
//! the same (`localhost`), and containers of one host have different ones.

use std::{collections::BTreeMap, fs, os::unix::fs::MetadataExt};

use serde::{Deserialize, Serialize};
use unisono_schedule::Rank;

use crate::error::list;

/// Where a process runs.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub(crate) struct Host {
    /// The host's name.
    pub name: String,
    /// The random id of the running kernel (`boot_id`): processes of one kernel share cores and memory. The name if there is no
    /// /proc.
    pub boot: String,
    /// The PID namespace: mostly one for each container. 0 if unknown, as the next two.
    pub processes: u64,
    /// The network namespace.
    pub network: u64,
    /// The file system at /dev/shm.
    pub shared_memory: u64,
}

impl Host {
    /// This process's.
    pub(crate) fn here() -> Self {
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

    /// Why ranks on these hosts (one host for each rank) cannot communicate by libfabric's `shm`, which needs a common /dev/shm and
    /// a common PID namespace. `None` if they can.
    pub(crate) fn apart(all: &[&Self]) -> Option<String> {
        let camps = |of: &dyn Fn(&Self) -> String| {
            let mut camps: BTreeMap<String, Vec<Rank>> = BTreeMap::new();
            for (rank, host) in all.iter().enumerate() {
                camps.entry(of(host)).or_default().push(rank);
            }
            let told = |ranks: &Vec<Rank>| {
                let name = ranks.first().and_then(|&rank| all.get(rank)).map_or("?", |host| &host.name);
                format!("ranks {} on {name}", list(ranks))
            };
            (camps.len() > 1).then(|| camps.values().map(told).collect::<Vec<_>>().join(", "))
        };
        if let Some(camps) = camps(&|host| host.boot.clone()) {
            return Some(format!("it reaches ranks of one host only, and there are {camps}"));
        }
        if let Some(camps) = camps(&|host| host.shared_memory.to_string()) {
            return Some(format!(
                "ranks must have one /dev/shm, and there are several: of {camps}; let containers share one (docker run \
                 --ipc=host)"
            ));
        }
        camps(&|host| host.processes.to_string()).map(|camps| {
            format!(
                "ranks must be in one PID namespace, since each reads the others' memory by their process numbers, and there \
                 are several: of {camps}; let containers share one (docker run --pid=host)"
            )
        })
    }

    /// Whether both run under the same kernel, and so share its processors.
    pub(crate) fn same_machine(&self, other: &Self) -> bool {
        self.boot == other.boot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_shared_within_a_host_a_file_system_and_a_pid_namespace() {
        let here = Host { name: "alpha".into(), ..Host::here() };
        let apart = |other: &Host| Host::apart(&[&here, other, &here]);
        assert_eq!(apart(&here), None);
        let other =
            Host { name: "beta".into(), boot: "another".into(), shared_memory: 1, processes: 2, network: 3 };
        let told = apart(&other).unwrap();
        assert!(told.starts_with("it reaches ranks of one host only, and there are "), "{told}");
        assert!(told.contains("ranks 0, 2 on alpha") && told.contains("ranks 1 on beta"), "{told}");
        let told = apart(&Host { shared_memory: 1, processes: 2, ..here.clone() }).unwrap();
        assert!(told.contains("/dev/shm") && told.contains("--ipc=host"), "{told}");
        let told = apart(&Host { processes: 2, ..here.clone() }).unwrap();
        assert!(told.contains("PID namespace") && told.contains("--pid=host"), "{told}");
        // Each may have a network of its own.
        assert_eq!(apart(&Host { network: 4, name: "gamma".into(), ..here.clone() }), None);
    }

    #[test]
    fn a_process_knows_its_machine() {
        let here = Host::here();
        assert!(!here.name.is_empty() && !here.boot.is_empty());
        assert!(here.same_machine(&Host::here()), "the same whenever it is asked");
        #[cfg(target_os = "linux")]
        assert!(here.boot != here.name && here.processes != 0 && here.network != 0, "{here:?}");
    }
}
