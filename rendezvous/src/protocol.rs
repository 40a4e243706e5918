//! The protocol of the store: its messages and frames.
//!
//! | from the client | from the server |
//! |---|---|
//! | [`MAGIC`], [`VERSION`], [`Hello`] | |
//! | | [`MAGIC`], [`VERSION`], [`Challenge`] |
//! | the first frame with a tag: empty, or why this process cannot join | |
//! | | [`Verdict`], then the first frame with a tag: [`Admission`] |
//! | [`StoreRequest`] or [`ToServer`] ... | [`Reply`] or [`ToWatch`] ... |
//!
//! A frame is a length of 4 bytes, little endian, and this number of bytes of postcard. From the third row on, except for the verdict, a
//! tag follows ([`super::seal`]), which the length does not count. The reader compares every length with a limit, and memory grows only
//! with the bytes that arrive. An attacker on the network can forge messages without a tag, and so keep a process out, just as by cutting
//! its connection.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    ops::Deref,
    sync::Arc,
    time::Duration,
};

use rustix::net::sockopt;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use unisono_core::error::{Failure, Refusal, clean};
use unisono_schedule::Rank;

use super::{
    MAX_KEY, MAX_VALUE, Position,
    seal::{self, Digest, Nonce, Seal, TAG},
};
use crate::config::fnv;

/// The first bytes of a connection, in both directions.
pub(super) const MAGIC: [u8; 8] = *b"unisono\x1a";

/// Incremented when the meaning of a frame changes.
pub(super) const VERSION: u16 = 6;

/// The magic and the version.
pub(super) const PREAMBLE: usize = MAGIC.len() + 2;

/// The longest frame before a hello is accepted, in bytes. The longest hello has about 800.
pub(super) const MAX_HELLO: usize = 1024;

/// The longest frame from a member: a value, its key and change.
pub(super) const MAX_FRAME: usize = MAX_VALUE + MAX_KEY + 64;

/// The longest description of a process, in characters.
pub(super) const MAX_WHO: usize = 200;

/// The longest reason of a process that cannot join, in bytes.
pub(super) const MAX_WHY: usize = 1200;

/// The longest job id in a message, in characters.
const MAX_JOB: usize = 128;

/// The error for a frame whose tag is wrong.
pub(super) const FORGED: &str = "a frame has a wrong tag: the other side did not send it";

/// The first message of a connection.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) nonce: Nonce,
    /// The job, as [`job`] names it.
    pub(super) job: String,
    pub(super) rank: u64,
    pub(super) ranks: u64,
    /// The process, in words: `pid 17 on node03`.
    pub(super) who: String,
    pub(super) purpose: ConnectionPurpose,
}

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ConnectionPurpose {
    /// [`StoreRequest`]s and their replies; the first connection of a member.
    Requests,
    /// [`ToServer`] and [`ToWatch`]; the member's second connection, with the session that its first one got. A watch whose connection
    /// broke connects again in this way.
    Watch { session: u64 },
    /// Says in its first frame with a tag why this process cannot join, and nothing else. Its rank is `u64::MAX` if it does not know
    /// its rank, and its world size does not matter.
    CannotJoin,
}

/// The server's answer to [`Hello`], before the client has proved anything.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Challenge {
    /// The client must prove that it knows the token.
    Prove(Nonce),
    /// The process is not admitted. If the server is `ending`, another store may soon be there.
    Refused { refusal: Refusal, ending: bool },
}

/// The server's answer to the client's first tag.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Verdict {
    /// The tag is right. [`Admission`] follows, with the server's first tag.
    Genuine,
    /// The client knows another token. If the server is `ending`, another store may soon be there.
    Unproved { ending: bool },
}

/// The server's answer to a client that has proved that it knows the token.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Admission {
    /// The process is admitted. `host` is the rank whose process serves the store, if a rank's does.
    Welcome { session: u64, host: Option<u64> },
    /// The process is not admitted. If the server is `ending`, another store may soon be there.
    Refused { refusal: Refusal, ending: bool },
}

/// A request of a member. Waits are in milliseconds.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum StoreRequest<'a> {
    Set {
        key: &'a str,
        value: &'a [u8],
    },
    Get {
        key: &'a str,
        wait: u64,
    },
    Collect {
        prefix: &'a str,
        count: u64,
        wait: u64,
    },
    Add {
        key: &'a str,
        delta: i64,
    },
    /// Asks which numbers follow this prefix in keys that are set.
    Present {
        prefix: &'a str,
    },
}

/// The reply to a request; one for each, in order.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Reply<'a> {
    Done,
    NotInTime,
    Value(#[serde(borrow)] &'a [u8]),
    Entries(#[serde(borrow)] Vec<(&'a str, &'a [u8])>),
    Count(i64),
    Failed(Failure),
    Impossible(String),
    /// These numbers, in order, and the processes that the store has refused, in words.
    Present {
        numbers: Vec<u64>,
        refused: &'a str,
    },
}

/// From a watch to the server.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToServer {
    Failure(Failure),
    /// The answer to [`ToWatch::WhereAreYou`].
    Position {
        query: u64,
        position: Position,
    },
    /// Asks for [`ToWatch::Positions`] with this number, after at most `wait` milliseconds.
    WhereIsEveryone {
        number: u64,
        wait: u64,
    },
    /// Asks the server to compare the positions of all ranks.
    Compare,
    /// This rank is leaving and makes no other call.
    Leaving,
    /// This rank has left.
    Leave,
    /// This member counts as lost if nothing arrives from it for this many milliseconds, on each of its connections.
    Patience {
        millis: u64,
    },
    /// This rank leaves with a failure that no call of its program had returned before.
    Late(Failure),
}

/// From the server to a watch.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToWatch {
    /// The group's first failure.
    Failure(Failure),
    WhereAreYou {
        query: u64,
    },
    Positions {
        number: u64,
        positions: Vec<Option<Position>>,
    },
    /// A rank is leaving.
    SomeoneLeaving,
    /// The server has noted that this rank has left.
    LeaveSeen,
    /// The store has refused a process while ranks are missing.
    Refused(String),
}

/// A frame without its tag. All connections on which it is sent share its bytes and its hash.
#[derive(Clone, Debug)]
pub(super) struct Frame(Arc<(Vec<u8>, Digest)>);

impl Frame {
    /// The frame of a message. A message that cannot be encoded, because it has more than 4 GiB, is logged, and its frame is empty: the
    /// reader finds that it is no message.
    pub(super) fn new(message: &impl Serialize) -> Self {
        Self::of(encode(Vec::new(), message).unwrap_or_else(|error| {
            unisono_transport::log::error!("the store cannot encode a message: {error}");
            vec![0; 4]
        }))
    }

    /// Makes a frame of encoded bytes, perhaps after a preamble.
    pub(super) fn of(bytes: Vec<u8>) -> Self {
        let digest = seal::digest(&[&bytes]);
        Self(Arc::new((bytes, digest)))
    }

    pub(super) fn digest(&self) -> &Digest {
        &self.0.1
    }
}

impl Deref for Frame {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0.0
    }
}

/// Appends a message and, before it, its length to `bytes`.
pub(super) fn encode(mut bytes: Vec<u8>, message: &impl Serialize) -> io::Result<Vec<u8>> {
    let start = bytes.len();
    bytes.extend([0; 4]);
    let mut bytes = postcard::to_extend(message, bytes).map_err(invalid)?;
    let len = u32::try_from(bytes.len() - start - 4).map_err(invalid)?;
    if let Some(prefix) = bytes.get_mut(start..start + 4) {
        prefix.copy_from_slice(&len.to_le_bytes());
    }
    Ok(bytes)
}

/// Sends a message with its tag.
pub(super) fn write(mut stream: &TcpStream, message: &impl Serialize, seal: &mut Seal) -> io::Result<()> {
    let mut bytes = Vec::new();
    append(&mut bytes, message, seal)?;
    stream.write_all(&bytes)
}

/// Appends the frame of a message and its tag to `bytes`.
pub(super) fn append(bytes: &mut Vec<u8>, message: &impl Serialize, seal: &mut Seal) -> io::Result<()> {
    let frame = encode(Vec::new(), message)?;
    let tag = seal.tag(&seal::digest(&[&frame]));
    bytes.extend(frame);
    bytes.extend(tag);
    Ok(())
}

/// Decodes a message, whose length was checked.
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
pub(super) fn preamble() -> Vec<u8> {
    [&MAGIC[..], &VERSION.to_le_bytes()].concat()
}

/// The version in the opening bytes of the other side.
pub(super) fn version(bytes: &[u8; PREAMBLE]) -> io::Result<u16> {
    let (magic, version) = bytes.split_at(MAGIC.len());
    match version.first_chunk::<2>() {
        Some(version) if magic == MAGIC => Ok(u16::from_le_bytes(*version)),
        _ => Err(invalid("the other side does not speak this protocol")),
    }
}

/// Reads a frame from a blocking connection into `bytes`. Returns true if its tag is right.
pub(super) fn read_frame(
    mut stream: &TcpStream,
    limit: usize,
    bytes: &mut Vec<u8>,
    seal: &mut Seal,
) -> io::Result<bool> {
    let prefix = read_plain(stream, limit, bytes)?;
    let mut tag = [0; TAG];
    stream.read_exact(&mut tag)?;
    Ok(seal.opens(&seal::digest(&[&prefix, bytes]), &tag))
}

/// Reads a frame without a tag into `bytes`, and returns its length field as sent.
pub(super) fn read_plain(mut stream: &TcpStream, limit: usize, bytes: &mut Vec<u8>) -> io::Result<[u8; 4]> {
    let mut prefix = [0; 4];
    stream.read_exact(&mut prefix)?;
    let len = length(&prefix, limit)?.unwrap_or_default();
    bytes.clear();
    let got = stream.take(u64::try_from(len).map_err(invalid)?).read_to_end(bytes)?;
    if got < len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(prefix)
}

/// Reads a message that owns its data. A wrong tag is an error.
pub(super) fn read<M: DeserializeOwned>(stream: &TcpStream, limit: usize, seal: &mut Seal) -> io::Result<M> {
    let mut bytes = Vec::new();
    if !read_frame(stream, limit, &mut bytes, seal)? {
        return Err(invalid(FORGED));
    }
    decode(&bytes)
}

/// A connection counts as lost if nothing arrives for this time, until the group's limit is known.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// The least such limit, because keepalive probes go out only every few seconds.
const LEAST_PATIENCE: Duration = Duration::from_secs(10);

/// Sets the options of a connection: small messages are sent at once, and the connection breaks when nothing has arrived from
/// the peer's host for [`PATIENCE`]. (A dead process is noticed at once, since its kernel closes the connection.)
pub(super) fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(5))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(5))?;
    be_patient(stream, PATIENCE)
}

/// Sets how long nothing may arrive before the connection counts as lost.
pub(super) fn be_patient(stream: &TcpStream, patience: Duration) -> io::Result<()> {
    let patience = patience.max(LEAST_PATIENCE);
    #[cfg(target_os = "linux")]
    {
        // It overrides the count of probes.
        let millis = i32::try_from(patience.as_millis()).unwrap_or(i32::MAX);
        sockopt::set_tcp_user_timeout(stream, millis.unsigned_abs())?;
    }
    let probes = u32::try_from(patience.as_secs().div_ceil(5)).unwrap_or(u32::MAX);
    // The kernel accepts at most 127.
    sockopt::set_tcp_keepcnt(stream, probes.clamp(2, 127))?;
    Ok(())
}

/// A job's id as messages carry it: if it has more than [`MAX_JOB`] characters, it is cut and its hash appended.
pub(super) fn job(id: &str) -> String {
    let message: String = id.chars().filter(|c| !c.is_control()).take(MAX_JOB).collect();
    if message == id { message } else { format!("{message}#{:016x}", fnv(id.as_bytes())) }
}

/// True if a connection broke because nothing arrived, and not because the kernel of the other side closed it.
pub(super) fn is_silence(error: &io::Error) -> bool {
    use io::ErrorKind::{HostUnreachable, NetworkDown, NetworkUnreachable, TimedOut};
    matches!(error.kind(), TimedOut | HostUnreachable | NetworkDown | NetworkUnreachable)
}

/// This process, in words: `pid 17 on node03`.
pub(super) fn who() -> String {
    clean(&format!("pid {} on {}", std::process::id(), host_name()), MAX_WHO)
}

/// The name of this host.
pub(super) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// True if the two ends of a connection are on one host.
pub(super) fn on_one_host(one: SocketAddr, other: SocketAddr) -> bool {
    let [one, other] = [one, other].map(|end| end.ip().to_canonical());
    one == other || one.is_loopback() && other.is_loopback()
}

/// Converts a rank number of a message.
pub(super) fn rank(number: u64) -> io::Result<Rank> {
    usize::try_from(number).map_err(invalid)
}

/// The error for data that does not follow the protocol.
pub(super) fn invalid(problem: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

/// Decodes `bytes` as a message that a client reads; the first byte gives its kind.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz(bytes: &[u8]) {
    let Some((kind, frame)) = bytes.split_first() else { return };
    let tell = |failure: Failure| assert!(failure.cleaned().to_string().len() < 1 << 20);
    match kind % 5 {
        0 => {
            if let Ok(Reply::Failed(failure)) = decode(frame) {
                tell(failure);
            }
        }
        1 => match decode(frame) {
            Ok(ToWatch::Failure(failure)) => tell(failure),
            Ok(ToWatch::Positions { positions, .. }) => {
                let positions: Vec<_> = positions.into_iter().map(|it| it.map(Position::cleaned)).collect();
                drop((
                    unisono_core::position::report(0, 0, &positions),
                    unisono_core::position::whereabouts(&positions),
                ));
            }
            _ => {}
        },
        2 => {
            if let Ok(Admission::Refused { refusal, .. }) = decode(frame) {
                drop(refusal.to_string());
            }
        }
        3 => drop(decode::<Challenge>(frame).map(|said| format!("{said:?}"))),
        _ => drop(decode::<Verdict>(frame)),
    }
    if let Some((first, rest)) = frame.split_first_chunk::<PREAMBLE>() {
        drop((version(first), length(rest, MAX_HELLO), length(rest, MAX_FRAME)));
    }
}
