//! The rendezvous: one suite for both stores, with real sockets, real files and real processes.

mod again;
mod among;
mod cut;
mod death;
mod directory;
mod flood;
mod hostile;
mod names;
#[path = "../../ports/mod.rs"]
mod ports;
mod raw;
mod refused;
mod secret;
mod stores;
mod words;
mod world;
