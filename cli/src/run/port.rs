//! A port for the ranks' program: that at which torch's rank 0 serves its own store, `MASTER_PORT`.

use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::OwnedFd,
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt};

/// A port of the loopback that is kept for the ranks while the job lasts. No process listens there, so a server that sets SO_REUSEADDR
/// can; the kernel gives it to no process that asks for any free port.
#[derive(Debug)]
pub(crate) struct ReservedPort {
    /// Kept for its drop.
    _socket: OwnedFd,
    pub(crate) number: u16,
}

impl ReservedPort {
    pub(crate) fn keep() -> io::Result<Self> {
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))?;
        // The option is set only now: sockets that set it before may get a port that another one has.
        sockopt::set_socket_reuseaddr(&socket, true)?;
        let number = SocketAddrV4::try_from(getsockname(&socket)?)?.port();
        Ok(Self { _socket: socket, number })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::net::TcpListener;

    use super::*;

    /// Two jobs never have the same port, and a server takes it again and again, also for all interfaces.
    #[test]
    fn a_port_is_kept_and_can_be_listened_at() {
        let kept: Vec<_> = (0..200).map(|_| ReservedPort::keep().unwrap()).collect();
        let mut numbers: Vec<_> = kept.iter().map(|port| port.number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), kept.len());
        for address in ["127.0.0.1", "0.0.0.0", "127.0.0.1"] {
            let server = TcpListener::bind((address, kept[0].number)).unwrap();
            assert!(TcpListener::bind((address, kept[0].number)).is_err(), "two servers");
            drop(server);
        }
    }
}
