//! What precedes the elements of every message.

use bytemuck::{Pod, Zeroable};
use unisono_schedule::windows;

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

/// The bytes of a [`Header`].
pub(crate) const HEADER: usize = size_of::<Header>();

/// Where in a slot a message's elements begin: the header lies in the [`HEADER`] bytes before, so that
/// elements are aligned to cache lines.
pub(crate) const PAYLOAD: usize = windows::PAYLOAD;
