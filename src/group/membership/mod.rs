//! Making groups: `join` makes the world (with `address` and `greeting`); `split`, `create` and `pair` make other groups from a
//! group.

mod address;
mod create;
mod greeting;
mod join;
mod pair;
mod split;
