//! What is said of a machine's hardware, and of the ranks on it.

use std::{fs, path::Path, time::Duration};

use unisono::hardware::{Cache, Hardware, NumaNode, Processors};

use super::{
    super::{
        environment::Launch,
        machine::{Machine, Ranks},
        ranks::Job,
        report::Section,
        topology::Topology,
    },
    SHM, says, tested,
};

/// Consecutive processors.
fn range(first: usize, count: usize) -> Processors {
    (first..first + count).collect()
}

fn machine(ranks: Option<usize>) -> Machine {
    let cache = |level, size, processors| Cache { level, size, processors };
    let cores = (0..16).map(|core| range(2 * core, 2));
    let l3 = (0..2).map(|socket| cache(3, Some(32 << 20), range(16 * socket, 16)));
    let node = |number| NumaNode { number, processors: range(16 * number, 16), memory: Some(64 << 30) };
    let hardware = Hardware {
        model: Some("A Chip 9000".into()),
        packages: (0..2).map(|socket| range(16 * socket, 16)).collect(),
        nodes: (0..2).map(node).collect(),
        caches: l3.chain(cores.clone().map(|core| cache(2, None, core))).collect(),
        cores: cores.collect(),
        devices: Vec::new(),
        allowed: range(0, 32),
    };
    Machine {
        topology: None,
        hardware: Ok(hardware),
        cpuset: None,
        usable: Some(32),
        quota: None,
        ranks: Ranks { count: ranks, ..Ranks::default() },
    }
}

#[cfg(feature = "hwloc")]
fn described(topology: Topology, ranks: Ranks) -> Section {
    let hardware = topology.read();
    Machine::described(topology, hardware, ranks).judge()
}

/// What is said of the machine recorded in a file of this folder, with so many ranks.
#[cfg(feature = "hwloc")]
fn recorded(name: &str, ranks: usize) -> Section {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/doctor/tests").join(name);
    let ranks = Ranks { count: Some(ranks), ..Ranks::default() };
    let mut section = described(Topology::Recorded(path.clone()), ranks);
    let first = section.lines.remove(0).text;
    assert_eq!(first, format!("not this machine, but what is recorded in {}", path.display()));
    section
}

#[cfg(feature = "hwloc")]
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

#[cfg(feature = "hwloc")]
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

#[cfg(feature = "hwloc")]
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

#[test]
fn several_nodes_in_a_socket_and_parts_that_overlap() {
    let said = |hardware: Hardware| {
        let mut section = Machine { hardware: Ok(hardware), ..machine(None) }.judge();
        let at = section.lines.iter().position(|line| line.text.contains("core"));
        section.lines.remove(at.unwrap()).text
    };
    let Ok(two) = machine(None).hardware else { unreachable!() };
    let node = |number: usize| NumaNode { number, processors: range(8 * number, 8), memory: None };
    let divided = Hardware { nodes: (0..4).map(node).collect(), ..two.clone() };
    assert_eq!(
        said(divided),
        "16 cores, 32 hardware threads: 2 sockets (L3 32 MiB) × 2 NUMA nodes × 4 cores × 2 threads"
    );
    // What no hardware has is told, not doubted.
    let packages = [range(0, 3), range(2, 30)].into_iter().collect();
    let odd = Hardware { packages, caches: Vec::new(), nodes: Vec::new(), ..two };
    assert_eq!(
        said(odd),
        "16 cores, 32 hardware threads: 1 socket × 1 core × 2 threads + 1 socket × 15 cores × 2 threads"
    );
    assert_eq!(said(Hardware::default()), "0 cores: ");
}

/// What is said of a topology that a text describes.
#[cfg(feature = "hwloc")]
fn synthetic(text: &str) -> Section {
    let mut section = described(Topology::Synthetic(text.to_owned()), Ranks::default());
    assert_eq!(section.lines.remove(0).text, "not this machine, but what HWLOC_SYNTHETIC describes");
    section
}

#[cfg(feature = "hwloc")]
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
    assert_eq!(layout, "8 cores: 2 sockets × 4 cores", "nodes of two kinds are no parts in one another");
    let nodes = said.lines.iter().filter(|line| line.text.starts_with("NUMA node")).count();
    assert_eq!(nodes, 4, "{said:?}");
    let one = synthetic("pu:1");
    assert_eq!(one.lines[0].text, "1 core: 1 core");
    let wrong = synthetic("pack:two");
    assert!(wrong.lines[0].text.starts_with("HWLOC_SYNTHETIC=\"pack:two\": hwloc: "), "{wrong:?}");
}

#[cfg(feature = "hwloc")]
#[test]
fn a_broken_file_is_named_and_ends_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("topology.xml");
    let problem = |text: &[u8]| {
        fs::write(&file, text).unwrap();
        let error = Topology::Recorded(file.clone()).read().unwrap_err();
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
    let read = |file: &Path| Topology::Recorded(file.to_owned()).read().unwrap_err();
    assert!(read(&missing).starts_with(&format!("{}: ", missing.display())));
    assert!(read(directory.path()).ends_with(": it is no regular file"));
    let section = described(Topology::Recorded(missing), Ranks::default());
    assert_eq!(section.count(super::super::report::Mark::Problem), 1, "{section:?}");
}

#[test]
fn ranks_are_placed_and_told_how_they_reach_each_other() {
    let launch = Launch {
        launcher: "Slurm",
        rank: 5,
        ranks: 8,
        local_rank: Some(1),
        local_ranks: Some(4),
        meeting: String::new(),
        host: None,
    };
    let said = |launched: Option<&Launch>, here, allowed, (inside, between)| {
        let Ok(hardware) = machine(None).hardware else { unreachable!() };
        let machine = Machine { hardware: Ok(Hardware { allowed, ..hardware }), ..machine(None) };
        let section = Job { launched, here }.judge(&machine, &tested(inside, between))?;
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Some(section.lines.iter().map(|line| line.text.replace(&host, "HOST")).collect::<Vec<_>>())
    };
    let (all, both) = (range(0, 32), (Some(SHM), Some("verbs;ofi_rxm")));
    assert_eq!(said(None, None, all.clone(), both), None);
    let lines = said(None, Some(4), all.clone(), both).unwrap();
    assert_eq!(lines, ["4 ranks on this host (HOST)", "all ranks share memory; libfabric is not opened"]);
    let over = "ranks of one host share memory; libfabric's verbs;ofi_rxm reaches the others";
    let lines = said(Some(&launch), Some(4), range(18, 3), both).unwrap();
    assert_eq!(
        lines,
        [
            "8 ranks, 4 of them on this host (HOST); where ranks are numbered host by host, 4 to 7",
            "this is rank 5; it may use processors 18-20 (NUMA node 1, last-level cache 2 of 2)",
            over
        ]
    );
    let lines = said(Some(&launch), None, range(15, 2), (None, Some("net"))).unwrap();
    assert_eq!(
        lines,
        [
            "8 ranks; the launcher does not say how many are on this host (HOST)",
            "this is rank 5; it may use processors 15,16",
            "libfabric's net reaches all ranks"
        ]
    );
    let odd = (0..32).step_by(2).collect();
    let lines = said(Some(&launch), Some(8), odd, (None, None)).unwrap();
    assert_eq!(
        lines,
        ["8 ranks, all on this host (HOST)", "this is rank 5; it may use processors 0,2,4,6,... 16 in all"]
    );
}

#[test]
fn more_ranks_than_hardware_threads() {
    let last = |ranks, spin| {
        let ranks = Ranks { count: Some(ranks), spin, ..Ranks::default() };
        let mut section = Machine { ranks, ..machine(None) }.judge();
        Section { lines: section.lines.split_off(5), ..section }
    };
    says(
        &machine(Some(33)).judge(),
        "|machine
         |  -        A Chip 9000
         |  ok       16 cores, 32 hardware threads: 2 sockets (L3 32 MiB) × 8 cores × 2 threads
         |  -        NUMA node 0: 8 cores (processors 0-15), 64 GiB of memory
         |  -        NUMA node 1: 8 cores (processors 16-31), 64 GiB of memory
         |  -        caches: L3 2 × 32 MiB, L2 16 × ?
         |  warn     33 ranks would share 32 hardware threads: waits yield instead of spinning
         |           => it works, but every message waits for its receiver to be scheduled; start at most 32
         |              here",
    );
    says(
        &last(32, None),
        "|machine
         |  ok       32 ranks have a hardware thread each",
    );
    says(
        &last(32, Some(Duration::ZERO)),
        "|machine
         |  -        32 ranks have a hardware thread each, but waits do not spin: UNISONO_SPIN is 0",
    );
    says(
        &last(33, Some(Duration::from_micros(20))),
        "|machine
         |  warn     33 ranks would share 32 hardware threads, but waits spin because UNISONO_SPIN is set:
         |           they keep other ranks from running
         |           => unset UNISONO_SPIN, or start at most 32 here",
    );
    let narrow =
        Machine { usable: Some(2), quota: Some(2.0), hardware: Err("no".into()), ..machine(Some(3)) };
    says(
        &narrow.judge(),
        "|machine
         |  warn     the system does not describe its processors: no
         |           => let containers see /sys
         |  warn     3 ranks would share 2 hardware threads: waits yield instead of spinning
         |           => it works, but every message waits for its receiver to be scheduled; start at most 2
         |              here",
    );
}

#[test]
fn fewer_hardware_threads_than_the_machine_has() {
    let judged = |machine: Machine| {
        let mut section = machine.judge();
        Section { lines: section.lines.split_off(5), ..section }
    };
    let mend =
        "|           => if that is not wanted: widen the binding (`taskset -p $$`, srun --cpu-bind) or the
                |              container's limit (docker --cpus, --cpuset-cpus)";
    says(
        &judged(Machine { usable: Some(2), quota: Some(2.5), ..machine(None) }),
        &format!(
            "|machine
             |  warn     this process may use 2 of the 32 hardware threads (its control group's limit is the time
             |           of 2.5 processors)
             {mend}"
        ),
    );
    let bound =
        |allowed| machine(None).hardware.map(|hardware| Hardware { allowed: range(0, allowed), ..hardware });
    let contained = Machine { hardware: bound(4), cpuset: Some(4), usable: Some(4), ..machine(Some(4)) };
    says(
        &judged(contained.clone()),
        &format!(
            "|machine
             |  warn     this process may use 4 of the 32 hardware threads (its control group has 4 of them)
             {mend}
             |  ok       4 ranks have a hardware thread each"
        ),
    );
    // Of a rank that is bound by itself nothing is to be said of the others.
    let rank = Ranks { count: Some(4), launched: true, ..Ranks::default() };
    let alone = Machine { hardware: bound(1), usable: Some(1), ranks: rank.clone(), ..machine(None) };
    says(
        &judged(alone),
        "|machine
         |  -        this rank is bound to 1 of the 32 hardware threads",
    );
    let all = judged(Machine { ranks: rank, ..contained });
    assert_eq!(all.lines.len(), 2, "{all:?}");
}
