//! How a group comes to be: the world by joining (`join`, with `address` and `greeting`), others from it (`split`, `pair`).

mod address;
mod greeting;
mod join;
mod pair;
mod split;
