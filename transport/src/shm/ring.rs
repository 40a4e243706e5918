//! A ring of records in shared memory, with one writer and one reader.
//!
//! A record is a header of five words and, for some kinds, bytes behind it. It begins at a multiple of 64 bytes. Positions are counted
//! in bytes from the ring's beginning and never go back. The writer publishes a record by moving the tail behind it, the reader gives
//! its room back by moving the head: each is written by one side only, in its own cache lines.
//!
//! Everything that the other side wrote is data. A reader copies a header once and then checks the copy; positions, kinds and
//! lengths that no writer writes end the connection.
#![allow(unsafe_code)]

use std::{
    ptr,
    sync::atomic::{AtomicU64, Ordering, fence},
};

use super::{error::Nonsense, segment::Segment};

/// The number of bytes of records that a ring has room for; a power of two.
pub(super) const CAPACITY: usize = 256 << 10;
/// Where the records begin: the pages before are for head and tail.
pub(super) const DATA: usize = 4 << 10;
/// The number of bytes of a ring's memory.
pub(super) const SEGMENT: usize = DATA + CAPACITY;
/// The bytes of a header: five words.
const HEADER: usize = 40;
/// Records begin at multiples of this many bytes, a cache line.
const LINE: usize = 64;
/// The most bytes in a record.
pub(super) const MOST: usize = 16 << 10;
/// The most bytes of the writer's memory that a reader fetches for one record.
pub(super) const MOST_FETCHED: usize = 256 << 10;

// Places of words. Two cache lines lie between those of the writer and those of the reader, as processors fetch lines in pairs.
/// The position behind the last published record.
pub(super) const TAIL: usize = 0;
/// The writer's epoch of sleep, odd while it waits for room.
const WAITING: usize = 1;
/// Not 0 once the writer may free the memory that records name.
const WITHDRAWN: usize = 2;
/// The position behind the last record that was read.
pub(super) const HEAD: usize = 16;

/// The meaning of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordKind {
    /// The bytes of a put, or its last ones, are in the record. It arrives with them.
    Put = 1,
    /// The first bytes of a put, or some between, are in the record.
    Part,
    /// The writer has written the bytes of a put to the target itself. It arrives with this.
    Landed,
    /// As [`Self::Put`] and [`Self::Part`], but the bytes lie in the writer's memory, and their address is in the record.
    Fetch,
    FetchPart,
}

/// The header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) kind: RecordKind,
    pub(super) immediate: u32,
    /// The number of bytes in the record, or that the writer has written itself, or that the reader fetches.
    pub(super) len: u64,
    /// The number of bytes of the put.
    pub(super) total: u64,
    /// The region that is written to.
    pub(super) key: u64,
    /// The offset of these bytes in the region.
    pub(super) offset: u64,
}

impl Record {
    /// The bytes that lie in the ring, at most [`MOST`] if it is a record.
    fn inline(&self) -> u64 {
        match self.kind {
            RecordKind::Landed => 0,
            RecordKind::Put | RecordKind::Part => self.len,
            RecordKind::Fetch | RecordKind::FetchPart => size_of::<u64>() as u64,
        }
    }

    /// True if the reader fetches the bytes.
    pub(super) fn is_fetched(&self) -> bool {
        matches!(self.kind, RecordKind::Fetch | RecordKind::FetchPart)
    }

    /// True if the put arrives with it.
    pub(super) fn is_last(&self) -> bool {
        !matches!(self.kind, RecordKind::Part | RecordKind::FetchPart)
    }
}

/// The room in a ring that a record with this many bytes takes.
fn room(inline: usize) -> u64 {
    (HEADER + inline).next_multiple_of(LINE) as u64
}

fn index(position: u64) -> usize {
    // Less than the capacity, which is a `usize`.
    #[allow(clippy::cast_possible_truncation)]
    let index = (position & (CAPACITY as u64 - 1)) as usize;
    index
}

/// The parts of the ring, one behind the other, that `len` bytes at this position take.
fn parts(segment: &Segment, position: u64, len: usize) -> [(*mut u8, usize); 2] {
    let start = index(position);
    let first = len.min(CAPACITY - start);
    let rest = len.saturating_sub(first).min(CAPACITY);
    let base = segment.base();
    // SAFETY: both lie within the ring's memory, which has `SEGMENT` bytes.
    unsafe { [(base.add(DATA + start), first), (base.add(DATA), rest)] }
}

/// The words of a header, which lies in one cache line.
fn header(segment: &Segment, position: u64) -> &[AtomicU64] {
    let word = (DATA + index(position)) / size_of::<AtomicU64>();
    segment.words().get(word..word + HEADER / size_of::<AtomicU64>()).unwrap_or_default()
}

fn word(segment: &Segment, at: usize) -> &AtomicU64 {
    &segment.words()[at]
}

/// The end of a ring that writes.
#[derive(Debug)]
pub(super) struct Writer {
    segment: Segment,
    tail: u64,
    /// The reader's head when it was last looked at.
    head: u64,
    number: u32,
}

impl Writer {
    /// `segment` is new and has [`SEGMENT`] bytes.
    pub(super) fn new(segment: Segment) -> Self {
        Self { segment, tail: 0, head: 0, number: 0 }
    }

    /// True if there is room for a record with this many bytes.
    pub(super) fn has_room(&mut self, inline: usize) -> Result<bool, Nonsense> {
        let fits = |writer: &Self| writer.tail - writer.head + room(inline) <= CAPACITY as u64;
        if fits(self) {
            return Ok(true);
        }
        self.look()?;
        Ok(fits(self))
    }

    /// The position behind the last record.
    pub(super) fn tail(&self) -> u64 {
        self.tail
    }

    /// True if the reader has read the records before this position.
    pub(super) fn is_read(&mut self, position: u64) -> Result<bool, Nonsense> {
        if self.head < position {
            self.look()?;
        }
        Ok(self.head >= position)
    }

    /// From now on the reader takes nothing that it fetches: the memory may be freed.
    pub(super) fn withdraw(&self) {
        word(&self.segment, WITHDRAWN).store(1, Ordering::Relaxed);
        // What follows does not come before it.
        fence(Ordering::SeqCst);
    }

    /// True if the reader has read something since the last look.
    pub(super) fn look(&mut self) -> Result<bool, Nonsense> {
        let head = word(&self.segment, HEAD).load(Ordering::Acquire);
        if head < self.head || head > self.tail || !head.is_multiple_of(LINE as u64) {
            return Err(Nonsense("a head of a ring outside of what was written"));
        }
        Ok(std::mem::replace(&mut self.head, head) != head)
    }

    /// Publishes a record with these bytes behind it, for which there [is room](Self::has_room).
    ///
    /// # Safety
    /// The pieces together have as many bytes as the record says are in it; they are valid and at rest.
    pub(super) unsafe fn push(&mut self, record: &Record, pieces: impl Iterator<Item = (*const u8, usize)>) {
        let mut at = self.tail + HEADER as u64;
        for (from, len) in pieces {
            let [first, rest] = parts(&self.segment, at, len);
            // SAFETY: the target lies in the ring, and the reader does not look behind the tail; by the caller's promise the pieces
            // are valid, and no longer than the room that there is.
            unsafe {
                ptr::copy_nonoverlapping(from, first.0, first.1);
                ptr::copy_nonoverlapping(from.add(first.1), rest.0, rest.1);
            }
            at += len as u64;
        }
        let words = [
            u64::from(self.number) | u64::from(record.immediate) << 32,
            record.kind as u64 | record.len << 8,
            record.total,
            record.key,
            record.offset,
        ];
        let header = header(&self.segment, self.tail);
        header.iter().zip(words).for_each(|(place, word)| place.store(word, Ordering::Relaxed));
        self.number = self.number.wrapping_add(1);
        self.tail += room(usize::try_from(record.inline()).unwrap_or(0));
        word(&self.segment, TAIL).store(self.tail, Ordering::Release);
    }

    /// Tells the reader that this end waits for room, and looks whether there is some since the last look. The reader wakes it once
    /// for each epoch, which is odd.
    pub(super) fn wait(&mut self, epoch: u64) -> Result<bool, Nonsense> {
        word(&self.segment, WAITING).store(epoch, Ordering::Relaxed);
        // Either the reader sees the epoch after it has moved the head, or this end sees the head.
        fence(Ordering::SeqCst);
        self.look()
    }
}

/// The end of a ring that reads.
#[derive(Debug)]
pub(super) struct Reader {
    segment: Segment,
    head: u64,
    /// The head that the reader last reported to the writer.
    published: u64,
    /// The writer's tail when it was last looked at.
    tail: u64,
    number: u32,
    /// The latest epoch of the writer's sleep that was ended.
    woken: u64,
}

impl Reader {
    /// `segment` has [`SEGMENT`] bytes.
    pub(super) fn new(segment: Segment) -> Self {
        Self { segment, head: 0, published: 0, tail: 0, number: 0, woken: 0 }
    }

    /// Puts nonsense into the ring, which its writer never does.
    #[cfg(test)]
    pub(super) fn corrupt(&self) {
        word(&self.segment, TAIL).store(u64::MAX - 63, Ordering::Release);
    }

    #[inline]
    pub(super) fn has_next(&self) -> bool {
        self.tail != self.head || word(&self.segment, TAIL).load(Ordering::Acquire) != self.head
    }

    /// The next record, which [`Self::consume`] takes off the ring.
    pub(super) fn next(&mut self) -> Result<Option<Record>, Nonsense> {
        if self.tail == self.head {
            let tail = word(&self.segment, TAIL).load(Ordering::Acquire);
            if tail < self.tail || tail - self.head > CAPACITY as u64 || !tail.is_multiple_of(LINE as u64) {
                return Err(Nonsense("a tail of a ring outside of it"));
            }
            self.tail = tail;
        }
        if self.tail == self.head {
            return Ok(None);
        }
        let mut words = [0; HEADER / size_of::<u64>()];
        let header = header(&self.segment, self.head);
        words.iter_mut().zip(header).for_each(|(word, place)| *word = place.load(Ordering::Relaxed));
        let [first, second, total, key, offset] = words;
        let kind = match second & 0xff {
            1 => RecordKind::Put,
            2 => RecordKind::Part,
            3 => RecordKind::Landed,
            4 => RecordKind::Fetch,
            5 => RecordKind::FetchPart,
            _ => return Err(Nonsense("a record of an unknown kind")),
        };
        if first & u64::from(u32::MAX) != u64::from(self.number) {
            return Err(Nonsense("a record that is not the next"));
        }
        let immediate = (first >> 32) as u32;
        let record = Record { kind, immediate, len: second >> 8, total, key, offset };
        let inline = usize::try_from(record.inline()).ok().filter(|len| *len <= MOST);
        if inline.is_none_or(|inline| room(inline) > self.tail - self.head) {
            return Err(Nonsense("a record longer than what was published"));
        }
        let unbounded = record.is_fetched() && record.len > MOST_FETCHED as u64;
        if unbounded || record.len == 0 || total < record.len || usize::try_from(total).is_err() {
            return Err(Nonsense("a record with a length that no put has"));
        }
        Ok(Some(record))
    }

    /// The places of the bytes of the next record, one part behind the other.
    pub(super) fn bytes(&self, record: &Record) -> [(*const u8, usize); 2] {
        let len = usize::try_from(record.inline()).unwrap_or(0).min(MOST);
        parts(&self.segment, self.head + HEADER as u64, len).map(|(start, len)| (start.cast_const(), len))
    }

    /// The address in the writer's memory of the bytes that are fetched for the next record.
    pub(super) fn fetched_from(&self) -> u64 {
        // Behind the header, in the same cache line.
        let word = (DATA + index(self.head) + HEADER) / size_of::<AtomicU64>();
        self.segment.words().get(word).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// True if what was fetched until now may have been freed before it was read.
    pub(super) fn is_withdrawn(&self) -> bool {
        // The bytes were read before this word is.
        fence(Ordering::SeqCst);
        word(&self.segment, WITHDRAWN).load(Ordering::Relaxed) != 0
    }

    /// Continues behind the next record.
    pub(super) fn consume(&mut self, record: &Record) {
        self.head += room(usize::try_from(record.inline()).unwrap_or(0));
        self.number = self.number.wrapping_add(1);
    }

    /// The number of bytes that were read and of which the writer was not told.
    pub(super) fn untold(&self) -> u64 {
        self.head - self.published
    }

    /// Gives back the room of the records that were read. True if the writer sleeps until then, and must be woken.
    pub(super) fn give_back(&mut self) -> bool {
        if self.published == self.head {
            return false;
        }
        self.published = self.head;
        word(&self.segment, HEAD).store(self.head, Ordering::Release);
        // As in `Writer::wait`.
        fence(Ordering::SeqCst);
        let waiting = word(&self.segment, WAITING).load(Ordering::Relaxed);
        waiting % 2 == 1 && std::mem::replace(&mut self.woken, waiting) != waiting
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use proptest::{collection::vec, prelude::*};

    use super::*;
    use crate::shm::segment::{self, Access};

    fn ring() -> (Writer, Reader, OwnedFd) {
        let (file, segment) = segment::create(SEGMENT, Access::ReadWrite).unwrap();
        let writer = Writer::new(segment);
        (writer, Reader::new(Segment::of_peer(&file, 0, SEGMENT, Access::ReadWrite).unwrap()), file)
    }

    fn push(writer: &mut Writer, record: &Record, bytes: &[u8]) -> bool {
        let fits = writer.has_room(bytes.len()).unwrap();
        if fits {
            let (first, second) = bytes.split_at(bytes.len() / 3);
            let pieces = [(first.as_ptr(), first.len()), (second.as_ptr(), second.len())];
            // SAFETY: the pieces are borrowed, and as long as the record.
            unsafe { writer.push(record, pieces.into_iter()) };
        }
        fits
    }

    fn record(kind: RecordKind, len: usize, number: u64) -> Record {
        let len = len as u64;
        #[allow(clippy::cast_possible_truncation)]
        let immediate = number as u32 ^ 0xabcd_0000;
        Record { kind, immediate, len, total: len, key: number << 32, offset: u64::MAX - number }
    }

    fn read(reader: &Reader, record: &Record) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (start, len) in reader.bytes(record) {
            // SAFETY: the writer waits.
            bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(start, len) });
        }
        bytes
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        /// Records are read in order and unchanged, around the end of the ring too.
        #[test]
        fn records_are_read_as_they_were_written(lens in vec((1..=MOST, 0..4_u8), 1..200)) {
            let (mut writer, mut reader, _file) = ring();
            let mut expected = std::collections::VecDeque::new();
            let next = |reader: &mut Reader, expected: &mut std::collections::VecDeque<(Record, Vec<u8>)>| {
                let found = reader.next().unwrap();
                let wanted = expected.pop_front();
                assert_eq!(found, wanted.as_ref().map(|(record, _)| *record));
                if let (Some(record), Some((_, bytes))) = (found, wanted) {
                    assert!(read(reader, &record) == bytes, "{record:?} is damaged");
                    reader.consume(&record);
                    reader.give_back();
                }
                found.is_some()
            };
            for (number, (len, kind)) in lens.into_iter().enumerate() {
                let kind = [RecordKind::Put, RecordKind::Part, RecordKind::Landed][usize::from(kind % 3)];
                let record = record(kind, len, number as u64);
                let bytes = vec![u8::try_from(number).unwrap(); if kind == RecordKind::Landed { 0 } else { len }];
                while !push(&mut writer, &record, &bytes) {
                    prop_assert!(next(&mut reader, &mut expected), "full and empty");
                }
                expected.push_back((record, bytes));
            }
            while next(&mut reader, &mut expected) {}
            prop_assert!(!reader.has_next());
        }

        /// The writer reports a head that no reader writes.
        #[test]
        fn a_hostile_reader_is_survived(head in any::<u64>(), filled in 0..20_usize) {
            let (mut writer, _reader, _file) = ring();
            for number in 0..filled {
                prop_assert!(push(&mut writer, &record(RecordKind::Put, 100, number as u64), &[1; 100]));
            }
            writer.segment.words()[HEAD].store(head, Ordering::Relaxed);
            let possible = head <= writer.tail && head % LINE as u64 == 0;
            prop_assert_eq!(writer.look().is_ok(), possible);
            prop_assert!(writer.tail - writer.head <= CAPACITY as u64);
        }
    }

    #[test]
    fn a_full_ring_takes_nothing_and_its_writer_is_woken_once() {
        let (mut writer, mut reader, _file) = ring();
        let put = record(RecordKind::Put, MOST, 1);
        let bytes = vec![3; MOST];
        let mut count = 0;
        while push(&mut writer, &put, &bytes) {
            count += 1;
        }
        assert_eq!(count, CAPACITY / usize::try_from(room(MOST)).unwrap());
        assert!(!writer.wait(1).unwrap());
        assert!(!reader.give_back(), "nothing was read");
        for first in [true, false] {
            let found = reader.next().unwrap().unwrap();
            reader.consume(&found);
            assert_eq!(reader.give_back(), first);
        }
        assert!(writer.wait(3).unwrap(), "there is room");
        assert!(push(&mut writer, &put, &bytes));
    }

    #[test]
    fn a_record_cannot_be_longer_than_what_is_published() {
        let (mut writer, mut reader, _file) = ring();
        assert!(push(&mut writer, &record(RecordKind::Put, 8, 0), &[1; 8]));
        let words = writer.segment.words();
        let second = &words[DATA / 8 + 1];
        for len in [0, 65, MOST as u64 + 1, u64::MAX >> 8] {
            second.store(1 | len << 8, Ordering::Relaxed);
            assert!(reader.next().is_err(), "{len} bytes");
        }
        second.store(1 | 8 << 8, Ordering::Relaxed);
        assert!(reader.next().is_ok());
        words[DATA / 8].store(5, Ordering::Relaxed);
        assert_eq!(reader.next(), Err(Nonsense("a record that is not the next")));
    }
}
