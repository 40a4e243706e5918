//! Finds out whether a connection comes from a process of this user on this host. Such a process can end the ranks of this host in any
//! case, so the store believes it when it says that its rank cannot join.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
};

use unisono_core::outside;

/// The longest table of sockets, in bytes: some 100,000 of them.
const MAX_TABLE: u64 = 16 << 20;

/// The user id that a user namespace shows for users that it does not have (/proc/sys/kernel/overflowuid).
const UNKNOWN: u32 = 65534;

/// True if a process of this user has the other end of the connection, which is at `peer`. `false` if that cannot be found out.
pub(super) fn has(peer: SocketAddr, here: SocketAddr) -> bool {
    let user = rustix::process::geteuid().as_raw();
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(Path::new);
    let owner = tables
        .into_iter()
        .filter_map(|table| outside::read_text(table, MAX_TABLE).ok())
        .find_map(|table| table.lines().find_map(|line| owner(line, peer, here)));
    owner == Some(user) && user != UNKNOWN
}

/// The user whose process has the socket in this line, if the socket is the connection from `local` to `remote` and is open.
fn owner(line: &str, local: SocketAddr, remote: SocketAddr) -> Option<u32> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let is = |word: &str, end: SocketAddr| {
        address(word).is_some_and(|(ip, port)| port == end.port() && ip == end.ip().to_canonical())
    };
    if !is(words.next()?, local) || !is(words.next()?, remote) {
        return None;
    }
    let (state, mut rest) = (words.next()?, words.skip(3));
    let (owner, inode) = (rest.next()?, rest.nth(1)?);
    // If no process has a socket any more, the kernel shows it with user 0 and without an inode.
    (state == "01" && inode != "0").then(|| owner.parse().ok()).flatten()
}

/// An address and a port, as `0100007F:1F90`: words of four bytes as this processor reads them, and a number.
fn address(text: &str) -> Option<(IpAddr, u16)> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| Some(u32::from_str_radix(ip.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    let ip: IpAddr = match ip.len() {
        8 => Ipv4Addr::from(word(0)?).into(),
        32 => {
            let mut bytes = [0; 16];
            for (i, part) in bytes.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&word(8 * i)?);
            }
            Ipv6Addr::from(bytes).into()
        }
        _ => return None,
    };
    Some((ip.to_canonical(), port))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::protocol;

    #[test]
    fn the_owner_of_a_connection_is_known_while_it_is_open() {
        for (at, to) in [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "::1"), ("[::]:0", "127.0.0.1")] {
            let listener = match TcpListener::bind(at) {
                Ok(listener) => listener,
                Err(error) => {
                    println!("SKIPPED: {at}: {error}");
                    continue;
                }
            };
            let port = listener.local_addr().unwrap().port();
            let client = TcpStream::connect((to, port)).unwrap();
            let (server, peer) = listener.accept().unwrap();
            let here = server.local_addr().unwrap();
            assert!(protocol::on_one_host(peer, here) && has(peer, here), "{at}");
            let other = SocketAddr::new(peer.ip(), peer.port() ^ 1);
            assert!(!has(other, here), "{at}: another port");
            drop(client);
            assert!(!has(peer, here), "{at}: nobody's");
        }
    }

    #[test]
    fn lines_that_make_no_sense_name_nobody() {
        let ends = ["127.0.0.1:8080", "127.0.0.1:1"].map(|end| end.parse().unwrap());
        let line = "0: 0100007F:1F90 0100007F:0001 01 0:0 00:0 0 1000 0 77 1";
        let little = cfg!(target_endian = "little");
        assert_eq!(owner(line, ends[0], ends[1]), little.then_some(1000));
        for (from, to) in
            [(" 01 ", " 06 "), (" 77 ", " 0 "), ("1000", "x"), ("1F90", "1F91"), ("0100007F:1", "01:1")]
        {
            assert_eq!(owner(&line.replacen(from, to, 1), ends[0], ends[1]), None, "{from}");
        }
        for cut in 0..line.len() - 4 {
            assert_eq!(owner(&line[..cut], ends[0], ends[1]), None, "{cut}");
        }
    }
}
