//! Worlds over several hosts that work: several ranks on each, one on each, IPv6 only.

use unisono::ReduceOp;

use crate::{
    Outcome, Table, Verdict, ensure, join,
    network::Hosts,
    rank::{self, Role, say},
    world::{End, TestJob},
};

pub(crate) const CASES: Table = &[
    ("two hosts with two ranks each", |provider| works(provider, 2, 4, "10.77.0.1")),
    ("four hosts with a rank each", |provider| works(provider, 4, 4, "10.77.0.1")),
    ("IPv6 alone", ipv6),
    ("the master knows itself by 127.0.1.1", loopback_master),
    ("an interface is chosen by its network, or by not being another", interfaces),
    ("an interface that there is not is refused with those there are", no_interface),
    ("hosts are apart, and feel what is done to their network", apart),
];

pub(crate) const ROLES: &[Role] = &[("reduces", play_reduces)];

/// The port of the stores; the hosts have no other programs.
pub(crate) const PORT: u16 = 29500;

/// This many ranks, in equal numbers on the hosts, reduce.
fn works(provider: &str, hosts: usize, ranks: usize, store: &str) -> Outcome {
    reduce(provider, &Hosts::on_one_network(hosts)?, hosts, ranks, store)
}

/// No host has an IPv4 address except that of its loopback.
fn ipv6(provider: &str) -> Outcome {
    let hosts =
        Hosts::new(&[("alpha", &[("eth0", &["fd77::1/64"])]), ("beta", &[("eth0", &["fd77::2/64"])])])?;
    let mut world = TestJob::at(provider, 2, &format!("tcp://[fd77::1]:{PORT}"));
    hosts.run(&mut world, "alpha", 0, "reduces", &[])?;
    hosts.run(&mut world, "beta", 1, "reduces", &[])?;
    all_well(world)
}

/// The properties of the hosts on which the other cases depend.
fn apart(_: &str) -> Outcome {
    let hosts = Hosts::on_one_network(2)?;
    let answers = |address: &str, port| hosts.answers("host0", address, port);
    ensure!(answers("10.77.0.2", PORT)?, "host1 is not reached");
    ensure!(answers("fd77::2", PORT)?, "host1 is not reached by IPv6");
    hosts.cut("host1", "eth0")?;
    ensure!(!answers("10.77.0.2", PORT)?, "host1 is reached though it is cut off");
    hosts.mend("host1", "eth0")?;
    ensure!(answers("10.77.0.2", PORT)?, "host1 is not reached after it was put back");
    hosts.admit_only("host1", "eth0", PORT)?;
    ensure!(answers("10.77.0.2", PORT)?, "the port that is let through is not reached");
    ensure!(!answers("10.77.0.2", 9)?, "a port that is filtered is reached");
    ensure!(!answers("fd77::2", 9)?, "a port that is filtered is reached by IPv6");
    hosts.etc_hosts("host1", "127.0.1.1 host1")?;
    let own = hosts.sh("host1", "hostname; cat /etc/hosts; touch /dev/shm/mark; echo $$")?;
    ensure!(own.starts_with("host1\n127.0.1.1 host1"), "{own:?}");
    let others = hosts.sh("host0", "hostname; cat /etc/hosts; ls /dev/shm")?;
    ensure!(others.starts_with("host0") && !others.contains("127.0.1.1 host1"), "{others:?}");
    ensure!(!others.contains("mark"), "hosts share /dev/shm");
    Ok(Verdict::Passed)
}

/// Two hosts with one network in common, whose interface on the master is neither its first nor its last.
/// The master's /etc/hosts maps its own name to a loopback address, as Debian's installer writes it.
fn two_interfaces() -> Result<Hosts, Box<dyn std::error::Error>> {
    let hosts = Hosts::new(&[
        ("alpha", &[("eth0", &["10.88.0.1/24"]), ("eth1", &["10.77.0.1/24"]), ("eth3", &["10.66.0.1/24"])]),
        ("beta", &[("eth1", &["10.77.0.2/24"]), ("eth2", &["10.99.0.2/24"])]),
    ])?;
    hosts.etc_hosts("alpha", "127.0.0.1 localhost\n127.0.1.1 alpha\n")?;
    hosts.etc_hosts("beta", "127.0.0.1 localhost\n127.0.1.1 beta\n10.77.0.1 alpha\n")?;
    Ok(hosts)
}

fn loopback_master(provider: &str) -> Outcome {
    let hosts = two_interfaces()?;
    let mut world = TestJob::at(provider, 4, &format!("tcp://alpha:{PORT}"));
    for (rank, host) in ["alpha", "alpha", "beta", "beta"].into_iter().enumerate() {
        hosts.run(&mut world, host, rank, "reduces", &[])?;
    }
    all_well(world)?;
    // Ranks that are all on the master do not wait for other machines.
    let mut world = TestJob::at(provider, 2, &format!("tcp://alpha:{PORT}"));
    for rank in 0..2 {
        hosts.run(&mut world, "alpha", rank, "reduces", &[])?;
    }
    all_well(world)
}

fn interfaces(provider: &str) -> Outcome {
    let hosts = two_interfaces()?;
    hosts.sh("alpha", "ip route add 10.99.0.0/24 dev eth0")?;
    let mut took = Verdict::Passed;
    for (alpha, beta) in [
        ("10.77.0.0/24", "10.77.0.0/16,lo"),
        ("eth1", "nosuch,eth1"),
        ("^eth0,lo,eth3", "^eth2,127.0.0.0/8"),
        // Of several interfaces, the one on the route to the store is used.
        ("10.0.0.0/8", "eth2,eth1"),
    ] {
        let mut world = TestJob::at(provider, 2, &format!("tcp://alpha:{PORT}"));
        hosts.run(&mut world, "alpha", 0, "reduces", &[("UNISONO_INTERFACE", alpha)])?;
        hosts.run(&mut world, "beta", 1, "reduces", &[("UNISONO_INTERFACE", beta)])?;
        took = all_well(world).map_err(|error| format!("{alpha} and {beta}: {error}"))?;
    }
    Ok(took)
}

fn no_interface(provider: &str) -> Outcome {
    let hosts = two_interfaces()?;
    let mut world = TestJob::at(provider, 2, &format!("tcp://alpha:{PORT}"));
    hosts.run(&mut world, "alpha", 0, "reduces", &[("UNISONO_INTERFACE", "10.55.0.0/24")])?;
    hosts.run(&mut world, "beta", 1, "reduces", &[])?;
    let ends = world.end_all()?;
    let words = ends.first().ok_or("nobody")?.said("error")?;
    for word in ["10.55.0.0/24", "eth0 10.88.0.1", "eth1 10.77.0.1"] {
        ensure!(words.contains(word), "{words}");
    }
    Ok(Verdict::Measured(words.to_owned()))
}

fn reduce(provider: &str, all: &Hosts, hosts: usize, ranks: usize, store: &str) -> Outcome {
    let mut world = TestJob::at(provider, ranks, &format!("tcp://{store}:{PORT}"));
    for rank in 0..ranks {
        all.run(&mut world, &format!("host{}", rank * hosts / ranks), rank, "reduces", &[])?;
    }
    all_well(world)
}

/// Checks that all ranks succeed, and that none was slow to join.
fn all_well(world: TestJob) -> Outcome {
    let ends = world.end_all()?;
    ends.iter().try_for_each(End::well)?;
    let slowest = ends.iter().map(|end| end.number("joining took")).collect::<Result<Vec<_>, _>>()?;
    let slowest = slowest.into_iter().max().unwrap_or(0);
    ensure!(slowest < 10_000, "joining took {slowest} ms");
    Ok(Verdict::Measured(format!("joining took {slowest} ms")))
}

/// Joins, sums numbers whose sum is exact, at every size that takes another path, and leaves.
fn play_reduces(_: &str) -> rank::Outcome {
    let group = join()?;
    let (rank, ranks) = (group.rank(), group.size());
    for count in [1, 1000, 50_000, 1_000_000] {
        let mut data: Vec<f32> = (0..count).map(|at| ((rank + 1) * (at % 7)) as f32).collect();
        group.all_reduce(&mut data, ReduceOp::Sum)?;
        let all = ranks * (ranks + 1) / 2;
        let wrong = data.iter().enumerate().find(|&(at, &sum)| sum != (all * (at % 7)) as f32);
        if let Some((at, sum)) = wrong {
            return Err(format!("element {at} of {count} is {sum}, not {}", all * (at % 7)).into());
        }
    }
    say("transport", &group.limits().provider);
    Ok(group.leave()?)
}
