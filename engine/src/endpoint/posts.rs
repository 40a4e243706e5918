//! Puts in flight: each that still reads from memory has a record of the resources that its end frees.

use unisono_schedule::windows::stride;
use unisono_transport::{Error, Region, Transport};

use crate::wire::{CommId, HEADER, PAYLOAD};

/// The most puts of one engine in flight. Each message takes one; more than a few neighbours have slots would not be faster.
const RECORDS: usize = 256;

/// The token of a communicator's control messages: one for those that were copied when they began, another for the rest.
pub(crate) fn control_token(comm_id: CommId, copied: bool) -> u64 {
    u64::MAX - (u64::from(comm_id) | u64::from(copied) << 16)
}

/// The communicator of a control message's token, and whether the message was copied; `None` for other tokens.
pub(crate) fn control_of_token(token: u64) -> Option<(CommId, bool)> {
    let bits = u32::try_from(u64::MAX - token).ok().filter(|bits| bits >> 17 == 0)?;
    Some(((bits & 0xffff) as CommId, bits >> 16 == 1))
}

/// The resources that the end of a put frees.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PutRecord {
    /// The communicator of the put.
    pub comm_id: CommId,
    pub whose: Whose,
    /// The incoming flow and the slot that it reads from, if it does.
    pub hold: Option<(usize, usize)>,
    /// The staging slot that it reads from, if it does.
    pub staging: Option<usize>,
}

/// The owner of a put.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Whose {
    /// A collective; with the lane, if the put reads the caller's memory.
    Collective(Option<usize>),
    /// Messages from point to point; with the send that cannot end before the put has left.
    Message(Option<u64>),
}

/// The records, their headers, and staging slots for sources that are not registered.
#[derive(Debug)]
pub(crate) struct Posts {
    /// `None` for a record without a put.
    records: Vec<Option<PutRecord>>,
    free: Vec<usize>,
    /// One header for every record, in registered memory.
    headers: Region,
    /// The memory of the staging slots, once one was needed.
    staging: Option<Region>,
    /// The staging slots, and those of them that are free.
    slots: Vec<Slot>,
    free_slots: Vec<usize>,
    staging_bytes: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// The number of puts that read from it, or will.
    puts: usize,
    /// How often the slot was taken.
    taken: u64,
}

/// A staging slot, and how often it had been taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Staged {
    pub slot: usize,
    taken: u64,
}

impl Posts {
    /// `staging_slots` slots, each for a header and `staging_bytes` of elements, are allocated when first needed.
    pub(crate) fn new(
        transport: &mut dyn Transport,
        staging_slots: usize,
        staging_bytes: usize,
    ) -> Result<Self, Error> {
        let headers = transport.allocate(RECORDS * HEADER)?;
        Ok(Self {
            records: vec![None; RECORDS],
            free: (0..RECORDS).rev().collect(),
            headers,
            staging: None,
            slots: vec![Slot::default(); staging_slots],
            free_slots: (0..staging_slots).rev().collect(),
            staging_bytes,
        })
    }

    /// The index of a free record, which is also the token of its put. The record stays free until [`begin`](Self::begin).
    pub(crate) fn vacant(&self) -> Option<usize> {
        self.free.last().copied()
    }

    /// Bytes of registered memory.
    pub(crate) fn memory(&self) -> usize {
        self.headers.len() + self.staging.as_ref().map_or(0, Region::len)
    }

    /// The region and offset of a record's header.
    pub(crate) fn header(&self, record: usize) -> (&Region, usize) {
        (&self.headers, record * HEADER)
    }

    /// The put of the [vacant](Self::vacant) record has begun.
    pub(crate) fn begin(&mut self, record: PutRecord) {
        if let Some(index) = self.free.pop() {
            self.records[index] = Some(record);
        }
    }

    /// The put with this token has ended. Returns its record; `None` for a token of no put in flight.
    pub(crate) fn end(&mut self, token: u64) -> Option<PutRecord> {
        let index = usize::try_from(token).ok()?;
        let record = self.records.get_mut(index)?.take()?;
        self.free.push(index);
        record.staging.into_iter().for_each(|slot| self.put_back(slot));
        Some(record)
    }

    /// Takes a staging slot, if one is free. It is freed at the end of the put whose record names it.
    pub(crate) fn stage(&mut self, transport: &mut dyn Transport) -> Result<Option<Staged>, Error> {
        if self.staging.is_none() {
            self.staging = Some(transport.allocate(self.slots.len() * stride(self.staging_bytes))?);
        }
        Ok(self.free_slots.pop().map(|slot| {
            let Slot { puts, taken } = &mut self.slots[slot];
            (*puts, *taken) = (1, *taken + 1);
            Staged { slot, taken: *taken }
        }))
    }

    /// Takes the same staging slot for one more put, if a put that reads from it is still in flight. The slot is freed at the end of
    /// the last one.
    pub(crate) fn stage_again(&mut self, staged: Staged) -> bool {
        let slot = &mut self.slots[staged.slot];
        let again = slot.puts > 0 && slot.taken == staged.taken;
        slot.puts += usize::from(again);
        again
    }

    /// Frees a staging slot of a put that does not read from it any more.
    pub(crate) fn put_back(&mut self, slot: usize) {
        let puts = &mut self.slots[slot].puts;
        *puts -= 1;
        if *puts == 0 {
            self.free_slots.push(slot);
        }
    }

    /// The region and offset of the elements in a staging slot, after room for a header; `None` before there is staging.
    pub(crate) fn staged(&self, slot: usize) -> Option<(Region, usize)> {
        let at = slot * stride(self.staging_bytes) + PAYLOAD;
        self.staging.as_ref().map(|region| (region.clone(), at))
    }
}

#[cfg(test)]
mod tests {
    use unisono_transport::inproc::Hub;

    use super::*;

    const RECORD: PutRecord =
        PutRecord { comm_id: 0, whose: Whose::Collective(None), hold: None, staging: None };

    /// A record that was freed twice would be given to two puts at a time.
    #[test]
    fn a_token_of_no_put_in_flight_frees_nothing() {
        let mut transport = Hub::new().open();
        let mut posts = Posts::new(&mut transport, 1, 64).unwrap();
        let begin = |posts: &mut Posts| {
            let token = posts.vacant().unwrap();
            posts.begin(RECORD);
            token as u64
        };
        let token = begin(&mut posts);
        assert!(posts.end(token).is_some());
        for unused in [token, 255, 256, u64::MAX] {
            assert!(posts.end(unused).is_none(), "{unused}");
        }
        let mut tokens: Vec<u64> = (0..RECORDS).map(|_| begin(&mut posts)).collect();
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!((tokens.len(), posts.vacant()), (RECORDS, None));
    }

    #[test]
    fn a_staging_slot_is_free_when_all_that_was_put_from_it_has_ended() {
        let mut transport = Hub::new().open();
        let mut posts = Posts::new(&mut transport, 1, 64).unwrap();
        let staged = posts.stage(&mut transport).unwrap().unwrap();
        let put = |posts: &mut Posts| {
            let token = posts.vacant().unwrap();
            posts.begin(PutRecord { staging: Some(staged.slot), ..RECORD });
            token as u64
        };
        let first = put(&mut posts);
        assert!(posts.stage_again(staged));
        let second = put(&mut posts);
        posts.end(first).unwrap();
        // The second put still reads from the slot, and a third may.
        assert_eq!(posts.stage(&mut transport).unwrap(), None);
        assert!(posts.stage_again(staged));
        posts.put_back(staged.slot);
        posts.end(second).unwrap();
        // No put reads from the slot: its contents may change.
        assert!(!posts.stage_again(staged));
        let other = posts.stage(&mut transport).unwrap().unwrap();
        assert_eq!(other.slot, staged.slot);
        assert!(!posts.stage_again(staged) && posts.stage_again(other));
    }
}
