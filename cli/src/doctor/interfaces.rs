//! Network interfaces, RDMA devices, and the route to the store.

use std::{
    collections::BTreeMap,
    fs::OpenOptions,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket},
    time::Duration,
};

use serde::Serialize;
use unisono::config::StoreAddress;

use super::{
    apart,
    files::Files,
    report::{Section, or_unknown},
};

/// How long the look-up of a host's address may take.
const RESOLVING: Duration = Duration::from_secs(5);

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Interface {
    /// Its name.
    pub(super) name: String,
    /// Its addresses.
    pub(super) addresses: Vec<IpAddr>,
    /// `Some(true)` if it is up and has a carrier.
    pub(super) up: Option<bool>,
    /// The largest packet in bytes.
    pub(super) mtu: Option<u32>,
    /// Its speed in Mbit/s, if the driver reports it.
    pub(super) mbit: Option<u32>,
}

/// A port of an RDMA device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct DevicePort {
    /// The device's name.
    pub(super) device: String,
    /// The port's number.
    pub(super) number: String,
    /// For instance `4: ACTIVE`.
    pub(super) state: Option<String>,
    /// For instance `100 Gb/sec (4X EDR)`.
    pub(super) rate: Option<String>,
    /// `InfiniBand` or `Ethernet`.
    pub(super) link: Option<String>,
}

/// A file through which programs reach an RDMA device: `/dev/infiniband/uverbs*`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct VerbsFile {
    /// Its path.
    pub(super) path: String,
    /// Why this process cannot open it, if it cannot.
    pub(super) problem: Option<String>,
}

/// The route to the host where ranks meet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Route {
    /// The host as it was named.
    pub(super) host: String,
    /// Its address.
    pub(super) address: Option<IpAddr>,
    /// The local address from which packets would be sent.
    pub(super) from: Option<IpAddr>,
    /// What went wrong.
    pub(super) problem: Option<String>,
}

/// The network interfaces and RDMA devices.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct NetworkDevices {
    /// All interfaces.
    pub(super) interfaces: Vec<Interface>,
    /// All ports of RDMA devices.
    pub(super) rdma: Vec<DevicePort>,
    /// The files by which programs reach these devices.
    pub(super) verbs_files: Vec<VerbsFile>,
    /// The route to the host where ranks meet, if that is known.
    pub(super) route: Option<Route>,
    /// Why addresses are unknown.
    pub(super) problem: Option<String>,
}

impl NetworkDevices {
    pub(super) fn gather(files: &Files, master: Option<String>) -> Self {
        let (addresses, problem) = match if_addrs::get_if_addrs() {
            Ok(found) => (found.into_iter().map(|it| (it.name.clone(), it.ip())).collect(), None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        Self {
            interfaces: interfaces(files, addresses),
            rdma: ports(files),
            verbs_files: verbs_files(files),
            route: master.map(route),
            problem,
        }
    }

    pub(super) fn judge(&self) -> Section {
        let mut section = Section::new("interfaces");
        if let Some(problem) = &self.problem {
            section.warn(
                format!("the addresses of this machine cannot be read: {problem}"),
                "name one with UNISONO_INTERFACE",
            );
        }
        for interface in &self.interfaces {
            section.note(interface.words());
        }
        let loopback = self.interfaces.iter().flat_map(|it| &it.addresses).any(IpAddr::is_loopback);
        if self.problem.is_none() && !loopback {
            section.problem(
                "no interface has a loopback address, at which the ranks of `unisono run` meet",
                "`ip link set lo up`",
            );
        }
        let outward = |interface: &Interface| {
            interface.up != Some(false) && interface.addresses.iter().any(|address| !address.is_loopback())
        };
        if self.problem.is_none() && !self.interfaces.iter().any(outward) {
            let here = if loopback { "ranks on this machine can meet; for others, " } else { "" };
            section.warn(
                "no interface that is up has an address but loopback",
                format!("{here}bring an interface up (`ip addr`)"),
            );
        }
        for port in &self.rdma {
            let [state, rate, link] = [&port.state, &port.rate, &port.link].map(or_unknown);
            let words = format!("RDMA device {} port {}: {state}, {rate}, {link}", port.device, port.number);
            if port.state.is_none() || state.contains("ACTIVE") {
                section.ok(words);
            } else {
                section.warn(
                    words,
                    "the port is not active: look at its cable, and on InfiniBand at the subnet manager",
                );
            }
        }
        if !self.rdma.is_empty() && self.verbs_files.is_empty() {
            section.warn(
                "there are RDMA devices, but no /dev/infiniband/uverbs*: programs cannot reach them",
                "load the kernel module ib_uverbs; in a container add --device=/dev/infiniband",
            );
        }
        for VerbsFile { path, problem } in &self.verbs_files {
            if let Some(problem) = problem {
                section.warn(
                    format!("{path} cannot be opened, so its RDMA device cannot be used: {problem}"),
                    "let this user read and write it (udev's rules; often there is a group rdma); in a container add \
                     --device=/dev/infiniband",
                );
            }
        }
        match &self.route {
            Some(route) => self.judge_route(route, &mut section),
            None => section.note("no variable names the host where ranks meet, so no route is checked"),
        }
        section
    }

    fn judge_route(&self, route: &Route, section: &mut Section) {
        let host = &route.host;
        let named = match route.address {
            Some(address) if address.to_string() != *host => format!("{host} ({address})"),
            _ => host.clone(),
        };
        match (&route.problem, route.from) {
            (Some(problem), _) => section.problem(
                format!("there is no route to {named}: {problem}"),
                "correct MASTER_ADDR or UNISONO_STORE, /etc/hosts or the routes (`ip route get ADDRESS`)",
            ),
            (None, Some(from)) => {
                let interface = self.interfaces.iter().find(|it| it.addresses.contains(&from));
                let name = interface.map_or("an unknown interface", |interface| &interface.name);
                let path = format!("the route to {named} starts at {from} on {name}");
                if route.address.is_some_and(|address| StoreAddress::names_itself(host, address)) {
                    section.ok(format!(
                        "{path}: that is this machine itself; if ranks run on other machines too, another interface is used"
                    ));
                } else if from.is_loopback() {
                    section.ok(format!("{path}: only ranks on this machine can meet there"));
                } else {
                    section.ok(path);
                }
            }
            (None, None) => section.note(format!("the route to {named} is unknown")),
        }
    }
}

impl Interface {
    fn words(&self) -> String {
        let state = match self.up {
            Some(true) => "up",
            Some(false) => "down",
            None => "state unknown",
        };
        let mut words = vec![format!("{}: {state}", self.name)];
        words.extend(self.mbit.map(|mbit| format!("{mbit} Mbit/s")));
        words.extend(self.mtu.map(|mtu| format!("mtu {mtu}")));
        let addresses: Vec<_> = self.addresses.iter().map(IpAddr::to_string).collect();
        words.push(if addresses.is_empty() { "no address".to_owned() } else { addresses.join(" ") });
        words.join(", ")
    }
}

/// All interfaces: those the kernel lists and those that have an address.
fn interfaces(files: &Files, addresses: Vec<(String, IpAddr)>) -> Vec<Interface> {
    let mut all: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
    // The bonding driver has a file among the directories.
    for name in files.names("/sys/class/net") {
        if files.has(&format!("/sys/class/net/{name}/flags")) {
            all.insert(name, Vec::new());
        }
    }
    for (name, address) in addresses {
        all.entry(name).or_default().push(address);
    }
    let interface = |(name, addresses): (String, Vec<IpAddr>)| {
        let path = |file: &str| format!("/sys/class/net/{name}/{file}");
        let up = match files.text(&path("operstate")).as_deref() {
            Some("up") => Some(true),
            Some("down" | "lowerlayerdown" | "notpresent" | "dormant") => Some(false),
            // Loopback and tunnels have no such state; the lowest bit of `0x1003`, IFF_UP, says whether they are on.
            _ => files
                .text(&path("flags"))
                .and_then(|flags| u32::from_str_radix(flags.strip_prefix("0x")?, 16).ok())
                .map(|flags| flags & 1 != 0),
        };
        // An unknown speed is -1; with some drivers 0 or 2^32-1.
        let mbit = files.number::<i64>(&path("speed")).filter(|mbit| (1..i64::from(u32::MAX)).contains(mbit));
        Interface {
            up,
            mtu: files.number(&path("mtu")),
            mbit: mbit.and_then(|mbit| u32::try_from(mbit).ok()),
            addresses,
            name,
        }
    };
    all.into_iter().map(interface).collect()
}

/// The ports of all RDMA devices.
fn ports(files: &Files) -> Vec<DevicePort> {
    let mut ports = Vec::new();
    for device in files.names("/sys/class/infiniband") {
        for number in files.names(&format!("/sys/class/infiniband/{device}/ports")) {
            let text = |file| files.text(&format!("/sys/class/infiniband/{device}/ports/{number}/{file}"));
            let (state, rate, link) = (text("state"), text("rate"), text("link_layer"));
            ports.push(DevicePort { device: device.clone(), number, state, rate, link });
        }
    }
    ports
}

/// The files of all RDMA devices, and whether they can be opened for reading and writing.
fn verbs_files(files: &Files) -> Vec<VerbsFile> {
    let names = files.names("/dev/infiniband").into_iter().filter(|name| name.starts_with("uverbs"));
    let file = |name: String| {
        let path = format!("/dev/infiniband/{name}");
        let opened = OpenOptions::new().read(true).write(true).open(files.path(&path));
        VerbsFile { path, problem: opened.err().map(|error| error.to_string()) }
    };
    names.map(file).collect()
}

/// The route to a host. No packet is sent, except to look up its address.
fn route(host: String) -> Route {
    let none = |host, address, problem: String| Route { host, address, from: None, problem: Some(problem) };
    let asked = host.clone();
    let address = match apart(move || (asked.as_str(), 0).to_socket_addrs()).recv_timeout(RESOLVING) {
        Ok(Ok(mut addresses)) => addresses.next(),
        Ok(Err(error)) => return none(host, None, format!("its address is unknown ({error})")),
        Err(_) => {
            let problem = format!("its address was not found within {} s", RESOLVING.as_secs());
            return none(host, None, problem);
        }
    };
    let Some(address) = address else { return none(host, None, "it has no address".into()) };
    match routed_from(address) {
        Ok(from) => Route { host, address: Some(address.ip()), from: Some(from), problem: None },
        Err(error) => none(host, Some(address.ip()), error.to_string()),
    }
}

/// The address from which the system would send to `towards`: to connect a UDP socket only looks up the route. A link-local
/// address needs its interface, which is a part of the socket's address.
fn routed_from(mut towards: SocketAddr) -> std::io::Result<IpAddr> {
    let any: IpAddr =
        if towards.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
    towards.set_port(9);
    socket.connect(towards)?;
    Ok(socket.local_addr()?.ip())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn this_machine_has_loopback() {
        let found = NetworkDevices::gather(&Files::below("/"), Some("127.0.0.1".into()));
        let loopback: IpAddr = Ipv4Addr::LOCALHOST.into();
        let interface = found.interfaces.iter().find(|it| it.addresses.contains(&loopback));
        assert!(interface.is_some_and(|interface| interface.up == Some(true)), "{found:?}");
        let route = found.route.as_ref().unwrap();
        assert_eq!((route.from, route.problem.as_ref()), (Some(loopback), None));
    }

    #[test]
    fn an_invalid_host_is_a_problem() {
        for host in ["", "no host has this name", "host.invalid", "999.1.1.1"] {
            let route = route(host.into());
            assert!(route.problem.is_some(), "{route:?}");
        }
    }

    #[test]
    fn the_way_to_a_link_local_address_begins_at_its_interface() {
        // The route depends on the machine; without the interface the address would be invalid.
        let route = route("fe80::1%lo".into());
        let invalid = std::io::Error::from_raw_os_error(22).to_string();
        assert!(route.address.is_some() && route.problem != Some(invalid), "{route:?}");
    }

    #[test]
    fn files_of_rdma_devices_are_opened() {
        let directory = tempfile::tempdir().unwrap();
        let devices = directory.path().join("dev/infiniband");
        // A directory cannot be written to, by root either.
        fs::create_dir_all(devices.join("uverbs1")).unwrap();
        for name in ["rdma_cm", "uverbs0"] {
            fs::write(devices.join(name), "").unwrap();
        }
        let found = verbs_files(&Files::below(directory.path()));
        let found: Vec<_> = found.iter().map(|it| (it.path.as_str(), it.problem.is_some())).collect();
        assert_eq!(found, [("/dev/infiniband/uverbs0", false), ("/dev/infiniband/uverbs1", true)]);
    }

    #[test]
    fn interfaces_and_ports_are_read_and_odd_files_are_unknown() {
        let directory = tempfile::tempdir().unwrap();
        let files = Files::below(directory.path());
        for (path, text) in [
            ("sys/class/net/bonding_masters", "bond0"),
            ("sys/class/net/eth0/flags", "0x1003"),
            ("sys/class/net/eth0/operstate", "up\n"),
            ("sys/class/net/eth0/speed", "25000"),
            ("sys/class/net/eth0/mtu", "9000"),
            ("sys/class/net/odd/flags", "\u{fffd}"),
            ("sys/class/net/odd/operstate", "unknown"),
            ("sys/class/net/odd/speed", "-1"),
            ("sys/class/net/odd/mtu", "-5"),
            ("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE"),
            ("sys/class/infiniband/mlx5_0/ports/1/rate", "100 Gb/sec (4X EDR)"),
        ] {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let found: Vec<_> = interfaces(&files, vec![("tun0".into(), Ipv4Addr::LOCALHOST.into())])
            .iter()
            .map(Interface::words)
            .collect();
        assert_eq!(
            found,
            [
                "eth0: up, 25000 Mbit/s, mtu 9000, no address",
                "odd: state unknown, no address",
                "tun0: state unknown, 127.0.0.1"
            ]
        );
        let port = &ports(&files)[0];
        assert_eq!((port.device.as_str(), port.link.as_ref()), ("mlx5_0", None));
    }
}
