//! The data that a rank publishes about itself when it joins: where it runs, its network device, and how it is reached.

use std::{
    fs,
    net::{IpAddr, Ipv6Addr, SocketAddr},
};

use bytemuck::{Pod, Zeroable};
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

/// A record: an entry in which numbers stand for the values that several ranks may have in common: the name, the device, the
/// processors, and [`shares`](Entry::shares), whose numbers count from 1; 0 if there is none. The address of [`len`](Self::len) bytes
/// follows it.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, packed)]
pub(super) struct RosterRecord {
    pub name: u32,
    pub shares: u32,
    pub device: u32,
    pub cores: u32,
    user: u32,
    pub megabits: u32,
    pub mtu: u32,
    pub mask: u32,
    boot: u64,
    processes: u64,
    network: u64,
    users: u64,
    pub mailbox: [u64; 3],
    /// Each with its kind before it.
    at: [u8; 17],
    store: [u8; 17],
    port: u16,
    len: u16,
}

impl RosterRecord {
    /// The bytes of an entry's record. `numbers` stand for its name, what it shares, its device and its processors.
    pub(super) fn bytes(entry: &Entry, [name, shares, device, cores]: [u32; 4]) -> Vec<u8> {
        let HostId { boot, processes, network, user: (user, users) } = entry.host.id;
        let Nic { megabits, mtu, at, store, .. } = entry.nic;
        let (mailbox, mask) = (entry.mailbox, entry.mask);
        let len = u16::try_from(entry.address.len()).unwrap_or(u16::MAX);
        let (port, at, store) = (at.map_or(0, |at| at.port()), octets(at.map(|at| at.ip())), octets(store));
        let record = Self {
            name,
            shares,
            device,
            cores,
            user,
            megabits,
            mtu,
            mask,
            boot,
            processes,
            network,
            users,
            mailbox,
            at,
            store,
            port,
            len,
        };
        [bytemuck::bytes_of(&record), &entry.address].concat()
    }

    /// The record and the address in such bytes; `None` if they are too few. There may be more bytes behind the address.
    pub(super) fn parse(bytes: &[u8]) -> Option<(Self, Vec<u8>)> {
        let (record, rest) = bytes.split_first_chunk::<{ size_of::<Self>() }>()?;
        let record: Self = bytemuck::pod_read_unaligned(record);
        Some((record, rest.get(..usize::from(record.len))?.to_vec()))
    }

    pub(super) fn host(&self) -> HostId {
        let Self { boot, processes, network, user, users, .. } = *self;
        HostId { boot, processes, network, user: (user, users) }
    }

    /// The NIC of this device; `None` if the kind of an address is unknown.
    pub(super) fn nic(&self, device: String) -> Option<Nic> {
        let (port, store) = (self.port, address(self.store)?);
        let at = address(self.at)?.map(|ip| SocketAddr::new(ip, port));
        Some(Nic { device, megabits: self.megabits, mtu: self.mtu, at, store })
    }
}

/// An IP address behind its kind.
fn octets(ip: Option<IpAddr>) -> [u8; 17] {
    let (kind, octets) = match ip {
        None => (0, [0; 16]),
        Some(IpAddr::V4(ip)) => (4, ip.to_ipv6_mapped().octets()),
        Some(IpAddr::V6(ip)) => (6, ip.octets()),
    };
    std::array::from_fn(|at| at.checked_sub(1).map_or(kind, |at| octets[at]))
}

/// The IP address in these bytes, if there is one; the outer `None` if its kind is unknown.
fn address([kind, octets @ ..]: [u8; 17]) -> Option<Option<IpAddr>> {
    let octets = Ipv6Addr::from(octets);
    match kind {
        0 => Some(None),
        4 => Some(octets.to_ipv4_mapped().map(IpAddr::V4)),
        6 => Some(Some(IpAddr::V6(octets))),
        _ => None,
    }
}
