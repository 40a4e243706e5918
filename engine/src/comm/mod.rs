//! Communicators: members, windows, flows and control messages, and the handling of arrivals for them.

mod communicator;
mod control;
mod core;
mod flow;
mod greetings;
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
    greetings::Greetings,
    member::Member,
    net::{Leaving, Net},
    put::{Origin, Ready, Whose},
    slots::{Sharing, layout},
};
pub use self::{greetings::Awaited, net::CommIds};
