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

use self::{columns::Columns, entry::RosterRecord};
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
    /// The [records](RosterRecord) of the ranks.
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
        let [mut names, mut devices] = [HashMap::new(), HashMap::new()];
        let (mut hosts, mut cores, mut scopes) = (HashMap::new(), HashMap::new(), HashMap::new());
        let (mut host_of, mut records) = (Vec::new(), Vec::new());
        for entry in entries {
            let name = clean(&entry.host.name, MAX_NAME);
            host_of.push(number(&mut hosts, (name.clone(), entry.host.id, entry.shares)));
            let numbers = [
                number(&mut names, name),
                entry.shares.map_or(0, |scope| 1 + number(&mut scopes, scope)),
                number(&mut devices, clean(&entry.nic.device, MAX_NAME)),
                number(&mut cores, entry.cores.clone()),
            ];
            records.push(RosterRecord::bytes(entry, numbers));
        }
        let numbers: Vec<_> = host_of.iter().map(|host| host.to_le_bytes().to_vec()).collect();
        Self {
            ranks: entries.len(),
            hosts: hosts.len(),
            host_of: Columns::of(&numbers, &(0..).take(entries.len()).collect::<Vec<_>>()),
            records: Columns::of(&records, &host_of),
            names: in_order(names),
            devices: in_order(devices),
            cores: in_order(cores),
            scopes: in_order(scopes),
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
        let whole =
            |rank| self.entry(rank).is_some() && self.host_number(rank).is_some_and(|host| host < self.hosts);
        match (0..ranks).find(|&rank| !whole(rank)) {
            Some(rank) => Err(format!("the record of rank {rank} is broken")),
            None => Ok(self),
        }
    }

    fn host_number(&self, rank: Rank) -> Option<usize> {
        let number = self.host_of.record(rank, rank);
        let number = number.iter().rev().fold(0_u64, |number, &byte| number << 8 | u64::from(byte));
        usize::try_from(number).ok()
    }

    /// The record of a rank, and its address.
    fn record(&self, rank: Rank) -> Option<(RosterRecord, Vec<u8>)> {
        if rank >= self.ranks {
            return None;
        }
        RosterRecord::parse(&self.records.record(rank, self.host_number(rank)?))
    }

    /// The entry that a rank has published about itself.
    pub(crate) fn entry(&self, rank: Rank) -> Option<Entry> {
        let (record, address) = self.record(rank)?;
        let name = self.names.get(record.name as usize)?.clone();
        let cores = self.cores.get(record.cores as usize)?.clone();
        let shares = match record.shares {
            0 => None,
            scope => Some(*self.scopes.get(scope as usize - 1)?),
        };
        let nic = record.nic(self.devices.get(record.device as usize)?.clone())?;
        let host = Host { name, id: record.host(), unread: None };
        Some(Entry { host, shares, cores, nic, address, mailbox: record.mailbox, mask: record.mask })
    }

    /// The hosts of all ranks.
    pub(crate) fn hosts(&self) -> Vec<HostId> {
        (0..self.ranks).filter_map(|rank| self.record(rank)).map(|(record, _)| record.host()).collect()
    }

    /// Where a rank runs.
    pub(crate) fn peer(&self, rank: Rank) -> Option<PeerInfo<'_>> {
        let (record, _) = self.record(rank)?;
        let cores = self.cores.get(record.cores as usize)?;
        let RosterRecord { shares, device, megabits, .. } = record;
        Some(PeerInfo { host: record.host(), shares: shares.checked_sub(1), cores, device, megabits })
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
        self.record(rank).map(|(record, _)| RemoteRegion::from_words(record.mailbox))
    }
}

/// The number of a value among different ones, which count in the order in which they come.
fn number<T: Hash + Eq>(all: &mut HashMap<T, u32>, value: T) -> u32 {
    let next = u32::try_from(all.len()).unwrap_or(u32::MAX);
    *all.entry(value).or_insert(next)
}

/// The values by their numbers.
fn in_order<T>(all: HashMap<T, u32>) -> Vec<T> {
    let mut all: Vec<_> = all.into_iter().collect();
    all.sort_by_key(|(_, number)| *number);
    all.into_iter().map(|(value, _)| value).collect()
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
