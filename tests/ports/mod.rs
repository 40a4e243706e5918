//! Ports for tests.

use std::{
    io::Result,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    os::fd::OwnedFd,
};

use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt::set_socket_reuseaddr,
};

/// A port of the loopback without a listener. As long as the socket is open, the system gives it to no program that asks for any port.
/// A program that asks for this port may listen there.
pub(crate) fn held() -> Result<(OwnedFd, u16)> {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))?;
    // Set it only now: the system may give a socket that sets it earlier a port that another socket has.
    set_socket_reuseaddr(&socket, true)?;
    let port = SocketAddr::try_from(getsockname(&socket)?)?.port();
    Ok((socket, port))
}
