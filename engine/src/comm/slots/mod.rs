//! The shared slots of a communicator whose ranks share memory, and when a rank may read and write them.
//!
//! A rank writes only to its own slots. Rounds ([`Step::Show`](unisono_schedule::Step::Show)) are numbered from 1; round `k` has slot
//! `k mod 2`:
//!
//! 1. A rank begins `k` when every other rank has begun `k - 1`. Then all have ended `k - 2`, which used the slot before.
//! 2. It writes the elements that it shows and the description of its call to its slot, and then publishes the number `k` there.
//! 3. When a rank whose elements it needs has published `k`, it reads that rank's slot. The writer does not write there again before this
//!    rank has begun `k + 1`.
//!
//! A rank that needs nothing of another in `k` compares the descriptions of `k` when it begins `k + 1`, or leaves the group.

pub(crate) mod layout;
mod open;
#[cfg(test)]
mod tests;
mod writes;

use unisono_schedule::Rank;
use unisono_transport::{Peer, Region, WeakRegion};

use self::writes::SlotWrites;
use crate::{access, call::Signature};

/// Says whether the ranks of a communicator share slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// The ranks have not found out yet.
    #[default]
    Opening,
    Yes,
    No,
}

/// This rank's view of the shared slots of a communicator.
#[derive(Debug, Default)]
pub(crate) struct SharedSlots {
    pub(crate) sharing: Sharing,
    /// If messages go between hosts: the ranks of this host, which alone share slots.
    pub(crate) host: Option<Box<[Rank]>>,
    /// This rank's slots.
    pub(crate) own: Option<Region>,
    /// The mapped slots of the others, by rank.
    pub(in crate::comm) views: Vec<Option<Region>>,
    /// The other ranks, as the transport knows them.
    pub(in crate::comm) peers: Vec<Peer>,
    /// True if this rank has published that it has mapped all.
    pub(in crate::comm) published: bool,
    /// True if each rank can read all memory of the others.
    pub(crate) reads: bool,
    /// The number of the latest round.
    pub(crate) number: u64,
    /// The operation of that round, as long as it is not known that all ranks have called the same.
    pub(crate) unchecked: Option<(u64, Signature)>,
    /// How this rank writes its slots.
    pub(crate) writes: SlotWrites,
    /// True if it has all pages of all slots, because elements [rotate](layout::rotates).
    populated: bool,
    /// The most bytes that this rank has copied to a slot for one round.
    pub(crate) most: usize,
    /// This rank's regions that all others have mapped.
    pub(in crate::comm) mapped_by_all: Vec<WeakRegion>,
}

impl SharedSlots {
    /// True if a rank shares slots with this one, if both can.
    pub(in crate::comm) fn is_near(&self, rank: Rank) -> bool {
        self.host.as_ref().is_none_or(|host| host.contains(&rank))
    }

    /// The mapped slots of another rank.
    pub(crate) fn view(&self, rank: Rank) -> Option<&Region> {
        self.views.get(rank)?.as_ref()
    }

    /// The bytes of this rank's slots that may be in use.
    pub(crate) fn memory(&self) -> usize {
        self.own.as_ref().map_or(0, |own| if self.populated { own.len() } else { layout::used(self.most) })
    }

    /// Elements of this many bytes are written or read in the present round.
    pub(crate) fn use_slots(&mut self, bytes: usize) {
        if self.populated || !layout::rotates(self.number, bytes) {
            return;
        }
        self.populated = true;
        self.own.iter().for_each(|own| own.populate(true));
        self.views.iter().flatten().for_each(|view| view.populate(false));
    }

    /// The other ranks, each with its slots.
    pub(in crate::comm) fn others(&self) -> impl Iterator<Item = (Rank, &Region)> {
        self.views.iter().enumerate().filter_map(|(rank, view)| Some((rank, view.as_ref()?)))
    }

    /// True if a rank has published this round. It cannot have published a later one in that slot.
    pub(crate) fn has_published(&self, rank: Rank, number: u64) -> bool {
        self.view(rank).is_some_and(|view| published(view, number))
    }

    /// The mapped slots of another rank, if it has published the latest round of this one.
    pub(crate) fn shown_by(&self, rank: Rank) -> Option<&Region> {
        self.view(rank).filter(|view| published(view, self.number))
    }

    /// The ranks that keep this one from entering its next round.
    pub(crate) fn behind(&self) -> impl Iterator<Item = Rank> {
        self.others().filter_map(move |(rank, view)| self.waits_for(view).then_some(rank))
    }

    /// True if there are such ranks.
    pub(crate) fn any_behind(&self) -> bool {
        self.views.iter().flatten().any(|view| self.waits_for(view))
    }

    /// True if a rank keeps this one from entering its next round. Round 1 has no predecessor, so a rank enters it without waiting.
    fn waits_for(&self, view: &Region) -> bool {
        self.number > 0 && !published(view, self.number)
    }

    /// The calls that other ranks have published last, except for ranks behind this one: these calls may be overwritten at any moment, and
    /// are of no operation that this rank is in.
    pub(crate) fn calls(&self) -> impl Iterator<Item = (Rank, Signature)> {
        self.others().filter_map(|(rank, view)| {
            let both = [layout::slot(0), layout::slot(1)].map(|at| (access::published(view, at).ok(), at));
            let (number, at) = both.into_iter().max()?;
            let whole = number? >= self.number.max(1);
            Some((rank, access::load(view, at + size_of::<u64>()).ok().filter(|_| whole)?))
        })
    }

    /// The value that each other rank has last published in a word of its slots.
    pub(crate) fn words(&self, at: usize) -> impl Iterator<Item = (Rank, Option<u64>)> {
        self.others().map(move |(rank, view)| (rank, access::published(view, at).ok()))
    }

    /// The ranks that have not yet published `least` or more in a word of their slots.
    pub(crate) fn late(&self, at: usize, least: u64) -> impl Iterator<Item = Rank> {
        self.words(at).filter_map(move |(rank, word)| word.is_none_or(|word| word < least).then_some(rank))
    }

    /// True if all others have mapped this region of this rank's before.
    pub(crate) fn is_mapped_by_all(&self, region: &Region) -> bool {
        self.mapped_by_all.iter().any(|mapped| mapped.is(region))
    }

    /// All others have mapped this region of this rank.
    pub(crate) fn set_mapped_by_all(&mut self, region: &Region) {
        if !self.is_mapped_by_all(region) {
            self.mapped_by_all.retain(WeakRegion::exists);
            self.mapped_by_all.push(region.downgrade());
        }
    }

    /// The ranks whose verdict this one waits for.
    pub(crate) fn undecided(&self, me: Rank) -> impl Iterator<Item = Rank> {
        let waits = move |(rank, view): (Rank, &Option<Region>)| {
            let known = view
                .as_ref()
                .is_some_and(|view| access::published(view, layout::VERDICT).is_ok_and(|word| word != 0));
            (rank != me && self.is_near(rank) && !known).then_some(rank)
        };
        self.views.iter().enumerate().filter_map(waits)
    }
}

/// True if slots show this operation as published.
fn published(view: &Region, number: u64) -> bool {
    access::published(view, layout::slot(number)).is_ok_and(|seen| seen == number)
}
