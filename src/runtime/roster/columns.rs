//! Records of equal length, one for each rank, kept by columns: a byte that is the same in all records is kept once, and a byte that is the
//! same in all records of each host is kept once for each host.

use serde::{Deserialize, Serialize};
use unisono_schedule::Rank;

/// The bytes at one place of all records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Column {
    /// The byte is the same in all records.
    Same(u8),
    /// One byte for each host, by the number of the host.
    Host(Box<[u8]>),
    /// One byte for each rank.
    Rank(Box<[u8]>),
}

/// The records of all ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Columns(Vec<Column>);

impl Columns {
    /// Makes columns of records, each with the number of its host. Missing bytes of short records count as 0.
    pub(super) fn of(records: &[Vec<u8>], hosts: &[u32]) -> Self {
        let width = records.iter().map(Vec::len).max().unwrap_or(0);
        Self((0..width).map(|place| Column::of(records, hosts, place)).collect())
    }

    /// True if there is a record for each of this many ranks, on this many hosts.
    pub(super) fn are_whole(&self, ranks: usize, hosts: usize) -> bool {
        self.0.iter().all(|column| match column {
            Column::Same(_) => true,
            Column::Host(bytes) => bytes.len() == hosts,
            Column::Rank(bytes) => bytes.len() == ranks,
        })
    }

    /// The record of a rank, which runs on the host of this number.
    pub(super) fn record(&self, rank: Rank, host: usize) -> Vec<u8> {
        let byte = |column: &Column| match column {
            Column::Same(byte) => *byte,
            Column::Host(bytes) => bytes.get(host).copied().unwrap_or_default(),
            Column::Rank(bytes) => bytes.get(rank).copied().unwrap_or_default(),
        };
        self.0.iter().map(byte).collect()
    }

    /// The bytes of memory that they take.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        let bytes = |column: &Column| match column {
            Column::Same(_) => 0,
            Column::Host(bytes) | Column::Rank(bytes) => bytes.len(),
        };
        self.0.capacity() * size_of::<Column>() + self.0.iter().map(bytes).sum::<usize>()
    }
}

impl Column {
    fn of(records: &[Vec<u8>], hosts: &[u32], place: usize) -> Self {
        let bytes: Vec<u8> =
            records.iter().map(|record| record.get(place).copied().unwrap_or_default()).collect();
        let first = bytes.first().copied().unwrap_or_default();
        if bytes.iter().all(|&byte| byte == first) {
            return Self::Same(first);
        }
        let mut by_host: Vec<Option<u8>> = Vec::new();
        for (&host, &byte) in hosts.iter().zip(&bytes) {
            let host = host as usize;
            by_host.resize(by_host.len().max(host + 1), None);
            if *by_host[host].get_or_insert(byte) != byte {
                return Self::Rank(bytes.into());
            }
        }
        Self::Host(by_host.into_iter().map(Option::unwrap_or_default).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_what_they_were() {
        let hosts = [0, 0, 1, 1, 2];
        let records: Vec<Vec<u8>> =
            (0..5).zip([0, 0, 3, 3, 6]).map(|(rank, host)| vec![7, host, rank, 0]).collect();
        let columns = Columns::of(&records, &hosts);
        assert_eq!(
            columns.0,
            [
                Column::Same(7),
                Column::Host([0, 3, 6].into()),
                Column::Rank([0, 1, 2, 3, 4].into()),
                Column::Same(0)
            ]
        );
        for (rank, record) in records.iter().enumerate() {
            assert_eq!(columns.record(rank, hosts[rank] as usize), *record);
        }
        assert!(columns.are_whole(5, 3) && !columns.are_whole(4, 3) && !columns.are_whole(5, 2));
        assert_eq!(columns.record(9, 9), [7, 0, 0, 0], "nothing is read out of bounds");
    }

    #[test]
    fn no_record_has_no_column() {
        assert_eq!(Columns::of(&[], &[]).0, []);
        assert!(Columns::of(&[], &[]).are_whole(0, 0));
    }
}
