//! The rendezvous: one suite for both stores, with real sockets, real files and real processes.

// Helpers outside of `#[test]` functions are tests too.
#![allow(clippy::unwrap_used, clippy::panic)]

mod again;
mod among;
mod cut;
mod death;
mod directory;
mod flood;
mod hostile;
mod names;
#[path = "../ports/mod.rs"]
mod ports;
mod raw;
mod refused;
mod secret;
mod stores;
mod words;
mod world;
