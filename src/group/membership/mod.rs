//! Makes groups: `join` and `from_env` make the world; `split` and `create` make other groups from a group.
//!
//! A rank joins the world in four steps: `discovery` of the ranks that share memory, which `transport` needs to open the transport; the
//! `exchange` of addresses, and their `propagation` among many ranks; connection, which the engine makes when it first sends; and
//! `verification` of some connections.

mod create;
mod discovery;
mod exchange;
mod join;
mod propagation;
mod settings;
mod split;
mod transport;
mod verification;

pub use self::{
    settings::transport_options,
    transport::{describe_transport, open_transport},
};
