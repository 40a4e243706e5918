//! The properties of a simulated fabric.

use std::time::Duration;

/// The properties of a simulated fabric.
///
/// ```
/// use unisono_transport::{Transport, sim};
///
/// let fabric = sim::Fabric::new(sim::Config { seed: 7, max_sources: 1, ..sim::Config::default() });
/// let (one, other) = (fabric.open(), fabric.open());
/// assert_ne!(one.address(), other.address());
/// assert_eq!(one.limits().max_sources, 1);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The seed of every delay.
    pub seed: u64,
    /// The time from the last byte's leaving to its landing, at least.
    pub latency: Duration,
    /// The most time by which a delivery exceeds `latency`. With more jitter, more deliveries overtake each other.
    pub jitter: Duration,
    /// Bytes per second that an endpoint sends.
    pub bandwidth: u64,
    /// The most puts of one endpoint that may be under way; at more, a put returns [`crate::Posted::Full`].
    pub depth: usize,
    /// As [`crate::Limits::max_put`].
    pub max_put: usize,
    /// As [`crate::Limits::max_inject`].
    pub max_inject: usize,
    /// As [`crate::Limits::max_copied`], if it is larger than that.
    pub max_copied: usize,
    /// As [`crate::Limits::max_sources`].
    pub max_sources: usize,
    /// As [`crate::Limits::local_registration`].
    pub local_registration: bool,
    /// As [`crate::Limits::cheap_registration`].
    pub cheap_registration: bool,
    /// As [`crate::Limits::arrivals`]. If more puts have landed and are not read, the endpoint breaks.
    pub arrivals: usize,
    /// As [`crate::Limits::arrivals_per_peer`]. If more puts of one peer have landed and are not read, the endpoint breaks.
    pub arrivals_per_peer: usize,
    /// True if remote regions are addressed by virtual addresses; otherwise from 0.
    pub virtual_addresses: bool,
    /// True if arrivals report their length.
    pub reports_len: bool,
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
