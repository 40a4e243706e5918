//! A connection of the server: reads and writes bytes without blocking.

use std::{
    collections::VecDeque,
    io::{self, IoSlice, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use unisono_transport::fork::Unshared;

use super::{
    super::{
        protocol::{self, Frame, Hello, MAX_FRAME, MAX_HELLO, MAX_WHY, PREAMBLE},
        seal::{Seal, TAG, digest},
    },
    members::Role,
};

/// The most bytes that may wait to be sent on a connection before the server stops to read from it and to serve it.
const MAX_QUEUED: usize = 1 << 20;

/// The most bytes that the server reads from one connection at a time, so that no connection holds up the others.
const TURN: usize = 256 << 10;

/// The same for a connection that is not authenticated: more than a client sends before it is.
const MAX_STRANGE: usize = MAX_HELLO + MAX_WHY + 256;

/// A connection, with its input and output.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: Unshared<TcpStream>,
    pub(super) peer: SocketAddr,
    pub(super) role: Option<Role>,
    /// Its hello, until it is admitted.
    pub(super) hello: Option<Box<Hello>>,
    /// It counts as lost if nothing arrives for this time.
    patience: Duration,
    /// The time by which it must be authenticated.
    pub(super) hello_until: Instant,
    /// Checks incoming frames, once the client has been challenged.
    incoming: Option<Seal>,
    /// Seals outgoing frames, once the client has proved that it knows the token.
    outgoing: Option<Seal>,
    input: Vec<u8>,
    taken: usize,
    output: VecDeque<(Frame, Option<[u8; TAG]>)>,
    written: usize,
    queued: usize,
    /// The server reads nothing more, and closes the connection when the output is written.
    pub(super) ending: bool,
    shut: bool,
    /// The client's stream has ended.
    ended: bool,
}

/// The first bytes of a connection.
pub(super) enum FirstBytes {
    /// The preamble and the hello that follows it, as they were sent and decoded.
    Hello(Vec<u8>, Hello),
    /// The preamble has another version of the protocol.
    Version(u16),
}

impl Connection {
    pub(super) fn new(stream: TcpStream, peer: SocketAddr, hello_until: Instant) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        protocol::tune(&stream)?;
        Ok(Self {
            stream: stream.into(),
            peer,
            role: None,
            hello: None,
            patience: protocol::PATIENCE,
            hello_until,
            incoming: None,
            outgoing: None,
            input: Vec::new(),
            taken: 0,
            output: VecDeque::new(),
            written: 0,
            queued: 0,
            ending: false,
            shut: false,
            ended: false,
        })
    }

    pub(super) fn be_patient(&mut self, patience: Duration) -> io::Result<()> {
        self.patience = patience;
        protocol::be_patient(&self.stream, patience)
    }

    /// For how long nothing has arrived, if the connection broke for this reason.
    pub(super) fn silence(&self, error: &io::Error) -> Option<Duration> {
        protocol::is_silence(error).then_some(self.patience)
    }

    pub(super) fn wants_read(&self) -> bool {
        !self.ending && !self.is_full(0) && self.input.len() <= MAX_FRAME + 4
    }

    /// True if the client must read before the server serves it again, if `more` bytes are to be sent to it. The server always reads the
    /// last messages of a watch whose stream has ended: one of them may say that the rank left.
    pub(super) fn is_full(&self, more: usize) -> bool {
        self.queued.saturating_add(more) > MAX_QUEUED
            && !(self.ended && self.role.is_some_and(|role| role.watch))
    }

    pub(super) fn wants_write(&self) -> bool {
        !self.output.is_empty()
    }

    /// Reads the bytes that have arrived. `false` at the end of the stream.
    pub(super) fn read(&mut self, scratch: &mut [u8]) -> io::Result<bool> {
        let mut got = 0;
        let (turn, most) = if self.role.is_some() { (TURN, scratch.len()) } else { (1, MAX_STRANGE) };
        let scratch = scratch.get_mut(..most).unwrap_or_default();
        while got < turn {
            match self.stream.read(scratch) {
                Ok(0) => {
                    self.ended = true;
                    return Ok(false);
                }
                Ok(n) => {
                    got += n;
                    self.input.extend_from_slice(scratch.get(..n).unwrap_or_default());
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Checks the preamble, from its first byte on, and takes it and the hello out of the input; `None` if more bytes must arrive before.
    pub(super) fn opening(&mut self) -> io::Result<Option<FirstBytes>> {
        let known = protocol::MAGIC.len().min(self.input.len());
        if self.input[..known] != protocol::MAGIC[..known] {
            return Err(protocol::invalid("it does not speak this protocol"));
        }
        let Some((preamble, rest)) = self.input.split_first_chunk::<PREAMBLE>() else { return Ok(None) };
        let version = protocol::version(preamble)?;
        if version != protocol::VERSION {
            return Ok(Some(FirstBytes::Version(version)));
        }
        let Some(len) = protocol::length(rest, MAX_HELLO)? else { return Ok(None) };
        let Some(opening) = self.input.get(..PREAMBLE + 4 + len) else { return Ok(None) };
        let hello = protocol::decode(&opening[PREAMBLE + 4..])?;
        self.taken = opening.len();
        Ok(Some(FirstBytes::Hello(opening.to_vec(), hello)))
    }

    /// From now on incoming frames have tags; outgoing frames have them once the client has proved that it knows the token.
    pub(super) fn challenge(&mut self, hello: Hello, [client, server]: [Seal; 2]) {
        self.hello = Some(Box::new(hello));
        (self.incoming, self.outgoing) = (Some(client), Some(server));
    }

    /// Takes the next complete frame out of the input, and returns it and whether its tag is right. Frees an empty input buffer.
    pub(super) fn next_frame(&mut self, limit: usize) -> io::Result<Option<(Vec<u8>, bool)>> {
        let rest = self.input.get(self.taken..).unwrap_or_default();
        if let Some(len) = protocol::length(rest, limit)?
            && let Some((bytes, tag)) = rest.get(..4 + len + TAG).and_then(<[u8]>::split_last_chunk::<TAG>)
        {
            let frame = bytes.get(4..).unwrap_or_default().to_vec();
            let genuine = self.incoming.as_mut().is_some_and(|seal| seal.opens(&digest(&[bytes]), tag));
            self.taken += 4 + len + TAG;
            return Ok(Some((frame, genuine)));
        }
        if self.taken > 0 {
            self.input.drain(..self.taken);
            self.taken = 0;
            if self.input.is_empty() {
                self.input = Vec::new();
            }
        }
        Ok(None)
    }

    pub(super) fn send(&mut self, frame: Frame) {
        let tag = self.outgoing.as_mut().map(|seal| seal.tag(frame.digest()));
        self.queue(frame, tag);
    }

    /// Sends a frame without a tag.
    pub(super) fn send_plain(&mut self, frame: Frame) {
        self.queue(frame, None);
    }

    fn queue(&mut self, frame: Frame, tag: Option<[u8; TAG]>) {
        if !self.shut {
            self.queued += frame.len();
            self.output.push_back((frame, tag));
        }
    }

    /// Writes as much output as the socket takes.
    pub(super) fn write(&mut self) -> io::Result<()> {
        while let Some((frame, tag)) = self.output.front() {
            let (bytes, tag) = (&frame[..], tag.as_ref().map_or(&[][..], |tag| tag));
            let first = bytes.get(self.written..).unwrap_or_default();
            let second = tag.get(self.written.saturating_sub(bytes.len())..).unwrap_or_default();
            match self.stream.write_vectored(&[IoSlice::new(first), IoSlice::new(second)]) {
                Ok(0) if first.len() + second.len() > 0 => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) if n == first.len() + second.len() => {
                    self.queued -= bytes.len();
                    self.written = 0;
                    self.output.pop_front();
                }
                Ok(n) => self.written += n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Shuts the sending side down once all output is written. The client then closes the connection; closing it here could
    /// destroy bytes that the client has not read.
    pub(super) fn shut_when_written(&mut self) {
        if self.output.is_empty() && !self.shut {
            self.shut = true;
            // An error means that the connection is closed already, which the next read finds.
            let _ = self.stream.shutdown(Shutdown::Write);
        }
    }
}
