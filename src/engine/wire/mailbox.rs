//! What ranks write to each other's mailboxes: a structure for each kind of control message.

use std::mem::offset_of;

use super::{header::OperationInfo, immediate::ControlKind};
use bytemuck::{Pod, Zeroable};
use unisono_schedule::Rank;
use unisono_transport::RemoteRegion;

/// The version of everything in this folder; compared at join.
pub(crate) const VERSION: u32 = 16;

/// The most slots of a flow: one bit of a word each.
pub(crate) const MAX_SLOTS: usize = 64;

/// A window: where and how to write messages to the rank that sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Window {
    /// [`Window::MAGIC`].
    pub magic: u32,
    /// The first lane's flow number at the receiver; the other lanes' follow.
    pub first_flow: u32,
    /// Lanes.
    pub lanes: u32,
    /// Slots of each lane.
    pub slots: u32,
    /// Bytes of elements a slot takes.
    pub slot_bytes: u32,
    /// Keeps what follows aligned; 0.
    pub reserved: u32,
    /// The region's base, key and length.
    pub base: u64,
    pub key: u64,
    pub len: u64,
}

impl Window {
    pub(crate) const MAGIC: u32 = 0x756e_6973;

    pub(crate) fn remote(&self) -> RemoteRegion {
        RemoteRegion { base: self.base, key: self.key, len: self.len }
    }
}

/// What a rank tells those that write straight into its output, at the beginning of an operation. There is one
/// place for it: the next is written only when the operation is over for the one who gave it, which it is
/// not before writes have come from everyone who got it, and each of its sources writes at least once (see `access`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct ClearToSend {
    /// The operation, as this rank calls it.
    pub operation: OperationInfo,
    /// Credit for the first lane: how many of the receiver's writes this rank has awaited, and how many messages it has
    /// freed; the low 32 bits.
    pub written: u32,
    pub freed: u32,
    /// 1 if the output may be written; 0 if what belongs there is to go through slots.
    pub writable: u64,
    /// The output: base, key and length in bytes, as in [`Window`].
    pub base: u64,
    pub key: u64,
    pub len: u64,
}

impl ClearToSend {
    /// The output, if it may be written.
    pub(crate) fn remote(&self) -> Option<RemoteRegion> {
        (self.writable == 1).then_some(RemoteRegion { base: self.base, key: self.key, len: self.len })
    }
}

/// What a rank that would close a window knows of it: as long as its peer has sent no more and got no less, nothing is under
/// way between them on account of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Close {
    /// Messages and writes that have come through it, of all lanes; their low 32 bits.
    pub come: u32,
    /// Credits that were put on account of it; the low 32 bits.
    pub credits: u32,
}

/// A rank's entry in another's mailbox of a group: written by that rank alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Entry {
    /// One window of each class, written once in the group's life.
    pub windows: [Window; 3],
    /// Where credits are written to; what counts is their immediate.
    pub credit: u64,
    /// [`hello`]'s pattern.
    pub hello: [u64; 2],
    /// At the group's end, how many operations the rank has begun.
    pub begun: u64,
    /// Of the first message that waits for a window, for each class: the next comes after the word that the one before was
    /// read.
    pub mismatch_probes: [OperationInfo; 3],
    /// For one operation after the other.
    pub clear_to_send: ClearToSend,
    /// For each class, one after the other: the next comes after the answer.
    pub closes: [Close; 3],
    pub answers: [u64; 3],
}

impl ControlKind {
    /// Where in its entry that part begins.
    pub(crate) const fn place(self) -> usize {
        match self {
            Self::Window(class) => class.index() * size_of::<Window>(),
            Self::MismatchProbe(class) => {
                offset_of!(Entry, mismatch_probes) + class.index() * size_of::<OperationInfo>()
            }
            Self::Hello => offset_of!(Entry, hello),
            Self::ClearToSend => offset_of!(Entry, clear_to_send),
            Self::End => offset_of!(Entry, begun),
            Self::Read => offset_of!(Entry, credit),
            Self::Close(class) => offset_of!(Entry, closes) + class.index() * size_of::<Close>(),
            Self::Answer(class) => offset_of!(Entry, answers) + class.index() * size_of::<u64>(),
        }
    }
}

/// The pattern that `from` writes to `to` when they first meet.
pub(crate) fn hello(from: Rank, to: Rank) -> [u64; 2] {
    let mix = |x: u64| {
        let x = (x ^ (x >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) ^ (x >> 31)
    };
    [mix((from as u64) << 32 | to as u64 | 1 << 63), mix((to as u64) << 32 | from as u64 | 1 << 62)]
}
