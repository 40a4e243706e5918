//! The data that a rank publishes about itself when it joins: where it runs, its network device, and how it is reached.

use std::{
    fs,
    net::{IpAddr, Ipv6Addr, SocketAddr},
};

use serde::{Deserialize, Serialize};
use unisono_engine::Contact;
use unisono_transport::{Address, Limits, RemoteRegion};

use crate::{
    hardware::Processors,
    rendezvous::Store,
    runtime::{
        host::{Host, HostId},
        network,
    },
};

/// The processors on which a rank may run.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq, Hash)]
pub(crate) struct Cores {
    pub processors: Vec<u32>,
    /// The number of processors that it may use at once; less than all if a control group limits its time.
    pub share: u32,
}

impl Cores {
    /// The processors of this process.
    fn here() -> Self {
        let share = std::thread::available_parallelism().map_or(1, usize::from);
        // It fails if the host has more processors than the set has room for.
        let processors = Processors::allowed().unwrap_or_else(|_| (0..share).collect());
        let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        Self { processors: processors.iter().map(number).collect(), share: number(share) }
    }
}

/// A rank's network device and endpoint.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub(crate) struct Nic {
    /// The name of the device; empty if unknown.
    pub device: String,
    /// The speed of its port (Mbit/s) and its MTU; 0 if unknown.
    pub megabits: u32,
    pub mtu: u32,
    /// The endpoint's address, if it is an IP address.
    pub at: Option<SocketAddr>,
    /// The address from which the rank reached the store.
    pub store: Option<IpAddr>,
}

impl Nic {
    fn here(limits: &Limits, store: Option<&Store>) -> Self {
        let device = limits.device.clone();
        // Devices that are no network interfaces have no such file.
        let mtu = fs::read_to_string(format!("/sys/class/net/{device}/mtu"));
        Self {
            megabits: network::megabits(limits),
            mtu: mtu.ok().and_then(|mtu| mtu.trim().parse().ok()).unwrap_or(0),
            at: limits.listens.parse().ok(),
            store: store.map(|store| store.reached().0.ip()),
            device,
        }
    }
}

/// The data that a rank publishes about itself.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub(crate) struct Entry {
    pub host: Host,
    /// The number that this rank has in common with the ranks that it shares memory with, if it reaches other ranks by a fabric.
    pub shares: Option<u128>,
    pub cores: Cores,
    pub nic: Nic,
    pub address: Vec<u8>,
    /// The words of its mailbox.
    pub mailbox: [u64; 3],
    /// The mask of immediates to it.
    pub mask: u32,
}

impl Entry {
    /// The entry of this rank.
    pub(crate) fn here(limits: &Limits, store: Option<&Store>, contact: Contact) -> Self {
        Self {
            host: Host::here(),
            shares: limits.shares,
            cores: Cores::here(),
            nic: Nic::here(limits, store),
            address: contact.address.0,
            mailbox: contact.mailbox.words(),
            mask: contact.mask,
        }
    }

    /// How it is reached.
    pub(crate) fn contact(self) -> Contact {
        Contact {
            address: Address(self.address),
            host: self.host.name,
            mailbox: RemoteRegion::from_words(self.mailbox),
            mask: self.mask,
        }
    }
}

/// An entry in which numbers stand for the values that several ranks may have in common: the name, the device, the processors, and
/// [`shares`](Entry::shares), whose numbers count from 1; 0 if there is none.
pub(super) struct CompactEntry {
    pub name: u32,
    pub shares: u32,
    pub device: u32,
    pub cores: u32,
    pub host: HostId,
    pub megabits: u32,
    pub mtu: u32,
    pub at: Option<SocketAddr>,
    pub store: Option<IpAddr>,
    pub mailbox: [u64; 3],
    pub mask: u32,
    pub address: Vec<u8>,
}

impl CompactEntry {
    /// Encodes the record as bytes: its numbers in little-endian, its IP addresses with their kind, and the address behind its length.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let HostId { boot, processes, network, user } = self.host;
        let mut bytes = Vec::new();
        let Self { name, shares, device, cores, megabits, mtu, mask, .. } = *self;
        for number in [name, shares, device, cores, user.0, megabits, mtu, mask] {
            bytes.extend(number.to_le_bytes());
        }
        for number in [boot, processes, network, user.1].into_iter().chain(self.mailbox) {
            bytes.extend(number.to_le_bytes());
        }
        for ip in [self.at.map(|at| at.ip()), self.store] {
            let (kind, octets) = match ip {
                None => (0, [0; 16]),
                Some(IpAddr::V4(ip)) => (4, ip.to_ipv6_mapped().octets()),
                Some(IpAddr::V6(ip)) => (6, ip.octets()),
            };
            bytes.push(kind);
            bytes.extend(octets);
        }
        let len = u16::try_from(self.address.len()).unwrap_or(u16::MAX);
        bytes.extend([self.at.map_or(0, |at| at.port()), len].map(u16::to_le_bytes).as_flattened());
        bytes.extend(&self.address);
        bytes
    }

    /// Decodes such bytes; `None` if they are not those of a record. There may be more bytes behind the address.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let [name, shares, device, cores, uid, megabits, mtu, mask] =
            words(&mut rest)?.map(u32::from_le_bytes);
        let [boot, processes, network, space, mailbox @ ..] =
            words::<7, 8>(&mut rest)?.map(u64::from_le_bytes);
        let [at, store] = [ip(&mut rest)?, ip(&mut rest)?];
        let [port, len] = words(&mut rest)?.map(u16::from_le_bytes);
        let address = rest.get(..usize::from(len))?.to_vec();
        let at = at.map(|ip| SocketAddr::new(ip, port));
        let host = HostId { boot, processes, network, user: (uid, space) };
        Some(Self { name, shares, device, cores, host, megabits, mtu, at, store, mailbox, mask, address })
    }
}

/// Takes `N` numbers of `BYTES` bytes each from the beginning.
fn words<const N: usize, const BYTES: usize>(rest: &mut &[u8]) -> Option<[[u8; BYTES]; N]> {
    let mut words = [[0; BYTES]; N];
    for word in &mut words {
        (*word, *rest) = rest.split_first_chunk().map(|(word, rest)| (*word, rest))?;
    }
    Some(words)
}

/// Takes an IP address, if there is one; the outer `None` if its kind is unknown.
fn ip(rest: &mut &[u8]) -> Option<Option<IpAddr>> {
    let [[kind]] = words(rest)?;
    let [octets] = words::<1, 16>(rest)?;
    let octets = Ipv6Addr::from(octets);
    match kind {
        0 => Some(None),
        4 => Some(octets.to_ipv4_mapped().map(IpAddr::V4)),
        6 => Some(Some(IpAddr::V6(octets))),
        _ => None,
    }
}
