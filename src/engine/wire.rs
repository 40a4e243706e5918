//! The bytes on the wire: immediates, headers, window announcements (drawn in docs/wire.md).

use std::mem::offset_of;

use bytemuck::{Pod, Zeroable};
use unisono_schedule::{Rank, windows};
use unisono_transport::RemoteRegion;

/// The version of everything in this file; compared at join.
pub(crate) const VERSION: u32 = 15;

/// The most flows into one process, and out of it: 13 bits of the immediate.
pub(crate) const MAX_FLOWS: usize = 1 << 13;

/// The most ranks of the world; 26 bits of the immediate would hold more.
pub(crate) const MAX_RANKS: usize = 1 << 19;

/// A group, by a number that its members share; the world's is 0.
pub(crate) type CommId = u16;

/// The most groups that a process may be a member of at once: 12 bits of the immediate; in tests fewer, so that they come to it.
pub(crate) const MAX_COMMS: usize = if cfg!(test) { 1 << 10 } else { 1 << 12 };

/// The most ranks of a group that is not the world: 14 bits of the immediate.
pub(crate) const MAX_MEMBERS: usize = 1 << 14;

/// The most slots of a flow: one bit of a word each.
pub(crate) const MAX_SLOTS: usize = 64;

/// What an arrival's immediate says. The upper bits tell which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Immediate {
    /// A message landed on the flow with this number at the receiver.
    Data { flow: u32, way: Way, number: u16 },
    /// The receiver of a flow has freed so many messages of it; `flow` is its number at the sender.
    Credit { flow: u32, way: Way, freed: u16 },
    /// Rank `from` of the group on this channel has written to its entry of that group's mailbox.
    ControlMessage { comm_id: CommId, from: Rank, about: ControlKind },
}

/// What a control message is about: a part of an [`Entry`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ControlKind {
    /// A [`Window`].
    Window(Class),
    /// A header: of a message that would be sent if a window or a grant for it were known.
    MismatchProbe(Class),
    /// The self-test pattern.
    Hello,
    /// A [`ClearToSend`].
    ClearToSend,
    /// The rank leaves the group, and sends nothing more but, in the world, the last barrier: how many operations it has begun.
    End,
    /// A [`Close`].
    Close(Class),
    /// What came of one: 1 if the window is closed, 0 if it stays.
    Answer(Class),
    /// Nothing: the rank has read the latest mismatch probe for [`Class::Eager`] or [`Class::Bulk`].
    Read,
}

impl ControlKind {
    /// In the order of their codes.
    const ALL: [Self; 16] = [
        Self::Window(Class::Eager),
        Self::Window(Class::Bulk),
        Self::Window(Class::Message),
        Self::MismatchProbe(Class::Eager),
        Self::MismatchProbe(Class::Bulk),
        Self::MismatchProbe(Class::Message),
        Self::Hello,
        Self::ClearToSend,
        Self::End,
        Self::Close(Class::Eager),
        Self::Close(Class::Bulk),
        Self::Close(Class::Message),
        Self::Answer(Class::Eager),
        Self::Answer(Class::Bulk),
        Self::Answer(Class::Message),
        Self::Read,
    ];

    fn code(self) -> u32 {
        match self {
            Self::Window(Class::Eager) => 0,
            Self::Window(Class::Bulk) => 1,
            Self::Window(Class::Message) => 2,
            Self::MismatchProbe(Class::Eager) => 3,
            Self::MismatchProbe(Class::Bulk) => 4,
            Self::MismatchProbe(Class::Message) => 5,
            Self::Hello => 6,
            Self::ClearToSend => 7,
            Self::End => 8,
            Self::Close(class) => 9 + narrow(class.index()),
            Self::Answer(class) => 12 + narrow(class.index()),
            Self::Read => 15,
        }
    }

    /// Where in its entry that part begins.
    pub(crate) const fn place(self) -> usize {
        match self {
            Self::Window(class) => class.index() * size_of::<Window>(),
            Self::MismatchProbe(class) => offset_of!(Entry, mismatch_probes) + class.index() * HEADER,
            Self::Hello => offset_of!(Entry, hello),
            Self::ClearToSend => offset_of!(Entry, clear_to_send),
            Self::End => offset_of!(Entry, begun),
            Self::Read => offset_of!(Entry, credit),
            Self::Close(class) => offset_of!(Entry, closes) + class.index() * size_of::<Close>(),
            Self::Answer(class) => offset_of!(Entry, answers) + class.index() * size_of::<u64>(),
        }
    }
}

impl Immediate {
    pub(crate) fn encode(self) -> u32 {
        match self {
            Self::Data { flow, way, number } => way.bit() | flow << 16 | u32::from(number),
            Self::Credit { flow, way, freed } => 1 << 30 | way.bit() | flow << 16 | u32::from(freed),
            Self::ControlMessage { comm_id, from, about } => {
                // It fits because joining refuses more than MAX_RANKS, and making a group more than MAX_MEMBERS.
                let from = match comm_id {
                    0 => narrow(from) & 0x3ff_ffff,
                    _ => 1 << 26 | u32::from(comm_id & 0xfff) << 14 | narrow(from) & 0x3fff,
                };
                1 << 31 | about.code() << 27 | from
            }
        }
    }

    /// All bits say something.
    pub(crate) fn decode(bits: u32) -> Self {
        let flow = bits >> 16 & 0x1fff;
        let way = if bits & Way::Direct.bit() == 0 { Way::Slots } else { Way::Direct };
        let low = (bits & 0xffff) as u16;
        match bits >> 30 {
            0 => Self::Data { flow, way, number: low },
            1 => Self::Credit { flow, way, freed: low },
            _ => {
                let (comm_id, from) = match bits >> 26 & 1 {
                    0 => (0, bits & 0x3ff_ffff),
                    _ => ((bits >> 14 & 0xfff) as CommId, bits & 0x3fff),
                };
                let about = ControlKind::ALL[(bits >> 27 & 0xf) as usize];
                Self::ControlMessage { comm_id, from: from as usize, about }
            }
        }
    }
}

/// The two ways that messages of a flow take, each numbered and credited by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Into the slots of a window.
    Slots,
    /// Straight into the receiver's output.
    Direct,
}

impl Way {
    /// Its bit of the immediate, above the flow's.
    const fn bit(self) -> u32 {
        match self {
            Self::Slots => 0,
            Self::Direct => 1 << 29,
        }
    }
}

/// The kinds of windows between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// One lane of small slots, for schedules whose messages are small.
    Eager,
    /// Several lanes of chunk-sized slots, for pipelines.
    Bulk,
    /// One lane of small slots, for messages from point to point.
    Message,
}

impl Class {
    pub(crate) const ALL: [Self; 3] = [Self::Eager, Self::Bulk, Self::Message];

    pub(crate) const fn index(self) -> usize {
        match self {
            Self::Eager => 0,
            Self::Bulk => 1,
            Self::Message => 2,
        }
    }
}

/// What goes through the slots of [`Class::Message`]: the first code of its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// A message whose elements follow.
    Whole,
    /// A message whose elements come when they are asked for. The header's `len` is 1 if they can be written.
    Announced,
    /// Some elements of a message that was announced.
    Part,
    /// Leave to send a message that was announced: in parts, or, where the fourth code is 1, by writing it to the
    /// region whose base is the header's `count`, and whose key is its `root` below its `len`.
    ClearToSend,
}

impl Message {
    const ALL: [Self; 4] = [Self::Whole, Self::Announced, Self::Part, Self::ClearToSend];

    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Whole => 0,
            Self::Announced => 1,
            Self::Part => 2,
            Self::ClearToSend => 3,
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

/// What precedes the elements of every message. Of one from point to point `op` is its number among those from its sender
/// to its receiver, `codes` are the sort of message, dtype and form, and `root` is its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Header {
    /// The operation's number in its group; its low 32 bits.
    pub op: u32,
    /// Codes of collective, dtype, reduction and algorithm.
    pub codes: [u8; 4],
    /// The root, or what else stands there: see [`Signature`](super::operation::Signature).
    pub root: u32,
    /// The sender's account of the opposite flow (same lane and class): how many messages of it it has
    /// freed; its low 32 bits. Saves most credit messages where both sides talk. In a grant, how many writes of the
    /// first lane have been awaited.
    pub freed: u32,
    /// The operation's count.
    pub count: u64,
    /// The flow's number at the sender, where its credits go. In a grant, how many messages of the first lane have been freed.
    pub reply: u32,
    /// How many elements follow.
    pub len: u32,
    /// Into what the operation is cut: the most elements of a message, and lanes. 0 from point to point.
    pub chunk: u32,
    pub lanes: u32,
}

/// A number that fits.
fn narrow(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

/// The bytes of a [`Header`].
pub(crate) const HEADER: usize = size_of::<Header>();

/// Where in a slot a message's elements begin: the header lies in the [`HEADER`] bytes before, so that
/// elements are aligned to cache lines.
pub(crate) const PAYLOAD: usize = windows::PAYLOAD;

/// The announcement of a window: where and how to write messages to the rank that sends it.
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
/// place for it: the next grant is written only when the operation is over for the one who gave it, which it is
/// not before writes have come from everyone who got it, and each of its sources writes at least once (see `access`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct ClearToSend {
    /// The operation, as this rank calls it, and in `freed` how many writes of the first lane it has awaited; `reply` and
    /// `len` do not count.
    pub header: Header,
    /// 1 if the output may be written; 0 if what belongs there is to go through slots.
    pub clear_to_send: u64,
    /// The output: base, key and length in bytes, as in [`Window`].
    pub base: u64,
    pub key: u64,
    pub len: u64,
}

impl ClearToSend {
    /// The output, if it may be written.
    pub(crate) fn remote(&self) -> Option<RemoteRegion> {
        (self.clear_to_send == 1).then_some(RemoteRegion { base: self.base, key: self.key, len: self.len })
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
    pub mismatch_probes: [Header; 3],
    /// For one operation after the other.
    pub clear_to_send: ClearToSend,
    /// For each class, one after the other: the next comes after the answer.
    pub closes: [Close; 3],
    pub answers: [u64; 3],
}

/// The pattern that `from` writes to `to` when they first meet.
pub(crate) fn hello(from: Rank, to: Rank) -> [u64; 2] {
    let mix = |x: u64| {
        let x = (x ^ (x >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) ^ (x >> 31)
    };
    [mix((from as u64) << 32 | to as u64 | 1 << 63), mix((to as u64) << 32 | from as u64 | 1 << 62)]
}

/// Any bits of an immediate, and any bytes of what lies in a mailbox or before a message.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz(bytes: &[u8]) {
    let Some((bits, rest)) = bytes.split_first_chunk::<4>() else { return };
    let immediate = Immediate::decode(u32::from_le_bytes(*bits));
    assert_eq!(Immediate::decode(immediate.encode()), immediate);
    let mut entry = Entry::zeroed();
    let len = rest.len().min(size_of::<Entry>());
    bytemuck::bytes_of_mut(&mut entry)[..len].copy_from_slice(&rest[..len]);
    let remote = entry.clear_to_send.remote();
    assert_eq!(remote.is_some(), entry.clear_to_send.clear_to_send == 1);
    for header in entry.mismatch_probes.iter().chain([&entry.clear_to_send.header]) {
        if let Some(message) = Message::from_code(header.codes[0]) {
            assert_eq!(message.code(), header.codes[0]);
        }
        super::operation::fuzz(header);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn immediates_survive_the_wire() {
        let control = ControlKind::ALL.into_iter().flat_map(|about| {
            [(0, 0), (0, MAX_RANKS - 1), (4095, MAX_MEMBERS - 1), (7, 3)]
                .map(|(comm_id, from)| Immediate::ControlMessage { comm_id, from, about })
        });
        let samples = [
            Immediate::Data { flow: 0, way: Way::Slots, number: 0 },
            Immediate::Data { flow: 0x1fff, way: Way::Slots, number: 0xffff },
            Immediate::Data { flow: 0x1fff, way: Way::Direct, number: 0xffff },
            Immediate::Credit { flow: 0x1fff, way: Way::Direct, freed: 0xffff },
            Immediate::Credit { flow: 1, way: Way::Slots, freed: 2 },
        ];
        for immediate in samples.into_iter().chain(control) {
            assert_eq!(Immediate::decode(immediate.encode()), immediate);
        }
    }

    #[test]
    fn records_have_the_sizes_the_papers_say() {
        use unisono_schedule::windows::stride;

        assert_eq!((HEADER, size_of::<Window>(), size_of::<Entry>()), (40, 48, 416));
        assert_eq!(stride(1), 128);
        assert_eq!(stride(64), 128);
    }
}
