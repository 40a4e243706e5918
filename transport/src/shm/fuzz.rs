//! The fuzz targets of shared memory: a ring that a hostile peer fills, compared with a plain model of a reader, and control
//! messages.
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a finding of the fuzzer, or a system without shared memory")]

use std::{
    iter,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::{
    address::EndpointPlace,
    board::Board,
    control::{ConnectionMessage, WriteRefusal},
    incoming::Incoming,
    memory::MemoryTable,
    ring::{CAPACITY, DATA, HEAD, MOST, SEGMENT, TAIL},
    segment::{self, Access, Segment},
    socket::{Link, Received, SendOutcome},
};
use crate::{Event, Memory, Region, peer_memory::ReadPermit};

/// The bytes of a word.
const WORD: usize = size_of::<u64>();
/// The memory that is only registered lies this far from both ends of a segment, whose other bytes must not change.
const MARGIN: usize = 500;
const REGISTERED: usize = 3000;
/// The memory that the peer could map.
const ALLOCATED: usize = 20_000;

/// Reads any bytes as a message. A message that was read is the same when it is written again.
pub(crate) fn control(bytes: &[u8]) {
    let Some(message) = ConnectionMessage::decode(bytes) else { return };
    assert_eq!(&message.encode()[..], bytes, "{message:?}");
}

/// Runs the steps of a peer on its ring, and reads meanwhile. The first byte selects a step:
/// - 0: publishes a record, of a kind, a choice of key, a byte of the immediate, a length, what is missing to the total, an offset;
/// - 1: changes any word of the ring's memory: its number, and the word;
/// - 2: changes a word of the last record's header: its number, and the word;
/// - 3: this many records are read at most.
pub(crate) fn ring(bytes: &[u8]) {
    play(bytes);
}

fn play(mut bytes: &[u8]) -> Played {
    let mut pair = Pair::new();
    let mut left = Some(false);
    while left.is_some()
        && let Some((step, rest)) = bytes.split_first()
    {
        bytes = rest;
        match step % 4 {
            0 => {
                let Some(([kind, key, immediate, fields @ ..], rest)) = bytes.split_first_chunk::<9>() else {
                    break;
                };
                bytes = rest;
                let [len, missing, offset] =
                    [0, 2, 4].map(|at| u64::from(u16::from_le_bytes([fields[at], fields[at + 1]])));
                pair.publish(*kind, *key, *immediate, [len, missing, offset]);
            }
            change @ 1..=2 => {
                let Some((&[low, high, ref word @ ..], rest)) = bytes.split_first_chunk::<10>() else {
                    break;
                };
                bytes = rest;
                let number = usize::from(u16::from_le_bytes([low, high]));
                let place = if change == 1 { number } else { place(pair.last) + number % 5 };
                let words = pair.ring.words();
                words[place % words.len()].store(u64::from_le_bytes(*word), Ordering::Relaxed);
            }
            _ => {
                let Some((most, rest)) = bytes.split_first() else { break };
                bytes = rest;
                left = pair.read(usize::from(*most % 65));
            }
        }
    }
    while left == Some(false) {
        left = pair.read(64);
    }
    pair.played.ended = left.is_none();
    pair.played
}

/// The result of all steps.
#[derive(Default)]
struct Played {
    arrived: usize,
    refused: Vec<WriteRefusal>,
    /// The peer was disconnected.
    ended: bool,
}

/// The number of the ring's word at this position.
fn place(position: u64) -> usize {
    let index = usize::try_from(position % CAPACITY as u64).unwrap();
    (DATA + index) / WORD
}

/// A ring with both its ends, and memory that its records may name.
struct Pair {
    ring: Segment,
    there: Link,
    incoming: Incoming,
    table: Arc<MemoryTable>,
    registered: Region,
    /// The segment around the registered memory; it is unmapped after that memory is gone.
    surroundings: Segment,
    allocated: Region,
    model: Model,
    /// Where the peer publishes next, how many records it has published, and where the last one begins.
    tail: u64,
    number: u32,
    last: u64,
    played: Played,
}

impl Pair {
    fn new() -> Self {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (here, there) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let place = EndpointPlace::new().unwrap();
        let there = Link::new(there, place.token, place.proof);
        let (file, ring) = segment::create(SEGMENT, Access::ReadWrite).unwrap();
        assert_eq!(there.send(&ConnectionMessage::Ring(ReadPermit::NONE), Some(&file)), SendOutcome::Yes);
        let mut incoming =
            Incoming::new(place.name, Link::new(here, place.proof, place.token), ReadPermit::NONE);
        incoming.receive().unwrap();
        let (_, surroundings) = segment::create(2 * MARGIN + REGISTERED, Access::ReadWrite).unwrap();
        let base = surroundings.at(MARGIN, REGISTERED).unwrap();
        let table = MemoryTable::new(Arc::new(Board::new().unwrap().1));
        // SAFETY: the segment outlives the region, and is accessed by this thread alone, while nothing is read from the ring.
        let registered = table.register(unsafe { Memory::borrowed(base, REGISTERED) }.into()).unwrap();
        let allocated = table.register(table.allocate(ALLOCATED, Access::ReadWrite).unwrap()).unwrap();
        let model = Model {
            head: 0,
            tail: 0,
            number: 0,
            surroundings: bytes(&surroundings),
            allocated: vec![0; ALLOCATED],
        };
        Self {
            ring,
            there,
            incoming,
            table,
            surroundings,
            registered,
            allocated,
            model,
            tail: 0,
            number: 0,
            last: 0,
            played: Played::default(),
        }
    }

    /// Publishes a record as a writer does, even if there is no room, with fields that may be wrong.
    fn publish(&mut self, kind: u8, key: u8, immediate: u8, [len, missing, offset]: [u64; 3]) {
        let keys = self.keys();
        let key = keys.get(usize::from(key)).copied().unwrap_or_else(|| keys[0] ^ u64::from(key));
        let header = [
            u64::from(self.number) | u64::from(immediate) << 32,
            u64::from(kind) | len << 8,
            len + missing,
            key,
            offset,
        ];
        let inline = if kind == 3 { 0 } else { len };
        let pattern = iter::repeat_n(u64::from(self.number).wrapping_mul(0x9e37_79b9_7f4a_7c15), MOST / WORD);
        let words = header.into_iter().chain(pattern.take(usize::try_from(inline.div_ceil(8)).unwrap()));
        for (at, word) in (self.tail..).step_by(WORD).zip(words) {
            self.ring.words()[place(at)].store(word, Ordering::Relaxed);
        }
        self.last = self.tail;
        self.number = self.number.wrapping_add(1);
        self.tail += (40 + inline).next_multiple_of(64);
        self.ring.words()[TAIL].store(self.tail, Ordering::Release);
    }

    fn keys(&self) -> [u64; 2] {
        [&self.registered, &self.allocated].map(|region| region.remote().unwrap().key)
    }

    /// Reads at most this many records, and compares the results: true if none is left, `None` if the peer is disconnected.
    fn read(&mut self, most: usize) -> Option<bool> {
        let (head, mut events, mut refused) = (self.model.head, Vec::new(), Vec::new());
        let wanted = self.model.read(&self.ring, self.keys(), most);
        let result = self.incoming.read(&self.table.lock(), &mut events, most).ok();
        assert_eq!((result, &events), (wanted.result, &wanted.events));
        while let Received::Message(message, _) = self.there.receive().unwrap() {
            match message {
                ConnectionMessage::Refused(refusal) => refused.push(refusal),
                other => assert_eq!(other, ConnectionMessage::Wake),
            }
        }
        assert_eq!(refused, wanted.refused);
        self.played.arrived += events.len();
        self.played.refused.extend(refused);
        assert!(
            bytes(&self.surroundings) == self.model.surroundings,
            "registered memory, or what lies beside it"
        );
        let mut there = vec![0; ALLOCATED];
        // SAFETY: this thread alone accesses it, and reads nothing from the ring meanwhile.
        unsafe { self.allocated.read(0, &mut there).unwrap() };
        assert!(there == self.model.allocated, "allocated memory");
        if result.is_some() && self.model.head != head {
            assert_eq!(self.ring.words()[HEAD].load(Ordering::Relaxed), self.model.head);
        }
        result
    }
}

/// The bytes of a segment, and of one word.
fn bytes(segment: &Segment) -> Vec<u8> {
    segment.words().iter().flat_map(bytes_of).collect()
}

fn bytes_of(word: &AtomicU64) -> [u8; WORD] {
    word.load(Ordering::Relaxed).to_ne_bytes()
}

/// A model of a reader, for rings that do not change meanwhile, and all memory that records may name.
struct Model {
    head: u64,
    tail: u64,
    number: u32,
    surroundings: Vec<u8>,
    allocated: Vec<u8>,
}

/// The expected result of reading.
struct Wanted {
    /// True if the ring is empty; `None` if it holds nonsense.
    result: Option<bool>,
    events: Vec<Event>,
    refused: Vec<WriteRefusal>,
}

impl Model {
    fn read(&mut self, ring: &Segment, keys: [u64; 2], most: usize) -> Wanted {
        let mut wanted = Wanted { result: Some(false), events: Vec::new(), refused: Vec::new() };
        for _ in 0..most {
            if self.head == self.tail {
                let tail = ring.words()[TAIL].load(Ordering::Relaxed);
                if !tail.is_multiple_of(64) || !(self.head..=self.head + CAPACITY as u64).contains(&tail) {
                    wanted.result = None;
                    break;
                }
                self.tail = tail;
            }
            if self.head == self.tail {
                wanted.result = Some(true);
                break;
            }
            let [first, second, total, key, offset] =
                [0, 1, 2, 3, 4].map(|word| ring.words()[place(self.head) + word].load(Ordering::Relaxed));
            let (number, immediate) = (first % (1 << 32), u32::try_from(first >> 32).unwrap());
            let (kind, len) = (second % 256, second >> 8);
            let inline = if kind == 3 { 0 } else { len };
            let taken = (40 + inline).next_multiple_of(64);
            let sound = matches!(kind, 1..=3) && number == u64::from(self.number);
            if !sound || inline > MOST as u64 || taken > self.tail - self.head || !(1..=total).contains(&len)
            {
                wanted.result = None;
                break;
            }
            // Peers write by themselves only to memory that they can map.
            let region = match (key, kind) {
                (key, 1 | 2) if key == keys[0] => Some(&mut self.surroundings[MARGIN..MARGIN + REGISTERED]),
                (key, _) if key == keys[1] => Some(&mut self.allocated[..]),
                _ => None,
            };
            let range = offset
                .checked_add(len)
                .map(|end| usize::try_from(offset).unwrap()..usize::try_from(end).unwrap());
            match (region, range) {
                (None, _) => wanted.refused.push(WriteRefusal::Unregistered),
                (Some(region), Some(range)) if range.end <= region.len() => {
                    if kind != 3 {
                        let words = (self.head + 40..self.head + 40 + len).step_by(WORD);
                        let bytes = words.flat_map(|at| bytes_of(&ring.words()[place(at)]));
                        region[range].iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
                    }
                    if kind != 2 {
                        let len = usize::try_from(total).ok();
                        wanted.events.push(Event::Arrived { immediate, len });
                    }
                }
                _ => wanted.refused.push(WriteRefusal::Outside),
            }
            self.head += taken;
            self.number = self.number.wrapping_add(1);
        }
        wanted
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    fn seed(target: &str, name: &str) -> Vec<u8> {
        fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target).join(name))
            .unwrap()
    }

    /// Seeds that do not do so reach little of the code.
    #[test]
    fn the_seeds_of_rings_do_what_their_names_say() {
        for (name, arrived) in [("put", 1), ("parts", 1), ("landed", 1), ("around", 40)] {
            let played = play(&seed("ring", name));
            assert_eq!(
                (played.arrived, &played.refused[..], played.ended),
                (arrived, &[][..], false),
                "{name}"
            );
        }
        let played = play(&seed("ring", "refused"));
        let refused = [
            WriteRefusal::Unregistered,
            WriteRefusal::Outside,
            WriteRefusal::Unregistered,
            WriteRefusal::Outside,
        ];
        assert_eq!((played.arrived, &played.refused[..], played.ended), (1, &refused[..], false));
        let nonsense = ["kind", "number", "length", "beyond", "total", "nothing", "tail", "full", "line"];
        for (name, arrived) in nonsense.map(|name| (name, 1)).into_iter().chain([("back", 2)]) {
            let played = play(&seed("ring", name));
            assert_eq!(
                (played.arrived, &played.refused[..], played.ended),
                (arrived, &[][..], true),
                "{name}"
            );
        }
    }

    #[test]
    fn the_seeds_of_messages_are_messages() {
        let names = [
            "connect",
            "accept",
            "ring",
            "want",
            "memory",
            "forget",
            "unregistered",
            "outside",
            "wake",
            "reads",
        ];
        for name in names.into_iter().chain(["bye"]) {
            assert!(ConnectionMessage::decode(&seed("control", name)).is_some(), "{name}");
        }
    }
}
