//! Communicators: members, windows, flows and control messages, and the handling of arrivals for them.

mod communicator;
mod control;
mod core;
mod flow;
mod handshakes;
mod leaving;
mod leftover;
mod member;
mod net;
mod put;
mod reuse;
mod slots;
mod window;

pub(crate) use self::{
    communicator::{Comm, QueuedCollective},
    core::{Core, expose_part},
    handshakes::Handshakes,
    member::CommMember,
    net::{Leaving, Net},
    put::{Origin, ReadyPut, Whose},
    slots::{Sharing, layout},
};
pub use self::{handshakes::PendingHandshake, net::CommIds};
