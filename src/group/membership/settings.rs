//! What a configuration asks of the transport, the engine and the planner.

use std::net::{IpAddr, ToSocketAddrs};

use unisono_engine::{Bounds, Settings};
use unisono_schedule::{
    select::{self, Selection, table::Table},
    windows::{BULK_SLOTS, EAGER_SLOTS},
};
use unisono_transport::{Transport, ofi::Options};

use crate::{
    config::{Config, StoreAddress, fnv},
    error::{Error, Result},
    outside,
};

/// The options with which [`ProcessGroup::join`](crate::ProcessGroup::join) opens libfabric. If the configuration names no interface, the interface
/// that leads to the store is used, unless the store's address is a loopback address here, which ranks of other hosts
/// cannot reach.
///
/// ```
/// # use unisono::{Config, group::transport_options};
/// let config = Config { provider: Some("tcp".to_owned()), ..Config::default() };
/// assert_eq!(transport_options(&config).provider.as_deref(), Some("tcp"));
/// ```
#[must_use]
pub fn transport_options(config: &Config) -> Options {
    let towards = match &config.store {
        Some(StoreAddress::Tcp { host, .. }) => leads_to(config, host),
        Some(StoreAddress::Among { hosts, .. }) => hosts.first().and_then(|host| leads_to(config, host)),
        _ => None,
    };
    Options {
        provider: config.provider.clone(),
        interface: config.interface.clone(),
        towards,
        process: config.local_rank.unwrap_or(0),
        arrivals: Options::default()
            .arrivals
            .max(windows(config, Bounds::default()).arrivals_among(config.ranks)),
        deadline: None,
    }
}

/// The windows that a configuration asks for.
pub(super) const fn windows(config: &Config, bounds: Bounds) -> Settings {
    Settings {
        eager_bytes: config.eager(),
        eager_slots: EAGER_SLOTS,
        chunk_bytes: config.chunk,
        bulk_slots: BULK_SLOTS,
        lanes: config.lanes,
        bounds,
    }
}

/// The address by which the store's host is reached, unless it is a loopback address that other hosts cannot reach.
fn leads_to(config: &Config, host: &str) -> Option<IpAddr> {
    let address = (host, 0).to_socket_addrs().ok().and_then(|mut all| all.next()).map(|at| at.ip());
    let here = config.local_ranks == Some(config.ranks);
    address.filter(|&address| here || !StoreAddress::names_itself(host, address))
}

/// The algorithms that the configuration allows.
pub(super) fn selection(config: &Config) -> Result<Selection> {
    let Some(text) = &config.algorithm else { return Ok(Selection::default()) };
    Selection::parse(text).map_err(|problem| Error::Config {
        name: "UNISONO_ALGORITHM".to_owned(),
        value: Some(text.clone()),
        problem,
    })
}

/// The longest tuning file, in bytes: some 100,000 rows.
const MAX_TUNING: u64 = 8 << 20;

/// The tuning file's table, empty if there is no file, and a hash of the file, which ranks compare.
pub(super) fn tuning(config: &Config) -> Result<(Table, String)> {
    let Some(file) = &config.tuning else { return Ok((Table::default(), "none".to_owned())) };
    let wrong = |problem: String| Error::Tuning { file: file.clone(), problem };
    let text = outside::read_text(file, MAX_TUNING).map_err(|error| wrong(error.to_string()))?;
    let table = Table::parse(&text).map_err(wrong)?;
    Ok((table, format!("{:016x}", fnv(text.as_bytes()))))
}

/// The largest chunk, at most the configured one, whose windows can be registered within this process's limit on locked memory. All ranks
/// use the smallest of their chunks.
pub(super) fn affordable_chunk(
    transport: &mut dyn Transport,
    settings: &Settings,
    ranks: usize,
) -> Result<usize> {
    /// Below this size, pipelining costs more than it gains.
    const LEAST: usize = 4 << 10;
    let mut chunk = settings.chunk_bytes;
    if transport.limits().cheap_registration {
        return Ok(chunk);
    }
    loop {
        let (eager, bulk) = select::neighbours(ranks);
        let bytes = Settings { chunk_bytes: chunk, ..*settings }.estimate(eager, bulk);
        match transport.allocate(bytes) {
            Ok(_) => break,
            Err(error @ unisono_transport::Error::Register { .. }) if chunk / 2 >= LEAST => {
                crate::log::warn!(bytes, chunk, %error, "windows do not fit the limit on locked memory; using smaller ones");
                chunk /= 2;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(chunk)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, mknodat};

    use super::*;

    #[test]
    fn tuning_files_that_are_none_are_refused_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        mknodat(CWD, at("fifo"), FileType::Fifo, 0o600.into(), 0).unwrap();
        std::fs::File::create(at("long")).unwrap().set_len(1 << 42).unwrap();
        for (file, words) in [
            ("/dev/zero".into(), "it is a character device, and a regular file is wanted"),
            (at("fifo"), "it is a FIFO, and a regular file is wanted"),
            (at(""), "it is a directory, and a regular file is wanted"),
            (at("long"), "it is longer than 8388608 bytes, the most that such a file may have"),
        ] {
            let config = Config { tuning: Some(file.clone()), ..Config::default() };
            let message = tuning(&config).map(drop).unwrap_err().to_string();
            assert_eq!(message, format!("tuning file {}: {words}", file.display()));
        }
    }
}
