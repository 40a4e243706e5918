//! The properties of a simulated fabric.

use std::time::Duration;

/// The properties of a simulated fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    /// The seed of every delay.
    pub(crate) seed: u64,
    /// The time from the last byte's leaving to its landing, at least.
    pub(crate) latency: Duration,
    /// The most time by which a delivery exceeds `latency`. With more jitter, more deliveries overtake each other.
    pub(crate) jitter: Duration,
    /// Bytes per second that an endpoint sends.
    pub(crate) bandwidth: u64,
    /// The most puts of one endpoint that may be under way; at more, a put returns `Posted::Full`.
    pub(crate) depth: usize,
    /// As `Limits::max_put`.
    pub(crate) max_put: usize,
    /// As `Limits::max_inject`.
    pub(crate) max_inject: usize,
    /// As `Limits::max_copied`, if it is larger than that.
    pub(crate) max_copied: usize,
    /// As `Limits::max_sources`.
    pub(crate) max_sources: usize,
    /// As `Limits::local_registration`.
    pub(crate) local_registration: bool,
    /// As `Limits::cheap_registration`.
    pub(crate) cheap_registration: bool,
    /// As `Limits::arrivals`. If more puts have landed and are not read, the endpoint breaks.
    pub(crate) arrivals: usize,
    /// As `Limits::arrivals_per_peer`. If more puts of one peer have landed and are not read, the endpoint breaks.
    pub(crate) arrivals_per_peer: usize,
    /// True if remote regions are addressed by virtual addresses; otherwise from 0.
    pub(crate) virtual_addresses: bool,
    /// True if arrivals report their length.
    pub(crate) reports_len: bool,
}

impl Default for Config {
    /// A fast fabric that keeps no order and needs local registration, as the most demanding real fabrics do.
    fn default() -> Self {
        Self {
            seed: 0,
            latency: Duration::from_micros(2),
            jitter: Duration::from_micros(10),
            bandwidth: 10_000_000_000,
            depth: 64,
            max_put: 1 << 30,
            max_inject: 64,
            max_copied: 64,
            max_sources: 2,
            local_registration: true,
            cheap_registration: false,
            arrivals: 4096,
            arrivals_per_peer: 4096,
            virtual_addresses: true,
            reports_len: false,
        }
    }
}
