//! The rendezvous: ranks exchange addresses, and each learns if another fails.
//!
//! A [`Store`] is a small key-value service that all ranks of a job reach: [`TcpStore`], served by the process of rank 0 or by
//! a launcher; where it is, all ranks know, or read in a directory that they share. Ranks exchange their addresses through it
//! once ([`exchange`]). Afterwards each rank keeps a [`Watch`] at the store. A watch raises the rank's [`FailureLatch`] when any
//! rank dies or reports a failure, and tells other ranks this rank's [`Position`].
//!
//! # Membership
//! A process that opens a store becomes a rank of the job. The rank is alive until it leaves ([`Watch::leave`]) or
//! disappears without leaving: its process ended, was killed, or dropped its watch. Disappearing is a failure of the whole
//! group. Drop the watch before the store. In the process that serves a tcp store, dropping the last of both waits until the
//! other ranks have left, but at most [`LINGER`] if this rank itself has not left.
//!
//! A forked child of a rank is not a member. The rank's connections and locks are `/dev/null` in the child, so that the store
//! notices the death of the rank while the child lives on. Dropping the rank's objects in the child does nothing.

mod directory;
mod exchange;
mod failure_latch;
mod position_source;
mod protocol;
mod seal;
mod server;
mod tcp_store;
mod tcp_watch;

use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

pub(crate) use crate::position::whereabouts;
pub use crate::position::{
    CallRecord, GroupPosition, MessagePosition, Position, Running, Stage, Traffic, report,
};
use crate::{
    config::{Member, StoreAddress},
    error::{Error, Failure, Result},
};
pub use exchange::exchange;
pub use failure_latch::FailureLatch;
pub use position_source::PositionSource;
pub use server::TcpServer;
pub use tcp_store::TcpStore;

/// What a client reads, and what a server does among frames, in any bytes.
#[cfg(any(test, fuzzing))]
pub(crate) const FUZZ: [fn(&[u8]); 2] = [protocol::fuzz, server::fuzz::frames];

/// How long the process that serves a tcp store waits for the other ranks to leave, if it is a launcher or a rank that has not
/// left itself.
pub const LINGER: Duration = Duration::from_secs(5);

/// How long the store collects the positions of all ranks to compare them: shorter than the time that a rank must have been
/// blocked.
const GATHER: Duration = Duration::from_millis(400);

/// How long the process of rank 0 stays if the group fails while ranks join, so that ranks that come later learn why.
const LATECOMERS: Duration = Duration::from_secs(2);

/// How long [`Watch::report`] waits for the store to say which failure came first.
const ECHO: Duration = Duration::from_secs(1);

/// The longest key.
pub const MAX_KEY: usize = 1024;

/// The largest value, in bytes: a table of the addresses of 100,000 ranks fits well.
pub const MAX_VALUE: usize = 64 << 20;

/// Checks the lengths of a key (or a prefix) and of a value, in bytes; every request of every store begins with it.
fn limits(store: &str, key: &str, value: usize) -> Result<()> {
    let problem = if key.len() > MAX_KEY {
        too_long(key)
    } else if value > MAX_VALUE {
        format!("{key} has {value} bytes; at most {MAX_VALUE} are allowed")
    } else {
        return Ok(());
    };
    Err(Error::Rendezvous { store: store.to_owned(), problem })
}

fn too_long(key: &str) -> String {
    format!("a key of {} bytes; at most {MAX_KEY} are allowed", key.len())
}

/// A key-value service that all ranks of a job reach. Keys are at most [`MAX_KEY`] bytes long, values at
/// most [`MAX_VALUE`]. After a failure of the group, whatever would have to wait fails with it.
pub trait Store: Send + Sync {
    /// The store's address, as errors show it: `tcp://10.0.0.1:29500`.
    fn name(&self) -> &str;

    /// The IP addresses of the connection to the store: this process's and the store's. `None` if the store is not reached by
    /// IP.
    fn reached(&self) -> Option<(IpAddr, IpAddr)> {
        None
    }

    /// Sets a value and wakes all that wait for it.
    fn set(&self, key: &str, value: &[u8]) -> Result<()>;

    /// Waits until the key is set and returns its value; `None` if the deadline passes first.
    fn get(&self, key: &str, deadline: Instant) -> Result<Option<Vec<u8>>>;

    /// Waits until `count` keys begin with `prefix` or the deadline passes, and returns all such keys and their values, sorted
    /// by key.
    fn collect(&self, prefix: &str, count: usize, deadline: Instant) -> Result<Vec<(String, Vec<u8>)>>;

    /// Adds to a counter, which begins at 0, and returns its new value. A counter and a value may have the same key.
    fn add(&self, key: &str, delta: i64) -> Result<i64>;

    /// Starts this rank's watch, in a thread of its own. Can be called once for each store.
    fn watch(&self, latch: Arc<FailureLatch>, position: Arc<PositionSource>) -> Result<Box<dyn Watch>>;
}

/// This rank's membership in the group, as the store sees it. Dropping it without [`Watch::leave`] tells the other ranks that
/// this rank died.
pub trait Watch: Send + Sync {
    /// Reports a failure to the store and returns the first failure that the store received, which is the same on every rank;
    /// `failure` itself if the store does not answer within a second. Raises the latch.
    fn report(&self, failure: &Failure) -> Failure;

    /// Asks all ranks for their positions and returns the answers that come within `wait`, by rank; `None` for a rank that did
    /// not answer.
    ///
    /// # Errors
    /// [`Failure::StoreSilent`] if the store itself does not answer.
    fn positions(&self, wait: Duration) -> std::result::Result<Vec<Option<Position>>, Failure>;

    /// Asks the store to compare the positions of all ranks (their calls, and the ranks they wait for) and to report the
    /// [failure](Failure) that follows, if any. Returns at once. A rank calls it when it has waited for a while without
    /// progress.
    fn doubt(&self);

    /// Sets how long nothing may arrive from the store, and at the store from this rank, before the connection counts as lost.
    /// A process that is known to have ended is lost at once. Does nothing for a store without connections.
    fn be_patient(&self, _patience: Duration) {}

    /// Reports the failure by which this process is about to end. Does not raise the latch, so that no other thread ends the
    /// process first.
    fn last_words(&self, failure: &Failure);

    /// Tells the store that this rank is leaving and makes no other call, so that a rank that waits for one fails. Returns at
    /// once.
    fn leaves(&self);

    /// Leaves in good order. Further calls do nothing.
    fn leave(&self);
}

/// Opens the store at `address` as `member`, and waits for the store until the deadline.
///
/// # Errors
/// [`Error::Rendezvous`] if the store cannot be reached, [`Error::Refused`] if it does not admit this process.
pub fn open(address: &StoreAddress, member: &Member, deadline: Instant) -> Result<Arc<dyn Store>> {
    Ok(match address {
        StoreAddress::Tcp { host, port, served } => {
            if member.rank == 0 && !served {
                Arc::new(TcpStore::host(host, *port, member, deadline)?)
            } else {
                Arc::new(TcpStore::join(host, *port, member, deadline)?)
            }
        }
        StoreAddress::File(directory) => Arc::new(TcpStore::in_directory(directory, member, deadline)?),
    })
}
