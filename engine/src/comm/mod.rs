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
    identity::CommMember,
    net::{Leaving, Net},
    put::{PutOrigin, ReadyPut},
    shutdown::ShutdownState,
    slots::{Sharing, layout},
};
pub(crate) use crate::endpoint::Whose;
