//! The network between the ranks: its kind, by the provider's name, and the speed of this host's port.

use std::path::Path;

use unisono_schedule::Kind;
use unisono_transport::{Limits, mux};

use crate::outside;

/// The most bytes read of a file of the kernel that has a speed.
const LONGEST: u64 = 4 << 10;

/// The kind of network of a provider of this name. [`Limits`] says whether it is sockets or shared memory, but not
/// whether it is EFA.
pub(crate) fn kind(provider: &str) -> Kind {
    // If ranks of a host share memory, only the network between hosts matters.
    let fabric = mux::fabric_of(provider).unwrap_or(provider);
    match fabric.split(';').next().unwrap_or_default() {
        "shm" => Kind::SharedMemory,
        "efa" => Kind::Efa,
        "verbs" | "cxi" | "psm2" | "psm3" | "opx" | "ucx" => Kind::Rdma,
        // These are tcp, net, udp, and the transports of tests: processors move the bytes.
        _ => Kind::Sockets,
    }
}

/// The speed of the port in use in each direction (Mbit/s), as the kernel reports it; 0 if it does not.
pub(crate) fn megabits(limits: &Limits) -> u32 {
    let device = limits.device.as_str();
    // A name that is no device name must not become a part of a path.
    if device.is_empty() || device.contains('/') || device.starts_with('.') {
        return 0;
    }
    let read = |path: String| outside::read_text(Path::new(&path), LONGEST).unwrap_or_default();
    match kind(&limits.provider) {
        Kind::Sockets => ethernet(&read(format!("/sys/class/net/{device}/speed"))),
        Kind::Rdma | Kind::Efa => infiniband(&read(format!("/sys/class/infiniband/{device}/ports/1/rate"))),
        Kind::SharedMemory => 0,
    }
}

/// `10000`, or -1 where there is no link.
fn ethernet(text: &str) -> u32 {
    text.trim().parse().unwrap_or(0)
}

/// `100 Gb/sec (4X EDR)`, or `2.5 Gb/sec (1X SDR)`.
fn infiniband(text: &str) -> u32 {
    let mut words = text.split_whitespace();
    let (rate, unit) = (words.next().unwrap_or_default(), words.next());
    let (whole, tenths) = rate.split_once('.').unwrap_or((rate, "0"));
    let (whole, tenths): (u32, u32) = match (whole.parse(), tenths.parse()) {
        (Ok(whole), Ok(tenths @ 0..=9)) if unit == Some("Gb/sec") => (whole, tenths),
        _ => return 0,
    };
    whole.saturating_mul(1000).saturating_add(100 * tenths)
}

#[cfg(test)]
mod tests {
    use unisono_transport::{Transport as _, inproc::Hub};

    use super::*;

    #[test]
    fn providers_have_kinds() {
        for (provider, wanted) in [
            ("tcp", Kind::Sockets),
            ("net", Kind::Sockets),
            ("tcp;ofi_rxm", Kind::Sockets),
            ("in-process", Kind::Sockets),
            ("shm", Kind::SharedMemory),
            ("shm,net", Kind::Sockets),
            ("shm,verbs;ofi_rxm", Kind::Rdma),
            ("verbs;ofi_rxm", Kind::Rdma),
            ("cxi", Kind::Rdma),
            ("efa", Kind::Efa),
        ] {
            assert_eq!(kind(provider), wanted, "{provider}");
        }
    }

    #[test]
    fn speeds_are_read_or_unknown() {
        for (text, wanted) in [("10000\n", 10_000), ("-1\n", 0), ("", 0), ("99999999999", 0)] {
            assert_eq!(ethernet(text), wanted, "{text:?}");
        }
        for (text, wanted) in [
            ("100 Gb/sec (4X EDR)\n", 100_000),
            ("2.5 Gb/sec (1X SDR)", 2500),
            ("400 Gb/sec", 400_000),
            ("fast", 0),
            ("1.25 Gb/sec", 0),
            ("4294967295 Gb/sec", u32::MAX),
            ("10 Mb/sec", 0),
        ] {
            assert_eq!(infiniband(text), wanted, "{text:?}");
        }
        // Names that are no devices, and a device without a speed.
        for device in ["", "../../etc/passwd", ".", "lo"] {
            let limits = Limits { device: device.to_owned(), ..Hub::new().open().limits().clone() };
            assert_eq!(megabits(&limits), 0, "{device:?}");
        }
    }
}
