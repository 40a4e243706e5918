//! Makes groups: `join` and `from_env` make the world (with `reach`, `near`, `address`, `cards`, `alike`, `greeting` and `spread`); `split`
//! and `create` make other groups from a group.

mod address;
mod alike;
mod cards;
mod create;
mod from_env;
mod greeting;
mod join;
mod near;
mod reach;
mod settings;
mod split;
mod spread;

pub use self::{
    reach::{describe_transport, open_transport},
    settings::transport_options,
};
