//! Making groups: `join` and `from_env` make the world (with `reach`, `address`, `alike` and `greeting`); `split`, `create` and `pair` make other groups
//! from a group.

mod address;
mod alike;
mod create;
mod from_env;
mod greeting;
mod join;
mod pair;
mod reach;
mod split;

pub use self::reach::describe_transport;
