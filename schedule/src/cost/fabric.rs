//! What a fabric and its hosts cost: the parameters of the model, and presets with where each figure comes from.

/// A fabric and the hosts on it, in SI units: seconds, bytes, and bytes per second.
///
/// The parameters are those of LogGP (Albert Alexandrov, Mihai Ionescu, Klaus Schauser and Chris Scheiman, "LogGP:
/// incorporating long messages into the LogP model", SPAA 1995) but for the processor's cost per byte and the
/// sharing of cores, which TCP needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fabric {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it stands for, in a line.
    pub summary: &'static str,
    /// From when a message's first byte leaves a port until it arrives at another (s).
    pub latency: f64,
    /// A processor's time to put one message, whatever its length (s).
    pub send_overhead: f64,
    /// A processor's time to take one message, whatever its length (s).
    pub receive_overhead: f64,
    /// What a rank's port moves, in each direction at once (B/s).
    pub bandwidth: f64,
    /// A processor's time to put a byte (s/B); 0 where the NIC reads memory by itself.
    pub send_per_byte: f64,
    /// A processor's time to take a byte (s/B); 0 where the NIC writes memory by itself.
    pub receive_per_byte: f64,
    /// How fast a processor reduces: bytes of the result (B/s).
    pub reduction: f64,
    /// How fast a processor copies (B/s).
    pub copy: f64,
    /// Whether registering memory costs next to nothing, so that every rank lets others write into its output
    /// ([`super::super::Job::long`]).
    pub cheap_registration: bool,
    /// How many ranks a host has, at most.
    pub ranks_per_host: usize,
    /// How many cores these share.
    pub cores: usize,
    /// From when a rank that waits on a core it shares is told to go on until it does (s of that core's time). Where
    /// there is a core for every rank, ranks wait on theirs and this does not matter.
    pub switch: f64,
}

/// f32 sums on one core read 27 GB/s (AMD EPYC, Zen 5, both cores busy; with this library's kernels), two operands
/// for every result: 13.5 GB/s.
const REDUCTION: f64 = 13.5e9;
/// memcpy on one core of the same machine.
const COPY: f64 = 12e9;
/// Posting a write and going on: a step of the engine takes 0.08 µs (`benches/engine.rs`), the rest is a doorbell.
const POST: f64 = 0.15e-6;
/// Finding a completion and going on: as [`POST`].
const POLL: f64 = 0.15e-6;

impl Fabric {
    /// InfiniBand NDR: 400 Gbit/s.
    pub const NDR400: Self = Self {
        name: "ndr400",
        summary: "InfiniBand NDR, 400 Gbit/s, a port for every rank",
        // As HDR: the generations differ in bandwidth.
        latency: 0.6e-6,
        // 400 Gbit/s: data sheet of NVIDIA's ConnectX-7.
        bandwidth: 50e9,
        ..Self::HDR
    };

    /// InfiniBand HDR: 200 Gbit/s.
    pub const HDR: Self = Self {
        name: "hdr",
        summary: "InfiniBand HDR, 200 Gbit/s, a port for every rank",
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
        reduction: REDUCTION,
        copy: COPY,
        cheap_registration: false,
        // A port and a rank for each of eight accelerators, as in most such hosts.
        ranks_per_host: 8,
        cores: 64,
        switch: 5e-6,
    };

    /// Amazon's Elastic Fabric Adapter: 100 Gbit/s.
    pub const EFA: Self = Self {
        name: "efa",
        summary: "Elastic Fabric Adapter, 100 Gbit/s, a card for every rank",
        // About 15 µs from one host's program to another's, as Amazon gave for the first generation (c5n); later ones
        // are somewhat faster. Not measured by us.
        latency: 15e-6,
        // Descriptors are longer than InfiniBand's, and libfabric's provider orders and matches in software. A guess.
        send_overhead: 0.5e-6,
        receive_overhead: 0.5e-6,
        // 100 Gbit/s: the card of c5n and of each of four in p4d, as Amazon describes these.
        bandwidth: 12.5e9,
        ..Self::HDR
    };

    /// TCP through the kernel, all ranks on a host of two cores, as measured with libfabric's `net`.
    pub const TCP: Self = Self {
        name: "tcp",
        summary: "TCP through the kernel, 8 ranks on a host of 2 cores",
        // 64 B take 5.2 µs one way in libfabric's own benchmark, from call to call: system calls on both sides.
        latency: 1.2e-6,
        send_overhead: 2e-6,
        receive_overhead: 2e-6,
        // No wire limits loopback; this is a 100 Gbit/s card's, and about what memcpy reaches.
        bandwidth: 12.5e9,
        // The kernel copies: one stream between two cores moves 5.2 to 7.1 GB/s, two opposite ones on the same two
        // cores 3.2 GB/s each, which is 0.31 ns for sending and receiving a byte together.
        send_per_byte: 0.15e-9,
        receive_per_byte: 0.15e-9,
        reduction: REDUCTION,
        copy: COPY,
        cheap_registration: true,
        ranks_per_host: 8,
        cores: 2,
        // 8 B among 4 ranks by recursive doubling take 53.5 µs, two hops on which each core serves two ranks, and
        // among 8 ranks 167 µs, three hops and four ranks: 14 µs a rank and hop, of which 4 are the overheads.
        switch: 10e-6,
    };

    /// The presets.
    pub const ALL: [Self; 4] = [Self::NDR400, Self::HDR, Self::EFA, Self::TCP];

    /// The preset of this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fabric| fabric.name == name)
    }

    /// How many ranks of a world of so many can run at once: each that has a core.
    #[must_use]
    pub fn at_once(&self, ranks: usize) -> usize {
        let (per_host, cores) = (self.ranks_per_host.max(1), self.cores.max(1));
        let (full, rest) = (ranks / per_host, ranks % per_host);
        full * per_host.min(cores) + rest.min(cores)
    }

    /// On how many hosts the ranks of a world of so many are.
    #[must_use]
    pub fn hosts(&self, ranks: usize) -> usize {
        ranks.div_ceil(self.ranks_per_host.max(1))
    }

    /// How many ranks share a core, in a world of so many; 1 where every rank has one, and not less.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "numbers of ranks and cores")]
    pub fn crowd(&self, ranks: usize) -> f64 {
        (self.ranks_per_host.min(ranks) as f64 / self.cores.max(1) as f64).max(1.0)
    }
}
