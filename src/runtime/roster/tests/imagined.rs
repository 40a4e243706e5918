//! Entries of ranks that do not exist: they differ in everything that differs between ranks of a cluster.
#![allow(clippy::cast_possible_truncation, reason = "random bits, and few hosts")]

use std::net::SocketAddr;

use super::{Cores, Entry, Host, HostId, Nic};

/// A random number of this seed and index.
fn random(seed: u64, index: usize) -> u64 {
    let bytes = [seed.to_le_bytes(), (index as u64).to_le_bytes()].concat();
    blake3::hash(&bytes).as_bytes().first_chunk().copied().map_or(0, u64::from_le_bytes)
}

/// The address of a rank's shared memory.
fn near(rank: usize) -> Vec<u8> {
    let own: Vec<u8> = (3..7).flat_map(|seed| random(seed, rank).to_le_bytes()).collect();
    [&b"unisono-shm\x04"[..], &own].concat()
}

/// The entries of ranks that fill one host after the other, over sockets, or with `shm` over sockets and shared memory.
pub(super) fn entries(ranks: usize, per_host: usize, shm: bool) -> Vec<Entry> {
    let entry = |rank: usize| {
        let host = rank / per_host;
        let ip = [10, 1, (host >> 8) as u8, host as u8];
        let port = 32768 + random(1, rank) as u16 % 28000;
        let id = HostId {
            boot: random(2, host),
            processes: 4026531836,
            network: 4026531840,
            user: (1000, 4026531837),
        };
        let socket = [&[2, 0][..], &port.to_be_bytes(), &ip, &[0; 8]].concat();
        let scope = u128::from(random(7, host)) << 64 | u128::from(random(8, host));
        let near = near(rank);
        let lens = [&near, &socket].map(|part| (part.len() as u64).to_le_bytes());
        let both =
            [b"unisono-mux\x01", &scope.to_le_bytes()[..], lens.as_flattened(), &near, &socket].concat();
        Entry {
            shares: shm.then_some(scope),
            host: Host { name: format!("node{host:04}"), id, unread: None },
            cores: Cores { processors: vec![(rank % per_host) as u32], share: 1 },
            nic: Nic {
                device: "eth0".to_owned(),
                megabits: 100_000,
                mtu: 9000,
                at: Some(SocketAddr::from((ip, port))),
                store: Some(ip.into()),
            },
            address: if shm { both } else { socket },
            mailbox: [
                0x7f00_0000_0000 | random(9, rank) << 12 & 0xff_ffff_f000,
                random(10, rank),
                ranks as u64 * 440,
            ],
            mask: random(11, rank) as u32,
        }
    };
    (0..ranks).map(entry).collect()
}
