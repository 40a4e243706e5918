//! The roster: the data that every rank has of every rank of the world since they joined. Rank 0 makes it of the ranks' [entries](Entry).
//! It is small to send and stays encoded, so that a rank holds some 30 to 60 bytes for each other one.

mod columns;
mod entry;
#[cfg(test)]
mod tests;

use std::{collections::HashMap, hash::Hash};

use serde::{Deserialize, Serialize};
use unisono_schedule::Rank;
use unisono_transport::RemoteRegion;

pub(crate) use self::entry::{Cores, Entry, Nic};
use unisono_engine::{Contact, Contacts};

use self::{columns::Columns, entry::CompactEntry};
use super::{
    host::{Host, HostId},
    peer::PeerInfo,
};
use crate::error::clean;

/// The longest name of a host or device that is kept, in characters.
const MAX_NAME: usize = 255;

/// The entries of all ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Roster {
    ranks: usize,
    /// The number of hosts, and for each rank the number of its host (4 bytes).
    hosts: usize,
    host_of: Columns,
    /// The [records](CompactEntry) of the ranks.
    records: Columns,
    /// The values that records refer to by number.
    names: Vec<String>,
    devices: Vec<String>,
    cores: Vec<Cores>,
    /// The numbers that ranks that share memory have [in common](Entry::shares).
    scopes: Vec<u128>,
}

impl Roster {
    /// Makes a roster of the entries of all ranks, in the order of ranks.
    pub(crate) fn of(entries: &[Entry]) -> Self {
        let [mut names, mut devices] = [Numbered::default(), Numbered::default()];
        let (mut hosts, mut cores, mut scopes) =
            (Numbered::default(), Numbered::default(), Numbered::default());
        let (mut host_of, mut records) = (Vec::new(), Vec::new());
        for entry in entries {
            let Entry { host, nic, .. } = entry;
            host_of.push(hosts.number((clean(&host.name, MAX_NAME), host.id, entry.shares)));
            let record = CompactEntry {
                name: names.number(clean(&host.name, MAX_NAME)),
                shares: entry.shares.map_or(0, |scope| 1 + scopes.number(scope)),
                device: devices.number(clean(&nic.device, MAX_NAME)),
                cores: cores.number(entry.cores.clone()),
                host: host.id,
                megabits: nic.megabits,
                mtu: nic.mtu,
                at: nic.at,
                store: nic.store,
                mailbox: entry.mailbox,
                mask: entry.mask,
                address: entry.address.clone(),
            };
            records.push(record.bytes());
        }
        let numbers: Vec<_> = host_of.iter().map(|host| host.to_le_bytes().to_vec()).collect();
        Self {
            ranks: entries.len(),
            hosts: hosts.all.len(),
            host_of: Columns::of(&numbers, &(0..).take(entries.len()).collect::<Vec<_>>()),
            records: Columns::of(&records, &host_of),
            names: names.in_order(),
            devices: devices.in_order(),
            cores: cores.in_order(),
            scopes: scopes.in_order(),
        }
    }

    /// Encodes the roster as bytes.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        // The roster contains nothing that cannot be encoded.
        postcard::to_allocvec(self).unwrap_or_default()
    }

    /// Decodes bytes that must hold this many ranks.
    ///
    /// # Errors
    /// A sentence that says what is wrong with them.
    pub(crate) fn parse(bytes: &[u8], ranks: usize) -> Result<Self, String> {
        let roster: Self = postcard::from_bytes(bytes).map_err(|error| error.to_string())?;
        roster.checked(ranks)
    }

    /// Returns the roster if it holds this many ranks, and everything that they refer to.
    ///
    /// # Errors
    /// A sentence that says what is wrong with it.
    pub(crate) fn checked(self, ranks: usize) -> Result<Self, String> {
        if self.ranks != ranks || self.hosts > ranks {
            return Err(format!(
                "it has {} ranks on {} hosts, and there are {ranks}",
                self.ranks, self.hosts
            ));
        }
        if !self.host_of.are_whole(ranks, ranks) || !self.records.are_whole(ranks, self.hosts) {
            return Err("a column has another length".to_owned());
        }
        let whole = |rank: &Rank| {
            let Some(record) = self.record(*rank) else { return false };
            let refers = |number: u32, most: usize| (number as usize) < most;
            refers(record.name, self.names.len())
                && record.shares as usize <= self.scopes.len()
                && refers(record.device, self.devices.len())
                && refers(record.cores, self.cores.len())
                && self.host_number(*rank).is_some_and(|host| host < self.hosts)
        };
        match (0..ranks).find(|rank| !whole(rank)) {
            Some(rank) => Err(format!("the record of rank {rank} is broken")),
            None => Ok(self),
        }
    }

    fn host_number(&self, rank: Rank) -> Option<usize> {
        let number = self.host_of.record(rank, rank);
        let number = number.iter().rev().fold(0_u64, |number, &byte| number << 8 | u64::from(byte));
        usize::try_from(number).ok()
    }

    fn record(&self, rank: Rank) -> Option<CompactEntry> {
        if rank >= self.ranks {
            return None;
        }
        CompactEntry::parse(&self.records.record(rank, self.host_number(rank)?))
    }

    /// The entry that a rank has published about itself.
    pub(crate) fn entry(&self, rank: Rank) -> Option<Entry> {
        let CompactEntry {
            name,
            shares,
            device,
            cores,
            host,
            megabits,
            mtu,
            at,
            store,
            mailbox,
            mask,
            address,
        } = self.record(rank)?;
        let name = self.names.get(name as usize)?.clone();
        let device = self.devices.get(device as usize)?.clone();
        let cores = self.cores.get(cores as usize)?.clone();
        let shares = shares.checked_sub(1).and_then(|scope| self.scopes.get(scope as usize)).copied();
        let (host, nic) = (Host { name, id: host, unread: None }, Nic { device, megabits, mtu, at, store });
        Some(Entry { host, shares, cores, nic, address, mailbox, mask })
    }

    /// The hosts of all ranks.
    pub(crate) fn hosts(&self) -> Vec<HostId> {
        (0..self.ranks).filter_map(|rank| self.record(rank)).map(|record| record.host).collect()
    }

    /// Where a rank runs.
    pub(crate) fn peer(&self, rank: Rank) -> Option<PeerInfo<'_>> {
        let record = self.record(rank)?;
        let cores = self.cores.get(record.cores as usize)?;
        let CompactEntry { host, shares, device, megabits, .. } = record;
        Some(PeerInfo { host, shares: shares.checked_sub(1), cores, device, megabits })
    }
}

impl Contacts for Roster {
    fn ranks(&self) -> usize {
        self.ranks
    }

    fn contact(&self, rank: Rank) -> Option<Contact> {
        self.entry(rank).map(Entry::contact)
    }

    fn mailbox(&self, rank: Rank) -> Option<RemoteRegion> {
        self.record(rank).map(|record| RemoteRegion::from_words(record.mailbox))
    }
}

/// Different values, numbered in the order in which they come.
struct Numbered<T> {
    all: HashMap<T, u32>,
}

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Self { all: HashMap::new() }
    }
}

impl<T: Hash + Eq> Numbered<T> {
    fn number(&mut self, value: T) -> u32 {
        let next = u32::try_from(self.all.len()).unwrap_or(u32::MAX);
        *self.all.entry(value).or_insert(next)
    }

    fn in_order(self) -> Vec<T> {
        let mut all: Vec<_> = self.all.into_iter().collect();
        all.sort_by_key(|(_, number)| *number);
        all.into_iter().map(|(value, _)| value).collect()
    }
}

/// Reads a roster that any program may have sent; the first byte gives its number of ranks.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(bytes: &[u8]) {
    let Some((&ranks, bytes)) = bytes.split_first() else { return };
    let ranks = usize::from(ranks);
    let Ok(roster) = Roster::parse(bytes, ranks) else { return };
    assert_eq!(roster.hosts().len(), ranks, "a roster has a host for each rank");
    for rank in 0..=ranks {
        assert_eq!(roster.entry(rank).is_some(), rank < ranks, "and an entry");
        assert_eq!(roster.peer(rank).is_some(), rank < ranks, "and a place");
    }
    assert_eq!(Roster::parse(&roster.bytes(), ranks).as_ref(), Ok(&roster), "it is what it was");
}
