//! How ranks find each other, and how each learns what became of the others.
//!
//! A [`Store`] is a small key-value service that all ranks of a job reach: [`TcpStore`], served by rank 0's
//! process or by a launcher, or [`FileStore`], a directory that all ranks share. Through it ranks exchange addresses ([`exchange`]) once; from then on it keeps one [`Watch`] per rank, which raises the rank's
//! [`FailureLatch`] as soon as any rank died or reported a failure, and tells others where this rank positions.
//!
//! # Membership
//! Opening a store makes this process its rank. From then on the rank is *alive* until it either leaves
//! ([`Watch::leave`]) or is gone without a shutdown, which is a failure of the whole group: a process that
//! ended, was killed, or dropped its watch without leaving. Drop the watch before the store. Dropping the
//! last of both in the process that serves a tcp store waits until the other ranks have left; if this rank has not
//! left itself, at most [`LINGER`].
//!
//! A child that a rank forks is no member: it finds `/dev/null` in place of the rank's connections and locks, so that the
//! rank's death is noticed though a child lives on, and dropping what belongs to the rank does nothing there.

mod exchange;
mod failure_latch;
mod file;
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

pub use crate::position::{
    Called, GroupPosition, MessagePosition, Position, Running, Stage, Traffic, report, whereabouts,
};
use crate::{
    config::{Member, StoreAddress},
    error::{Error, Failure, Result},
};
pub use exchange::exchange;
pub use failure_latch::FailureLatch;
pub use file::FileStore;
pub use position_source::PositionSource;
pub use server::TcpServer;
pub use tcp_store::TcpStore;

/// What a client reads, and what a server does among frames, in any bytes.
#[cfg(any(test, fuzzing))]
pub(crate) const FUZZ: [fn(&[u8]); 2] = [protocol::fuzz, server::fuzz::frames];

/// How long the process that serves a tcp store stays for the others if it is no rank that has left: a launcher, or a rank
/// that gave up.
pub const LINGER: Duration = Duration::from_secs(5);

/// How long the store gathers for where all ranks stand to compare it: shorter than ranks must have stood so.
const GATHER: Duration = Duration::from_millis(400);

/// How long the process of rank 0, if the group fails while ranks join, stays for those that have yet to come, so that they
/// hear why.
pub const LATECOMERS: Duration = Duration::from_secs(2);

/// How long [`Watch::report`] waits for the store to say which failure came first.
pub const ECHO: Duration = Duration::from_secs(1);

/// The longest key.
pub const MAX_KEY: usize = 1024;

/// The largest value, in bytes: a table of the addresses of 100,000 ranks fits well.
pub const MAX_VALUE: usize = 64 << 20;

/// What every store asks before it does anything: whether a key or the beginning of keys, and a value of so many bytes,
/// are short enough.
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
    /// Where it is, for errors: `tcp://10.0.0.1:29500`.
    fn name(&self) -> &str;

    /// By which addresses this process reaches it: its own and the store's. `None` if it does not go by IP.
    fn reached(&self) -> Option<(IpAddr, IpAddr)> {
        None
    }

    /// Sets a value; whoever waits for it goes on.
    fn set(&self, key: &str, value: &[u8]) -> Result<()>;

    /// Waits until the key is set, and gives its value; `None` if it was not set before the deadline.
    fn get(&self, key: &str, deadline: Instant) -> Result<Option<Vec<u8>>>;

    /// Waits until `count` keys begin with `prefix`, or for the deadline, and gives all that do by then, in
    /// the order of their names.
    fn collect(&self, prefix: &str, count: usize, deadline: Instant) -> Result<Vec<(String, Vec<u8>)>>;

    /// Adds to a counter, which begins at 0, and gives its new value. Counters and values live apart.
    fn add(&self, key: &str, delta: i64) -> Result<i64>;

    /// Begins to watch over the group, in a thread of its own. Once per store.
    fn watch(&self, latch: Arc<FailureLatch>, position: Arc<PositionSource>) -> Result<Box<dyn Watch>>;
}

/// This rank's side of the store's watch over the group. Dropping it without [`Watch::leave`] tells the
/// others that this rank died.
pub trait Watch: Send + Sync {
    /// Tells the store of a failure, and gives the one the store heard of first: the same on every rank.
    /// Where the store does not answer within [`ECHO`], that is `failure` itself. The latch is raised.
    fn report(&self, failure: &Failure) -> Failure;

    /// Asks all ranks where they position, and gives what came within `wait`: `None` for the silent.
    ///
    /// # Errors
    /// [`Failure::StoreSilent`] if the store itself says nothing.
    fn positions(&self, wait: Duration) -> std::result::Result<Vec<Option<Position>>, Failure>;

    /// This rank has waited in vain for a while: the store is to compare what all ranks have called and whom they wait for, and
    /// to tell all of a [failure](Failure) that follows from it. Does not wait for that.
    fn doubt(&self);

    /// Says for how long the other side may be silent before it is given up; a process that is known to have ended is given up
    /// at once. Where nothing goes over a network of ours, that is all there is to know.
    fn be_patient(&self, _patience: Duration) {}

    /// Tells the store of the failure by which this process is about to end. The latch is not raised: nothing in this process
    /// is to end it sooner, in another way.
    fn last_words(&self, failure: &Failure);

    /// This rank leaves, and makes no other call: ranks that wait for one of it are to be told. Does not wait for that.
    fn leaves(&self);

    /// Says shutdown: this rank goes in good order. Idempotent.
    fn leave(&self);
}

/// Opens the store at `address` as `member`; waits until the deadline for it to be there.
///
/// # Errors
/// [`Error::Rendezvous`] if it cannot be reached, [`Error::Refused`] if it does not want this process.
pub fn open(address: &StoreAddress, member: &Member, deadline: Instant) -> Result<Arc<dyn Store>> {
    Ok(match address {
        StoreAddress::Tcp { host, port, served } => {
            if member.rank == 0 && !served {
                Arc::new(TcpStore::host(host, *port, member, deadline)?)
            } else {
                Arc::new(TcpStore::join(host, *port, member, deadline)?)
            }
        }
        StoreAddress::File(directory) => Arc::new(FileStore::open(directory, member, deadline)?),
    })
}
