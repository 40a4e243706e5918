//! Communicators: members, windows, flows and control messages, and the handling of arrivals for them.

mod collectives;
mod communicator;
mod control;
mod core;
mod flow;
mod flows;
mod handshakes;
mod identity;
mod leaving;
mod mailbox;
mod member;
mod mismatch;
mod net;
mod put;
mod reuse;
mod shutdown;
mod slots;
mod window;
mod workspace;

pub use self::handshakes::PendingHandshake;
pub(crate) use self::{
    collectives::QueuedCollective,
    communicator::Comm,
    core::Core,
    handshakes::Handshakes,
    member::CommMember,
    net::{Leaving, Net},
    put::{PutOrigin, ReadyPut, Whose},
    shutdown::ShutdownState,
    slots::{Sharing, layout},
};
