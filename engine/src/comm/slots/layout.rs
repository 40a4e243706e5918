//! The layout of shared slots: memory that each member of a communicator writes alone, and that the others map (drawn in docs/wire.md).

use bytemuck::{Pod, Zeroable};
use unisono_schedule::select::shown::SLOT_BYTES;

use crate::call::Signature;

/// Two cache lines, which processors fetch together.
const LINES: usize = 128;

/// The number of slots: a rank may write to one while slow ranks read the other.
const SLOTS: u64 = 2;

/// The offset in a slot of its bytes, if they do not fit the [`Front`]'s cache line.
const APART: usize = 64;

/// The most bytes that come with the [`Front`], in its cache line.
const INLINE: usize = APART - size_of::<Front>();

/// Elements of this many bytes or more lie at another place of the slot in each of its rounds, so that the ranks that have read the old place no
/// longer have it in their inner caches when it is written again: a core writes lines that another core has at 8 ns each, and others at 2 ns
/// (docs/performance.md).
const ROTATED: usize = 2 << 10;

/// They do so from this round on: groups that make few calls have many fewer pages.
const ROTATES_FROM: u64 = 64;

/// The offset in a slot of the operand, which lies behind the [`Offer`].
const STAGED: usize = LINES;

/// The bytes of a slot.
const STRIDE: usize = (STAGED + SLOT_BYTES).next_multiple_of(LINES);

/// The beginning of a slot. The number is published last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Front {
    /// The number of the operation among those of the communicator that share slots, from 1.
    pub number: u64,
    pub operation: Signature,
}

/// The offset of a rank's verdict in its shared slots: whether it has mapped the slots of all others. New memory is zeroed: 0 says that
/// the rank does not know yet.
pub(crate) const VERDICT: usize = 0;

/// The verdict of a rank that has mapped them.
pub(crate) const MAPPED: u64 = 1;

/// The verdict of a rank that cannot map them.
pub(crate) const REFUSED: u64 = 2;

/// The verdict of a rank that has mapped them, and can read all memory of the others.
pub(crate) const READS: u64 = 3;

/// The offset of the number of the latest round after which it no longer reads [operands in place](Offer) of others.
pub(crate) const DONE: usize = 24;

/// The offset of its vote in a round in which operands are to be read in place: the number times 2, and 1 more if it has mapped
/// those that it reads. A rank may vote in a later round while slow ranks look at its latest vote.
pub(crate) const fn vote(number: u64) -> usize {
    if number.is_multiple_of(2) { 8 } else { 16 }
}

/// The places of a rank's operands that others may read in place. It lies in the rank's slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Offer {
    /// Says whether they can be mapped: [`Self::PLAIN`], [`Self::NEW`], [`Self::KNOWN`], [`Self::STAGED`] or [`Self::READABLE`].
    pub kind: u64,
    /// The [words](unisono_transport::RemoteRegion::words) of the input (in a broadcast of the output), or its address and length if it is
    /// readable...
    pub input: [u64; 3],
    /// ... and, in an all_reduce, of the output.
    pub output: [u64; 3],
}

impl Offer {
    /// The operands cannot be mapped.
    pub(crate) const PLAIN: u64 = 0;
    /// They can be mapped, but the others may not have mapped them yet.
    pub(crate) const NEW: u64 = 1;
    /// All other ranks have mapped them before.
    pub(crate) const KNOWN: u64 = 2;
    /// The rank copies the elements that it shows to its [slots](staged).
    pub(crate) const STAGED: u64 = 3;
    /// They are plain memory, which the others read where it lies.
    pub(crate) const READABLE: u64 = 4;
}

/// The offset in a slot of the [`Offer`].
pub(crate) const OFFER: usize = APART;

/// The offset in a rank's shared slots of the slot of an operation of this number.
pub(crate) const fn slot(number: u64) -> usize {
    let index = if number.is_multiple_of(SLOTS) { 0 } else { 1 };
    LINES + index * STRIDE
}

/// The offset in a rank's shared slots of the elements that it shows in this round, if they have this many bytes.
pub(crate) const fn elements(number: u64, bytes: usize) -> usize {
    if bytes <= INLINE {
        slot(number) + size_of::<Front>()
    } else if bytes < ROTATED {
        slot(number) + APART
    } else {
        staged(number, bytes)
    }
}

/// As [`elements`], if it shows them instead of an operand ([`Offer::STAGED`]). `bytes`: at most [`SLOT_BYTES`].
pub(crate) const fn staged(number: u64, bytes: usize) -> usize {
    let stride = bytes.next_multiple_of(LINES);
    let places = if rotates(number, bytes) && stride <= SLOT_BYTES { SLOT_BYTES / stride } else { 1 };
    let place = (number / SLOTS % places as u64) as usize;
    slot(number) + STAGED + place * stride
}

/// True if elements of this many bytes lie at another place of the slot in each of its rounds.
pub(crate) const fn rotates(number: u64, bytes: usize) -> bool {
    bytes >= ROTATED && number >= ROTATES_FROM
}

/// The bytes of a rank's shared slots that it may have written, if it has shown at most `most` bytes at once, and none that [rotate](rotates).
pub(crate) const fn used(most: usize) -> usize {
    LINES + 2 * (STAGED + most).next_multiple_of(LINES)
}

/// The bytes of a rank's shared slots.
pub const LEN: usize = slot(1) + STRIDE;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use unisono_schedule::select::shown::COPIED_BYTES;

    use super::*;

    #[test]
    fn slots_lie_apart() {
        let (even, odd) = (slot(2), slot(3));
        assert!(VERDICT + LINES <= even);
        let mut words = [VERDICT, vote(2), vote(3), DONE];
        words.sort_unstable();
        assert!(words.windows(2).all(|pair| pair[0] + 8 <= pair[1]) && words[3] + 8 <= even);
        assert!(OFFER + size_of::<Offer>() <= STAGED && STAGED + SLOT_BYTES <= STRIDE);
        assert_eq!((used(0), used(COPIED_BYTES), used(SLOT_BYTES)), (384, 33_152, LEN));
        assert_eq!((odd, odd + STRIDE), (even + STRIDE, LEN));
        assert!(
            elements(6, 24) + 24 <= slot(6) + APART,
            "what is short comes with its front, in one cache line"
        );
    }

    #[test]
    fn elements_of_two_rounds_lie_apart() {
        let sizes =
            [0, 1, 24, 25, ROTATED - 1, ROTATED, 5_000, COPIED_BYTES, 100_000, SLOT_BYTES - 1, SLOT_BYTES];
        let all = |number: u64| {
            let places = sizes.iter().flat_map(move |&bytes| {
                let staged = staged(number, bytes);
                assert!(staged.is_multiple_of(LINES) && staged >= slot(number) + STAGED);
                [(elements(number, bytes), bytes), (staged, bytes)]
            });
            places.map(|(at, bytes)| at..at + bytes)
        };
        let mut seen = HashSet::new();
        for number in 1..1164 {
            for one in all(number) {
                let front = slot(number)..slot(number) + size_of::<Front>();
                assert!(front.end <= one.start && one.end <= front.start + STRIDE, "{number}: {one:?}");
                assert!(one.start.is_multiple_of(8), "elements are aligned");
                let next = all(number + 1).any(|next| one.start < next.end && next.start < one.end);
                assert!(!next, "{number}: {one:?}");
                seen.insert(one);
            }
        }
        let places = |bytes: usize| seen.iter().filter(|place| place.len() == bytes).count();
        assert_eq!([1, ROTATED, 100_000, SLOT_BYTES].map(places), [4, 1024, 20, 2]);
    }
}
