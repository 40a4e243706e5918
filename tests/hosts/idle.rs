//! Connections over which nothing goes for long, and last messages that do not arrive.

use std::{fs, path::Path, thread, time::Duration};

use unisono::ReduceOp;

use crate::{
    Outcome, Table, Verdict, ensure,
    forgetful::{Forgetful, INTERFACE},
    join,
    network::Hosts,
    rank::{self, Role, say},
    world::{End, TestJob, same},
    worlds::PORT,
};

pub(crate) const CASES: Table = &[
    ("idle connections between hosts are kept alive", kept_alive),
    ("a switch that forgets idle connections forgets none", not_forgotten),
    ("ranks that all leave do not wait for ever for what is lost", lost_last_messages),
];

pub(crate) const ROLES: &[Role] = &[("idles", play_idles), ("leaves-last", play_leaves_last)];

/// The time between two looks at the connections, and the number of looks.
const LOOK: Duration = Duration::from_millis(200);
const LOOKS: usize = 300;

/// Two ranks on two hosts that have reduced and now wait for a file.
fn idle(
    provider: &str,
    role: &str,
    hosts: &Hosts,
    marks: &Path,
) -> Result<TestJob, Box<dyn std::error::Error>> {
    let mut world = TestJob::at(provider, 2, &format!("tcp://10.77.0.1:{PORT}"));
    for rank in 0..2 {
        let role = format!("{role} {}", marks.display());
        hosts.run(&mut world, &format!("host{rank}"), rank, &role, &[("UNISONO_TIMEOUT", "3s")])?;
    }
    for _ in 0..LOOKS {
        if fs::read_dir(marks)?.count() == 2 {
            return Ok(world);
        }
        thread::sleep(LOOK);
    }
    Err("the ranks do not join".into())
}

/// Joins, reduces, and waits until a file exists.
fn waits(marks: &str) -> Result<unisono::ProcessGroup, Box<dyn std::error::Error>> {
    let (group, marks) = (join()?, Path::new(marks));
    let mut sum = vec![1.0_f32; 100_000];
    group.all_reduce(&mut sum, ReduceOp::Sum)?;
    fs::write(marks.join(group.rank().to_string()), b"")?;
    while !marks.join("done").exists() {
        thread::sleep(Duration::from_millis(10));
    }
    Ok(group)
}

fn kept_alive(provider: &str) -> Outcome {
    let (hosts, marks) = (Hosts::on_one_network(2)?, tempfile::tempdir()?);
    let world = idle(provider, "idles", &hosts, marks.path())?;
    let mut message = String::new();
    let kept = (0..LOOKS).any(|_| {
        thread::sleep(LOOK);
        let all = ["host0", "host1"].map(|host| hosts.sh(host, "ss -Htno state established"));
        message = all.into_iter().map(|message| message.unwrap_or_else(|error| error.to_string())).collect();
        let lines = || message.lines().filter(|line| !line.trim().is_empty());
        let data = lines().filter(|line| !line.contains(&format!(":{PORT} "))).count();
        data >= 2 && lines().all(|line| line.contains("timer:(keepalive"))
    });
    fs::write(marks.path().join("done"), b"")?;
    world.end_all()?.iter().try_for_each(End::well)?;
    ensure!(kept, "not all are kept alive: {message}");
    Ok(Verdict::Measured(format!("{} connections", message.lines().count())))
}

/// After this the switch forgets a connection: a little longer than it takes to find the connections, and to send the first probe.
const FORGETS: Duration = Duration::from_secs(9);

fn not_forgotten(provider: &str) -> Outcome {
    let (hosts, marks) = (Hosts::new(&[("host0", &[]), ("host1", &[])])?, tempfile::tempdir()?);
    let names = ["host0", "host1"];
    let [one, other] = names.map(|host| hosts.network_namespace(host));
    let switch = match Forgetful::new([one?, other?], FORGETS) {
        Ok(switch) => switch,
        Err(error) => return Ok(Verdict::Skipped(format!("no interface of a program's own: {error}"))),
    };
    for (number, host) in names.iter().enumerate() {
        let address = format!("10.77.0.{}/24", number + 1);
        hosts.sh(host, &format!("ip addr add {address} dev {INTERFACE} && ip link set {INTERFACE} up"))?;
    }
    let world = idle(provider, "idles", &hosts, marks.path())?;
    thread::sleep(2 * FORGETS);
    fs::write(marks.path().join("done"), b"")?;
    let ends = world.end_all()?;
    let dropped = switch.dropped();
    ends.iter()
        .try_for_each(End::well)
        .map_err(|error| format!("{dropped} segments are dropped: {error}"))?;
    ensure!(dropped == 0, "{dropped} segments are dropped");
    Ok(Verdict::Passed)
}

fn play_idles(marks: &str) -> rank::Outcome {
    let group = waits(marks)?;
    group.barrier()?;
    Ok(group.leave()?)
}

/// When the ranks leave, only the store can be reached between the hosts.
fn lost_last_messages(provider: &str) -> Outcome {
    let (hosts, marks) = (Hosts::on_one_network(2)?, tempfile::tempdir()?);
    let world = idle(provider, "leaves-last", &hosts, marks.path())?;
    // Without early demultiplexing, the firewall also sees packets of existing connections.
    hosts.sh("host1", "echo 0 > /proc/sys/net/ipv4/ip_early_demux")?;
    hosts.admit_only("host1", "eth0", PORT)?;
    fs::write(marks.path().join("done"), b"")?;
    let ends = world.end_all()?;
    ends.iter().try_for_each(End::well)?;
    let failure = same(&ends.iter().collect::<Vec<_>>(), "failure")?;
    for part in ["leave()", "did not finish within", "have not arrived"] {
        ensure!(failure.contains(part), "no {part:?} in {failure}");
    }
    Ok(Verdict::Measured(failure.to_owned()))
}

fn play_leaves_last(marks: &str) -> rank::Outcome {
    say("failure", waits(marks)?.leave().err().ok_or("it left")?);
    Ok(())
}
