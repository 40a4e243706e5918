//! What the tcp store's connections carry, and how it is cut into frames.
//!
//! A connection opens with [`MAGIC`] and the protocol's [`VERSION`] from the client, then a frame with
//! [`Hello`]; the server answers with [`MAGIC`], its version and a frame with [`Answer`]. From then on both
//! sides send frames: a length of 4 bytes, little endian, and as many bytes of postcard. No length is
//! believed before it was compared with a limit, and memory grows with the bytes that really came.

use std::{
    io::{self, Read},
    net::TcpStream,
    time::Duration,
};

use rustix::net::sockopt;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{MAX_KEY, MAX_VALUE, Stand};
use crate::{
    config::fnv,
    error::{Failure, Refusal},
    schedule::Rank,
};

/// The first bytes of a connection, in both directions.
pub(super) const MAGIC: [u8; 8] = *b"unisono\x1a";

/// Grows whenever a frame's meaning changes.
pub(super) const VERSION: u16 = 1;

/// The magic and the version.
pub(super) const PREAMBLE: usize = MAGIC.len() + 2;

/// The longest frame before the hello was accepted; the longest hello there is has about 300 bytes.
pub(super) const MAX_HELLO: usize = 1024;

/// The longest frame from a member: a value, its key and change.
pub(super) const MAX_FRAME: usize = MAX_VALUE + MAX_KEY + 64;

/// How long a process may describe itself.
pub(super) const MAX_WHO: usize = 200;

/// What opens a connection.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    /// The job's token, hashed.
    pub(super) token: u64,
    pub(super) rank: u64,
    pub(super) ranks: u64,
    /// The process, in words: `pid 17 on node03`.
    pub(super) who: String,
    pub(super) purpose: Purpose,
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Purpose {
    /// [`Request`]s and their replies; the first connection of a member.
    Requests,
    /// [`Tell`] and [`Told`]; the member's second, with what [`Answer::Welcome`] gave to the first.
    Watch { session: u64 },
}

/// The answer to [`Hello`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// `host` is the rank whose process serves the store, if it is a rank.
    Welcome { session: u64, host: Option<u64> },
    /// No.
    Refused(Refusal),
}

/// What a member wants of the store. Waits are in milliseconds.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request<'a> {
    Set { key: &'a str, value: &'a [u8] },
    Get { key: &'a str, wait: u64 },
    Collect { prefix: &'a str, count: u64, wait: u64 },
    Add { key: &'a str, delta: i64 },
}

/// What it gets; one for each request, in order.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Reply<'a> {
    Done,
    NotInTime,
    Value(#[serde(borrow)] &'a [u8]),
    Entries(#[serde(borrow)] Vec<(&'a str, &'a [u8])>),
    Count(i64),
    Failed(Failure),
    Impossible(String),
}

/// From a watch to the server.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Tell {
    Failure(Failure),
    /// The answer to [`Told::WhereAreYou`].
    Stand {
        query: u64,
        stand: Stand,
    },
    /// Wants [`Told::Stands`] with this number, after so many milliseconds at most.
    WhereIsEveryone {
        number: u64,
        wait: u64,
    },
    Farewell,
}

/// From the server to a watch.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Told {
    /// The group's first failure.
    Failure(Failure),
    WhereAreYou {
        query: u64,
    },
    Stands {
        number: u64,
        stands: Vec<Option<Stand>>,
    },
    /// The farewell was heard.
    Goodbye,
}

/// A length and a message.
pub(super) fn frame(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut bytes = postcard::to_extend(message, vec![0; 4]).map_err(invalid)?;
    let len = u32::try_from(bytes.len() - 4).map_err(invalid)?;
    if let Some(prefix) = bytes.first_chunk_mut::<4>() {
        *prefix = len.to_le_bytes();
    }
    Ok(bytes)
}

/// A message of a length that was checked, out of its bytes.
pub(super) fn decode<'a, M: Deserialize<'a>>(bytes: &'a [u8]) -> io::Result<M> {
    postcard::from_bytes(bytes).map_err(invalid)
}

/// The length at the beginning of `bytes`, if it is there.
pub(super) fn length(bytes: &[u8], limit: usize) -> io::Result<Option<usize>> {
    let Some(prefix) = bytes.first_chunk::<4>() else { return Ok(None) };
    let len = usize::try_from(u32::from_le_bytes(*prefix)).map_err(invalid)?;
    if len > limit {
        return Err(invalid(format!("a frame of {len} bytes; at most {limit} are allowed here")));
    }
    Ok(Some(len))
}

/// The opening bytes.
pub(super) fn preamble() -> [u8; PREAMBLE] {
    let mut bytes = [0; PREAMBLE];
    bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
    bytes[MAGIC.len()..].copy_from_slice(&VERSION.to_le_bytes());
    bytes
}

/// The version in the opening bytes of the other side.
pub(super) fn version(bytes: &[u8; PREAMBLE]) -> io::Result<u16> {
    let (magic, version) = bytes.split_at(MAGIC.len());
    match version.first_chunk::<2>() {
        Some(version) if magic == MAGIC => Ok(u16::from_le_bytes(*version)),
        _ => Err(invalid("the other side does not speak this protocol")),
    }
}

/// Reads a frame from a blocking connection.
pub(super) fn read_frame(mut stream: &TcpStream, limit: usize, bytes: &mut Vec<u8>) -> io::Result<()> {
    let mut prefix = [0; 4];
    stream.read_exact(&mut prefix)?;
    let len = length(&prefix, limit)?.unwrap_or_default();
    bytes.clear();
    let got = stream.take(u64::try_from(len).map_err(invalid)?).read_to_end(bytes)?;
    if got < len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(())
}

/// Reads a message that owns what it says.
pub(super) fn read<M: DeserializeOwned>(stream: &TcpStream, limit: usize) -> io::Result<M> {
    let mut bytes = Vec::new();
    read_frame(stream, limit, &mut bytes)?;
    decode(&bytes)
}

/// Sets what both sides of a connection want: small messages at once, and a peer whose host has vanished
/// noticed after about 30 s (a dead process is noticed at once, since its kernel closes the connection).
pub(super) fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(10))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(5))?;
    sockopt::set_tcp_keepcnt(stream, 4)?;
    #[cfg(target_os = "linux")]
    sockopt::set_tcp_user_timeout(stream, 30_000)?;
    Ok(())
}

/// A job's token as it travels: FNV-1a, the same on every build and machine.
pub(super) fn token_hash(token: &str) -> u64 {
    fnv(token.as_bytes())
}

/// This process, in words.
pub(super) fn who() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mut who = format!("pid {} on {host}", std::process::id());
    while who.len() > MAX_WHO {
        who.pop();
    }
    who
}

/// A rank that came over the wire.
pub(super) fn rank(number: u64) -> io::Result<Rank> {
    usize::try_from(number).map_err(invalid)
}

/// What does not follow the protocol.
pub(super) fn invalid(problem: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}
