//! The rendezvous: ranks exchange addresses, and each learns if another fails.
//!
//! A [`Store`] is a small key-value service over TCP that all ranks of a job reach. The process of rank 0 or a launcher serves it. All
//! ranks know its address, or read it in a directory that they share, or find it among several hosts and ports, or get it by PMI. Ranks
//! exchange their addresses through the store once ([`exchange`]). Afterwards each rank keeps a [`Watch`] at the store. A watch raises the
//! rank's [`FailureLatch`] when any rank dies or reports a failure, and tells other ranks this rank's [`Position`].
//!
//! # Membership
//! A process that opens a store becomes a rank of the job. The rank is alive until it leaves ([`Watch::leave`]) or
//! disappears without leaving: its process ended, was killed, or dropped its watch. Disappearing is a failure of the whole
//! group. Drop the watch before the store. In the process that serves the store, dropping the last of both waits until the
//! other ranks have left, but at most [`LINGER`] if this rank itself has not left.
//!
//! A forked child of a rank is not a member. The rank's connections and locks are `/dev/null` in the child, so that the store notices the
//! death of the rank even if the child lives on. Dropping the rank's objects in the child does nothing.

mod among;
mod cannot_join;
pub mod config;
mod connect;
mod directory;
#[doc(hidden)]
pub mod epoch;
mod exchange;
mod failure_latch;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
pub mod launch;
mod pmi;
mod position_source;
mod protocol;
#[cfg(test)]
#[path = "../../tests/random/mod.rs"]
mod random;
mod seal;
mod server;
mod session;
mod store;
mod unable;
mod watch;

use std::time::Duration;

pub use exchange::exchange;
#[doc(hidden)]
pub use exchange::{decide, entry_of};
pub use failure_latch::FailureLatch;
pub use position_source::PositionSource;
pub use server::StoreServer;
pub use store::Store;
pub use unisono_core::position::{
    CallRecord, GroupPosition, MessagePosition, Position, Running, Stage, Traffic, report,
};
pub use watch::Watch;

/// The longest key of a store, in bytes.
pub const MAX_KEY: usize = 1024;

/// The largest value of a store, in bytes: a table of the addresses of 100,000 ranks fits well.
pub const MAX_VALUE: usize = 64 << 20;

/// How long the process that serves the store waits for the other ranks to leave, if it is a launcher or a rank that has not
/// left itself.
pub const LINGER: Duration = Duration::from_secs(5);

/// How long the store collects the positions of all ranks to compare them: shorter than the time that a rank must have been
/// blocked.
const GATHER: Duration = Duration::from_millis(400);

/// How long the process of rank 0 stays if the group fails while ranks join, so that ranks that come later learn why.
const LATECOMERS: Duration = Duration::from_secs(2);

/// How long [`Watch::report`] waits for the store to say which failure came first.
const ECHO: Duration = Duration::from_secs(1);

/// When a rank that joins or makes a group first logs what it waits for, and the time after which it logs that again.
#[doc(hidden)]
pub const FIRST_REPORT: Duration = Duration::from_secs(5);
#[doc(hidden)]
pub const NEXT_REPORT: Duration = Duration::from_secs(15);
