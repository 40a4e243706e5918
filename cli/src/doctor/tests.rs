//! The exact reports for machines other than this one.

use std::net::IpAddr;

use unisono::config::Config;

use super::{
    group::Reduced,
    interfaces::{DevicePort, Interface, NetworkDevices, Route, VerbsFile},
    limits::{Limit, SystemLimits, Windows},
    providers::ProviderRequest,
    report::Section,
    self_test::{SelfTest, Trial},
    shared::SHM,
    versions::Versions,
};

mod machine;
mod providers;
#[cfg(feature = "hwloc")]
mod topology;

/// Compares a section with the expected text, where `|` stands for the margin.
#[track_caller]
fn says(section: &Section, wanted: &str) {
    let text = section.render(false);
    let wanted: Vec<_> = wanted.lines().filter_map(|line| line.trim_start().strip_prefix('|')).collect();
    assert_eq!(text.trim_end().lines().collect::<Vec<_>>(), wanted, "it says:\n{text}");
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn reduced(provider: &str) -> Reduced {
    let verbs = provider.starts_with("verbs");
    let wakes = provider != "efa";
    let sockets = provider.contains("tcp") || provider == "net";
    let (times_us, reads) = ([12.3, 456.7], provider.starts_with("shm").then_some(true));
    Reduced { provider: provider.into(), pins: verbs, staging: verbs, wakes, reads, sockets, times_us }
}

fn trial(request: ProviderRequest, asked: bool, failed: &[&str], provider: Option<&str>) -> Trial {
    let failed = failed.iter().map(|name| ((*name).to_owned(), "it broke".to_owned()));
    Trial { request, asked, failed: failed.collect(), success: provider.map(reduced) }
}

/// The self-test of a machine where these work, on one host and between hosts.
fn tested(on_one_host: Option<&str>, between_hosts: Option<&str>) -> SelfTest {
    let of =
        |request, provider: Option<&str>| provider.map(|provider| trial(request, true, &[], Some(provider)));
    let trials = [of(ProviderRequest::OneHost, on_one_host), of(ProviderRequest::Hosts, between_hosts)];
    SelfTest { trials: trials.into_iter().flatten().collect() }
}

/// The settings of these tests, so that their figures do not depend on the defaults.
fn config() -> Config {
    Config { chunk: 256 << 10, lanes: 2, ..Config::default() }
}

/// A machine with nothing special.
fn limits() -> SystemLimits {
    SystemLimits {
        memlock: Limit { soft: Some(8 << 20), hard: Some(8 << 20) },
        may_lock: Some(false),
        files: Limit { soft: Some(1024), hard: Some(524_288) },
        memory: None,
        transparent: Some("madvise".into()),
        congestion_control: None,
        rdma: false,
        windows: Windows::of(&config(), 8, 8),
    }
}

#[test]
fn little_locked_memory() {
    let verbs = "verbs;ofi_rxm";
    let locked = |limit, rdma, chosen| {
        let memlock = Limit { soft: limit, hard: limit };
        let mut section = SystemLimits { memlock, rdma, ..limits() }.judge(&tested(Some(SHM), chosen));
        section.lines.truncate(1);
        section
    };
    says(
        &locked(Some(64 << 10), true, Some(verbs)),
        "|limits
         |  PROBLEM  locked memory: 64 KiB, but windows for 8 ranks need 9.77 MiB per rank, and even with the
         |           smallest chunks 2.01 MiB
         |           => raise it: `ulimit -l unlimited`, memlock in /etc/security/limits.conf,
         |              LimitMEMLOCK=infinity for slurmd and other services, docker run --ulimit memlock=-1",
    );
    says(
        &locked(Some(4 << 20), true, Some(verbs)),
        "|limits
         |  warn     locked memory: 4 MiB, but windows for 8 ranks need 9.77 MiB per rank: chunks would be
         |           made smaller, which is slower
         |           => raise it: `ulimit -l unlimited`, memlock in /etc/security/limits.conf,
         |              LimitMEMLOCK=infinity for slurmd and other services, docker run --ulimit memlock=-1",
    );
    says(
        &locked(Some(16 << 20), true, Some(verbs)),
        "|limits
         |  ok       locked memory: 16 MiB; windows for 8 ranks need 9.77 MiB per rank, and registered buffers
         |           need more",
    );
    says(
        &locked(Some(64 << 10), false, Some("net")),
        "|limits
         |  ok       locked memory: 64 KiB; windows for 8 ranks need 8.77 MiB per rank, but net locks none",
    );
    says(
        &locked(None, true, None),
        "|limits
         |  ok       locked memory: no limit; windows for 8 ranks need 9.77 MiB per rank",
    );
}

#[test]
fn few_open_files() {
    let windows = Windows::of(&config(), 300, 8);
    let tight = SystemLimits {
        memlock: Limit { soft: None, hard: None },
        transparent: Some("never".into()),
        windows,
        ..limits()
    };
    says(
        &tight.judge(&SelfTest::default()),
        "|limits
         |  ok       locked memory: no limit; windows for 300 ranks need 14.8 MiB per rank
         |  warn     open files: 1024, but 300 ranks over TCP may need 1264
         |           => raise it: `ulimit -n 1264`
         |  -        transparent huge pages: never",
    );
}

#[test]
fn congestion_control_that_paces() {
    let judged = |name: &str, provider| {
        let limits = SystemLimits { congestion_control: Some(name.into()), ..limits() };
        let mut section = limits.judge(&tested(Some(provider), Some("net")));
        Section { lines: section.lines.split_off(3), ..section }
    };
    for (name, provider) in [("cubic", "net"), ("bbr", SHM), ("bbr", "verbs;ofi_rxm")] {
        says(&judged(name, provider), &format!("|limits\n|  -        TCP congestion control: {name}"));
    }
    for provider in ["net", "tcp;ofi_rxm"] {
        says(
            &judged("bbr", provider),
            "|limits
             |  warn     TCP congestion control: bbr, which paces: large messages between ranks on one machine may
             |           take twice the time
             |           => `sysctl net.ipv4.tcp_congestion_control=cubic`, which affects new connections",
        );
    }
}

#[test]
fn interfaces_of_a_cluster_node() {
    let interface = |name: &str, addresses: &[&str], up, mbit| Interface {
        name: name.into(),
        addresses: addresses.iter().map(|text| ip(text)).collect(),
        up,
        mtu: Some(1500),
        mbit,
    };
    let port = |number: &str, state: &str| DevicePort {
        device: "mlx5_0".into(),
        number: number.into(),
        state: Some(state.into()),
        rate: Some("100 Gb/sec (4X EDR)".into()),
        link: None,
    };
    let route = |from: Option<&str>, problem: Option<&str>| Route {
        host: "node0".into(),
        address: from.map(|_| ip("10.0.0.9")),
        from: from.map(ip),
        problem: problem.map(str::to_owned),
    };
    let found = NetworkDevices {
        interfaces: vec![
            interface("eth0", &["10.0.0.1", "fe80::1"], Some(true), Some(25000)),
            interface("eth1", &[], Some(false), None),
            interface("lo", &["127.0.0.1"], None, None),
        ],
        rdma: vec![port("1", "4: ACTIVE"), port("2", "1: DOWN")],
        verbs_files: Vec::new(),
        route: Some(route(Some("10.0.0.1"), None)),
        problem: None,
    };
    says(
        &found.judge(),
        "|interfaces
         |  -        eth0: up, 25000 Mbit/s, mtu 1500, 10.0.0.1 fe80::1
         |  -        eth1: down, mtu 1500, no address
         |  -        lo: state unknown, mtu 1500, 127.0.0.1
         |  ok       RDMA device mlx5_0 port 1: 4: ACTIVE, 100 Gb/sec (4X EDR), unknown
         |  warn     RDMA device mlx5_0 port 2: 1: DOWN, 100 Gb/sec (4X EDR), unknown
         |           => the port is not active: look at its cable, and on InfiniBand at the subnet manager
         |  warn     there are RDMA devices, but no /dev/infiniband/uverbs*: programs cannot reach them
         |           => load the kernel module ib_uverbs; in a container add --device=/dev/infiniband
         |  ok       the route to node0 (10.0.0.9) starts at 10.0.0.1 on eth0",
    );
    let denied = Some("Permission denied (os error 13)".to_owned());
    let verbs_files = vec![
        VerbsFile { path: "/dev/infiniband/uverbs0".into(), problem: None },
        VerbsFile { path: "/dev/infiniband/uverbs1".into(), problem: denied },
    ];
    let mut denied = NetworkDevices { verbs_files, route: None, ..found }.judge();
    says(
        &Section { lines: denied.lines.split_off(5), ..denied },
        "|interfaces
         |  warn     /dev/infiniband/uverbs1 cannot be opened, so its RDMA device cannot be used: Permission
         |           denied (os error 13)
         |           => let this user read and write it (udev's rules; often there is a group rdma); in a
         |              container add --device=/dev/infiniband
         |  -        no variable names the host where ranks meet, so no route is checked",
    );
    let alone = NetworkDevices {
        interfaces: vec![interface("lo", &["127.0.0.1"], Some(true), None)],
        route: Some(route(None, Some("its address is unknown"))),
        ..NetworkDevices::default()
    };
    says(
        &alone.judge(),
        "|interfaces
         |  -        lo: up, mtu 1500, 127.0.0.1
         |  warn     no interface that is up has an address but loopback
         |           => ranks on this machine can meet; for others, bring an interface up (`ip addr`)
         |  PROBLEM  there is no route to node0: its address is unknown
         |           => correct MASTER_ADDR or UNISONO_STORE, /etc/hosts or the routes (`ip route get
         |              ADDRESS`)",
    );
}

#[test]
fn without_loopback_ranks_of_one_host_cannot_meet() {
    let interfaces = |addresses: &[&str]| NetworkDevices {
        interfaces: vec![Interface {
            name: "lo".into(),
            addresses: addresses.iter().map(|text| ip(text)).collect(),
            up: Some(true),
            mtu: None,
            mbit: None,
        }],
        ..NetworkDevices::default()
    };
    let said = |addresses: &[&str]| interfaces(addresses).judge().render(false);
    let problem = "PROBLEM  no interface has a loopback address";
    assert!(said(&[]).contains(problem) && said(&["10.0.0.1"]).contains(problem), "{}", said(&[]));
    assert!(!said(&[]).contains("ranks on this machine can meet"), "{}", said(&[]));
    assert!(!said(&["::1"]).contains(problem) && !said(&["127.0.0.1"]).contains(problem));
}

#[test]
fn libraries_old_and_other() {
    let versions = |libfabric, file: Option<&str>| Versions {
        unisono: "0.1.0".into(),
        libfabric_built: "1.17.0".into(),
        libfabric,
        libfabric_file: file.map(str::to_owned),
        hwloc: Some((2, 9)),
        kernel: None,
    };
    says(
        &versions((1, 6), None).judge(),
        "|versions
         |  -        unisono 0.1.0 on Linux of unknown release
         |  PROBLEM  libfabric 1.6 from an unknown file is older than 1.17, which is the oldest supported
         |           => install a newer libfabric, or put a newer one's directory first in LD_LIBRARY_PATH
         |  ok       hwloc 2.9",
    );
    says(
        &versions((2, 5), Some("/opt/libfabric.so.1")).judge(),
        "|versions
         |  -        unisono 0.1.0 on Linux of unknown release
         |  ok       libfabric 2.5 from /opt/libfabric.so.1; built against 1.17.0, which is compatible
         |  ok       hwloc 2.9",
    );
    let without = Versions { hwloc: None, ..versions((1, 17), Some("/lib/libfabric.so.1")) };
    let said = without.judge().render(false);
    assert!(said.contains("built without hwloc"), "{said}");
}
