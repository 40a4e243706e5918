//! Keeps idle TCP connections of an endpoint alive: firewalls and NAT silently forget those that are idle for some minutes. libfabric
//! does not keep them alive, and has no option for it (prov/tcp/src/xnet_ep.c, `xnet_setup_socket`; ofi_rxm is over the same sockets).
//!
//! The system sends the probes even if the process is busy, and none while there is traffic. libfabric does not show its sockets, so a
//! thread looks for them among the process's descriptors: a socket belongs to this endpoint if its own address is where the endpoint
//! listens, or if its peer's address is where another rank listens.
#![allow(unsafe_code)]

use std::{
    collections::HashSet,
    fs, io, mem,
    net::SocketAddr,
    os::fd::{BorrowedFd, RawFd},
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread::{self, JoinHandle},
    time::Duration,
};

use socket2::{SockAddr, SockRef, TcpKeepalive};

use crate::fork::Process;

/// The time without traffic before the first probe, and the time between probes: as on the store's connections.
const IDLE: Duration = Duration::from_secs(5);
/// The number of probes without an answer that end a connection: the most that the system takes. The store finds out that a rank is gone.
const PROBES: u32 = 127;
/// The shortest and the longest wait between checks. It doubles after each check that found nothing new.
const LOOKS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];
/// The descriptors that are checked where /proc is not mounted.
const WITHOUT_PROC: RawFd = 4096;

/// Keeps the connections of one endpoint alive until it is dropped.
#[derive(Debug)]
pub(super) struct KeepAlive {
    /// Tells the thread the addresses at which other ranks listen; it ends when this is gone.
    peers: Option<Sender<SocketAddr>>,
    /// `None` if it could not be started.
    thread: Option<JoinHandle<()>>,
    process: Process,
}

impl KeepAlive {
    /// Starts the thread of an endpoint that listens at this address. If no thread can be started, connections are not kept alive.
    pub(super) fn begin(own: SocketAddr) -> Self {
        let (peers, added) = channel();
        let run = move || keep_all(plain(own), &added);
        let spawned = thread::Builder::new().name("unisono-alive".into()).spawn(run);
        let thread = spawned.inspect_err(|error| {
            crate::log::warn!(%error, "no thread keeps idle TCP connections alive: a firewall may forget them");
        });
        Self { peers: Some(peers), thread: thread.ok(), process: Process::this() }
    }

    /// Adds a rank that listens at this address, and to which there will be a connection.
    pub(super) fn add(&self, peer: SocketAddr) {
        // There is no receiver if the thread could not be started.
        let _ = self.peers.as_ref().map(|peers| peers.send(plain(peer)));
    }
}

impl Drop for KeepAlive {
    fn drop(&mut self) {
        let peers = self.peers.take();
        // A forked child has no such thread, which may have held a lock of the channel.
        if !self.process.is_this() {
            mem::forget(peers);
            return;
        }
        drop(peers);
        // Each check takes a few system calls for each descriptor.
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            crate::log::error!("the thread that keeps TCP connections alive panicked");
        }
    }
}

/// Keeps the connections of the endpoint that listens at `own` alive, until there is no sender of peers.
fn keep_all(own: SocketAddr, added: &Receiver<SocketAddr>) {
    let (mut pause, mut peers, mut kept) = (LOOKS[0], HashSet::new(), HashSet::new());
    loop {
        match added.recv_timeout(pause) {
            // Connections to it are made soon.
            Ok(peer) => {
                if peers.insert(peer) {
                    pause = LOOKS[0];
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                let found = look(own, &peers);
                pause = if found == kept { (2 * pause).min(LOOKS[1]) } else { LOOKS[0] };
                kept = found;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Makes the system keep all connections of the endpoint alive, and returns their descriptors with their peers.
fn look(own: SocketAddr, peers: &HashSet<SocketAddr>) -> HashSet<(RawFd, SocketAddr)> {
    descriptors().filter_map(|fd| Some((fd, keep(fd, own, peers)?))).collect()
}

/// Makes the system keep a connection alive if it is the endpoint's, and returns its peer's address.
fn keep(fd: RawFd, own: SocketAddr, peers: &HashSet<SocketAddr>) -> Option<SocketAddr> {
    // SAFETY: only options of a socket are read and set here. If libfabric closes this one meanwhile, the calls fail, or the number
    // is another socket's by now, which is only kept alive, too.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    let socket = SockRef::from(&socket);
    let address = |name: io::Result<SockAddr>| name.ok()?.as_socket().map(plain);
    let (here, there) = (address(socket.local_addr())?, address(socket.peer_addr())?);
    if here != own && !peers.contains(&there) {
        return None;
    }
    let probes = TcpKeepalive::new().with_time(IDLE).with_interval(IDLE).with_retries(PROBES);
    socket.set_tcp_keepalive(&probes).ok().map(|()| there)
}

/// An IPv4 address that is written as one of IPv6 is the same address. The scope says where a link is, and not which process
/// listens.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The numbers of this process's descriptors.
fn descriptors() -> Box<dyn Iterator<Item = RawFd>> {
    match fs::read_dir("/proc/self/fd") {
        Ok(all) => Box::new(all.filter_map(|fd| fd.ok()?.file_name().to_str()?.parse().ok())),
        Err(_) => Box::new(0..WITHOUT_PROC),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, UdpSocket},
        os::fd::AsRawFd as _,
    };

    use rustix::net::sockopt;

    use super::*;

    fn is_kept(socket: &TcpStream) -> bool {
        sockopt::socket_keepalive(socket).unwrap() && sockopt::tcp_keepidle(socket).unwrap() == IDLE
    }

    #[test]
    fn connections_of_the_endpoint_are_kept_alive_and_no_others() {
        for ip in [
            Ipv4Addr::LOCALHOST.into(),
            Ipv6Addr::LOCALHOST.into(),
            Ipv4Addr::LOCALHOST.to_ipv6_mapped().into(),
        ] {
            let listen = || TcpListener::bind(SocketAddr::new(ip, 0));
            let Ok(own) = listen() else {
                println!("SKIPPED: keepalive at {ip}: this machine has no such address");
                continue;
            };
            let (peer, other) = (listen().unwrap(), listen().unwrap());
            let [own_at, peer_at, other_at] = [&own, &peer, &other].map(|it| it.local_addr().unwrap());
            let _datagrams = UdpSocket::bind(own_at).unwrap();
            let from_peer = TcpStream::connect(own_at).unwrap();
            let accepted = own.accept().unwrap().0;
            let (to_peer, to_other) =
                (TcpStream::connect(peer_at).unwrap(), TcpStream::connect(other_at).unwrap());
            let peers = HashSet::from([plain(peer_at)]);
            let found = look(plain(own_at), &peers);
            assert!(is_kept(&accepted) && is_kept(&to_peer), "{ip}");
            assert!(!is_kept(&from_peer) && !is_kept(&to_other), "{ip}");
            let mut fds = [accepted.as_raw_fd(), to_peer.as_raw_fd()];
            let mut found: Vec<_> = found.into_iter().map(|(fd, _)| fd).collect();
            fds.sort_unstable();
            found.sort_unstable();
            assert_eq!(found, fds, "{ip}");
        }
    }
}
