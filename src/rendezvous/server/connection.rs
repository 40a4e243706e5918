//! One connection of the server: bytes in and out without ever blocking.

use std::{
    collections::VecDeque,
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    time::Instant,
};

use unisono_transport::fork::Unshared;

use super::{
    super::wire::{self, MAX_FRAME, MAX_HELLO, PREAMBLE},
    Frame,
    members::Role,
};

/// What a connection may have unread by its client before it is no longer read from, nor heard.
const MAX_QUEUED: usize = 1 << 20;

/// What one connection may bring in one turn, so that none starves the others.
const TURN: usize = 256 << 10;

/// A connection and what waits on it.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: Unshared<TcpStream>,
    pub(super) peer: SocketAddr,
    pub(super) role: Option<Role>,
    /// Until when it must have said who it is.
    pub(super) hello_until: Instant,
    input: Vec<u8>,
    taken: usize,
    output: VecDeque<Frame>,
    written: usize,
    queued: usize,
    /// Nothing more is read; it is closed when the output has gone.
    pub(super) ending: bool,
    shut: bool,
    /// The client's stream has ended.
    ended: bool,
}

/// What the first bytes of a connection are.
pub(super) enum Opening {
    /// Too few to tell.
    More,
    /// A hello frame, this long, follows the preamble.
    Hello,
    /// Another version of the protocol.
    Version(u16),
}

impl Connection {
    pub(super) fn new(stream: TcpStream, peer: SocketAddr, hello_until: Instant) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        wire::tune(&stream)?;
        Ok(Self {
            stream: stream.into(),
            peer,
            role: None,
            hello_until,
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

    pub(super) fn wants_read(&self) -> bool {
        !self.ending && !self.is_full(0) && self.input.len() <= MAX_FRAME + 4
    }

    /// Whether its client has to read before it is heard again, if it is to be sent `more` bytes. The rest of what
    /// a watch said that is gone is heard in any case: a farewell may be in it.
    pub(super) fn is_full(&self, more: usize) -> bool {
        self.queued.saturating_add(more) > MAX_QUEUED
            && !(self.ended && self.role.is_some_and(|role| role.watch))
    }

    pub(super) fn wants_write(&self) -> bool {
        !self.output.is_empty()
    }

    /// Reads what is there. `false` at the end of the stream.
    pub(super) fn read(&mut self, scratch: &mut [u8]) -> io::Result<bool> {
        let mut got = 0;
        while got < TURN {
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

    /// Judges the preamble as early as its first byte.
    pub(super) fn opening(&self) -> io::Result<Opening> {
        let known = wire::MAGIC.len().min(self.input.len());
        if self.input[..known] != wire::MAGIC[..known] {
            return Err(wire::invalid("it does not speak this protocol"));
        }
        let Some(preamble) = self.input.first_chunk::<PREAMBLE>() else { return Ok(Opening::More) };
        let version = wire::version(preamble)?;
        if version != wire::VERSION {
            return Ok(Opening::Version(version));
        }
        let rest = &self.input[PREAMBLE..];
        Ok(match wire::length(rest, MAX_HELLO)? {
            Some(len) if rest.len() >= 4 + len => Opening::Hello,
            _ => Opening::More,
        })
    }

    /// Steps over the preamble.
    pub(super) fn skip_preamble(&mut self) {
        self.taken = PREAMBLE;
    }

    /// Takes the next whole frame out of the input; an empty input buffer is freed.
    pub(super) fn next_frame(&mut self, limit: usize) -> io::Result<Option<Vec<u8>>> {
        let rest = self.input.get(self.taken..).unwrap_or_default();
        if let Some(len) = wire::length(rest, limit)?
            && let Some(frame) = rest.get(4..4 + len)
        {
            let frame = frame.to_vec();
            self.taken += 4 + len;
            return Ok(Some(frame));
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
        if !self.shut {
            self.queued += frame.len();
            self.output.push_back(frame);
        }
    }

    /// Writes what goes.
    pub(super) fn write(&mut self) -> io::Result<()> {
        while let Some(frame) = self.output.front() {
            let rest = frame.get(self.written..).unwrap_or_default();
            match self.stream.write(rest) {
                Ok(0) if !rest.is_empty() => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) if n == rest.len() => {
                    self.queued -= frame.len();
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

    /// Once all output has gone, tells the client that no more will come. Then the client's own closing
    /// ends the connection; closing first could destroy what the client has not read yet.
    pub(super) fn shut_when_written(&mut self) {
        if self.output.is_empty() && !self.shut {
            self.shut = true;
            // An error means that the connection is gone already, which the next read tells.
            let _ = self.stream.shutdown(Shutdown::Write);
        }
    }
}
