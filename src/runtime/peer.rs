//! Where ranks run: which of them share a host and its ports, and how many can run at once, from the information that each publishes.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use unisono_schedule::{Kind, Network, Topology, select::Chooser};
use unisono_transport::Limits;

use super::{host::Host, network};
use crate::hardware::Processors;

/// Where a rank runs.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub(crate) struct PeerInfo {
    pub host: Host,
    /// Names the ranks with which it shares memory beside ranks that it reaches by a fabric: they have the same.
    shares: Option<u128>,
    /// The processors on which it may run.
    processors: Vec<u32>,
    /// The number of processors that it may use at once; less than all if a control group limits its time.
    share: u32,
    /// The network device that it uses, and the speed of its port (Mbit/s); empty and 0 if unknown.
    device: String,
    megabits: u32,
}

impl PeerInfo {
    /// This process's, over a transport.
    pub(crate) fn here(limits: &Limits) -> Self {
        let share = std::thread::available_parallelism().map_or(1, usize::from);
        // It fails if the host has more processors than the set has room for.
        let processors = Processors::allowed().unwrap_or_else(|_| (0..share).collect());
        let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        Self {
            host: Host::here(),
            shares: limits.shares,
            processors: processors.iter().map(number).collect(),
            share: number(share),
            device: limits.device.clone(),
            megabits: network::megabits(limits),
        }
    }

    /// The number of ranks on this host, and the number that can run at once.
    pub(crate) fn shared_by<'p>(&self, all: impl Iterator<Item = &'p Self>) -> (usize, usize) {
        let here: Vec<_> = all.filter(|other| other.host.same_machine(&self.host)).collect();
        let mut containers: BTreeMap<u64, (BTreeSet<u32>, usize)> = BTreeMap::new();
        for peer in &here {
            let (processors, most) = containers.entry(peer.host.processes).or_default();
            processors.extend(&peer.processors);
            // If the time of a rank is limited, all ranks of its container are assumed to share that limit.
            let limited = (peer.share as usize) < peer.processors.len();
            *most = (*most).max(if limited { peer.share as usize } else { 0 });
        }
        let processors: BTreeSet<u32> =
            containers.values().flat_map(|(processors, _)| processors).copied().collect();
        let at_once = containers.values().map(|(processors, most)| match most {
            0 => processors.len(),
            most => processors.len().min(*most),
        });
        (here.len(), at_once.sum::<usize>().min(processors.len()).max(1))
    }
}

/// The chooser of algorithms for these ranks of a world of this provider. The slowest port counts, and the host with the fewest ports.
pub(crate) fn chooser(peers: &[PeerInfo], provider: &str) -> Chooser {
    // Of a world that uses a fabric too, a group whose members all share memory uses that alone.
    let shares = peers.first().and_then(|peer| peer.shares);
    let inside = shares.is_some() && peers.iter().all(|peer| peer.shares == shares);
    let kind = if inside { Kind::SharedMemory } else { network::kind(provider) };
    let machines: BTreeMap<&str, &PeerInfo> =
        peers.iter().map(|peer| (peer.host.boot.as_str(), peer)).collect();
    let at_once = machines.values().map(|peer| {
        let (ranks, cores) = peer.shared_by(peers.iter());
        ranks.min(cores)
    });
    // A container with a network namespace of its own counts as a host, unless the ranks communicate by shared memory.
    let network = |peer: &PeerInfo| if kind == Kind::SharedMemory { 0 } else { peer.host.network };
    let mut hosts: BTreeMap<(&str, u64), (u32, BTreeSet<&str>)> = BTreeMap::new();
    let mut host_of = Vec::new();
    for peer in peers {
        let next = u32::try_from(hosts.len()).unwrap_or(u32::MAX);
        let host = hosts.entry((&peer.host.boot, network(peer))).or_insert((next, BTreeSet::new()));
        host.1.insert(&peer.device);
        host_of.push(host.0);
    }
    let network = Network {
        kind,
        megabits: peers.iter().map(|peer| peer.megabits).filter(|&speed| speed > 0).min().unwrap_or(0),
        ports: hosts.values().map(|(_, devices)| devices.len()).min().unwrap_or(1),
    };
    let topology = Topology { ranks: peers.len(), cores: at_once.sum(), hosts: hosts.len(), network };
    Chooser::new(topology, &host_of)
}

#[cfg(test)]
mod tests {
    use unisono_transport::{Transport as _, inproc::Hub};

    use super::*;

    fn topology(peers: &[PeerInfo]) -> Topology {
        *chooser(peers, "tcp").topology()
    }

    fn peer(boot: &str, processors: &[u32], share: u32) -> PeerInfo {
        // All machines have one name, as many do.
        let host = Host { name: "localhost".to_owned(), boot: boot.to_owned(), processes: 1, ..Host::here() };
        let processors = processors.to_vec();
        PeerInfo { host, shares: None, processors, share, device: "eth0".to_owned(), megabits: 0 }
    }

    #[test]
    fn this_process_runs_somewhere() {
        let here = PeerInfo::here(Hub::new().open().limits());
        assert!(!here.processors.is_empty() && here.share > 0);
        let alone = topology(std::slice::from_ref(&here));
        assert_eq!((alone.ranks, alone.cores, alone.hosts), (1, 1, 1));
    }

    #[test]
    fn ranks_that_may_run_anywhere_share_all_processors() {
        let all = vec![peer("a", &[0, 1], 2); 8];
        assert_eq!(topology(&all), Topology { cores: 2, ..Topology::one_host(8) });
        assert_eq!(all[0].shared_by(all.iter()), (8, 2));
    }

    #[test]
    fn ranks_bound_to_a_processor_each_have_it() {
        let all: Vec<_> = (0..8).map(|rank| peer("a", &[rank], 1)).collect();
        assert_eq!(topology(&all), Topology::one_host(8));
    }

    #[test]
    fn a_limit_on_time_counts_for_the_host() {
        let all = vec![peer("a", &[0, 1, 2, 3], 2); 4];
        assert_eq!(topology(&all), Topology { cores: 2, ..Topology::one_host(4) });
    }

    #[test]
    fn containers_of_one_machine_share_its_cores_and_have_limits_of_their_own() {
        let mut all = vec![peer("a", &[0, 1, 2, 3], 1); 4];
        for (peer, container) in all.iter_mut().zip([1, 1, 2, 2]) {
            peer.host.processes = container;
            peer.host.name = format!("container{container}");
        }
        assert_eq!(topology(&all), Topology { cores: 2, ..Topology::one_host(4) });
        all.iter_mut().for_each(|peer| peer.share = 4);
        all.truncate(3);
        assert_eq!(topology(&all), Topology { cores: 3, ..Topology::one_host(3) });
        assert_eq!(all[0].shared_by(all.iter()), (3, 4));
    }

    #[test]
    fn ranks_with_a_network_of_their_own_are_on_hosts_of_their_own() {
        let mut all = vec![peer("a", &[0, 1], 2); 4];
        for (rank, peer) in all.iter_mut().enumerate() {
            peer.host.network = rank as u64 / 2;
            peer.megabits = if rank == 1 { 1000 } else { 10_000 };
        }
        let Topology { cores, hosts, network, .. } = topology(&all);
        assert_eq!((cores, hosts, network.megabits, network.ports), (2, 2, 1000, 1));
        "eth1".clone_into(&mut all[1].device);
        assert_eq!(topology(&all).network.ports, 1, "the second host has one");
        "eth1".clone_into(&mut all[3].device);
        assert_eq!(topology(&all).network.ports, 2);
        assert_eq!(chooser(&all, "shm").topology().hosts, 1);
    }

    #[test]
    fn a_group_that_shares_memory_uses_that_alone() {
        let mut all = [peer("a", &[0], 1), peer("a", &[1], 1), peer("b", &[0], 1), peer("b", &[1], 1)];
        let taken = |peers: &[PeerInfo], provider: &str| chooser(peers, provider).topology().network.kind;
        assert_eq!(taken(&all[2..], "net"), Kind::Sockets);
        for (rank, peer) in all.iter_mut().enumerate() {
            peer.shares = Some(rank as u128 / 2);
        }
        assert_eq!(taken(&all, "shm,net"), Kind::Sockets);
        assert_eq!(taken(&all[2..], "shm,net"), Kind::SharedMemory);
        assert_eq!(taken(&all[1..3], "shm,verbs;ofi_rxm"), Kind::Rdma);
        // Its host refuses shared memory.
        all[3].shares = None;
        assert_eq!(taken(&all[2..], "shm,net"), Kind::Sockets);
    }

    #[test]
    fn hosts_of_one_name_count_each_by_itself() {
        let all = [peer("a", &[0, 1], 2), peer("b", &[0], 1), peer("b", &[0], 1), peer("b", &[0], 1)];
        assert_eq!(topology(&all), Topology { cores: 2, hosts: 2, ..Topology::new(4) });
        assert_eq!(all[0].shared_by(all.iter()), (1, 2));
        assert_eq!(all[3].shared_by(all.iter()), (3, 1));
    }
}
