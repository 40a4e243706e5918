//! The endpoint that all communicators of a process share: the transport with its peers, the active puts, the numbers of flows.

mod port;
mod posts;
mod routes;

pub use self::port::Traced;
pub(crate) use self::{
    port::Port,
    posts::{PutRecord, Staged, Whose, control_of_token, control_token},
};
