//! Headers: the 40 bytes before the elements of a message, of which the first four belong to the flow.

use bytemuck::{Pod, Zeroable, cast};
use unisono_schedule::windows;

use crate::call::Signature;

/// The part of every header that belongs to the flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct FlowHeader {
    /// The number of messages of the opposite flow (same lane and class) that the sender has freed; the low 16 bits. If both ranks
    /// send, this saves most control messages of credit.
    pub freed: u16,
    /// The number of the flow at the sender, which credits for it name.
    pub reply: u16,
}

impl FlowHeader {
    /// Makes a header for this many freed messages and the flow of that number. A number that does not fit becomes invalid.
    pub(crate) fn new(freed: u64, reply: usize) -> Self {
        Self { freed: (freed & 0xffff) as u16, reply: u16::try_from(reply).unwrap_or(u16::MAX) }
    }
}

/// The header of a collective's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct CollectiveHeader {
    pub flow: FlowHeader,
    /// The number of elements that follow.
    pub len: u32,
    pub operation: Signature,
}

/// The header of a message from point to point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct MessageHeader {
    pub flow: FlowHeader,
    /// The number of the message among those from its sender to its receiver; the low 32 bits.
    pub number: u32,
    /// The kind of [`SlotMessage`], whose contents are in `body`.
    kind: u8,
    reserved: [u8; 7],
    body: [u64; 3],
}

/// The description of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct MessageInfo {
    /// The low 32 bits of the tag.
    pub tag: u32,
    /// The code of the elements' type.
    pub dtype: u8,
    /// The code of the message's form.
    pub form: u8,
    /// In a request to send: 1 if the sender can write the elements, else 0.
    pub writes: u8,
    /// 0.
    pub reserved: u8,
    /// The number of elements.
    pub count: u64,
    /// The high 32 bits of the tag: 0 but for groups that are being made.
    pub tag_high: u32,
    /// The code of the sender's name for the type of its elements; 0 if that is the dtype.
    pub alias: u16,
    /// 0.
    pub unused: u16,
}

impl MessageInfo {
    /// The whole tag.
    pub(crate) fn tag(&self) -> u64 {
        u64::from(self.tag) | u64::from(self.tag_high) << 32
    }
}

/// The answer to a request to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct MessageClearToSend {
    /// The region that the message may be written to; 0 if it is to be sent in parts.
    pub base: u64,
    pub key: u64,
    /// 1 if it may be written there, else 0.
    pub writable: u8,
    /// The bytes of each piece that is written, as a power of two.
    pub piece: u8,
    /// 1 if peers of its host can map the region, else 0.
    pub mappable: u8,
    /// 0.
    pub reserved: [u8; 5],
}

/// A message through a slot of [`WindowClass::Message`](super::WindowClass::Message).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotMessage {
    /// A message whose elements follow.
    Whole(MessageInfo),
    /// The notice of a message whose elements are sent when the receiver is ready for them.
    RequestToSend(MessageInfo),
    /// This many elements of a message that was cleared to send.
    Part(u64),
    /// The receiver is ready for the message of that number.
    ClearToSend(MessageClearToSend),
}

impl SlotMessage {
    /// The header of the message of that number.
    pub(crate) fn header(self, flow: FlowHeader, number: u32) -> MessageHeader {
        let (kind, body) = match self {
            Self::Whole(info) => (0, cast(info)),
            Self::RequestToSend(info) => (1, cast(info)),
            Self::Part(len) => (2, [len, 0, 0]),
            Self::ClearToSend(clear) => (3, cast(clear)),
        };
        MessageHeader { flow, number, kind, reserved: [0; 7], body }
    }

    /// The message of a header; `None` if its kind is unknown.
    pub(crate) fn of(header: &MessageHeader) -> Option<Self> {
        Some(match header.kind {
            0 => Self::Whole(cast(header.body)),
            1 => Self::RequestToSend(cast(header.body)),
            2 => Self::Part(header.body[0]),
            3 => Self::ClearToSend(cast(header.body)),
            _ => return None,
        })
    }
}

/// The bytes of a header of either sort.
pub(crate) const HEADER: usize = size_of::<CollectiveHeader>();
const _: () = assert!(HEADER == size_of::<MessageHeader>());

/// The offset of a message's elements in its slot. The header lies in the [`HEADER`] bytes before, so that elements are aligned to
/// cache lines.
pub(crate) const PAYLOAD: usize = windows::PAYLOAD;
