//! What precedes the elements of every message: 40 bytes, of which the first four belong to the flow.

use bytemuck::{Pod, Zeroable, cast};
use unisono_schedule::windows;

/// What the ends of a flow tell each other in every message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct FlowHeader {
    /// How many messages of the opposite flow (same lane and class) the sender has freed; the low 16 bits. Saves most
    /// credit messages where both ranks send.
    pub freed: u16,
    /// The number of the flow at the sender, to which its credits go.
    pub reply: u16,
}

impl FlowHeader {
    /// With so many messages freed, from the flow of that number. One that does not fit is none.
    pub(crate) fn new(freed: u64, reply: usize) -> Self {
        Self { freed: (freed & 0xffff) as u16, reply: u16::try_from(reply).unwrap_or(u16::MAX) }
    }
}

/// An operation as ranks compare it: its number, and the parts of a [`Signature`](crate::call::Signature).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct OperationInfo {
    /// The number in the communicator; the low 32 bits.
    pub number: u32,
    /// On how many lanes the operation runs.
    pub lanes: u16,
    /// 0.
    pub reserved: u16,
    /// Codes of collective, dtype, reduction and algorithm.
    pub codes: [u8; 4],
    /// The root; 0 where there is none.
    pub root: u32,
    /// How many elements.
    pub count: u64,
    /// What else must be alike: of many tensors a hash of their types and shapes; else 0.
    pub contents: u32,
    /// The most elements of a message.
    pub chunk: u32,
}

/// Before the elements of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct CollectiveHeader {
    pub flow: FlowHeader,
    /// How many elements follow.
    pub len: u32,
    pub operation: OperationInfo,
}

/// Before the elements of a message from point to point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct MessageHeader {
    pub flow: FlowHeader,
    /// The number of the message among those from its sender to its receiver; the low 32 bits.
    pub number: u32,
    /// Which [`Message`] it is, and what it says.
    kind: u8,
    reserved: [u8; 7],
    body: [u64; 3],
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct MessageInfo {
    pub tag: u32,
    /// Codes of the elements' type, and of what they are.
    pub dtype: u8,
    pub form: u8,
    /// Of a request to send: 1 if the sender can write the elements, else 0.
    pub writes: u8,
    /// 0.
    pub reserved: u8,
    /// How many elements.
    pub count: u64,
    /// 0.
    pub unused: u64,
}

/// Some elements of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Part {
    /// How many follow.
    pub len: u64,
    /// 0.
    pub unused: [u64; 2],
}

/// Where a message goes whose sender has asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct MessageClearToSend {
    /// The region it may be written to; 0 where it is to come in parts.
    pub base: u64,
    pub key: u64,
    /// 1 if it may be written there, else 0; and then in pieces of how many bytes, as a power of two.
    pub writable: u8,
    pub piece: u8,
    /// 0.
    pub reserved: [u8; 6],
}

/// What goes through the slots of [`Class::Message`](super::Class::Message).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// A message whose elements follow.
    Whole(MessageInfo),
    /// A message whose elements come when the receiver is ready for them.
    RequestToSend(MessageInfo),
    /// Some elements of a message that was cleared to send.
    Part(Part),
    /// The receiver is ready for the message of that number.
    ClearToSend(MessageClearToSend),
}

impl Message {
    /// Its header, but for what the flow adds.
    pub(crate) fn header(self, number: u32) -> MessageHeader {
        let (kind, body) = match self {
            Self::Whole(info) => (0, cast(info)),
            Self::RequestToSend(info) => (1, cast(info)),
            Self::Part(part) => (2, cast(part)),
            Self::ClearToSend(clear) => (3, cast(clear)),
        };
        MessageHeader { flow: FlowHeader::default(), number, kind, reserved: [0; 7], body }
    }

    /// What a header says; nothing if its kind is unknown.
    pub(crate) fn of(header: &MessageHeader) -> Option<Self> {
        Some(match header.kind {
            0 => Self::Whole(cast(header.body)),
            1 => Self::RequestToSend(cast(header.body)),
            2 => Self::Part(cast(header.body)),
            3 => Self::ClearToSend(cast(header.body)),
            _ => return None,
        })
    }
}

/// The bytes of a header of either kind.
pub(crate) const HEADER: usize = size_of::<CollectiveHeader>();
const _: () = assert!(HEADER == size_of::<MessageHeader>());

/// Where in a slot a message's elements begin: the header lies in the [`HEADER`] bytes before, so that
/// elements are aligned to cache lines.
pub(crate) const PAYLOAD: usize = windows::PAYLOAD;
