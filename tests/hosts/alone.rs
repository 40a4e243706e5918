//! A host that does not reach itself: every rank hears of it soon, and why.

use std::time::Instant;

use crate::{
    Outcome, Table, Verdict, ensure,
    network::Hosts,
    rank::{self, Role, join},
    world::World,
    worlds::PORT,
};

pub(crate) const CASES: Table = &[
    ("the loopback interface of a host is down", loopback_down),
    ("shm between hosts that share no memory is refused at once", no_shared_memory),
];

pub(crate) const ROLES: &[Role] = &[("meets", play)];

fn loopback_down(provider: &str) -> Outcome {
    let hosts = Hosts::on_one_network(2)?;
    hosts.sh("host1", "ip link set lo down")?;
    let began = Instant::now();
    let mut world = World::at(provider, 2, &format!("tcp://10.77.0.1:{PORT}"));
    for (rank, host) in ["host0", "host1"].into_iter().enumerate() {
        hosts.run(&mut world, host, rank, "meets", &[("UNISONO_JOIN_TIMEOUT", "10s")])?;
    }
    let ends = world.end_all()?;
    for end in &ends {
        let error = end.said("error")?;
        for part in ["10.77.0.2", "`ip link set lo up`", "firewall", "failed its self-test"] {
            ensure!(error.contains(part), "rank {}: {part:?} is not in {error:?}", end.rank);
        }
    }
    ensure!(began.elapsed().as_secs() < 12, "it took {:?}", began.elapsed());
    Ok(Verdict::Measured(format!("{:?}", ends[1].said("error")?)))
}

/// Hosts here are containers of one kernel: each has a /dev/shm and process numbers of its own.
fn no_shared_memory(_: &str) -> Outcome {
    let hosts = Hosts::on_one_network(2)?;
    let began = Instant::now();
    let mut world = World::at("shm", 3, &format!("tcp://10.77.0.1:{PORT}"));
    for (rank, host) in ["host0", "host1", "host0"].into_iter().enumerate() {
        hosts.run(&mut world, host, rank, "meets", &[])?;
    }
    let ends = world.end_all()?;
    for end in &ends {
        let error = end.said("error")?;
        if error.contains("no libfabric provider fits") {
            return Ok(Verdict::Skipped(format!("shm has no endpoint here: {error}")));
        }
        for part in ["ranks must have one /dev/shm", "ranks 0, 2 on host0", "ranks 1 on host1", "--ipc=host"]
        {
            ensure!(error.contains(part), "rank {}: {part:?} is not in {error:?}", end.rank);
        }
    }
    ensure!(began.elapsed().as_secs() < 8, "it took {:?}", began.elapsed());
    Ok(Verdict::Measured(ends[1].said("error")?.to_owned()))
}

/// Joins and leaves.
fn play(_: &str) -> rank::Outcome {
    Ok(join()?.leave()?)
}
