//! Where ranks run: which of them share a host and its ports, and how many can run at once, from the information that each has published.

use std::collections::{BTreeMap, BTreeSet};

use unisono_schedule::{Kind, Network, Rank, Topology, select::Chooser};
use unisono_transport::mux;

use super::{host::HostId, network, roster::Cores};

/// Where a rank runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerInfo<'r> {
    pub host: HostId,
    /// The number that this rank has in common with the ranks that it shares memory with, if it reaches other ranks by a fabric.
    pub shares: Option<u32>,
    pub cores: &'r Cores,
    /// The number of its network device among those of the world, and the speed of its port (Mbit/s), 0 if unknown.
    pub device: u32,
    pub megabits: u32,
}

/// The ranks of this machine, and the number of them that can run at once.
pub(crate) fn sharing<'p>(boot: u64, all: impl Iterator<Item = &'p PeerInfo<'p>>) -> (usize, usize) {
    let mut ranks = 0;
    let mut containers: BTreeMap<u64, (BTreeSet<u32>, usize)> = BTreeMap::new();
    for PeerInfo { host, cores, .. } in all.filter(|other| other.host.boot == boot) {
        ranks += 1;
        let (processors, most) = containers.entry(host.processes).or_default();
        processors.extend(&cores.processors);
        // If the time of a rank is limited, all ranks of its container are assumed to share that limit.
        let limited = (cores.share as usize) < cores.processors.len();
        *most = (*most).max(if limited { cores.share as usize } else { 0 });
    }
    let processors: BTreeSet<u32> =
        containers.values().flat_map(|(processors, _)| processors).copied().collect();
    let at_once = containers.values().map(|(processors, most)| match most {
        0 => processors.len(),
        most => processors.len().min(*most),
    });
    (ranks, at_once.sum::<usize>().min(processors.len()).max(1))
}

/// The processor on which a rank begins, so that no two ranks of its machine begin on the same. `None` if they may not all run on the same
/// processors, if there are fewer processors than ranks, or if there are enough that the system finds idle ones itself. If two ranks wait
/// in turns on one processor, the system takes up to 0.1 s to move one of them to an idle processor, and calls take 20 µs until then (16
/// ranks with a core each, 2026-11-27).
pub(crate) fn begins_on(rank: Rank, all: &[PeerInfo<'_>]) -> Option<usize> {
    let me = all.get(rank)?;
    let of_machine = |other: &&PeerInfo<'_>| other.host.boot == me.host.boot;
    let ranks = all.iter().filter(of_machine).count();
    let before = all[..rank].iter().filter(of_machine).count();
    let processors = &me.cores.processors;
    let alike = all.iter().filter(of_machine).all(|other| other.cores.processors == *processors);
    let fits = alike && ranks > 1 && (ranks..2 * ranks).contains(&processors.len());
    let own = processors.get(before * processors.len() / ranks).filter(|_| fits)?;
    usize::try_from(*own).ok()
}

/// The other ranks that share memory with this one.
pub(crate) fn sharers(rank: Rank, all: &[PeerInfo<'_>]) -> Vec<Rank> {
    let shares = all.get(rank).and_then(|me| me.shares);
    let with = |&other: &Rank| other != rank && shares.is_some() && all[other].shares == shares;
    (0..all.len()).filter(with).collect()
}

/// The chooser of algorithms for these ranks of a world of this provider. The slowest port counts, and the host with the fewest ports.
pub(crate) fn chooser(peers: &[PeerInfo<'_>], provider: &str) -> Chooser {
    // In a world that also uses a fabric, a group whose members all share memory uses only that memory.
    let shares = peers.first().and_then(|peer| peer.shares);
    let inside = shares.is_some() && peers.iter().all(|peer| peer.shares == shares);
    let kind = if inside { Kind::SharedMemory } else { network::kind(provider) };
    let mut machines: BTreeMap<u64, Vec<&PeerInfo<'_>>> = BTreeMap::new();
    for peer in peers {
        machines.entry(peer.host.boot).or_default().push(peer);
    }
    let at_once = machines.iter().map(|(&boot, here)| {
        let (ranks, cores) = sharing(boot, here.iter().copied());
        ranks.min(cores)
    });
    // A container with its own network namespace counts as a host, unless the ranks communicate by shared memory.
    let network = |peer: &PeerInfo<'_>| if kind == Kind::SharedMemory { 0 } else { peer.host.network };
    let mut hosts: BTreeMap<(u64, u64), (u32, BTreeSet<u32>)> = BTreeMap::new();
    let mut host_of = Vec::new();
    for peer in peers {
        let next = u32::try_from(hosts.len()).unwrap_or(u32::MAX);
        let host = hosts.entry((peer.host.boot, network(peer))).or_insert((next, BTreeSet::new()));
        host.1.insert(peer.device);
        host_of.push(host.0);
    }
    let network = Network {
        kind,
        megabits: peers.iter().map(|peer| peer.megabits).filter(|&speed| speed > 0).min().unwrap_or(0),
        ports: hosts.values().map(|(_, devices)| devices.len()).min().unwrap_or(1),
        shared_memory: kind == Kind::SharedMemory || mux::fabric_of(provider).is_some(),
    };
    let topology = Topology { ranks: peers.len(), cores: at_once.sum(), hosts: hosts.len(), network };
    Chooser::new(topology, &host_of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::host::Host;

    /// A rank of a test: where it runs, and the names that it refers to.
    #[derive(Clone)]
    struct Peer {
        host: HostId,
        shares: Option<u32>,
        cores: Cores,
        device: u32,
        megabits: u32,
    }

    fn infos(peers: &[Peer]) -> Vec<PeerInfo<'_>> {
        let all = peers.iter();
        all.map(|Peer { host, shares, cores, device, megabits }| PeerInfo {
            host: *host,
            shares: *shares,
            cores,
            device: *device,
            megabits: *megabits,
        })
        .collect()
    }

    fn chosen(peers: &[Peer], provider: &str) -> Topology {
        *chooser(&infos(peers), provider).topology()
    }

    fn topology(peers: &[Peer]) -> Topology {
        chosen(peers, "tcp")
    }

    /// The ranks with which a rank shares its machine.
    fn shared(peers: &[Peer], rank: usize) -> (usize, usize) {
        sharing(peers[rank].host.boot, infos(peers).iter())
    }

    fn begins(peers: &[Peer]) -> Vec<Option<usize>> {
        (0..peers.len()).map(|rank| begins_on(rank, &infos(peers))).collect()
    }

    #[test]
    fn ranks_with_a_processor_each_begin_on_different_ones() {
        let here = |processors: &[u32], ranks| vec![peer("a", processors, 64); ranks];
        assert_eq!(begins(&here(&[0, 2, 5, 7], 4)), [Some(0), Some(2), Some(5), Some(7)]);
        assert_eq!(begins(&here(&[0, 1, 2, 3, 4], 3)), [Some(0), Some(1), Some(3)]);
        // There are far more processors than ranks, or fewer.
        assert_eq!(begins(&here(&[0, 1, 2, 3], 2)), [None, None]);
        assert_eq!(begins(&here(&[0, 1], 3)), [None; 3]);
        assert_eq!(begins(&here(&[0], 1)), [None]);
        // The ranks are bound to different processors.
        assert_eq!(begins(&[peer("a", &[0, 1], 64), peer("a", &[1, 2], 64)]), [None, None]);
        let [one, two] = [peer("a", &[0, 1], 64), peer("b", &[4, 5], 64)];
        assert_eq!(begins(&[one.clone(), two.clone(), one, two]), [Some(0), Some(4), Some(1), Some(5)]);
    }

    fn peer(boot: &str, processors: &[u32], share: u32) -> Peer {
        let boot = u64::from(boot.as_bytes()[0]);
        let host = HostId { boot, processes: 1, ..Host::here().id };
        let cores = Cores { processors: processors.to_vec(), share };
        Peer { host, shares: None, cores, device: 0, megabits: 0 }
    }

    #[test]
    fn ranks_that_may_run_anywhere_share_all_processors() {
        let all = vec![peer("a", &[0, 1], 2); 8];
        assert_eq!(topology(&all), Topology { cores: 2, ..Topology::one_host(8) });
        assert_eq!(shared(&all, 0), (8, 2));
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
    fn containers_of_one_machine_share_its_cores_and_have_separate_limits() {
        let mut all = vec![peer("a", &[0, 1, 2, 3], 1); 4];
        for (peer, container) in all.iter_mut().zip([1, 1, 2, 2]) {
            peer.host.processes = container;
        }
        assert_eq!(topology(&all), Topology { cores: 2, ..Topology::one_host(4) });
        all.iter_mut().for_each(|peer| peer.cores.share = 4);
        all.truncate(3);
        assert_eq!(topology(&all), Topology { cores: 3, ..Topology::one_host(3) });
        assert_eq!(shared(&all, 0), (3, 4));
    }

    #[test]
    fn ranks_with_separate_networks_are_on_separate_hosts() {
        let mut all = vec![peer("a", &[0, 1], 2); 4];
        for (rank, peer) in all.iter_mut().enumerate() {
            peer.host.network = rank as u64 / 2;
            peer.megabits = if rank == 1 { 1000 } else { 10_000 };
        }
        let Topology { cores, hosts, network, .. } = topology(&all);
        assert_eq!((cores, hosts, network.megabits, network.ports), (2, 2, 1000, 1));
        all[1].device = 1;
        assert_eq!(topology(&all).network.ports, 1, "the second host has one");
        all[3].device = 1;
        assert_eq!(topology(&all).network.ports, 2);
        assert_eq!(chosen(&all, "shm").hosts, 1);
    }

    #[test]
    fn a_group_that_shares_memory_uses_that_alone() {
        let mut all = [peer("a", &[0], 1), peer("a", &[1], 1), peer("b", &[0], 1), peer("b", &[1], 1)];
        let network = |peers: &[Peer], provider: &str| chosen(peers, provider).network;
        let taken = |peers: &[Peer], provider: &str| network(peers, provider).kind;
        assert_eq!(taken(&all[2..], "net"), Kind::Sockets);
        for (provider, shares) in
            [("net", false), ("shm,net", true), ("shm,verbs;ofi_rxm", true), ("shm", true)]
        {
            assert_eq!(network(&all, provider).shared_memory, shares, "{provider}");
        }
        for (rank, peer) in (0..).zip(&mut all) {
            peer.shares = Some(rank / 2);
        }
        assert_eq!(taken(&all, "shm,net"), Kind::Sockets);
        assert_eq!(taken(&all[2..], "shm,net"), Kind::SharedMemory);
        assert_eq!(taken(&all[1..3], "shm,verbs;ofi_rxm"), Kind::Rdma);
        // The rank's host refuses shared memory.
        all[3].shares = None;
        assert_eq!(taken(&all[2..], "shm,net"), Kind::Sockets);
    }

    #[test]
    fn hosts_of_one_name_count_each_by_itself() {
        let all = [peer("a", &[0, 1], 2), peer("b", &[0], 1), peer("b", &[0], 1), peer("b", &[0], 1)];
        assert_eq!(topology(&all), Topology { cores: 2, hosts: 2, ..Topology::new(4) });
        assert_eq!(shared(&all, 0), (1, 2));
        assert_eq!(shared(&all, 3), (3, 1));
    }
}
