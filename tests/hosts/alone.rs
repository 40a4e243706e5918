//! A host that cannot reach itself: every rank soon gets an error with the reason.

use std::time::Instant;

use unisono::ReduceOp;

use crate::{
    Outcome, Table, Verdict, ensure, join,
    network::Hosts,
    rank::{self, Role, say},
    world::TestJob,
    worlds::PORT,
};

pub(crate) const CASES: Table = &[
    ("the loopback interface of a host is down", loopback_down),
    ("shm between hosts that share no memory is refused at once", no_shared_memory),
    ("machines of one snapshot share no memory, but their ranks do", one_snapshot),
    ("the error of a broken connection names the rank and the host at its end", broken),
];

pub(crate) const ROLES: &[Role] = &[("meets", play), ("reduces-until-failure", play_reduces)];

fn loopback_down(provider: &str) -> Outcome {
    let hosts = Hosts::on_one_network(2)?;
    hosts.sh("host1", "ip link set lo down")?;
    let began = Instant::now();
    let mut world = TestJob::at(provider, 2, &format!("tcp://10.77.0.1:{PORT}"));
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

/// The hosts are containers of one kernel, each with its own network namespace.
fn no_shared_memory(_: &str) -> Outcome {
    let hosts = Hosts::on_one_network(2)?;
    let began = Instant::now();
    let mut world = TestJob::at("shm", 3, &format!("tcp://10.77.0.1:{PORT}"));
    for (rank, host) in ["host0", "host1", "host0"].into_iter().enumerate() {
        hosts.run(&mut world, host, rank, "meets", &[])?;
    }
    let ends = world.end_all()?;
    for end in &ends {
        let error = end.said("error")?;
        for part in ["one network namespace", "ranks 0, 2 on host0", "rank 1 on host1", "--network=host"] {
            ensure!(error.contains(part), "rank {}: {part:?} is not in {error:?}", end.rank);
        }
    }
    ensure!(began.elapsed().as_secs() < 8, "it took {:?}", began.elapsed());
    Ok(Verdict::Measured(ends[1].said("error")?.to_owned()))
}

/// Hosts with one boot_id and namespaces of the same numbers, like machines that were restored from one snapshot.
fn one_snapshot(_: &str) -> Outcome {
    let hosts = Hosts::on_one_network(2)?;
    let numbers = tempfile::tempdir()?;
    for namespace in ["net", "user", "pid"] {
        std::fs::write(numbers.path().join(namespace), "")?;
    }
    let as_restored = format!("mount --bind {} /proc/$$/ns && exec \"$0\"", numbers.path().display());
    let run = |provider: &str, role: &str| {
        let mut world = TestJob::at(provider, 4, &format!("tcp://10.77.0.1:{PORT}"));
        for (rank, host) in ["host0", "host0", "host1", "host1"].into_iter().enumerate() {
            let mut command = hosts.command(host, "sh")?;
            command.args(["-c", &as_restored]).arg(std::env::current_exe()?);
            world.start_by(command, rank, role, &[])?;
        }
        world.end_all()
    };
    for end in run("shm", "meets")? {
        let error = end.said("error")?;
        for part in ["boot_id", "one snapshot: ranks 0, 1 on host0, ranks 2, 3 on host1"] {
            ensure!(error.contains(part), "rank {}: {part:?} is not in {error:?}", end.rank);
        }
    }
    let ends = run("shm,tcp", "reduces")?;
    for end in &ends {
        end.well()?;
        ensure!(
            end.said("transport")?.starts_with("shm,"),
            "rank {} uses {}",
            end.rank,
            end.said("transport")?
        );
    }
    Ok(Verdict::Passed)
}

fn broken(provider: &str) -> Outcome {
    let hosts = Hosts::on_one_network(2)?;
    let mut world = TestJob::at(provider, 2, &format!("tcp://10.77.0.1:{PORT}"));
    for (rank, host) in ["host0", "host1"].into_iter().enumerate() {
        hosts.run(&mut world, host, rank, "reduces-until-failure", &[("UNISONO_TIMEOUT", "6s")])?;
    }
    // Cuts all connections of host0 except those to the store, repeatedly, because libfabric connects again.
    let cut = format!("ss -tnHK 'dst 10.77.0.2 and sport != :{PORT} and dport != :{PORT}'");
    let cuts = format!("sleep 2; for i in 1 2 3 4 5 6 7 8; do {cut}; sleep 0.3; done 2>&1");
    let killed = hosts.sh("host0", &cuts)?;
    if killed.trim().is_empty() {
        return Ok(Verdict::Skipped("`ss -K` ends no connection here".into()));
    }
    let ends = world.end_all()?;
    let first = ends[0].said("failure")?;
    for end in &ends {
        let words = end.said("failure")?;
        ensure!(words == first, "rank {} says {words:?}, rank 0 {first:?}", end.rank);
        // libfabric 2.5 connects again, and does not report what it has lost.
        let messages = [
            "the connection to rank 0 on host0: ",
            "the connection to rank 1 on host1: ",
            "connection between them was broken",
        ];
        ensure!(messages.iter().any(|message| words.contains(message)), "rank {}: {words:?}", end.rank);
        let took = end.number("failed after")?;
        ensure!(took < 14_000, "rank {} heard of it {took} ms after it had joined", end.rank);
    }
    Ok(Verdict::Measured(first.to_owned()))
}

/// Joins and calls until a call fails.
fn play_reduces(_: &str) -> rank::Outcome {
    let group = join()?;
    let (begun, mut data) = (Instant::now(), vec![0.5_f32; 20_000]);
    let failure = loop {
        match group.all_reduce(&mut data, ReduceOp::Avg) {
            Ok(()) if begun.elapsed().as_secs() < 40 => {}
            Ok(()) => return Err("no call failed".into()),
            Err(error) => break error,
        }
    };
    say("failed after", begun.elapsed().as_millis());
    say("failure", failure);
    Ok(())
}

/// Joins and leaves.
fn play(_: &str) -> rank::Outcome {
    Ok(join()?.leave()?)
}
