//! The hosts and cores of the ranks, and the network between them. The choice of an algorithm depends on these.

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
}

impl Network {
    /// A network with one port for each host, of unknown bandwidth.
    #[must_use]
    pub const fn new(kind: Kind) -> Self {
        Self { kind, megabits: 0, ports: 1 }
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

    /// Whether so many ranks share so few cores that the time of a collective of small messages is the processor time of all its
    /// messages, and not the time of the longest chain of them.
    ///
    /// In a star one rank handles each of 2(n-1) messages, which takes it about half of the time for sending and taking one. All
    /// other algorithms have from n log2 n / 2 to n log2 n messages, which the cores share.
    pub(crate) fn crowded(self) -> bool {
        let doublings = self.ranks.checked_next_power_of_two().map_or(usize::BITS, usize::ilog2);
        self.ranks > 2 && self.cores as u128 <= u128::from(doublings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Fabric;

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
