//! Making groups: `join` and `from_env` make the world (with `address` and `greeting`); `split`, `create` and `pair` make other groups
//! from a group.

mod address;
mod create;
mod from_env;
mod greeting;
mod join;
mod pair;
mod split;
