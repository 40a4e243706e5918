//! Hosts that are cut off for a while, or for good: an outage shorter than the timeout is survived, and a rank that is only
//! unreachable is not reported as dead.

use std::{path::Path, thread, time::Duration};

use unisono::ReduceOp;

use crate::{
    Outcome, Table, Verdict, ensure, join,
    network::Hosts,
    rank::{self, Role, say},
    world::{End, TestJob},
    worlds::PORT,
};

pub(crate) const CASES: Table = &[
    ("an outage shorter than the timeout is survived", outage),
    ("a host that is cut off is out of reach, and not dead", out_of_reach),
];

pub(crate) const ROLES: &[Role] = &[("works-on", play_works_on), ("looks-later", play_looks_later)];

/// Longer than 30 s, the time after which the store would give a connection up if the group's timeout set no other.
const OUTAGE: Duration = Duration::from_secs(35);

fn outage(provider: &str) -> Outcome {
    let hosts = Hosts::on_one_network(2)?;
    let marks = tempfile::tempdir()?;
    let mut world = TestJob::at(provider, 2, &format!("tcp://10.77.0.1:{PORT}"));
    // TCP tries again after 25 s, and then after 51.
    let more = [("UNISONO_TIMEOUT", "80s")];
    for rank in 0..2 {
        let role = format!("works-on {}", marks.path().display());
        hosts.run(&mut world, &format!("host{rank}"), rank, &role, &more)?;
    }
    while !marks.path().join("works").exists() {
        thread::sleep(Duration::from_millis(10));
    }
    hosts.cut("host1", "eth0")?;
    thread::sleep(OUTAGE);
    hosts.mend("host1", "eth0")?;
    std::fs::write(marks.path().join("mended"), b"")?;
    let ends = world.end_all()?;
    ends.iter().try_for_each(End::well)?;
    Ok(Verdict::Measured(format!(
        "{OUTAGE:?} of outage, and the longest call took {} ms",
        ends[0].said("longest")?
    )))
}

/// Reduces until the parent has repaired the network and both ranks know it.
fn play_works_on(marks: &str) -> rank::Outcome {
    let group = join()?;
    let marks = Path::new(marks);
    let (mut longest, mut calls) = (Duration::ZERO, 0);
    loop {
        let mut mended = [f32::from(u8::from(marks.join("mended").exists()))];
        let begun = std::time::Instant::now();
        group.all_reduce(&mut mended, ReduceOp::Max)?;
        longest = longest.max(begun.elapsed());
        calls += 1;
        if calls == 10 {
            std::fs::write(marks.join("works"), b"")?;
        }
        if mended[0] > 0.0 {
            break;
        }
        thread::sleep(Duration::from_millis(20));
    }
    say("longest", longest.as_millis());
    Ok(group.leave()?)
}

fn out_of_reach(provider: &str) -> Outcome {
    let hosts = Hosts::on_one_network(2)?;
    let marks = tempfile::tempdir()?;
    let mut world = TestJob::at(provider, 3, &format!("tcp://10.77.0.1:{PORT}"));
    for (rank, host) in ["host0", "host0", "host1"].into_iter().enumerate() {
        let role = format!("looks-later {}", marks.path().display());
        hosts.run(&mut world, host, rank, &role, &[("UNISONO_TIMEOUT", "10s")])?;
    }
    while std::fs::read_dir(marks.path())?.count() < 3 {
        thread::sleep(Duration::from_millis(10));
    }
    hosts.cut("host1", "eth0")?;
    let ends = world.end_all()?;
    ends.iter().try_for_each(End::well)?;
    let [first, second, third] = &ends[..] else { return Err("not three ranks".into()) };
    let words = first.said("failure")?;
    ensure!(second.said("failure")? == words, "{words}, and rank 1: {}", second.said("failure")?);
    ensure!(words.starts_with("rank 2 is not reachable (pid ") && words.contains(" on host1: "), "{words}");
    let cut_off = third.said("failure")?;
    ensure!(cut_off.contains("does not answer: rank 0, whose process serves it"), "{cut_off}");
    Ok(Verdict::Measured(format!("{words:?}, and to rank 2 {cut_off:?}")))
}

/// This rank is in no call when the network is cut.
fn play_looks_later(marks: &str) -> rank::Outcome {
    let group = join()?;
    group.barrier()?;
    std::fs::write(Path::new(marks).join(group.rank().to_string()), b"")?;
    thread::sleep(Duration::from_secs(20));
    say("failure", group.barrier().err().ok_or("all is well")?);
    Ok(())
}
