//! A second implementation of the store's protocol in plain bytes, from the comments of `rendezvous/src/protocol.rs` and `seal.rs`.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

use serde::Serialize;

use super::world::SOON;

pub(crate) const PREAMBLE: &[u8] = b"unisono\x1a\x06\x00";

/// The bytes of a challenge behind the preamble: its length, its kind, and the server's number.
pub(crate) const CHALLENGE: usize = 4 + 1 + 32;

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream
}

/// A length, and the bytes that it counts.
pub(crate) fn frame(message: &impl Serialize) -> Vec<u8> {
    let body = postcard::to_allocvec(message).unwrap();
    [&u32::try_from(body.len()).unwrap().to_le_bytes(), &body[..]].concat()
}

/// An opening: the preamble and a hello with the client's number, job, rank, ranks, who, and purpose 0.
pub(crate) fn hello(rank: u64, ranks: u64) -> Vec<u8> {
    opening(&([7_u8; 32], "", rank, ranks, "raw", 0_u32))
}

/// The same for a watch, purpose 1, of this session.
pub(crate) fn watch(rank: u64, ranks: u64, session: u64) -> Vec<u8> {
    opening(&([7_u8; 32], "", rank, ranks, "raw", 1_u32, session))
}

fn opening(hello: &impl Serialize) -> Vec<u8> {
    [PREAMBLE, &frame(hello)].concat()
}

/// A connection on which the client has proved that it knows a token.
pub(crate) struct Raw {
    pub(crate) stream: TcpStream,
    /// The session that a watch of the same rank must send; 0 before the welcome.
    pub(crate) session: u64,
    /// The client's key and the server's, each with its count of frames.
    keys: [([u8; 32], u64); 2],
}

impl Raw {
    /// Answers the server's challenge, and reads nothing after it.
    pub(crate) fn proving(address: SocketAddr, opening: &[u8], token: &str) -> Self {
        let mut raw = Self::challenged(address, opening, token);
        raw.send(&());
        raw
    }

    /// The same of a process that cannot join and says why.
    pub(crate) fn cannot_join(address: SocketAddr, opening: &[u8], token: &str, why: &str) -> Self {
        let mut raw = Self::challenged(address, opening, token);
        raw.send(&why);
        raw
    }

    fn challenged(address: SocketAddr, opening: &[u8], token: &str) -> Self {
        let mut stream = connect(address);
        stream.write_all(opening).unwrap();
        let mut challenge = vec![0; PREAMBLE.len() + CHALLENGE];
        stream.read_exact(&mut challenge).unwrap();
        Self { stream, session: 0, keys: keys(token, opening, &challenge) }
    }

    /// Joins as this rank, or returns the server's verdict.
    pub(crate) fn enter(address: SocketAddr, rank: u64, ranks: u64, token: &str) -> Result<Self, Vec<u8>> {
        let mut raw = Self::proving(address, &hello(rank, ranks), token);
        let verdict = raw.plain().unwrap();
        if verdict != [0] {
            return Err(verdict);
        }
        // Welcome, a session, no host.
        let welcome = raw.receive();
        let [0, session, 0] = welcome[..] else { panic!("{welcome:?}") };
        raw.session = session.into();
        Ok(raw)
    }

    pub(crate) fn send(&mut self, message: &impl Serialize) {
        let frame = frame(message);
        let tag = tag(&mut self.keys[0], &frame);
        self.stream.write_all(&[&frame[..], &tag].concat()).unwrap();
    }

    /// A frame without a tag.
    pub(crate) fn plain(&mut self) -> io::Result<Vec<u8>> {
        let mut prefix = [0; 4];
        self.stream.read_exact(&mut prefix)?;
        let mut body = vec![0; usize::try_from(u32::from_le_bytes(prefix)).unwrap()];
        self.stream.read_exact(&mut body)?;
        Ok(body)
    }

    pub(crate) fn receive(&mut self) -> Vec<u8> {
        let body = self.plain().unwrap();
        let mut bytes = [0; 32];
        self.stream.read_exact(&mut bytes).unwrap();
        let frame = [&u32::try_from(body.len()).unwrap().to_le_bytes(), &body[..]].concat();
        assert_eq!(tag(&mut self.keys[1], &frame), bytes);
        body
    }
}

/// The keys of both directions, the client's first.
pub(crate) fn keys(token: &str, opening: &[u8], challenge: &[u8]) -> [([u8; 32], u64); 2] {
    let token = blake3::derive_key("unisono 2026-11-26 store: the token's key", token.as_bytes());
    ["client", "server"].map(|from| {
        let said = [
            from.as_bytes(),
            blake3::hash(opening).as_bytes().as_slice(),
            blake3::hash(challenge).as_bytes().as_slice(),
        ]
        .concat();
        (*blake3::keyed_hash(&token, &said).as_bytes(), 0)
    })
}

/// The tag of the next frame.
pub(crate) fn tag((key, count): &mut ([u8; 32], u64), frame: &[u8]) -> [u8; 32] {
    let numbered = [&count.to_le_bytes()[..], blake3::hash(frame).as_bytes()].concat();
    *count += 1;
    *blake3::keyed_hash(key, &numbered).as_bytes()
}

/// Forwards the bytes between a client and a server, changed by `change`, and keeps the client's bytes. `change` gets
/// the position of the bytes in the client's stream.
pub(crate) fn between(
    server: SocketAddr,
    change: impl Fn(usize, &mut [u8]) + Send + Sync + 'static,
) -> (SocketAddr, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let said = Arc::new(Mutex::new(Vec::new()));
    let (kept, change) = (Arc::clone(&said), Arc::new(change));
    thread::spawn(move || {
        while let Ok((client, _)) = listener.accept() {
            let server = TcpStream::connect(server).unwrap();
            let (from, to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            thread::spawn(move || pass(from, to, |_| {}));
            let (kept, change, mut at) = (Arc::clone(&kept), Arc::clone(&change), 0);
            thread::spawn(move || {
                pass(client, server, |bytes| {
                    change(at, bytes);
                    at += bytes.len();
                    kept.lock().unwrap().extend_from_slice(bytes);
                });
            });
        }
    });
    (at, said)
}

fn pass(mut from: TcpStream, mut to: TcpStream, mut see: impl FnMut(&mut [u8])) {
    let mut bytes = [0; 4096];
    while let Ok(n @ 1..) = from.read(&mut bytes) {
        see(&mut bytes[..n]);
        if to.write_all(&bytes[..n]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
