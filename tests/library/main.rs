//! The library from outside, in one process: launchers' environments, the rendezvous over both stores, its log, and what the compiler
//! says to its callers. Ranks as processes are in `tests/processes`.
//!
//! They are one program, because linking is most of what building a test takes. `cargo test -p unisono --test library launch::` runs one
//! module of them.

// Helpers outside of `#[test]` functions are tests too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod diagnostics;
mod events;
mod launch;
mod rendezvous;
