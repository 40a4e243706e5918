//! The bytes on the wire: immediates, headers, control messages (drawn in docs/wire.md).

mod header;
mod immediate;
mod mailbox;
#[cfg(any(test, fuzzing))]
mod tests;

#[cfg(any(test, fuzzing))]
pub(crate) use self::tests::fuzz;
pub(crate) use self::{
    header::{
        CollectiveHeader, FlowHeader, HEADER, MessageClearToSend, MessageHeader, MessageInfo, PAYLOAD,
        SlotMessage,
    },
    immediate::{ControlKind, FlowWay, Immediate, MAX_COMMS, MAX_FLOWS, WindowClass, low},
    mailbox::{ClearToSend, Close, Handshake, MAX_SLOTS, MailboxEntry, Window},
};
pub use self::{
    immediate::{CommId, MAX_MEMBERS, MAX_RANKS},
    mailbox::VERSION,
};
