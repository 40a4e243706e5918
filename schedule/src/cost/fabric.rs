//! The parameters of the cost model, and presets with the source of each figure.

use crate::{Kind, Network, Topology};

/// The cost of a message between two ranks.
///
/// The parameters are those of LogGP (Albert Alexandrov, Mihai Ionescu, Klaus Schauser and Chris Scheiman, "LogGP:
/// incorporating long messages into the LogP model", SPAA 1995) and a processor's cost per byte, which TCP needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Path {
    /// The time from a message's first byte leaving a port until it reaches the other (s).
    pub latency: f64,
    /// A processor's time to put a message of any length (s).
    pub send_overhead: f64,
    /// A processor's time to take a message of any length (s).
    pub receive_overhead: f64,
    /// The bandwidth of a port in each direction (B/s).
    pub bandwidth: f64,
    /// A processor's time to put a byte (s/B); 0 if the NIC reads memory itself.
    pub send_per_byte: f64,
    /// A processor's time to take a byte (s/B); 0 if the NIC writes memory itself.
    pub receive_per_byte: f64,
}

/// A fabric and its hosts, in seconds, bytes, and bytes per second.
///
/// ```
/// use unisono_schedule::cost::Fabric;
///
/// // Hosts of 16 ranks and 64 cores, with a port of 200 Gbit/s for each four ranks.
/// let fabric = Fabric { ranks_per_host: 16, ports: 4, cores: 64, ..Fabric::HDR };
/// assert_eq!(fabric.hosts(40), 3);
/// assert_eq!(Fabric::parse("hdr"), Some(Fabric::HDR));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fabric {
    /// Its name on the command line.
    pub name: &'static str,
    /// A description, in one line.
    pub summary: &'static str,
    /// The kind of network.
    pub kind: Kind,
    /// The cost of messages between ranks of different hosts.
    pub between: Path,
    /// The cost of messages between ranks of one host, each with a separate port; `None` if these also go through the host's ports.
    pub inside: Option<Path>,
    /// The number of ports of a host. Its r-th rank uses port r modulo this number.
    pub ports: usize,
    /// The bytes that a switch queues for one port before it drops messages, which happens if several ranks send to one port
    /// (incast). Infinite if the network holds senders back instead, as InfiniBand does.
    pub queue: f64,
    /// The bytes of results that a processor reduces (B/s).
    pub reduction: f64,
    /// The bytes that a processor copies (B/s).
    pub copy: f64,
    /// If true, registering memory costs next to nothing, and every rank lets others write into its output ([`crate::Job::long`]).
    pub cheap_registration: bool,
    /// The most ranks of a host. Consecutive ranks share a host.
    pub ranks_per_host: usize,
    /// The cores of a host.
    pub cores: usize,
    /// The time from waking a rank that shares its core until it continues (s of that core's time). If there is a core for every
    /// rank, ranks keep their cores while they wait, and this does not matter.
    pub switch: f64,
}

/// f32 sums on one core read 27 GB/s (AMD EPYC, Zen 5, both cores busy; with this library's kernels), two operands
/// for every result: 13.5 GB/s.
const REDUCTION: f64 = 13.5e9;
/// memcpy on one core of the same machine.
const COPY: f64 = 12e9;
/// The time to post a write: a step of the engine takes 0.08 µs (`benches/engine.rs`), the rest is a doorbell.
const POST: f64 = 0.15e-6;
/// The time to find a completion: as [`POST`].
const POLL: f64 = 0.15e-6;

/// TCP inside a host, as measured with libfabric's `net`.
const LOOPBACK: Path = Path {
    // 64 B take 5.2 µs one way in libfabric's own benchmark, from call to call: system calls on both sides.
    latency: 1.2e-6,
    send_overhead: 2e-6,
    receive_overhead: 2e-6,
    // No wire limits loopback; this is a 100 Gbit/s NIC's, and about what memcpy reaches.
    bandwidth: 12.5e9,
    // The kernel copies: one stream between two cores moves 5.2 to 7.1 GB/s, two opposite ones on the same two
    // cores 3.2 GB/s each, which is 0.31 ns for sending and receiving a byte together.
    send_per_byte: 0.15e-9,
    receive_per_byte: 0.15e-9,
};

/// Memory that the ranks of a host share, with this library's transport.
const SHARED: Path = Path {
    // A message of 8 B takes 0.35 µs, of which 0.15 are the put (AMD EPYC, virtual, both cores busy, 2026-11-28: `unisono simulate
    // --measure --provider shm`, `unisono bench put`).
    latency: 0.05e-6,
    send_overhead: 0.15e-6,
    receive_overhead: 0.15e-6,
    // The sender copies to where the receiver reads.
    bandwidth: COPY,
    send_per_byte: 1.0 / COPY,
    receive_per_byte: 0.0,
};

/// The part of an Ethernet's bits that is data of TCP: of 1538 bytes on the wire for each packet of 1500 bytes (with preamble,
/// header, check sum and gap, IEEE 802.3) 1448 bytes (without the headers of IPv4 and TCP with timestamps, RFC 7323).
const GOODPUT: f64 = 1448.0 / 1538.0;

/// TCP between hosts through a switch, with a bandwidth (bit/s) and a latency (s).
const fn ethernet(bits: f64, latency: f64) -> Path {
    // System calls and copies are as inside a host.
    Path { latency, bandwidth: bits / 8.0 * GOODPUT, ..LOOPBACK }
}

impl Fabric {
    /// InfiniBand NDR: 400 Gbit/s.
    pub const NDR400: Self = Self {
        name: "ndr400",
        summary: "InfiniBand NDR, 400 Gbit/s, a port for every rank",
        // As HDR, except for the bandwidth. 400 Gbit/s: data sheet of NVIDIA's ConnectX-7.
        between: Path { bandwidth: 50e9, ..Self::HDR.between },
        ..Self::HDR
    };

    /// InfiniBand HDR: 200 Gbit/s.
    pub const HDR: Self = Self {
        name: "hdr",
        summary: "InfiniBand HDR, 200 Gbit/s, a port for every rank",
        kind: Kind::Rdma,
        between: Path {
            // With both overheads 0.9 µs a hop. An all_reduce of 8 B by recursive doubling among 128 hosts, which is 7
            // hops, took 6.01 µs on EDR (Graham et al., "Scalable Hierarchical Aggregation Protocol (SHArP)", COMHPC
            // 2016): 0.86 µs a hop.
            latency: 0.6e-6,
            send_overhead: POST,
            receive_overhead: POLL,
            // 200 Gbit/s: data sheet of NVIDIA's ConnectX-6.
            bandwidth: 25e9,
            send_per_byte: 0.0,
            receive_per_byte: 0.0,
        },
        inside: Some(SHARED),
        // A port and a rank for each of eight accelerators, as in most such hosts.
        ports: 8,
        // InfiniBand Architecture Specification, volume 1: link-level credits, no drops.
        queue: f64::INFINITY,
        reduction: REDUCTION,
        copy: COPY,
        cheap_registration: false,
        ranks_per_host: 8,
        cores: 64,
        switch: 5e-6,
    };

    /// Amazon's Elastic Fabric Adapter: 100 Gbit/s.
    pub const EFA: Self = Self {
        name: "efa",
        summary: "Elastic Fabric Adapter, 100 Gbit/s, a NIC for every rank",
        kind: Kind::Efa,
        between: Path {
            // About 15 µs from one host's program to another's, as Amazon gave for the first generation (c5n); later
            // ones are somewhat faster. Not measured here.
            latency: 15e-6,
            // Descriptors are longer than InfiniBand's, and libfabric's provider orders and matches in software. A guess.
            send_overhead: 0.5e-6,
            receive_overhead: 0.5e-6,
            // 100 Gbit/s: the NIC of c5n and of each of four in p4d, as Amazon describes these.
            bandwidth: 12.5e9,
            ..Self::HDR.between
        },
        ..Self::HDR
    };

    /// Shared memory, all ranks on a host of two cores.
    pub const SHM: Self = Self {
        name: "shm",
        summary: "shared memory, 8 ranks on a host of 2 cores",
        kind: Kind::SharedMemory,
        between: SHARED,
        ..Self::TCP
    };

    /// TCP through the kernel, all ranks on a host of two cores.
    pub const TCP: Self = Self {
        name: "tcp",
        summary: "TCP through the kernel, 8 ranks on a host of 2 cores",
        kind: Kind::Sockets,
        between: LOOPBACK,
        inside: None,
        ports: 8,
        queue: f64::INFINITY,
        reduction: REDUCTION,
        copy: COPY,
        cheap_registration: true,
        ranks_per_host: 8,
        cores: 2,
        // 8 B among 4 ranks by recursive doubling take 53.5 µs, two hops on which each core serves two ranks, and
        // among 8 ranks 167 µs, three hops and four ranks: 14 µs a rank and hop, of which 4 are the overheads.
        switch: 10e-6,
    };

    /// Ethernet of 1 Gbit/s.
    pub const TCP_1G: Self = Self {
        name: "tcp-1g",
        summary: "TCP over Ethernet of 1 Gbit/s, a port for every host",
        // Half of the 50 µs or so of a round trip between programs through one switch (netperf's TCP_RR). Not measured here.
        between: ethernet(1e9, 20e-6),
        inside: Some(SHARED),
        ports: 1,
        // A switch of 48 such ports with 4 MB gave one of them up to 700 KB (Alizadeh et al., "Data Center TCP (DCTCP)",
        // SIGCOMM 2010, section 2.3).
        queue: 700e3,
        cores: 8,
        ..Self::TCP
    };

    /// Ethernet of 10 Gbit/s.
    pub const TCP_10G: Self = Self {
        name: "tcp-10g",
        summary: "TCP over Ethernet of 10 Gbit/s, a port for every host",
        // A round trip of 30 µs or so, of which the system calls are in the overheads. Not measured here.
        between: ethernet(10e9, 10e-6),
        ..Self::TCP_1G
    };

    /// Ethernet of 25 Gbit/s.
    pub const TCP_25G: Self = Self {
        name: "tcp-25g",
        summary: "TCP over Ethernet of 25 Gbit/s, a port for every host",
        // As 10 Gbit/s: processors and interrupts are most of it.
        between: ethernet(25e9, 10e-6),
        ..Self::TCP_1G
    };

    /// Ethernet of 100 Gbit/s.
    pub const TCP_100G: Self = Self {
        name: "tcp-100g",
        summary: "TCP over Ethernet of 100 Gbit/s, a port for every host",
        between: ethernet(100e9, 10e-6),
        ..Self::TCP_1G
    };

    /// The presets.
    pub const ALL: [Self; 9] = [
        Self::SHM,
        Self::NDR400,
        Self::HDR,
        Self::EFA,
        Self::TCP,
        Self::TCP_1G,
        Self::TCP_10G,
        Self::TCP_25G,
        Self::TCP_100G,
    ];

    /// The preset of this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fabric| fabric.name == name)
    }

    /// The fabric of ranks at these places, with `ranks_per_host` ranks on the host with the most: the preset of its kind that is
    /// nearest, with the bandwidth of its ports if that is known.
    pub(crate) fn of(topology: &Topology, ranks_per_host: usize) -> Self {
        let Network { kind, megabits, ports, shared_memory } = topology.network;
        let preset = match (kind, megabits) {
            (Kind::SharedMemory, _) => Self::SHM,
            (Kind::Sockets, 1..=2_500) => Self::TCP_1G,
            (Kind::Sockets, 0 | 2_501..=10_000) => Self::TCP_10G,
            (Kind::Sockets, 10_001..=50_000) => Self::TCP_25G,
            (Kind::Sockets, _) => Self::TCP_100G,
            (Kind::Rdma, _) => Self::HDR,
            (Kind::Efa, _) => Self::EFA,
        };
        let goodput = if kind == Kind::Sockets { GOODPUT } else { 1.0 };
        let bandwidth = match megabits {
            0 => preset.between.bandwidth,
            megabits => f64::from(megabits) * 1e6 / 8.0 * goodput,
        };
        let ranks_per_host = ranks_per_host.max(1);
        let inside = match kind {
            Kind::Sockets if !shared_memory => Some(LOOPBACK),
            Kind::Rdma | Kind::Efa if !shared_memory => None,
            _ => preset.inside,
        };
        Self {
            between: Path { bandwidth, ..preset.between },
            inside,
            ports: ports.clamp(1, ranks_per_host),
            ranks_per_host,
            cores: (topology.cores / topology.hosts.max(1)).max(1),
            ..preset
        }
    }

    /// The network between its ranks.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "a bandwidth in Mbit/s")]
    pub fn network(&self) -> Network {
        let goodput = if self.kind == Kind::Sockets { GOODPUT } else { 1.0 };
        let megabits = (self.between.bandwidth * 8.0 / goodput / 1e6).round() as u32;
        let shared_memory = self.kind == Kind::SharedMemory || self.inside == Some(SHARED);
        Network { kind: self.kind, megabits, ports: self.ports, shared_memory }
    }

    /// The places of `ranks` ranks, with consecutive ranks on a host.
    #[must_use]
    pub fn topology(&self, ranks: usize) -> Topology {
        Topology { ranks, cores: self.at_once(ranks), hosts: self.hosts(ranks), network: self.network() }
    }

    /// How many of `ranks` ranks can run at once, because each has a core.
    #[must_use]
    pub fn at_once(&self, ranks: usize) -> usize {
        let (per_host, cores) = (self.ranks_per_host.max(1), self.cores.max(1));
        let (full, rest) = (ranks / per_host, ranks % per_host);
        full * per_host.min(cores) + rest.min(cores)
    }

    /// The number of hosts of `ranks` ranks.
    #[must_use]
    pub fn hosts(&self, ranks: usize) -> usize {
        ranks.div_ceil(self.ranks_per_host.max(1))
    }

    /// The number of ranks on a core, among `ranks` ranks; 1 if every rank has a core.
    #[must_use]
    pub fn crowd(&self, ranks: usize) -> f64 {
        (self.ranks_per_host.min(ranks) as f64 / self.cores.max(1) as f64).max(1.0)
    }

    /// True if each of `ranks` ranks has its own port and the same costs to all others, so that all can do the same at the same
    /// time.
    pub(crate) fn is_even(&self, ranks: usize) -> bool {
        match self.inside {
            _ if self.ranks_per_host.min(ranks) == 1 => true,
            Some(_) => self.hosts(ranks) == 1,
            None => self.has_port_each(ranks),
        }
    }

    /// True if no two of `ranks` ranks share a port.
    pub(crate) fn has_port_each(&self, ranks: usize) -> bool {
        self.ports >= self.ranks_per_host.min(ranks)
    }

    /// The cost of a message between two ranks, which are on one host or not.
    pub(crate) fn path(&self, same_host: bool) -> &Path {
        self.inside.as_ref().filter(|_| same_host).unwrap_or(&self.between)
    }
}
