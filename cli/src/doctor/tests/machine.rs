//! The report on a machine's hardware, and on the ranks there.

use std::time::Duration;

use unisono::hardware::{Cache, Hardware, NumaNode, Processors};

use super::{
    super::{
        environment::LaunchInfo,
        machine::{Machine, RanksHere},
        ranks,
        report::Section,
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
        ranks: RanksHere { count: ranks, ..RanksHere::default() },
    }
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
    // Hardware that cannot exist is reported as it is.
    let packages = [range(0, 3), range(2, 30)].into_iter().collect();
    let odd = Hardware { packages, caches: Vec::new(), nodes: Vec::new(), ..two };
    assert_eq!(
        said(odd),
        "16 cores, 32 hardware threads: 1 socket × 1 core × 2 threads + 1 socket × 15 cores × 2 threads"
    );
    assert_eq!(said(Hardware::default()), "0 cores: ");
}

#[test]
fn ranks_are_placed_and_told_how_they_reach_each_other() {
    let launch = LaunchInfo {
        launcher: "Slurm",
        rank: 5,
        ranks: 8,
        local_rank: Some(1),
        local_ranks: Some(4),
        meeting: String::new(),
        host: None,
    };
    let said = |launched: Option<&LaunchInfo>, here, allowed, (inside, between)| {
        let Ok(hardware) = machine(None).hardware else { unreachable!() };
        let machine = Machine { hardware: Ok(Hardware { allowed, ..hardware }), ..machine(None) };
        let section = ranks::judge(launched, here, &machine, &tested(inside, between))?;
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
        let ranks = RanksHere { count: Some(ranks), spin, ..RanksHere::default() };
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
    // The binding of one rank says nothing about the others.
    let rank = RanksHere { count: Some(4), launched: true, ..RanksHere::default() };
    let alone = Machine { hardware: bound(1), usable: Some(1), ranks: rank.clone(), ..machine(None) };
    says(
        &judged(alone),
        "|machine
         |  -        this rank is bound to 1 of the 32 hardware threads",
    );
    let all = judged(Machine { ranks: rank, ..contained });
    assert_eq!(all.lines.len(), 2, "{all:?}");
}
