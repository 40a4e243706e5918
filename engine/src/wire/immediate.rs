//! Immediates: the four bytes that arrive with every put and say what has arrived.

use unisono_schedule::Rank;

use crate::call::narrow;

/// The most flows into one process, and out of it: 13 bits of the immediate.
pub(crate) const MAX_FLOWS: usize = 1 << 13;

/// The most ranks of the world; 26 bits of the immediate would hold more.
pub const MAX_RANKS: usize = 1 << 19;

/// The id of a communicator, the same on all its members; 0 for the world.
pub type CommId = u16;

/// The most communicators that a process may be a member of at once: 12 bits of the immediate.
pub(crate) const MAX_COMMS: usize = 1 << 12;

/// The most ranks of a group that is not the world: 14 bits of the immediate.
pub const MAX_MEMBERS: usize = 1 << 14;

/// The meaning of an immediate. Its upper bits give the variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Immediate {
    /// A message landed on the flow with this number at the receiver.
    Data { flow: u32, way: FlowWay, number: u16 },
    /// The receiver of a flow has freed this many of its messages; `flow` is its number at the sender.
    Credit { flow: u32, way: FlowWay, freed: u16 },
    /// Rank `from` of the communicator has written to its entry in that communicator's mailbox.
    ControlMessage { comm_id: CommId, from: Rank, about: ControlKind },
}

/// The kind of a control message: the part of a [`MailboxEntry`](super::MailboxEntry) that it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ControlKind {
    /// A [`Window`](super::Window).
    Window(WindowClass),
    /// A mismatch probe: the operation of a message that waits for a window or a clear to send.
    MismatchProbe(WindowClass),
    /// A [`Handshake`](super::Handshake).
    Handshake,
    /// A [`ClearToSend`](super::ClearToSend).
    ClearToSend,
    /// The number of operations that the rank has begun. It leaves the communicator and sends nothing more, except for the last
    /// barrier of the world.
    End,
    /// A request to [`Close`](super::Close) a window.
    Close(WindowClass),
    /// The answer to that: 1 if the window is closed, 0 if it stays open.
    Answer(WindowClass),
    /// No part: the rank has read the latest mismatch probe of [`WindowClass::Eager`] or [`WindowClass::Bulk`].
    Read,
}

impl ControlKind {
    /// The kind of a code: kinds of the same sort have three codes, one for each class.
    pub(super) fn from_code(code: u32) -> Self {
        let place = (code % 3) as usize;
        let class = WindowClass::ALL[place];
        match code / 3 {
            0 => Self::Window(class),
            1 => Self::MismatchProbe(class),
            2 => [Self::Handshake, Self::ClearToSend, Self::End][place],
            3 => Self::Close(class),
            4 => Self::Answer(class),
            _ => Self::Read,
        }
    }

    fn code(self) -> u32 {
        match self {
            Self::Window(class) => class as u32,
            Self::MismatchProbe(class) => 3 + class as u32,
            Self::Handshake => 6,
            Self::ClearToSend => 7,
            Self::End => 8,
            Self::Close(class) => 9 + class as u32,
            Self::Answer(class) => 12 + class as u32,
            Self::Read => 15,
        }
    }
}

impl Immediate {
    pub(crate) fn encode(self) -> u32 {
        match self {
            Self::Data { flow, way, number } => way.bit() | flow << 16 | u32::from(number),
            Self::Credit { flow, way, freed } => 1 << 30 | way.bit() | flow << 16 | u32::from(freed),
            Self::ControlMessage { comm_id, from, about } => {
                // The rank fits: a world has at most MAX_RANKS ranks, another group at most MAX_MEMBERS.
                let from = match comm_id {
                    0 => narrow(from) & 0x3ff_ffff,
                    _ => 1 << 26 | u32::from(comm_id & 0xfff) << 14 | narrow(from) & 0x3fff,
                };
                1 << 31 | about.code() << 27 | from
            }
        }
    }

    /// The meaning of any bits.
    pub(crate) fn decode(bits: u32) -> Self {
        let flow = bits >> 16 & 0x1fff;
        let way = if bits & FlowWay::Direct.bit() == 0 { FlowWay::Slots } else { FlowWay::Direct };
        let low = (bits & 0xffff) as u16;
        match bits >> 30 {
            0 => Self::Data { flow, way, number: low },
            1 => Self::Credit { flow, way, freed: low },
            _ => {
                let (comm_id, from) = match bits >> 26 & 1 {
                    0 => (0, bits & 0x3ff_ffff),
                    _ => ((bits >> 14 & 0xfff) as CommId, bits & 0x3fff),
                };
                let about = ControlKind::from_code(bits >> 27 & 0xf);
                Self::ControlMessage { comm_id, from: from as usize, about }
            }
        }
    }
}

/// The two ways of a flow. Each has its own message numbers and credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlowWay {
    /// Into the slots of a window.
    Slots,
    /// Straight into the receiver's output.
    Direct,
}

impl FlowWay {
    /// Its bit of the immediate, above the flow's.
    const fn bit(self) -> u32 {
        (self as u32) << 29
    }
}

/// The kinds of windows between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowClass {
    /// One lane of small slots, for schedules whose messages are small.
    Eager,
    /// Several lanes of chunk-sized slots, for pipelines.
    Bulk,
    /// One lane of small slots, for messages from point to point.
    Message,
}

impl WindowClass {
    pub(crate) const ALL: [Self; 3] = [Self::Eager, Self::Bulk, Self::Message];

    /// Its place in [`Self::ALL`].
    pub(crate) const fn index(self) -> usize {
        self as usize
    }
}

/// The low 32 bits of a counter.
pub(crate) fn low(number: u64) -> u32 {
    (number & 0xffff_ffff) as u32
}
