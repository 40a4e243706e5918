//! Puts under way: a record for each that still reads from memory, so that its end finds what it frees.

use unisono_schedule::windows::stride;
use unisono_transport::{Error, Memory, Region, Transport};

use crate::engine::wire::{CommId, HEADER, PAYLOAD};

/// How many puts of one engine may be under way at once. Each message of a chunk takes one; more than
/// the slots of a few neighbours together bring nothing.
const RECORDS: usize = 256;

/// The token of a group's control messages, of those that were copied when they began and of those that were not.
pub(crate) fn control_token(comm_id: CommId, copied: bool) -> u64 {
    u64::MAX - (u64::from(comm_id) | u64::from(copied) << 16)
}

/// Of which group's control message this is the token, if it is one, and whether it was copied.
pub(crate) fn control_of_token(token: u64) -> Option<(CommId, bool)> {
    let bits = u32::try_from(u64::MAX - token).ok().filter(|bits| bits >> 17 == 0)?;
    Some(((bits & 0xffff) as CommId, bits >> 16 == 1))
}

/// What a put's end frees.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Record {
    /// The group that it is a put of.
    pub comm_id: CommId,
    /// The lane whose source it reads, if that is the caller's memory.
    pub lane: Option<usize>,
    /// The incoming flow and slot it reads from.
    pub hold: Option<(usize, usize)>,
    /// The staging slot it reads from.
    pub staging: Option<usize>,
    /// Whether it is of a message from point to point; and of which, if that has not ended before this has left.
    pub message: bool,
    pub id: Option<u64>,
}

/// The records, their headers, and staging slots for sources that are not registered.
#[derive(Debug)]
pub(crate) struct Posts {
    records: Vec<Record>,
    free: Vec<usize>,
    /// One header for every record, in registered memory.
    headers: Region,
    staging: Option<Staging>,
    staging_slots: usize,
    staging_bytes: usize,
}

#[derive(Debug)]
struct Staging {
    region: Region,
    free: Vec<usize>,
    slots: Vec<Slot>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// How many puts read from it or are to.
    puts: usize,
    /// How often it was taken.
    taken: u64,
}

/// A staging slot, and which taking of it this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Staged {
    pub slot: usize,
    taken: u64,
}

impl Staging {
    fn put_back(&mut self, slot: usize) {
        let puts = &mut self.slots[slot].puts;
        *puts -= 1;
        if *puts == 0 {
            self.free.push(slot);
        }
    }
}

impl Posts {
    /// `staging_slots` of `staging_bytes` each, and of a header before them, are allocated when first needed.
    pub(crate) fn new(
        transport: &mut dyn Transport,
        staging_slots: usize,
        staging_bytes: usize,
    ) -> Result<Self, Error> {
        let headers = transport.register(Memory::map(RECORDS * HEADER, false)?)?;
        Ok(Self {
            records: vec![Record::default(); RECORDS],
            free: (0..RECORDS).rev().collect(),
            headers,
            staging: None,
            staging_slots,
            staging_bytes,
        })
    }

    /// A free record's index, which is also its put's token; it stays free until [`begin`](Self::begin).
    pub(crate) fn vacant(&self) -> Option<usize> {
        self.free.last().copied()
    }

    /// Bytes of registered memory.
    pub(crate) fn memory(&self) -> usize {
        self.headers.len() + self.staging.as_ref().map_or(0, |staging| staging.region.len())
    }

    /// Where the header of a record lies.
    pub(crate) fn header(&self, record: usize) -> (&Region, usize) {
        (&self.headers, record * HEADER)
    }

    /// The put of the vacant record was begun.
    pub(crate) fn begin(&mut self, record: Record) {
        if let Some(index) = self.free.pop() {
            self.records[index] = record;
        }
    }

    /// The put with this token has ended; tells what that frees, or `None` for a token never given.
    pub(crate) fn end(&mut self, token: u64) -> Option<Record> {
        let index = usize::try_from(token).ok()?;
        let record = std::mem::take(self.records.get_mut(index)?);
        self.free.push(index);
        if let (Some(slot), Some(staging)) = (record.staging, &mut self.staging) {
            staging.put_back(slot);
        }
        Some(record)
    }

    /// Takes a staging slot, if one is free. It comes back at the end of the put whose record names it.
    pub(crate) fn stage(&mut self, transport: &mut dyn Transport) -> Result<Option<Staged>, Error> {
        if self.staging.is_none() {
            let memory = Memory::map(self.staging_slots * stride(self.staging_bytes), false)?;
            let region = transport.register(memory)?;
            let slots = vec![Slot::default(); self.staging_slots];
            self.staging = Some(Staging { region, free: (0..slots.len()).rev().collect(), slots });
        }
        Ok(self.staging.as_mut().and_then(|staging| {
            let slot = staging.free.pop()?;
            let Slot { puts, taken } = &mut staging.slots[slot];
            (*puts, *taken) = (1, *taken + 1);
            Some(Staged { slot, taken: *taken })
        }))
    }

    /// Takes the same staging slot for one more put, if one that reads from it is still under way. It comes back at the
    /// end of the last.
    pub(crate) fn stage_again(&mut self, staged: Staged) -> bool {
        let slot = self.staging.as_mut().map(|staging| &mut staging.slots[staged.slot]);
        let slot = slot.filter(|slot| slot.puts > 0 && slot.taken == staged.taken);
        slot.map(|slot| slot.puts += 1).is_some()
    }

    /// Gives a staging slot back for a put that does not read from it any more.
    pub(crate) fn put_back(&mut self, slot: usize) {
        if let Some(staging) = &mut self.staging {
            staging.put_back(slot);
        }
    }

    /// Where the elements in a staging slot lie, behind room for a header, once there is staging.
    pub(crate) fn staged(&self, slot: usize) -> Option<(Region, usize)> {
        let at = slot * stride(self.staging_bytes) + PAYLOAD;
        self.staging.as_ref().map(|staging| (staging.region.clone(), at))
    }
}

#[cfg(test)]
mod tests {
    use unisono_transport::inproc::Hub;

    use super::*;

    #[test]
    fn a_staging_slot_is_free_when_all_that_was_put_from_it_has_ended() {
        let mut transport = Hub::new().open();
        let mut posts = Posts::new(&mut transport, 1, 64).unwrap();
        let staged = posts.stage(&mut transport).unwrap().unwrap();
        let put = |posts: &mut Posts| {
            let token = posts.vacant().unwrap();
            posts.begin(Record { staging: Some(staged.slot), ..Record::default() });
            token as u64
        };
        let first = put(&mut posts);
        assert!(posts.stage_again(staged));
        let second = put(&mut posts);
        posts.end(first).unwrap();
        // The other reads from it, and one more may.
        assert_eq!(posts.stage(&mut transport).unwrap(), None);
        assert!(posts.stage_again(staged));
        posts.put_back(staged.slot);
        posts.end(second).unwrap();
        // Nobody does: what is there may change.
        assert!(!posts.stage_again(staged));
        let other = posts.stage(&mut transport).unwrap().unwrap();
        assert_eq!(other.slot, staged.slot);
        assert!(!posts.stage_again(staged) && posts.stage_again(other));
    }
}
