//! How ranks find each other, and how each learns what became of the others.
//!
//! A [`Store`] is a small key-value service that all ranks of a job reach: [`TcpStore`], served by rank 0's
//! process or by a launcher, or [`FileStore`], a directory that all ranks share. Through it ranks exchange addresses ([`exchange`]) once; from then on it keeps one [`Watch`] per rank, which raises the rank's
//! [`Alarm`] as soon as any rank died or reported a failure, and tells others where this rank stands.
//!
//! # Membership
//! Opening a store makes this process its rank. From then on the rank is *alive* until it either leaves
//! ([`Watch::leave`]) or is gone without a farewell, which is a failure of the whole group: a process that
//! ended, was killed, or dropped its watch without leaving. Drop the watch before the store. Dropping the
//! last of both in the process that serves a tcp store waits until the other ranks have left, at most
//! [`LINGER`].
//!
//! Known gap: sockets and locks that a rank hands down to a child by a bare `fork` (no `exec`) outlive the
//! rank, and so does the belief that it lives.

mod alarm;
mod client;
mod file;
mod position;
mod server;
mod watch;
mod wire;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

pub use alarm::Alarm;
pub use client::TcpStore;
pub use file::FileStore;
pub use position::{Place, Position, Stand, report};
pub use server::TcpServer;

use crate::{
    config::{Member, StoreAddress},
    error::{Error, Failure, Result},
    schedule::Rank,
};

/// How long the process that serves a tcp store stays for the others after it has left itself.
pub const LINGER: Duration = Duration::from_secs(5);

/// How long [`Watch::report`] waits for the store to say which failure came first.
pub const ECHO: Duration = Duration::from_secs(1);

/// The longest key.
pub const MAX_KEY: usize = 1024;

/// The largest value, in bytes: a table of the addresses of 100,000 ranks fits well.
pub const MAX_VALUE: usize = 64 << 20;

/// A key-value service that all ranks of a job reach. Keys are at most [`MAX_KEY`] bytes long, values at
/// most [`MAX_VALUE`]. After a failure of the group, whatever would have to wait fails with it.
pub trait Store: Send + Sync {
    /// Where it is, for errors: `tcp://10.0.0.1:29500`.
    fn name(&self) -> &str;

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
    fn watch(&self, alarm: Arc<Alarm>, position: Arc<Position>) -> Result<Box<dyn Watch>>;
}

/// This rank's side of the store's watch over the group. Dropping it without [`Watch::leave`] tells the
/// others that this rank died.
pub trait Watch: Send + Sync {
    /// Tells the store of a failure, and gives the one the store heard of first: the same on every rank.
    /// Where the store does not answer within [`ECHO`], that is `failure` itself. The alarm is raised.
    fn report(&self, failure: &Failure) -> Failure;

    /// Asks all ranks where they stand, and gives what came within `wait`: `None` for the silent.
    fn positions(&self, wait: Duration) -> Vec<Option<Stand>>;

    /// Says farewell: this rank goes in good order. Idempotent.
    fn leave(&self);
}

/// Gives every rank's bytes to every rank, in the order of ranks.
///
/// Rank 0 gathers and publishes one table, so that each rank makes two requests whatever the world size.
/// `key` must be new for every exchange.
///
/// # Errors
/// [`Error::Missing`], on every rank, with those that did not come before the deadline (of whichever rank
/// gave up first); [`Error::Failed`] if a rank died meanwhile.
pub fn exchange(
    store: &dyn Store,
    key: &str,
    rank: Rank,
    ranks: usize,
    bytes: &[u8],
    deadline: Instant,
) -> Result<Vec<Vec<u8>>> {
    let begun = Instant::now();
    let each = format!("{key}/of/");
    let table = format!("{key}/table");
    let missing = |missing: Vec<Rank>| {
        let store = store.name().to_owned();
        if missing.contains(&rank) {
            return Error::Rendezvous {
                store,
                problem: format!(
                    "rank {rank} came too late: rank 0 had given up waiting for it; \
                    start all ranks closer together or set a longer UNISONO_JOIN_TIMEOUT"
                ),
            };
        }
        Error::Missing { store, rank, ranks, missing, waited: begun.elapsed() }
    };
    let bad = |problem: String| Error::Rendezvous { store: store.name().to_owned(), problem };
    // Zero-padded, so that the order of names is the order of ranks.
    store.set(&format!("{each}{rank:020}"), bytes)?;
    let absent = |entries: &[(String, Vec<u8>)]| -> Vec<Rank> {
        let mut here = vec![false; ranks];
        for (name, _) in entries {
            if let Some(slot) =
                name.strip_prefix(&each).and_then(|rank| here.get_mut(rank.parse::<usize>().ok()?))
            {
                *slot = true;
            }
        }
        (0..ranks).filter(|&rank| !here.get(rank).copied().unwrap_or_default()).collect()
    };
    if rank == 0 {
        let entries = store.collect(&each, ranks, deadline)?;
        let absent = absent(&entries);
        let verdict = if absent.is_empty() {
            Verdict::All(entries.into_iter().map(|(_, value)| value).collect())
        } else {
            Verdict::Missing(absent)
        };
        let encoded =
            postcard::to_allocvec(&verdict).map_err(|error| bad(format!("encoding {table}: {error}")))?;
        store.set(&table, &encoded)?;
        return match verdict {
            Verdict::All(all) => Ok(all),
            Verdict::Missing(absent) => Err(missing(absent)),
        };
    }
    let Some(encoded) = store.get(&table, deadline)? else {
        let absent = absent(&store.collect(&each, ranks, Instant::now())?);
        // All have come, but so late that this rank's time is over: rank 0's answer is what is missing.
        return Err(missing(if absent.is_empty() { vec![0] } else { absent }));
    };
    match postcard::from_bytes(&encoded) {
        Ok(Verdict::All(all)) if all.len() == ranks => Ok(all),
        Ok(Verdict::All(all)) => Err(bad(format!("{table} has {} entries for {ranks} ranks", all.len()))),
        Ok(Verdict::Missing(absent)) => Err(missing(absent)),
        Err(error) => Err(bad(format!("{table} cannot be read: {error}"))),
    }
}

/// What rank 0 publishes.
#[derive(Serialize, Deserialize)]
enum Verdict {
    All(Vec<Vec<u8>>),
    Missing(Vec<Rank>),
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
