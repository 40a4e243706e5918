//! Reads what a peer writes to this endpoint: its messages on the connection that it has made, and its ring.
#![allow(unsafe_code)]

use std::os::fd::OwnedFd;

use super::{
    address::Name,
    control::{ConnectionMessage, WriteRefusal},
    error::{Nonsense, StopCause},
    memory::{Entries, MemoryTable},
    ring::{self, Reader, Record, RecordKind},
    segment::{Access, Segment},
    socket::{Link, PeerState, SendOutcome},
};
use crate::{
    Event,
    local::Failure,
    peer_memory::{PeerMemory, ReadPermit},
};

/// After this many bytes, the reader reports to the writer that there is room again.
const TELL_AFTER: u64 = 32 << 10;
/// After it has fetched this many bytes of a writer, a poll reads no more of it.
const MOST_FETCHED: u64 = 1 << 20;
/// The most regions whose memory a writer may want at once.
const MOST_WANTED: usize = 4096;

/// A connection from a process that knows this endpoint's token.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) link: Link,
    /// The name of the writer's listening socket, according to the writer.
    pub(super) from: Name,
    /// Its ring, once it has handed it over.
    reader: Option<Reader>,
    /// What this endpoint permits its peers.
    permit: ReadPermit,
    /// The writer's memory, if this process can read it.
    memory: Option<PeerMemory>,
    /// True until it is accepted, and has this endpoint's board, on which it sees that this endpoint sleeps.
    unaccepted: bool,
    /// The regions whose memory it wants and was not given yet: their keys, an address in each, and the access.
    wanted: Vec<(u64, u64, Access)>,
    /// The writer's state, once it writes no more.
    pub(super) ended: Option<PeerState>,
}

impl Incoming {
    pub(super) fn new(from: Name, link: Link, permit: ReadPermit) -> Self {
        let (wanted, ended) = (Vec::new(), None);
        Self { link, from, reader: None, permit, memory: None, unaccepted: true, wanted, ended }
    }

    /// Receives what the writer has sent.
    pub(super) fn receive(&mut self) -> Result<(), StopCause> {
        let had_ring = self.reader.is_some();
        let state = self.link.receive_all(|message, file| {
            match (message, file) {
                (ConnectionMessage::Ring(permit), Some(Ok(file))) if self.reader.is_none() => {
                    let segment = Segment::of_peer(&file, 0, ring::SEGMENT, Access::ReadWrite)?;
                    (self.reader, self.memory) = (Some(Reader::new(segment)), permit.of_peer(self.permit));
                }
                (ConnectionMessage::Want { key, address, access }, None) => {
                    if self.wanted.len() >= MOST_WANTED {
                        return Err(Nonsense("requests for more regions than there are").into());
                    }
                    self.wanted.push((key, address, access));
                }
                _ => return Err(Nonsense("a message that a writer does not send").into()),
            }
            Ok(())
        })?;
        if !had_ring && self.memory.is_some() {
            // If that is lost, the writer copies to the ring.
            self.link.say(&ConnectionMessage::Reads);
        }
        self.ended = Some(state).filter(|state| *state != PeerState::Open);
        Ok(())
    }

    /// Answers what was received. `board` is this endpoint's, `number` that of this connection.
    /// False if that must be tried again, because too many descriptors of this user are under way.
    pub(super) fn answer(&mut self, board: &OwnedFd, table: &MemoryTable, number: usize) -> bool {
        if self.unaccepted {
            // Whatever is written from now on wakes this endpoint.
            let sent = self.link.send(&ConnectionMessage::Accept(self.permit), Some(board));
            self.unaccepted = sent == SendOutcome::Full;
        }
        while !self.unaccepted
            && let Some((key, address, access)) = self.wanted.last().copied()
        {
            let given = table.give((key, address, access), number, |file, given| {
                self.link.send(&ConnectionMessage::Memory(given), Some(file))
            });
            if given.unwrap_or_else(|| self.forget(key, address)) == SendOutcome::Full {
                return false;
            }
            self.wanted.pop();
        }
        !self.unaccepted
    }

    #[inline]
    pub(super) fn has_next(&self) -> bool {
        self.reader.as_ref().is_some_and(Reader::has_next)
    }

    /// Reads at most `most` records. True if none is left.
    pub(super) fn read(
        &mut self,
        entries: &Entries,
        events: &mut Vec<Event>,
        most: usize,
    ) -> Result<bool, Failure> {
        let Some(reader) = &mut self.reader else { return Ok(true) };
        let (mut left, mut fetched, mut empty) = (most, 0, false);
        while left > 0 && fetched < MOST_FETCHED {
            let Some(record) = reader.next()? else {
                empty = true;
                break;
            };
            left -= 1;
            let landed = if record.is_fetched() {
                fetched += record.len;
                let landed = fetch(reader, &record, entries, self.memory)?;
                if reader.is_withdrawn() {
                    // The writer has closed its endpoint before this put was sent, which loses it.
                    return Ok(true);
                }
                landed
            } else {
                land(reader, &record, entries)
            };
            match landed {
                Ok(()) if record.is_last() => events.push(Event::Arrived {
                    immediate: record.immediate,
                    len: usize::try_from(record.total).ok(),
                }),
                Ok(()) => {}
                Err(refusal) => self.link.say(&ConnectionMessage::Refused(refusal)),
            }
            reader.consume(&record);
            if reader.untold() >= TELL_AFTER {
                tell(reader, &self.link);
            }
        }
        tell(reader, &self.link);
        Ok(empty)
    }

    /// Tells the writer that there is no such region that can be mapped, or no longer one.
    pub(super) fn forget(&self, key: u64, address: u64) -> SendOutcome {
        self.link.send(&ConnectionMessage::Forget { key, address }, None)
    }

    /// Writes nonsense into its ring.
    #[cfg(test)]
    pub(super) fn corrupt(&mut self) {
        self.reader.as_ref().unwrap().corrupt();
    }
}

/// Gives room back, and wakes the writer if it sleeps because there was none.
fn tell(reader: &mut Reader, link: &Link) {
    if reader.give_back() {
        link.say(&ConnectionMessage::Wake);
    }
}

/// Writes the bytes of a record where they belong.
fn land(reader: &Reader, record: &Record, entries: &Entries) -> Result<(), WriteRefusal> {
    if record.kind == RecordKind::Landed {
        return entries.check(record.key, record.offset, record.len);
    }
    let bytes = reader.bytes(record);
    let len = bytes.iter().map(|(_, len)| len).sum();
    // SAFETY: the bytes lie in the ring, where the writer may change them but not take them away. Nothing accesses the target
    // before the arrival, as the rank that gave the writer its key has promised.
    unsafe { entries.write(record.key, record.offset, bytes.into_iter(), len) }
}

/// Reads the bytes of a record in the writer's memory, and writes them where they belong.
fn fetch(
    reader: &Reader,
    record: &Record,
    entries: &Entries,
    memory: Option<PeerMemory>,
) -> Result<Result<(), WriteRefusal>, Failure> {
    let Some(memory) = memory else {
        return Err(Nonsense("memory to read of which nothing is known").into());
    };
    // The length is at most that of a piece.
    let len = usize::try_from(record.len).unwrap_or(0);
    match entries.place(record.key, record.offset, len) {
        // SAFETY: the place is registered while the table is locked. Nothing accesses it before the arrival, as the rank that gave the
        // writer its key has promised.
        Ok(place) => unsafe { memory.read(reader.fetched_from(), place, len) }.map(Ok),
        Err(refusal) => Ok(Err(refusal)),
    }
}
