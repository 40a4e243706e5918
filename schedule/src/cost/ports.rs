//! The ports of the simulation: a host's ports to other hosts, which its ranks share, and each rank's port inside its host.

use std::collections::HashMap;

use super::{Fabric, Path};
use crate::Rank;

/// Bytes of a segment, the unit in which the kernel forwards what processors send (Linux, GSO_LEGACY_MAX_SIZE): a receiver can take
/// the first segments while the sender still sends the rest.
const SEGMENT: f64 = 65536.0;

/// The times until which a port is busy, in each direction (s).
#[derive(Clone, Copy, Default)]
struct Port {
    out: f64,
    inward: f64,
    /// The sender of the message that came in last.
    from: usize,
}

/// All ports of the ranks that are simulated.
pub(super) struct Ports<'a> {
    fabric: &'a Fabric,
    /// The host of each rank.
    hosts: Vec<usize>,
    /// The port of each rank to other hosts, as an index of `ports`.
    port: Vec<usize>,
    /// The ports to other hosts, then one of each rank inside its host, from index `inside` on.
    ports: Vec<Port>,
    inside: usize,
    /// If true, only one rank is simulated, which stands for others on its host.
    alone_inside: bool,
}

/// The times of a message that leaves.
pub(super) struct Departure {
    /// When its first byte reaches the receiver's port, and when its last byte does if that port is free (s).
    pub head: f64,
    pub last: f64,
    /// When its source is no longer read (s).
    pub left: f64,
    /// The time of its sender's processor (s).
    pub spent: f64,
}

impl<'a> Ports<'a> {
    /// The ports of ranks on these hosts. `alone_inside` says that there is one rank, which stands for others that are all on its host.
    pub(super) fn new(fabric: &'a Fabric, hosts: Vec<usize>, alone_inside: bool) -> Self {
        let each = fabric.ports.max(1);
        let count = hosts.iter().max().map_or(0, |last| last + 1);
        let (mut used, mut made) = (vec![0_usize; count], HashMap::new());
        let port = hosts.iter().map(|&host| {
            // A host's n-th rank uses port n modulo their number. Only ports that are used are made.
            let (next, index) = (made.len(), used[host] % each);
            used[host] += 1;
            *made.entry((host, index)).or_insert(next)
        });
        let port = port.collect();
        let inside = made.len();
        let own = if fabric.inside.is_some() { hosts.len() } else { 0 };
        let ports = vec![Port::default(); inside + own];
        Self { fabric, hosts, port, ports, inside, alone_inside }
    }

    pub(super) fn same_host(&self, one: Rank, other: Rank) -> bool {
        if one == other { self.alone_inside } else { self.hosts[one] == self.hosts[other] }
    }

    /// The cost of messages between two simulated ranks.
    pub(super) fn path(&self, one: Rank, other: Rank) -> &'a Path {
        self.fabric.path(self.same_host(one, other))
    }

    /// The port of a rank towards a peer.
    fn port(&mut self, rank: Rank, peer: Rank) -> &mut Port {
        let inside = self.fabric.inside.is_some() && self.same_host(rank, peer);
        let index = if inside { self.inside + rank } else { self.port[rank] };
        &mut self.ports[index]
    }

    /// A message leaves as soon as the port is free and the processor has done its part, which takes `share` times as long as on a
    /// separate core.
    pub(super) fn send(&mut self, from: Rank, to: Rank, bytes: f64, share: f64, now: f64) -> Departure {
        let path = self.path(from, to);
        let spent = path.send_overhead + bytes * path.send_per_byte;
        let rest = (bytes - SEGMENT).max(0.0) * path.send_per_byte;
        let port = self.port(from, to);
        let start = (now + (spent - rest) * share).max(port.out);
        port.out = (start + bytes / path.bandwidth).max(now + spent * share);
        let left = port.out;
        Departure { head: start + path.latency, last: left + path.latency, left, spent }
    }

    /// The time at which a message that has reached its receiver's port can be taken: so early that the receiver need not wait for
    /// the last segment. A message that does not fit into the switch's queue behind those of other senders is sent again, a round
    /// trip later.
    pub(super) fn receive(
        &mut self,
        from: Rank,
        to: Rank,
        bytes: f64,
        last: f64,
        share: f64,
        now: f64,
    ) -> f64 {
        let path = self.path(from, to);
        let queue = self.fabric.queue;
        let port = self.port(to, from);
        let waits = port.inward - now;
        let dropped = waits > 0.0 && port.from != from && waits * path.bandwidth > queue;
        let again = if dropped { 2.0 * path.latency } else { 0.0 };
        let whole = (now.max(port.inward) + bytes / path.bandwidth + again).max(last);
        // Other messages use the port during that round trip.
        port.inward = whole - again;
        port.from = from;
        let rest = (bytes - SEGMENT).max(0.0) * path.receive_per_byte;
        (whole - rest * share).max(now)
    }
}
