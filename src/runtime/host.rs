//! The host that a process runs on, and the resources that it shares there with other processes. A host's name is for people: two hosts may
//! have the same name (`localhost`), and containers of one host have different names.

use std::{collections::BTreeMap, fs, os::unix::fs::MetadataExt as _, sync::OnceLock};

use serde::{Deserialize, Serialize};
use unisono_schedule::Rank;

use crate::error::rank_list;

/// The host of a process.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub(crate) struct Host {
    /// The host's name.
    pub name: String,
    pub id: HostId,
    /// On the process's host, the reason why some of this could not be read.
    #[serde(skip)]
    pub unread: Option<String>,
}

/// Identifies a host, and the resources that processes share there.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct HostId {
    /// A hash of the random id of the running kernel (`boot_id`), or of the name if there is no /proc: processes of one kernel share
    /// cores and memory.
    pub boot: u64,
    /// The PID namespace: usually one for each container. 0 if unknown; the same holds for the next field.
    pub processes: u64,
    /// The network namespace.
    pub network: u64,
    /// The user: its id, and the user namespace in which it has that id (0 if unknown).
    pub user: (u32, u64),
}

impl Host {
    /// The host of this process. It is read once, because later the process may be at its limit on open files.
    pub(crate) fn here() -> Self {
        static HERE: OnceLock<Host> = OnceLock::new();
        HERE.get().cloned().unwrap_or_else(|| {
            let host = Self::read();
            if host.id.boot != hash(&host.name) {
                return HERE.get_or_init(|| host).clone();
            }
            host
        })
    }

    fn read() -> Self {
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|boot| boot.trim().to_owned());
        let mut unread = boot.as_ref().err().map(reason_of);
        let mut namespace = |kind: &str| {
            let file = fs::metadata(format!("/proc/self/ns/{kind}"));
            unread = unread.take().or_else(|| file.as_ref().err().map(reason_of));
            file.map_or(0, |file| file.ino())
        };
        let boot = boot.ok().filter(|boot| !boot.is_empty());
        let id = HostId {
            boot: hash(boot.as_ref().unwrap_or(&name)),
            processes: namespace("pid"),
            network: namespace("net"),
            user: (rustix::process::geteuid().as_raw(), namespace("user")),
        };
        Self { name, id, unread }
    }

    /// Why ranks on these hosts (name and host of each rank) cannot share memory: they must run under one kernel, find each other's
    /// sockets, which belong to a network namespace, and trust each other, as processes of one user do. `None` if they can.
    pub(crate) fn cannot_share_memory(all: &[(&str, HostId)]) -> Option<String> {
        fn groups<K: Ord>(all: &[(&str, HostId)], of: impl Fn(&HostId) -> K) -> Option<String> {
            let mut groups: BTreeMap<K, (&str, Vec<Rank>)> = BTreeMap::new();
            for (rank, (name, host)) in all.iter().enumerate() {
                groups.entry(of(host)).or_insert((name, Vec::new())).1.push(rank);
            }
            let described = |(name, ranks): &(&str, Vec<Rank>)| format!("{} on {name}", rank_list(ranks));
            (groups.len() > 1).then(|| groups.values().map(described).collect::<Vec<_>>().join(", "))
        }
        if let Some(groups) = groups(all, |host| host.boot) {
            return Some(format!("shared memory reaches ranks of one host only, and there are {groups}"));
        }
        if let Some(groups) = groups(all, |host| host.network) {
            return Some(format!(
                "ranks that share memory must be in one network namespace, and there are several: of {groups}; let containers \
                 share one (docker run --network=host)"
            ));
        }
        groups(all, |host| host.user).map(|groups| {
            format!("ranks that share memory must run as one user, and there are several: of {groups}")
        })
    }

    /// The reason why this process does not know which ranks it can share memory with, if it does not.
    pub(crate) fn unknown(&self) -> Option<String> {
        let HostId { boot, network, user, .. } = self.id;
        let known = boot != hash(&self.name) && network != 0 && user.1 != 0;
        (!known).then(|| {
            let why = self.unread.as_deref().unwrap_or("they are empty");
            format!("boot_id in /proc/sys/kernel/random, or the namespaces in /proc/self/ns, cannot be read: {why}")
        })
    }
}

impl HostId {
    /// A number that names the processes that can share memory with this one, if it is not [unknown](Host::unknown). Machines that were
    /// restored from one snapshot have the same number, so ranks try to connect: `address` is that of an endpoint that was reached, or
    /// empty.
    pub(crate) fn scope(&self, address: &[u8]) -> u128 {
        let mut hasher = blake3::Hasher::new_derive_key("unisono 2026-11-27 scope of shared memory");
        hasher.update(&self.boot.to_le_bytes()).update(&self.network.to_le_bytes());
        hasher.update(&self.user.0.to_le_bytes()).update(&self.user.1.to_le_bytes()).update(address);
        hasher.finalize().as_bytes().first_chunk().copied().map_or(0, u128::from_le_bytes)
    }

    /// True if two ranks are on different hosts or in different network namespaces.
    pub(crate) fn is_remote(&self, other: &Self) -> bool {
        (self.boot, self.network) != (other.boot, other.network)
    }
}

/// The text of an error of reading, with advice.
fn reason_of(error: &std::io::Error) -> String {
    let full = [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE].map(|it| Some(it.raw_os_error()));
    let advice =
        if full.contains(&error.raw_os_error()) { "; raise the limit on open files (ulimit -n)" } else { "" };
    format!("{error}{advice}")
}

fn hash(text: &str) -> u64 {
    blake3::hash(text.as_bytes()).as_bytes().first_chunk().copied().map_or(0, u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_shared_within_a_host_a_network_namespace_and_a_user() {
        let here = Host::here().id;
        let problem = |name: &str, other: HostId| {
            Host::cannot_share_memory(&[("alpha", here), (name, other), ("alpha", here)])
        };
        assert_eq!(problem("alpha", here), None);
        let (network, user) = (here.network + 1, (here.user.0 + 1, here.user.1));
        let message = problem("beta", HostId { boot: here.boot ^ 1, processes: 2, network, user }).unwrap();
        assert!(
            message.starts_with("shared memory reaches ranks of one host only, and there are "),
            "{message}"
        );
        assert!(message.contains("ranks 0, 2 on alpha") && message.contains("rank 1 on beta"), "{message}");
        let message = problem("alpha", HostId { network, user, ..here }).unwrap();
        assert!(message.contains("network namespace") && message.contains("--network=host"), "{message}");
        for user in [user, (here.user.0, here.user.1 + 1)] {
            let message = problem("alpha", HostId { user, ..here }).unwrap();
            assert!(message.contains("one user"), "{message}");
        }
        // Each container may have a separate PID namespace.
        assert_eq!(problem("gamma", HostId { processes: 2, ..here }), None);
    }

    #[test]
    fn a_process_knows_its_machine() {
        let here = Host::here();
        assert!(!here.name.is_empty());
        assert_eq!(here, Host::here(), "the same whenever it is asked");
        #[cfg(target_os = "linux")]
        assert!(here.unknown().is_none() && here.id.processes != 0, "{here:?}");
    }
}
