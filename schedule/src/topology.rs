//! Where ranks run and what joins them: what a choice depends on besides the call.

/// What joins ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Memory that the ranks of one host share.
    SharedMemory,
    /// TCP: over the loopback interface inside a host, over Ethernet between hosts. Processors move the bytes.
    Sockets,
    /// NICs that read and write memory by themselves: InfiniBand, RoCE, Slingshot, Omni-Path.
    Rdma,
    /// Amazon's Elastic Fabric Adapter.
    Efa,
}

/// What joins ranks, as all of them know it alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network {
    /// What it is.
    pub kind: Kind,
    /// What the slowest port moves in each direction (Mbit/s); 0 if nobody knows.
    pub megabits: u32,
    /// How many ports each host has that its ranks use, on the host with the fewest.
    pub ports: usize,
}

impl Network {
    /// Of a kind, with one port a host, whose speed nobody knows.
    #[must_use]
    pub const fn new(kind: Kind) -> Self {
        Self { kind, megabits: 0, ports: 1 }
    }
}

/// What all ranks know alike of where they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topology {
    /// The number of ranks.
    pub ranks: usize,
    /// How many of them can run at once: on each host its ranks or its cores, whichever are fewer.
    pub cores: usize,
    /// On how many hosts they are.
    pub hosts: usize,
    /// What joins them.
    pub network: Network,
}

impl Topology {
    /// Of ranks that have a host each, joined by sockets.
    #[must_use]
    pub const fn new(ranks: usize) -> Self {
        Self { ranks, cores: ranks, hosts: ranks, network: Network::new(Kind::Sockets) }
    }

    /// Of ranks on one host with a core for each, joined by sockets.
    #[must_use]
    pub const fn one_host(ranks: usize) -> Self {
        Self { hosts: 1, ..Self::new(ranks) }
    }

    /// Whether so few cores are shared by so many ranks that a collective of small messages takes what all its messages
    /// together cost, and not what the longest chain of them does.
    ///
    /// In a star one rank handles each of 2(n-1) messages, which costs it about half of what sending and taking one
    /// costs. All other algorithms have at least n log2 n / 2 messages and up to n log2 n, which the cores share.
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
