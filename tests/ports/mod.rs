//! Ports for tests.

use std::{
    io::Result,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    os::fd::OwnedFd,
};

use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt::set_socket_reuseaddr,
};

/// A port of the loopback at which nobody listens, and that nobody is given who asks for any, as long as the socket is
/// open; who asks for this one may listen there nevertheless.
pub(crate) fn held() -> Result<(OwnedFd, u16)> {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))?;
    // Only now: sockets that set it before may be given a port that another one has.
    set_socket_reuseaddr(&socket, true)?;
    let port = SocketAddr::try_from(getsockname(&socket)?)?.port();
    Ok((socket, port))
}
