//! Making groups: `join` makes the world (with `address` and `greeting`); `split` and `pair` make other groups from a group.

mod address;
mod greeting;
mod join;
mod pair;
mod split;
