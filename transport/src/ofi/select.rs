//! Chooses a provider, a device and an address, and says why.

use std::{
    collections::HashSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    path::Path,
    time::Instant,
};

use super::{
    info::{self, Info},
    interface::Interfaces,
    locality,
    provider::{self, Provider},
    variables,
    version::library_version,
    workarounds::lost_writes,
};
use crate::{Activity, Error, LibraryCall};

/// The default of [`Options::arrivals`].
pub(super) const ARRIVALS: usize = 4096;

/// The requirements for an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The provider: `tcp` (the best provider over TCP of the installed library), `verbs`, or libfabric's exact name. `shm` is
    /// refused: [`crate::shm`] serves ranks of one host. `None`: the best that reaches other hosts.
    pub provider: Option<String>,
    /// The network interfaces that may be used. Among these, the one on the route to `towards` is preferred. `None`: `towards`
    /// decides.
    pub interface: Option<Interfaces>,
    /// A host that must be reached. Without `interface`, the endpoint gets the address from which the system would route to this
    /// host, so that a loopback address selects the loopback interface. If that address belongs to no NIC of a provider whose NICs
    /// have their own network (verbs), these are used with their own addresses.
    pub towards: Option<IpAddr>,
    /// This process's number among those of its host, from 0. If a host has several NICs that reach all others (efa, cxi), its
    /// processes take different ones of those that are near the cores on which they may run.
    pub process: usize,
    /// The number of puts from peers that the completion queue must hold ([`crate::Limits::arrivals`]); 4096 by default.
    pub arrivals: usize,
    /// The time at which the endpoint must be open. The providers that fit share the remaining time for their self-tests. `None`:
    /// each may take as long as it needs.
    pub deadline: Option<Instant>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            provider: None,
            interface: None,
            towards: None,
            process: 0,
            arrivals: ARRIVALS,
            deadline: None,
        }
    }
}

impl Options {
    /// The request in words.
    pub(super) fn asked(&self) -> String {
        let mut words = Vec::new();
        words.extend(self.provider.as_ref().map(|provider| format!("provider {provider:?}")));
        words.extend(self.interface.as_ref().map(|interface| format!("interface {interface}")));
        words.extend(self.towards.map(|towards| format!("towards {towards}")));
        words.join(", ")
    }

    /// The address to send from, where it is known before anything is asked.
    fn from(&self) -> Option<IpAddr> {
        match &self.interface {
            Some(interfaces) => interfaces.address(),
            None => self.towards.and_then(routed_from),
        }
    }
}

/// A provider and device that libfabric offers, and whether it is chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Candidate {
    /// The provider's name.
    pub name: String,
    /// The provider's own version; empty if it offered nothing.
    pub version: String,
    /// The device; empty if it offered nothing.
    pub domain: String,
    /// The address it would send from, where that is an IP address.
    pub address: Option<IpAddr>,
    /// True if [`super::Ofi::open`] with the same options would try it, in the order of these candidates.
    pub fits: bool,
    /// True if it would try it first.
    pub taken: bool,
    /// Why it was chosen, or why not and what would help.
    pub reason: String,
}

/// A provider and device that fit, and the reason for their place in the order.
type Offer = (Info, String);

/// The offers that fit, the best first, each with the reason for its place; and a line for each provider that does not fit.
pub(super) fn candidates(options: &Options, activity: &Activity) -> Result<(Vec<Offer>, Vec<String>), Error> {
    let mut fitting = Vec::new();
    let mut refusals = Vec::new();
    for name in provider::expand(options.provider.as_deref(), library_version()) {
        match activity.during(LibraryCall::Find, || offers(&name, options))? {
            Ok(offers) => fitting.extend(offers),
            Err(reason) => refusals.push(format!("{name}: {reason}")),
        }
    }
    if fitting.is_empty() {
        return Err(Error::NoProvider { asked: options.asked(), report: refusals.join("; ") });
    }
    Ok((fitting, refusals))
}

/// The offers of one provider that fit the options, best first, or the reason why none does.
fn offers(name: &str, options: &Options) -> Result<Result<Vec<Offer>, String>, Error> {
    if let Some(why) = provider::never(name) {
        return Ok(Err(why.to_owned()));
    }
    let facts = provider::facts(name);
    let mut from = options.from().filter(|_| facts.by_ip);
    let mut infos = info::fitting(name, from)?;
    // Some providers accept any address here, and then cannot bind to it.
    if let Some(wanted) = options.interface.as_ref().and_then(Interfaces::address).filter(|_| facts.by_ip) {
        let there = info::fitting(name, None)?;
        if !there.is_empty() && !there.iter().any(|info| info.ip() == Some(wanted)) {
            return Ok(Err(format!("it has no device {wanted}, only {}", devices(&there))));
        }
    }
    // Usually the store is reached over Ethernet, and the NICs have another network.
    let beside =
        |address: &IpAddr| !address.is_loopback() && options.interface.is_none() && facts.own_network;
    let mut routed = from.filter(|address| infos.is_empty() && beside(address));
    if routed.is_some() {
        infos = info::fitting(name, None)?;
        // A NIC that is not set up gives itself a link-local address, at which other hosts may not reach it.
        infos.retain(|info| info.ip().is_some() && rank(info.ip(), false) < ANYWHERE);
        (from, routed) = if infos.is_empty() { (routed, None) } else { (None, routed) };
    }
    if infos.is_empty() {
        return Ok(Err(info::refusal(name, from)?));
    }
    let flaw = |info: &Info| lost_writes::flaw((name, &info.model()), info.version(), variables::switch);
    if let Some(why) = infos.first().and_then(flaw) {
        // The next provider is slower, and works.
        crate::log::warn!(provider = name, %why, "a provider that fits is not used");
        return Ok(Err(why));
    }
    let place = |info: &Info| match &options.interface {
        Some(wanted) => wanted.place(&info.device(), info.ip(), facts.by_ip),
        None => Some(0),
    };
    if let (Some(wanted), true) = (&options.interface, infos.iter().all(|info| place(info).is_none())) {
        return Ok(Err(format!("it has no device {wanted}, only {}", devices(&infos))));
    }
    infos.retain(|info| place(info).is_some());
    if let Some(from) = from
        && infos.iter().any(|info| info.ip() == Some(from))
    {
        infos.retain(|info| info.ip() == Some(from));
    }
    // The sort is stable: among equals libfabric's order stays.
    let general = general();
    // Of several interfaces that the user lists, the one on the route to `towards` comes first.
    let towards = options.interface.as_ref().and(options.towards).and_then(routed_from);
    infos.sort_by_key(|info| {
        let inner = info.ip() != general && is_bridge(&info.device());
        (towards.is_none() || info.ip() != towards, place(info), rank(info.ip(), inner))
    });
    // One line for each device and address: libfabric lists some with several sets of attributes.
    let mut seen = HashSet::new();
    infos.retain(|info| seen.insert((info.device(), info.ip())));
    let (infos, near) =
        if facts.interchangeable { locality::sort(infos, options.process) } else { (infos, 0) };
    let why = why_first(options, &facts, from, routed);
    let reason = |place| match place {
        _ if near < 2 => why.clone(),
        0 => format!("of {near} NICs as near, this one is for process {}", options.process),
        _ => "it fits, and another NIC is for this process".to_owned(),
    };
    Ok(Ok(infos.into_iter().enumerate().map(|(place, info)| (info, reason(place))).collect()))
}

/// Why an offer comes first that is sent from this address; `routed` is the address from which the system would send, if no NIC of a
/// provider with its own network has it.
fn why_first(options: &Options, facts: &Provider, from: Option<IpAddr>, routed: Option<IpAddr>) -> String {
    const BEST: &str = "the best in general: IPv4 before IPv6, then bridges without the default route, loopback \
                        and link-local last";
    match (&options.interface, options.towards, from) {
        _ if !facts.by_ip => "it fits, and no interface is to be chosen".to_owned(),
        (Some(interface), _, _) => format!("interface {interface} was asked for"),
        (None, Some(towards), Some(_)) => format!("it is on the route to {towards}"),
        (None, Some(towards), None) => match routed {
            Some(address) => {
                format!(
                    "{address}, from which the route to {towards} starts, is not a NIC's address; it is {BEST}"
                )
            }
            None => format!("no route to {towards} is known; it is {BEST}"),
        },
        (None, None, _) => format!("it is {BEST}"),
    }
}

/// Devices with their addresses, as people know them.
fn devices(infos: &[Info]) -> String {
    let mut seen = Vec::new();
    for info in infos {
        let device = info.device();
        let device = info.ip().map_or_else(|| device.clone(), |ip| format!("{device} {ip}"));
        if !seen.contains(&device) {
            seen.push(device);
        }
    }
    seen.join(", ")
}

/// How good an address is if the places of the peers are unknown; lower is better. One of an `inner` network leads only to guests
/// of this host.
fn rank(address: Option<IpAddr>, inner: bool) -> u8 {
    match address {
        // Among devices that have addresses, one without an address cannot be used: verbs lists such devices, and has no domain for
        // them.
        None => 7,
        Some(IpAddr::V4(v4)) if v4.is_loopback() => 3,
        Some(IpAddr::V4(v4)) if v4.is_link_local() => 5,
        Some(IpAddr::V6(v6)) if v6.is_loopback() => 4,
        Some(IpAddr::V6(v6)) if v6.is_unicast_link_local() => 6,
        Some(_) if inner => ANYWHERE,
        Some(IpAddr::V4(_)) => 0,
        Some(IpAddr::V6(_)) => 1,
    }
}

/// The rank from which on addresses do not lead to other hosts, or not all.
const ANYWHERE: u8 = 2;

/// True if a device is a bridge: as a rule to the containers or virtual machines of this host.
fn is_bridge(device: &str) -> bool {
    Path::new("/sys/class/net").join(device).join("bridge").exists()
}

/// The address from which the system would send to `towards`. Nothing is sent.
#[must_use]
pub fn routed_from(towards: IpAddr) -> Option<IpAddr> {
    let any: IpAddr =
        if towards.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0)).ok()?;
    socket.connect(SocketAddr::new(towards, 9)).ok()?;
    socket.local_addr().ok().map(|address| address.ip()).filter(|ip| !ip.is_unspecified())
}

/// The address of the default route: that of the route to an address reserved for documentation. It uses only IPv4, as ranks mostly
/// do.
fn general() -> Option<IpAddr> {
    routed_from(Ipv4Addr::new(203, 0, 113, 1).into())
}

/// Everything that libfabric offers here, and whether it would be chosen under these options: first the candidates that
/// [`super::Ofi::open`] would try, in its order, then the others.
///
/// # Errors
/// If `fi_getinfo` fails otherwise than by finding nothing.
pub fn survey(options: &Options) -> Result<Vec<Candidate>, Error> {
    let wanted = provider::expand(options.provider.as_deref(), library_version());
    let mut names = wanted.clone();
    names.extend(provider::names().map(str::to_owned));
    names.extend(info::present()?);
    let mut seen = HashSet::new();
    names.retain(|name| seen.insert(name.clone()));
    let mut survey: Vec<Candidate> = Vec::new();
    for name in names {
        let refused = |reason| Candidate { name: name.clone(), reason, ..Candidate::default() };
        match offers(&name, options)? {
            Ok(offers) => {
                let fits = wanted.contains(&name);
                for (info, why) in offers {
                    let first = survey.iter().find(|candidate| candidate.taken);
                    let (taken, reason) = match first {
                        _ if !fits => (false, "it fits, but only when asked for by name".to_owned()),
                        None => (true, why),
                        Some(first) => (false, format!("it fits, but {} comes first", first.name)),
                    };
                    let (major, minor) = info.version();
                    let (version, domain, address) = (format!("{major}.{minor}"), info.device(), info.ip());
                    survey.push(Candidate { version, domain, address, fits, taken, ..refused(reason) });
                }
            }
            Err(reason) => survey.push(refused(reason)),
        }
    }
    Ok(survey)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leads_nowhere_goes_last() {
        let addresses = ["fe80::1", "169.254.0.1", "::1", "127.0.0.1", "fd00::1", "172.17.0.1", "10.0.0.7"];
        let sorted = |inner: &str| {
            let mut sorted = addresses.map(|text| Some(text.parse::<IpAddr>().unwrap())).to_vec();
            sorted.push(None);
            sorted.sort_by_key(|address| rank(*address, address.is_some_and(|it| it.to_string() == inner)));
            let text = |address: Option<IpAddr>| address.map(|it| it.to_string()).unwrap_or_default();
            sorted.into_iter().map(text).collect::<Vec<_>>()
        };
        let rest = ["127.0.0.1", "::1", "169.254.0.1", "fe80::1", ""];
        assert_eq!(sorted("none"), [&["172.17.0.1", "10.0.0.7", "fd00::1"], &rest[..]].concat());
        assert_eq!(sorted("172.17.0.1"), [&["10.0.0.7", "fd00::1", "172.17.0.1"], &rest[..]].concat());
        assert_eq!(sorted("fe80::1"), sorted("none"));
    }
}
