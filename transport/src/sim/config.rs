//! What a simulated fabric is like.

use std::time::Duration;

/// What the simulated fabric is like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// What every delay is drawn from.
    pub seed: u64,
    /// From the last byte's leaving to its landing.
    pub latency: Duration,
    /// How much longer than `latency` a delivery may take: the larger, the more overtake one another.
    pub jitter: Duration,
    /// Bytes per second that an endpoint sends.
    pub bandwidth: u64,
    /// How many puts of one endpoint may be under way before it says [`crate::Posted::Full`].
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
    /// As [`crate::Limits::arrivals`]; more landed and unread puts than this break the endpoint.
    pub arrivals: usize,
    /// As [`crate::Limits::arrivals_per_peer`]; more landed and unread puts of one peer break the endpoint.
    pub arrivals_per_peer: usize,
    /// Whether remote regions are addressed by virtual address rather than from 0.
    pub virtual_addresses: bool,
    /// Whether arrivals report their length.
    pub reports_len: bool,
}

impl Default for Config {
    /// A fast fabric that orders nothing and needs local registration, as the meanest real ones do.
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
