//! The report on machines whose topology a file or a text describes, which hwloc reads.

use std::{fs, path::Path};

use super::{
    super::{
        machine::{Machine, RanksHere},
        report::{LineMark, Section},
        topology::GivenTopology,
    },
    says,
};

fn described(topology: GivenTopology, ranks: RanksHere) -> Section {
    let hardware = topology.read();
    Machine::described(hardware, topology, ranks).judge()
}

/// The report on the machine recorded in a file of this folder, with this number of ranks.
fn recorded(name: &str, ranks: usize) -> Section {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/doctor/tests").join(name);
    let ranks = RanksHere { count: Some(ranks), ..RanksHere::default() };
    let mut section = described(GivenTopology::Recorded(path.clone()), ranks);
    let first = section.lines.remove(0).text;
    assert_eq!(first, format!("not this machine, but what is recorded in {}", path.display()));
    section
}

#[test]
fn two_sockets_with_several_caches_each() {
    says(
        &recorded("epyc.xml", 16),
        "|machine
         |  -        AMD EPYC 9124 16-Core Processor
         |  ok       16 cores: 2 sockets × 4 caches (L3 32 MiB) × 2 cores
         |  -        NUMA node 0: 8 cores (processors 0-7), 256 GiB of memory; near it: mlx5_0 (RDMA), eth0
         |  -        NUMA node 1: 8 cores (processors 8-15), 256 GiB of memory; near it: mlx5_1 (RDMA)
         |  -        caches: L3 8 × 32 MiB
         |  ok       16 ranks have a hardware thread each",
    );
}

#[test]
fn a_virtual_machine_that_knows_no_caches() {
    says(
        &recorded("vm.xml", 32),
        "|machine
         |  ok       16 cores: 1 socket × 16 cores
         |  -        NUMA node 0: 16 cores, 64 GiB of memory
         |  warn     32 ranks would share 16 hardware threads: waits yield instead of spinning
         |           => it works, but every message waits for its receiver to be scheduled; start at most 16
         |              here",
    );
}

#[test]
fn a_laptop_with_two_kinds_of_cores() {
    says(
        &recorded("laptop.xml", 8),
        "|machine
         |  ok       6 cores, 8 hardware threads: 1 socket (L3 12 MiB) × (2 cores × 2 threads + 1 cache (L2 2
         |           MiB) × 4 cores)
         |  -        NUMA node 0: 6 cores, 16 GiB of memory
         |  -        caches: L3 1 × 12 MiB, L2 2 × 1.25 MiB, L2 1 × 2 MiB
         |  ok       8 ranks have a hardware thread each",
    );
}

/// The report on a topology that a text describes.
fn synthetic(text: &str) -> Section {
    let mut section = described(GivenTopology::Synthetic(text.to_owned()), RanksHere::default());
    assert_eq!(section.lines.remove(0).text, "not this machine, but what HWLOC_SYNTHETIC describes");
    section
}

#[test]
fn topologies_that_are_described_are_drawn() {
    says(
        &synthetic("pack:2 [numa(memory=1GB)] l3:2 core:2 pu:2"),
        "|machine
         |  ok       8 cores, 16 hardware threads: 2 sockets × 2 caches (L3 16 MiB) × 2 cores × 2 threads
         |  -        NUMA node 0: 4 cores (processors 0-7), 954 MiB of memory
         |  -        NUMA node 1: 4 cores (processors 8-15), 954 MiB of memory
         |  -        caches: L3 4 × 16 MiB",
    );
    let said = synthetic("pack:2 [numa(memory=1GB)] [numa] core:4 pu:1");
    let layout = &said.lines[0].text;
    assert_eq!(
        layout, "8 cores: 2 sockets × 4 cores",
        "a node of one kind is no part of a node of the other"
    );
    let nodes = said.lines.iter().filter(|line| line.text.starts_with("NUMA node")).count();
    assert_eq!(nodes, 4, "{said:?}");
    let one = synthetic("pu:1");
    assert_eq!(one.lines[0].text, "1 core: 1 core");
    let wrong = synthetic("pack:two");
    assert!(wrong.lines[0].text.starts_with("HWLOC_SYNTHETIC=\"pack:two\": hwloc: "), "{wrong:?}");
}

#[test]
fn a_broken_file_is_named_and_ends_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("topology.xml");
    let problem = |text: &[u8]| {
        fs::write(&file, text).unwrap();
        let error = GivenTopology::Recorded(file.clone()).read().unwrap_err();
        error.strip_prefix(&format!("{}: hwloc: ", file.display())).unwrap().to_owned()
    };
    let whole = include_str!("epyc.xml");
    let broken: [&[u8]; 8] = [
        b"",
        b"\xff\xfe\0",
        b"<html/>",
        b"<topology/>",
        b"<topology version='9'/>",
        b"<topology version='2.0'><object type='PU' cpuset='0xg'/></topology>",
        b"<topology version='2.0'><object type='Machine'/></topology>",
        &whole.as_bytes()[..whole.len() / 2],
    ];
    broken.into_iter().for_each(|text| assert!(!problem(text).is_empty()));
    let nested = "<topology version='2.0'>".to_owned() + &"<object type='Machine'>".repeat(90_000);
    assert_eq!(problem(nested.as_bytes()), "its elements are nested more than 100 deep");
    let missing = directory.path().join("none.xml");
    let read = |file: &Path| GivenTopology::Recorded(file.to_owned()).read().unwrap_err();
    assert!(read(&missing).starts_with(&format!("{}: ", missing.display())));
    assert!(read(directory.path()).ends_with(": it is not a regular file"));
    let section = described(GivenTopology::Recorded(missing), RanksHere::default());
    assert_eq!(section.count(LineMark::Problem), 1, "{section:?}");
}
