//! Mailboxes: the structures that control messages write to them.

use std::{mem::offset_of, ops::Range};

use bytemuck::{Pod, Zeroable};
use unisono_schedule::Rank;
use unisono_transport::RemoteRegion;

use super::immediate::ControlKind;
use crate::call::Signature;

/// The version of the format that this folder defines; ranks compare it when they join.
pub const VERSION: u32 = 24;

/// The most slots of a flow, for each of which a word has a bit.
pub(crate) const MAX_SLOTS: usize = 64;

/// The description of a window: where and how to write messages to the rank that sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Window {
    /// [`Window::MAGIC`].
    pub magic: u32,
    /// The number of the first lane's flow at the receiver. The other lanes have the next numbers.
    pub first_flow: u32,
    /// The number of lanes.
    pub lanes: u32,
    /// The number of slots of each lane.
    pub slots: u32,
    /// The bytes of elements in a slot.
    pub slot_bytes: u32,
    /// 0; aligns the next field.
    pub reserved: u32,
    /// The region's [words](RemoteRegion::words).
    pub region: [u64; 3],
}

impl Window {
    pub(crate) const MAGIC: u32 = 0x756e_6973;

    pub(crate) fn remote(&self) -> RemoteRegion {
        RemoteRegion::from_words(self.region)
    }
}

/// A clear to send for an operation: whether and where a source may write into this rank's output. There is one place for it
/// in the mailbox; `access` says why it is not overwritten too early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct ClearToSend {
    /// The operation, as this rank calls it.
    pub operation: Signature,
    /// Credit for the first lane: the number of the source's writes that this rank has awaited (the low 32 bits), ...
    pub written: u32,
    /// ... and the number of its messages that this rank has freed (the low 32 bits).
    pub freed: u32,
    /// 0 if the elements are to be sent through slots; otherwise 1 + the offset, in bytes of the output, of the part that the source may
    /// write.
    pub start: u64,
    /// That part's [words](RemoteRegion::words).
    pub part: [u64; 3],
}

impl ClearToSend {
    /// The part of the output that may be written, if any, and its offset there.
    pub(crate) fn remote(&self) -> Option<(RemoteRegion, u64)> {
        let start = self.start.checked_sub(1)?;
        Some((RemoteRegion::from_words(self.part), start))
    }
}

/// The information that a rank sends about itself: in a handshake when ranks join, and once more when it has shared slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Handshake {
    /// The pattern that [`Handshake::new`] makes.
    pub pattern: [u64; 2],
    /// The place where its sender takes a large handshake: the region's [words](RemoteRegion::words); of length 0 if it takes none.
    pub area: [u64; 3],
    /// The [words](RemoteRegion::words) of its [shared slots](crate::comm::layout); 0 before it has them.
    pub slots: [u64; 3],
}

/// A request to close a window, with the counts of its receiver. If the sender has the same counts, nothing is in flight for
/// the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Close {
    /// The number of messages and writes that have arrived through it, on all lanes; the low 32 bits.
    pub arrived: u32,
    /// The number of credits that were put for it; the low 32 bits.
    pub credits: u32,
}

/// The entry of a rank in another rank's mailbox of a communicator. Only the first writes to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct MailboxEntry {
    /// The window of each class.
    pub windows: [Window; 3],
    /// The target of credits, of which only the immediate counts.
    pub credit: u64,
    pub handshake: Handshake,
    /// The number of operations that the rank has begun; it is written when the rank leaves the communicator.
    pub begun: u64,
    /// For each class, the operation of the first message that waits.
    pub mismatch_probes: [Signature; 3],
    pub clear_to_send: ClearToSend,
    /// For each class, the last request to close its window, ...
    pub closes: [Close; 3],
    /// ... and the answer to the last request.
    pub answers: [u64; 3],
}

impl ControlKind {
    /// The part of a [`MailboxEntry`] that the control message writes, in bytes from the entry's beginning.
    pub(crate) const fn part(self) -> Range<usize> {
        const fn of<T>(at: usize, index: usize) -> Range<usize> {
            let start = at + index * size_of::<T>();
            start..start + size_of::<T>()
        }
        match self {
            Self::Window(class) => of::<Window>(offset_of!(MailboxEntry, windows), class.index()),
            Self::MismatchProbe(class) => {
                of::<Signature>(offset_of!(MailboxEntry, mismatch_probes), class.index())
            }
            Self::Handshake => of::<Handshake>(offset_of!(MailboxEntry, handshake), 0),
            Self::ClearToSend => of::<ClearToSend>(offset_of!(MailboxEntry, clear_to_send), 0),
            Self::End => of::<u64>(offset_of!(MailboxEntry, begun), 0),
            // Only the immediate counts.
            Self::Read => of::<u32>(offset_of!(MailboxEntry, credit), 0),
            Self::Close(class) => of::<Close>(offset_of!(MailboxEntry, closes), class.index()),
            Self::Answer(class) => of::<u64>(offset_of!(MailboxEntry, answers), class.index()),
        }
    }
}

impl Handshake {
    /// The handshake of `from` to `to`. Its pattern depends on both and on all words, so that a handshake that has landed in part is none.
    pub(crate) fn new(from: Rank, to: Rank, area: [u64; 3], slots: [u64; 3]) -> Self {
        let mix = |x: u64| {
            let x = (x ^ (x >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) ^ (x >> 31)
        };
        let (from, to) = (from as u64, to as u64);
        let words_mixed = area.iter().chain(&slots).fold(0, |mixed, &word| mix(mixed ^ word));
        let pattern = [from << 32 | to | 1 << 63, to << 32 | from | 1 << 62];
        Self { pattern: pattern.map(|it| mix(it ^ words_mixed)), area, slots }
    }

    /// Its sender's shared slots, if it has them.
    pub(crate) fn remote(&self) -> Option<RemoteRegion> {
        (self.slots != [0; 3]).then(|| RemoteRegion::from_words(self.slots))
    }
}
