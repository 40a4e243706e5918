//! Networks that lose what ranks send: all ranks report it when they join, in the same words, with both ends.

use crate::{
    Outcome, Table, Verdict, ensure,
    network::Hosts,
    world::{TestJob, same},
    worlds::PORT,
};

pub(crate) const CASES: Table = &[
    ("an interface from which there is no way", |provider| wrong_interface(provider, false)),
    ("an interface whose way leads nowhere", |provider| wrong_interface(provider, true)),
    ("data ports that a firewall drops", filtered),
    ("large packets that the network drops", large_packets),
];

/// The time by which joining may exceed 15 s on a loaded machine.
const LATE: i64 = 10_000;

/// Half of the ranks are on each of two hosts, and use the store of the first: no rank joins, and all soon report the same error.
fn refused(
    provider: &str,
    hosts: &Hosts,
    ranks: usize,
    more: [&[(&str, &str)]; 2],
    words: &[&str],
) -> Outcome {
    let mut world = TestJob::at(provider, ranks, &format!("tcp://10.77.0.1:{PORT}"));
    for rank in 0..ranks {
        let host = rank / (ranks / 2);
        hosts.run(&mut world, ["host0", "host1"][host], rank, "reduces", more[host])?;
    }
    let ends = world.end_all()?;
    let said = same(&ends.iter().collect::<Vec<_>>(), "error")?;
    for word in words {
        ensure!(said.contains(word), "no {word:?} in {said}");
    }
    let times = ends.iter().map(|end| end.number("joining took")).collect::<Result<Vec<_>, _>>()?;
    let slowest = times.into_iter().max().unwrap_or(0);
    ensure!(slowest < 15_000 + LATE, "joining took {slowest} ms: {said}");
    Ok(Verdict::Measured(format!("after {slowest} ms: {said}")))
}

/// The ranks of the second host use an interface of another network.
fn wrong_interface(provider: &str, routed: bool) -> Outcome {
    let hosts = Hosts::new(&[
        ("host0", &[("eth0", &["10.77.0.1/24"])]),
        ("host1", &[("eth0", &["10.77.0.2/24"]), ("eth1", &["10.88.0.2/24"])]),
    ])?;
    if routed {
        // The router does not know that network.
        hosts.sh(
            "host0",
            "ip route add default via 10.77.0.9 && ip neigh add 10.77.0.9 dev eth0 lladdr 02:00:00:00:00:09",
        )?;
    }
    let words: &[&str] = &[
        "does not reach rank",
        "10.77.0.1 (eth0 of host0)",
        "10.88.0.2 (eth1 of host1)",
        "the store was reached from",
        "from 10.77.0.2 by rank",
        "UNISONO_INTERFACE",
    ];
    refused(provider, &hosts, 4, [&[], &[("UNISONO_INTERFACE", "eth1")]], words)
}

fn filtered(provider: &str) -> Outcome {
    let hosts = Hosts::on_one_network(2)?;
    hosts.admit_only("host1", "eth0", PORT)?;
    let words = [
        "does not reach rank",
        "10.77.0.1 (eth0 of host0)",
        "10.77.0.2 (eth0 of host1)",
        "nothing answered",
        "firewall",
    ];
    refused(provider, &hosts, 4, [&[], &[]], &words)
}

/// The hosts send jumbo frames, which the switch between them drops.
fn large_packets(provider: &str) -> Outcome {
    let hosts = Hosts::on_one_network(2)?;
    hosts.mtu("host0", "eth0", 9000)?;
    hosts.mtu("host1", "eth0", 9000)?;
    hosts.network_mtu("eth0", 1500)?;
    let words = [
        "does not reach rank",
        "10.77.0.1 (eth0 of host0)",
        "10.77.0.2 (eth0 of host1)",
        "MTU is 9000 and 9000",
    ];
    // This many ranks exchange more than one packet through the store.
    refused(provider, &hosts, 12, [&[], &[]], &words)
}
