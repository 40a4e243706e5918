//! The hosts and cores of the ranks, and the network between them. The choice of an algorithm depends on these.

use std::collections::{HashMap, HashSet};

use crate::Rank;

/// The kind of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Memory that the ranks of one host share.
    SharedMemory,
    /// TCP, over the loopback interface inside a host and over Ethernet between hosts. Processors move the bytes.
    Sockets,
    /// NICs that read and write memory themselves: InfiniBand, RoCE, Slingshot, Omni-Path.
    Rdma,
    /// Amazon's Elastic Fabric Adapter.
    Efa,
}

/// The network between the ranks, the same on all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network {
    /// Its kind.
    pub kind: Kind,
    /// The bandwidth of the slowest port in each direction (Mbit/s); 0 if it is unknown.
    pub megabits: u32,
    /// The number of ports that a host's ranks use, on the host with the fewest.
    pub ports: usize,
    /// If false, ranks of one host also communicate over the network.
    pub shared_memory: bool,
}

impl Network {
    /// A network with one port for each host, of unknown bandwidth. Only [`Kind::SharedMemory`] is shared memory.
    #[must_use]
    pub const fn new(kind: Kind) -> Self {
        Self { kind, megabits: 0, ports: 1, shared_memory: matches!(kind, Kind::SharedMemory) }
    }
}

/// Where the ranks are, the same on all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topology {
    /// The number of ranks.
    pub ranks: usize,
    /// The number of ranks that can run at once: the sum over all hosts of the ranks or the cores, whichever are fewer.
    pub cores: usize,
    /// The number of hosts.
    pub hosts: usize,
    /// The network between them.
    pub network: Network,
}

impl Topology {
    /// Ranks with a host each, which communicate over TCP.
    #[must_use]
    pub const fn new(ranks: usize) -> Self {
        Self { ranks, cores: ranks, hosts: ranks, network: Network::new(Kind::Sockets) }
    }

    /// Ranks on one host with a core for each, which communicate over TCP.
    #[must_use]
    pub const fn one_host(ranks: usize) -> Self {
        Self { hosts: 1, ..Self::new(ranks) }
    }

    /// True if this many ranks share so few cores that the time of a collective of small messages is the processor time of all its
    /// messages, and not the time of the longest chain of them.
    ///
    /// In a star one rank handles each of 2(n-1) messages, which takes it about half of the time for sending and taking one. All
    /// other algorithms have from n log2 n / 2 to n log2 n messages, which the cores share.
    pub(crate) fn crowded(self) -> bool {
        let doublings = self.ranks.checked_next_power_of_two().map_or(usize::BITS, usize::ilog2);
        self.ranks > 2 && self.cores as u128 <= u128::from(doublings)
    }
}

/// The hosts of a job's ranks, the same on all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Spread<'a> {
    /// All ranks are on one host, or their hosts are unknown.
    #[default]
    Unknown,
    /// This many consecutive ranks are on each host, and the rest on the last.
    Even(usize),
    /// The number of each rank's host. If a rank has none, the hosts are unknown.
    Of(&'a [u32]),
}

impl Spread<'_> {
    /// The ranks of each host, in ascending order; the hosts in the order of their first ranks. If the hosts are not known, all ranks are
    /// on one.
    pub(crate) fn hosts(self, ranks: usize) -> Vec<Vec<Rank>> {
        match self {
            Self::Even(each) if each > 0 => {
                (0..ranks).step_by(each).map(|first| (first..ranks.min(first + each)).collect()).collect()
            }
            Self::Of(hosts) if hosts.len() >= ranks => {
                let (mut index, mut all) = (HashMap::new(), Vec::<Vec<Rank>>::new());
                for (rank, host) in hosts.iter().enumerate().take(ranks) {
                    let at = *index.entry(host).or_insert(all.len());
                    match all.get_mut(at) {
                        Some(members) => members.push(rank),
                        None => all.push(vec![rank]),
                    }
                }
                all
            }
            _ => vec![(0..ranks).collect()],
        }
    }

    /// The ranks of the host of `rank`, in ascending order; empty if there is no such rank. If the hosts are not known, all ranks are on one.
    #[must_use]
    pub fn beside(self, rank: Rank, ranks: usize) -> Vec<Rank> {
        self.hosts(ranks).into_iter().find(|host| host.contains(&rank)).unwrap_or_default()
    }

    /// True if there are several hosts, and one has several of `ranks` ranks.
    #[must_use]
    pub fn has_levels(self, ranks: usize) -> bool {
        match self {
            Self::Even(each) => each > 1 && ranks > each,
            Self::Of(hosts) if hosts.len() >= ranks => {
                let count = hosts[..ranks].iter().collect::<HashSet<_>>().len();
                count > 1 && count < ranks
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Fabric;

    #[test]
    fn levels_are_where_a_host_of_several_has_several_ranks() {
        for (spread, ranks, hosts) in [
            (Spread::Unknown, 3, vec![vec![0, 1, 2]]),
            (Spread::Even(0), 2, vec![vec![0, 1]]),
            (Spread::Even(1), 2, vec![vec![0], vec![1]]),
            (Spread::Even(2), 2, vec![vec![0, 1]]),
            (Spread::Even(2), 5, vec![vec![0, 1], vec![2, 3], vec![4]]),
            (Spread::Of(&[7, 7]), 3, vec![vec![0, 1, 2]]),
            (Spread::Of(&[7, 3, 7]), 3, vec![vec![0, 2], vec![1]]),
            (Spread::Of(&[7, 3, u32::MAX]), 3, vec![vec![0], vec![1], vec![2]]),
        ] {
            assert_eq!(spread.hosts(ranks), hosts, "{spread:?}");
            let levels = hosts.len() > 1 && hosts.len() < ranks;
            assert_eq!(spread.has_levels(ranks), levels, "{spread:?}");
        }
    }

    #[test]
    fn ranks_with_a_core_each_are_not_crowded() {
        for ranks in [1, 2, 3, 4, 8, 1000, usize::MAX] {
            assert!(!Topology::new(ranks).crowded(), "{ranks}");
        }
    }

    #[test]
    fn a_fabric_has_hosts_and_cores_for_its_ranks() {
        let on = |fabric: &Fabric, ranks| fabric.topology(ranks);
        assert_eq!(
            on(&Fabric::TCP, 8),
            Topology { cores: 2, network: Fabric::TCP.network(), ..Topology::one_host(8) }
        );
        let nine = on(&Fabric::TCP, 9);
        assert_eq!((nine.ranks, nine.cores, nine.hosts), (9, 3, 2));
        assert_eq!(
            [on(&Fabric::TCP, 2), on(&Fabric { ranks_per_host: 1, ..Fabric::TCP }, 2)].map(|it| it.hosts),
            [1, 2]
        );
    }

    #[test]
    fn few_cores_for_many_ranks_are_crowded() {
        let crowded = |ranks, cores| Topology { cores, ..Topology::one_host(ranks) }.crowded();
        assert!(crowded(3, 2) && crowded(4, 2) && crowded(8, 2) && crowded(8, 3) && crowded(64, 6));
        assert!(!crowded(2, 1) && !crowded(4, 3) && !crowded(8, 4) && !crowded(64, 16));
    }
}
