//! A store that may be on one of several hosts, at one of several ports; no setting says which.
//!
//! Rank 0 takes the first port that is free on its host. Every other rank connects at once to all ports of the likeliest host and of some
//! others, and makes the handshake with those that accept: the store of another job says that it belongs to another job. The next attempt looks at the next
//! hosts, so that a rank of a large job neither opens thousands of connections at once nor waits for hosts that are down.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fd::OwnedFd,
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt},
};
use unisono_core::error::{Error, Result};

use super::{
    Store,
    connect::{AddressSource, Tries},
    protocol::host_name,
    store::{listen_to_all, name},
};
use crate::config::{Member, StoreAddress};

/// The number of hosts that one attempt tries besides the likeliest one.
const HOSTS: usize = 15;

/// How long an attempt waits for hosts that do not answer, and for the other hosts once one has accepted.
const ATTEMPT: Duration = Duration::from_secs(1);
const OTHERS: Duration = Duration::from_millis(20);

/// How long the addresses of a host are used before they are looked up again: a name may lead to an earlier host at first.
const KNOWN: Duration = Duration::from_secs(5);

impl Store {
    /// Serves the store at one of `ports`, or looks for it at these ports of `hosts`.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] if rank 0 is on none of the hosts or no port is free there, or if no store of this job is found before the
    /// deadline; [`Error::Refused`] if it does not admit this process.
    pub(super) fn among(hosts: &[String], ports: &[u16], member: &Member, deadline: Instant) -> Result<Self> {
        let shown = StoreAddress::Among { hosts: hosts.to_vec(), ports: ports.to_vec() }.to_string();
        if member.rank == 0 {
            let wrong = |problem: String| Error::rendezvous(&shown, problem);
            is_here(hosts).map_err(wrong)?;
            let listener = listen(ports).map_err(wrong)?;
            let store = Self::host_on(listener, member, deadline)?;
            let at = name(&host_name(), store.reached().1.port());
            return Ok(store.named(at));
        }
        let mut search = Search::new(hosts, ports);
        let tries = Tries {
            advice: "is rank 0 running on one of these hosts, and are these ports open between them? MASTER_ADDR and MASTER_PORT \
                     name another place",
            place: AddressSource::Sought,
            ..Tries::new(&shown, member, deadline)
        };
        let store = Self::enter(tries, |_| search.attempt())?;
        let at = store.reached().1;
        Ok(store.named(name(&at.ip().to_string(), at.port())))
    }
}

/// Checks that this host, which has rank 0, is one of `hosts`. A name that cannot be resolved here may be a name of this host.
fn is_here(hosts: &[String]) -> std::result::Result<(), String> {
    let own = host_name();
    let short = |host: &str| host.split('.').next().unwrap_or_default().to_owned();
    if hosts.iter().any(|host| short(host) == short(&own)) {
        return Ok(());
    }
    for host in hosts {
        match (host.as_str(), 0).to_socket_addrs() {
            Ok(mut addresses) => {
                if addresses.any(|address| TcpListener::bind(address).is_ok()) {
                    return Ok(());
                }
            }
            Err(_) => return Ok(()),
        }
    }
    Err(format!(
        "rank 0 is to serve the store there and runs on {own}, which none of them names: set MASTER_ADDR and MASTER_PORT to this host \
         and a free port of it, on all ranks"
    ))
}

/// Binds the first of `ports` that is free.
fn listen(ports: &[u16]) -> std::result::Result<TcpListener, String> {
    let mut why = "there is none".to_owned();
    for &port in ports {
        match listen_to_all(port) {
            Ok(listener) => return Ok(listener),
            Err(error) => why = format!("{port}: {error}"),
        }
    }
    Err(format!(
        "rank 0 can serve the store at none of these ports ({why}): set MASTER_PORT, and MASTER_ADDR to rank 0's host, on all ranks"
    ))
}

/// The hosts among which a rank looks for the store.
pub(super) struct Search<'a> {
    hosts: &'a [String],
    ports: &'a [u16],
    /// The index of the host, after the first one, with which the next attempt begins.
    next: usize,
    /// The addresses of hosts, and when they were looked up.
    known: HashMap<&'a str, (Instant, Vec<IpAddr>)>,
}

impl<'a> Search<'a> {
    pub(super) fn new(hosts: &'a [String], ports: &'a [u16]) -> Self {
        Self { hosts, ports, next: 0, known: HashMap::new() }
    }

    /// The addresses that accept a connection, at the likeliest host and at the next one of the others.
    pub(super) fn attempt(&mut self) -> std::result::Result<Vec<SocketAddr>, String> {
        let Some((first, others)) = self.hosts.split_first() else { return Err("no host is known".into()) };
        let (now, later) = others.split_at(self.next.min(others.len()));
        let of_this: Vec<&'a str> =
            later.iter().chain(now).take(HOSTS.min(others.len())).map(String::as_str).collect();
        self.next = (self.next + HOSTS) % others.len().max(1);
        let (mut all, mut why) = (Vec::new(), String::new());
        for host in std::iter::once(first.as_str()).chain(of_this) {
            match self.resolve(host) {
                Ok(addresses) => {
                    all.extend(
                        addresses
                            .iter()
                            .flat_map(|&ip| self.ports.iter().map(move |&port| SocketAddr::new(ip, port))),
                    );
                }
                Err(error) => why = format!("cannot resolve {host:?}: {error}"),
            }
        }
        let asked = all.len();
        let accepted = accepting(all).map_err(|error| format!("cannot look for it: {error}"))?;
        if !accepted.is_empty() {
            return Ok(accepted);
        }
        Err(if why.is_empty() {
            format!("nobody listens there (of {asked} addresses, the last were those of {first})")
        } else {
            why
        })
    }

    fn resolve(&mut self, host: &'a str) -> io::Result<Vec<IpAddr>> {
        let now = Instant::now();
        if let Some((at, known)) = self.known.get(host)
            && now < *at + KNOWN
        {
            return Ok(known.clone());
        }
        let addresses: Vec<IpAddr> = (host, 0).to_socket_addrs()?.map(|at| at.ip()).collect();
        self.known.insert(host, (now, addresses.clone()));
        Ok(addresses)
    }
}

/// The addresses of `all`, in their order, that accept a connection; this tries all at once.
fn accepting(all: Vec<SocketAddr>) -> io::Result<Vec<SocketAddr>> {
    let mut accepted = vec![false; all.len()];
    let mut open: Vec<(usize, OwnedFd)> = Vec::new();
    for (i, at) in all.iter().enumerate() {
        match begin(at) {
            Ok((_, true)) => accepted[i] = true,
            Ok((socket, false)) => open.push((i, socket)),
            // The connections that have begun are enough for this attempt.
            Err(Errno::MFILE | Errno::NFILE) if i > 0 => break,
            Err(error @ (Errno::MFILE | Errno::NFILE)) => return Err(error.into()),
            Err(_) => {}
        }
    }
    let mut until = Instant::now() + ATTEMPT;
    while !open.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        let mut polled: Vec<_> = open.iter().map(|(_, socket)| PollFd::new(socket, PollFlags::OUT)).collect();
        let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut polled, Some(&timeout)) {
            Ok(0) => break,
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut over =
            polled.iter().map(|polled| !polled.revents().is_empty()).collect::<Vec<_>>().into_iter();
        open.retain(|(i, socket)| {
            if !over.next().unwrap_or_default() {
                return true;
            }
            // TCP may connect a port of the ephemeral range to itself.
            let itself =
                || rustix::net::getsockname(socket).ok() == rustix::net::getpeername(socket).ok().flatten();
            if matches!(sockopt::socket_error(socket), Ok(Ok(()))) && !itself() {
                accepted[*i] = true;
                until = until.min(Instant::now() + OTHERS);
            }
            false
        });
    }
    Ok(all.into_iter().zip(accepted).filter_map(|(at, accepted)| accepted.then_some(at)).collect())
}

/// Begins to connect. Returns the socket, and true if it is connected already.
fn begin(at: &SocketAddr) -> std::result::Result<(OwnedFd, bool), Errno> {
    let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    match connect(&socket, at) {
        Ok(()) => Ok((socket, true)),
        Err(Errno::INPROGRESS) => Ok((socket, false)),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_led_elsewhere_is_looked_up_again() {
        let hosts = ["localhost".to_owned()];
        let mut search = Search::new(&hosts, &[1]);
        let elsewhere = IpAddr::from([192, 0, 2, 1]);
        let Some(long_ago) = Instant::now().checked_sub(KNOWN) else { return };
        search.known.insert("localhost", (Instant::now(), vec![elsewhere]));
        assert_eq!(search.resolve("localhost").unwrap(), [elsewhere]);
        search.known.insert("localhost", (long_ago, vec![elsewhere]));
        for _ in 0..2 {
            assert!(search.resolve("localhost").unwrap().iter().all(IpAddr::is_loopback));
        }
    }
}
