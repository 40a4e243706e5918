//! Messages on the socket between a writer and a reader: each is one packet, with at most one descriptor.

use smallvec::SmallVec;

use super::{address::Name, segment::Access};
use crate::{local::Failure, peer_memory::ReadPermit};

/// No message has more bytes.
pub(super) const MOST: usize = 64;

/// The reason why a reader refuses what a writer wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteRefusal {
    /// No memory is registered under its key.
    Unregistered,
    /// It would reach beyond the registered memory.
    Outside,
}

const REFUSALS: [WriteRefusal; 2] = [WriteRefusal::Unregistered, WriteRefusal::Outside];

impl From<WriteRefusal> for Failure {
    fn from(refusal: WriteRefusal) -> Self {
        match refusal {
            WriteRefusal::Unregistered => Self::unregistered(),
            WriteRefusal::Outside => Self::outside(),
        }
    }
}

/// Memory that the writer may map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Given {
    pub(super) key: u64,
    /// The address of the region's first byte, as puts name it.
    pub(super) base: u64,
    /// The region's length in bytes.
    pub(super) len: u64,
    /// The offset of its memory in the memfd: 0 or a multiple of the size of a page.
    pub(super) offset: u64,
    /// Its place on the reader's board, and its number there.
    pub(super) place: u32,
    pub(super) number: u64,
    /// The access for which the writer has asked.
    pub(super) access: Access,
    pub(super) writable: bool,
}

const ACCESSES: [Access; 2] = [Access::Read, Access::ReadWrite];

/// A message, and the side that sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionMessage {
    /// The writer's first message, to the reader's listening socket: the name of the writer's. The descriptor is the reader's end of
    /// their connection.
    Connect { from: Name },
    /// The reader's answer: whether the writer may read its memory. The descriptor is that of its board.
    Accept(ReadPermit),
    /// The writer's next message: whether the reader may read its memory. The descriptor is that of its ring.
    Ring(ReadPermit),
    /// The reader can read the writer's memory.
    Reads,
    /// The writer asks for the memory of the region of this key in which this address lies, as puts name it.
    Want { key: u64, address: u64, access: Access },
    /// The reader's answer. The descriptor is that of the memory.
    Memory(Given),
    /// The reader has no such region that can be mapped, or no longer has it.
    Forget { key: u64, address: u64 },
    /// The reader refuses a put.
    Refused(WriteRefusal),
    /// Either side drops the connection, because the other sends what no endpoint sends, or makes a put that was refused.
    Dropped,
    /// Either side wakes the other.
    Wake,
    /// Either side closes its endpoint.
    Bye,
}

/// The bytes of a message.
pub(super) type Packet = SmallVec<[u8; MOST]>;

fn packet(kind: u8, parts: &[&[u8]]) -> Packet {
    std::iter::once(&kind).chain(parts.iter().copied().flatten()).copied().collect()
}

impl ConnectionMessage {
    pub(super) fn encode(&self) -> Packet {
        match self {
            Self::Connect { from } => packet(1, &[from]),
            Self::Accept(permit) => packet(2, &[&permit.bytes()]),
            Self::Ring(permit) => packet(9, &[&permit.bytes()]),
            Self::Reads => packet(11, &[]),
            Self::Dropped => packet(10, &[]),
            Self::Want { key, address, access } => {
                packet(3, &[&key.to_le_bytes(), &address.to_le_bytes(), &[*access as u8]])
            }
            Self::Memory(Given { key, base, len, offset, place, number, access, writable }) => {
                let words = [key, base, len, offset, number].map(|word| word.to_le_bytes());
                let how = [*access as u8, u8::from(*writable)];
                packet(4, &[words.as_flattened(), &place.to_le_bytes(), &how])
            }
            Self::Forget { key, address } => packet(5, &[&key.to_le_bytes(), &address.to_le_bytes()]),
            Self::Refused(refusal) => packet(6, &[&[*refusal as u8]]),
            Self::Wake => packet(7, &[]),
            Self::Bye => packet(8, &[]),
        }
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, mut rest) = bytes.split_first()?;
        let rest = &mut rest;
        let message = match kind {
            1 => Self::Connect { from: next(rest)? },
            2 => Self::Accept(permit(rest)?),
            3 => Self::Want { key: word(rest)?, address: word(rest)?, access: one_of(rest, ACCESSES)? },
            4 => {
                let [key, base, len, offset, number] = [(); 5].map(|()| word(rest));
                let place = next(rest).map(u32::from_le_bytes)?;
                let (access, writable) = (one_of(rest, ACCESSES)?, one_of(rest, [false, true])?);
                let (key, base, len, offset, number) = (key?, base?, len?, offset?, number?);
                Self::Memory(Given { key, base, len, offset, place, number, access, writable })
            }
            5 => Self::Forget { key: word(rest)?, address: word(rest)? },
            6 => Self::Refused(one_of(rest, REFUSALS)?),
            7 => Self::Wake,
            8 => Self::Bye,
            9 => Self::Ring(permit(rest)?),
            10 => Self::Dropped,
            11 => Self::Reads,
            _ => return None,
        };
        rest.is_empty().then_some(message)
    }
}

/// Takes the next bytes off a message.
fn next<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (next, behind) = rest.split_first_chunk()?;
    *rest = behind;
    Some(*next)
}

fn permit(rest: &mut &[u8]) -> Option<ReadPermit> {
    let process = next(rest).map(u32::from_le_bytes)?;
    Some(ReadPermit { process, address: word(rest)?, word: word(rest)? })
}

fn word(rest: &mut &[u8]) -> Option<u64> {
    next(rest).map(u64::from_le_bytes)
}

/// The one of these that the next byte numbers, from 0.
fn one_of<T: Copy>(rest: &mut &[u8], all: [T; 2]) -> Option<T> {
    let [number] = next(rest)?;
    all.get(usize::from(number)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written_and_no_others() {
        let (offset, place) = (1 << 50, 3 << 20);
        let access = Access::ReadWrite;
        let permit = ReadPermit { process: 7, address: 1 << 47, word: u64::MAX };
        let given =
            Given { key: 5, base: 1 << 63, len: 1 << 40, offset, place, number: 9, access, writable: true };
        let all = [
            ConnectionMessage::Connect { from: [9; 8] },
            ConnectionMessage::Accept(permit),
            ConnectionMessage::Ring(permit),
            ConnectionMessage::Reads,
            ConnectionMessage::Dropped,
            ConnectionMessage::Want { key: u64::MAX - 3, address: 1 << 47, access },
            ConnectionMessage::Want { key: 7, address: 0, access: Access::Read },
            ConnectionMessage::Memory(Given { writable: false, ..given }),
            ConnectionMessage::Memory(Given { access: Access::Read, ..given }),
            ConnectionMessage::Memory(given),
            ConnectionMessage::Forget { key: 1, address: 2 },
            ConnectionMessage::Refused(WriteRefusal::Unregistered),
            ConnectionMessage::Refused(WriteRefusal::Outside),
            ConnectionMessage::Wake,
            ConnectionMessage::Bye,
        ];
        for message in all {
            let bytes = &message.encode()[..];
            assert_eq!(ConnectionMessage::decode(bytes), Some(message));
            for cut in 0..bytes.len() {
                assert_eq!(ConnectionMessage::decode(&bytes[..cut]), None, "{message:?} of {cut} bytes");
            }
            assert_eq!(
                ConnectionMessage::decode(&[bytes, &[0]].concat()),
                None,
                "{message:?} and a byte more"
            );
        }
        assert_eq!(
            [
                ConnectionMessage::decode(&[0]),
                ConnectionMessage::decode(&[12]),
                ConnectionMessage::decode(&[6, 2])
            ],
            [None; 3]
        );
    }
}
