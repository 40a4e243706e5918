//! The tables that are part of the library: a file for each kind of fabric and host on which choices were measured.

use std::sync::OnceLock;

use super::table::Table;

/// A table of the library.
pub(super) struct BuiltIn {
    /// The name of its file.
    pub name: &'static str,
    text: &'static str,
    table: OnceLock<Table>,
}

/// One host with a core for each rank, over TCP.
pub(super) static OWN_CORES: BuiltIn =
    BuiltIn::new("tcp-own-cores.tuning", include_str!("tables/tcp-own-cores.tuning"));
/// One host over shared memory, for calls through shared slots.
pub(super) static SHM_SLOTS: BuiltIn =
    BuiltIn::new("shm-slots.tuning", include_str!("tables/shm-slots.tuning"));
/// The same with a core for each rank.
pub(super) static SHM_SLOTS_OWN_CORES: BuiltIn =
    BuiltIn::new("shm-slots-own-cores.tuning", include_str!("tables/shm-slots-own-cores.tuning"));
/// One host with a core for each rank, over shared memory.
pub(super) static SHM_OWN_CORES: BuiltIn =
    BuiltIn::new("shm-own-cores.tuning", include_str!("tables/shm-own-cores.tuning"));
/// One host, where the table of its provider and its cores has no row.
pub(super) static ONE_HOST: BuiltIn = BuiltIn::new("one-host.tuning", include_str!("tables/one-host.tuning"));
/// One host whose ranks share few cores.
pub(super) static SHARED_CORES: BuiltIn =
    BuiltIn::new("tcp-shared-cores.tuning", include_str!("tables/tcp-shared-cores.tuning"));
/// A port for every rank. It has a row for every collective, any number of ranks and any size.
pub(super) static INFINIBAND: BuiltIn =
    BuiltIn::new("infiniband.tuning", include_str!("tables/infiniband.tuning"));

impl BuiltIn {
    const fn new(name: &'static str, text: &'static str) -> Self {
        Self { name, text, table: OnceLock::new() }
    }

    /// Its rows, which are read once.
    #[expect(clippy::panic, reason = "the texts are part of the library, and a test reads them all")]
    pub(super) fn table(&self) -> &Table {
        self.table.get_or_init(|| match Table::parse(self.text) {
            Ok(table) => table,
            Err(problem) => panic!("{}: {problem}", self.name),
        })
    }
}

#[cfg(test)]
pub(super) const ALL: [&BuiltIn; 7] =
    [&OWN_CORES, &SHM_SLOTS, &SHM_SLOTS_OWN_CORES, &SHM_OWN_CORES, &SHARED_CORES, &ONE_HOST, &INFINIBAND];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_is_read_and_says_where_when_and_how_it_was_made() {
        let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/select/tables")).unwrap();
        assert_eq!(files.count(), ALL.len(), "a file that no table is made of");
        for built_in in ALL {
            let rows = built_in.table().to_string().lines().count() - 1;
            let lines = built_in.text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
            assert_eq!(rows, lines.count() - 1, "{}", built_in.name);
            for head in ["# machine: ", "# date: ", "# command: "] {
                assert!(built_in.text.contains(head), "{} has no line {head:?}", built_in.name);
            }
        }
    }
}
