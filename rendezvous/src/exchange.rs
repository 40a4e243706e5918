//! Gives every rank, before ranks are connected, the bytes of every other rank through a store, or the result that rank 0 computes from
//! them.

use std::{
    collections::{BTreeSet, HashMap},
    time::Instant,
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use unisono_core::error::{Error, Failure, Result, clean, list};
use unisono_schedule::Rank;

use super::{FIRST_REPORT, NEXT_REPORT, Store};

/// The most characters about refused processes in one line of the log.
const MAX_SHOWN: usize = 1000;

/// Gives every rank's bytes to every rank, in the order of ranks.
///
/// Rank 0 collects the bytes and publishes one table, so that each rank makes two requests whatever the world size.
/// `key` must be new for every exchange.
///
/// # Errors
/// [`Error::Missing`], on every rank, names the ranks that had not come when the first rank stopped waiting;
/// [`Error::Failed`] if a rank dies meanwhile.
pub fn exchange(
    store: &Store,
    key: &str,
    rank: Rank,
    ranks: usize,
    bytes: &[u8],
    deadline: Instant,
) -> Result<Vec<Vec<u8>>> {
    let all: Vec<Vec<u8>> = decide(store, key, (rank, ranks), bytes, deadline, Ok)?;
    if all.len() == ranks {
        return Ok(all);
    }
    Err(broken(store, format!("{} has {} entries for {ranks} ranks", table(key), all.len())))
}

/// Returns on every rank the result that rank 0 computes from the bytes of all ranks, or the failure that rank 0 finds in them.
///
/// # Errors
/// As [`exchange`].
#[doc(hidden)]
pub fn decide<T: Serialize + DeserializeOwned>(
    store: &Store,
    key: &str,
    (rank, ranks): (Rank, usize),
    bytes: &[u8],
    deadline: Instant,
    make: impl FnOnce(Vec<Vec<u8>>) -> std::result::Result<T, Failure>,
) -> Result<T> {
    let exchange = Exchange { store, key, rank, ranks, begun: Instant::now(), deadline };
    store.set(&entry(key, rank), &[PRESENT, bytes].concat())?;
    let verdict = match rank {
        0 => exchange.conclude(make)?,
        _ => exchange.hear()?,
    };
    match verdict {
        Verdict::Made(made) => Ok(made),
        Verdict::Failed(failure) => Err(Error::Failed(failure.cleaned())),
        Verdict::Missing(missing, _) if missing.contains(&rank) => Err(broken(
            store,
            format!(
                "rank {rank} came too late: the other ranks had stopped waiting for it; start all ranks closer together or \
                 set a longer UNISONO_JOIN_TIMEOUT"
            ),
        )),
        Verdict::Missing(missing, refused) => {
            let (store, waited) = (store.name().to_owned(), exchange.begun.elapsed());
            Err(Error::Missing { store, rank, ranks, missing, waited, refused })
        }
    }
}

/// The bytes of a rank in an exchange; `None` if it has not come before the deadline.
#[doc(hidden)]
pub fn entry_of(store: &Store, key: &str, rank: Rank, deadline: Instant) -> Result<Option<Vec<u8>>> {
    let found = store.get(&entry(key, rank), deadline)?;
    Ok(found.and_then(|bytes| bytes.strip_prefix(PRESENT).map(<[u8]>::to_vec)))
}

/// A rank's part in an exchange.
struct Exchange<'a> {
    store: &'a Store,
    key: &'a str,
    rank: Rank,
    ranks: usize,
    begun: Instant,
    deadline: Instant,
}

impl Exchange<'_> {
    /// Rank 0's part: collects the bytes of all ranks, and publishes the result of `make`.
    fn conclude<T: Serialize>(
        &self,
        make: impl FnOnce(Vec<Vec<u8>>) -> std::result::Result<T, Failure>,
    ) -> Result<Verdict<T>> {
        let prefix = entries(self.key);
        let all = self.in_parts(|until| {
            let all = self.store.collect(&prefix, self.ranks, until)?;
            Ok((all.len() >= self.ranks || until >= self.deadline).then_some(all))
        })?;
        let verdict = match self.all_of(all.unwrap_or_default()) {
            Ok(all) => make(all).map_or_else(Verdict::Failed, Verdict::Made),
            Err(missing) => Verdict::Missing(missing, self.store.present(&prefix)?.1),
        };
        self.publish(&verdict)?;
        Ok(verdict)
    }

    /// The part of all other ranks: waits for the result that rank 0 publishes.
    fn hear<T: Serialize + DeserializeOwned>(&self) -> Result<Verdict<T>> {
        let (store, table, prefix) = (self.store, table(self.key), entries(self.key));
        if let Some(encoded) = self.in_parts(|until| store.get(&table, until))? {
            return postcard::from_bytes(&encoded)
                .map_err(|error| broken(store, format!("{table} cannot be read: {error}")));
        }
        // If all ranks have come, rank 0 has not published the result in time.
        let missing = match self.all_of(store.collect(&prefix, self.ranks, Instant::now())?) {
            Err(missing) => missing,
            Ok(_) => vec![0],
        };
        // The entries come first: they end rank 0's wait. The table ends the wait of all others, which then exit; a rank that still
        // waited would take them for dead. The store may end with rank 0, and then this rank can report to no store.
        let refused = store.present(&prefix).map_or_else(|_| String::new(), |(_, refused)| refused);
        let verdict = Verdict::Missing(missing.clone(), refused);
        let message = missing.iter().try_for_each(|&rank| store.set(&entry(self.key, rank), ABSENT));
        if let Err(error) = message.and_then(|()| self.publish(&verdict)) {
            unisono_transport::log::debug!(rank = self.rank, %error, "cannot tell the other ranks that this rank stopped waiting for them");
        }
        Ok(verdict)
    }

    /// Waits until `attempt`, which waits until the time that it gets, returns something, or until the deadline. Meanwhile logs what this
    /// rank waits for.
    fn in_parts<T>(&self, mut attempt: impl FnMut(Instant) -> Result<Option<T>>) -> Result<Option<T>> {
        let mut next = self.begun + FIRST_REPORT;
        loop {
            if let Some(found) = attempt(next.min(self.deadline))? {
                return Ok(Some(found));
            }
            if next >= self.deadline {
                return Ok(None);
            }
            self.report()?;
            next += NEXT_REPORT;
        }
    }

    fn report(&self) -> Result<()> {
        let &Self { store, key, rank, ranks, begun, deadline } = self;
        let (numbers, refused) = store.present(&entries(key))?;
        let present: BTreeSet<Rank> = numbers.into_iter().collect();
        let missing: Vec<Rank> = (0..ranks).filter(|rank| !present.contains(rank)).collect();
        let ranks = match &missing[..] {
            [] => "rank 0, which has not concluded yet".to_owned(),
            missing => format!("{} of {ranks} ranks: {}", missing.len(), list(missing)),
        };
        let refused = match &*refused {
            "" => String::new(),
            refused => format!("; the store has refused {}", clean(refused, MAX_SHOWN)),
        };
        let left = deadline.saturating_duration_since(Instant::now());
        unisono_transport::log::warn!(
            "rank {rank} has waited {:.0?} at {} for {ranks}; it waits {left:.0?} more (UNISONO_JOIN_TIMEOUT){refused}",
            begun.elapsed(),
            store.name()
        );
        Ok(())
    }

    fn publish<T: Serialize>(&self, verdict: &Verdict<T>) -> Result<()> {
        let table = table(self.key);
        let encoded = postcard::to_allocvec(verdict)
            .map_err(|error| broken(self.store, format!("encoding {table}: {error}")))?;
        self.store.set(&table, &encoded)
    }

    /// The bytes of all ranks, or the ranks that have not come.
    fn all_of(&self, entries: Vec<(String, Vec<u8>)>) -> std::result::Result<Vec<Vec<u8>>, Vec<Rank>> {
        let mut here: HashMap<String, Vec<u8>> = entries.into_iter().collect();
        let (mut all, mut missing) = (Vec::with_capacity(self.ranks), Vec::new());
        for rank in 0..self.ranks {
            match here.remove(&entry(self.key, rank)).as_deref().and_then(|it| it.strip_prefix(PRESENT)) {
                Some(bytes) => all.push(bytes.to_vec()),
                None => missing.push(rank),
            }
        }
        if missing.is_empty() { Ok(all) } else { Err(missing) }
    }
}

fn broken(store: &Store, problem: String) -> Error {
    Error::rendezvous(store.name(), problem)
}

/// The first byte of an entry: a rank's bytes follow, or another rank has stopped waiting for this one.
const PRESENT: &[u8] = &[1];
const ABSENT: &[u8] = &[0];

/// The result of an exchange.
#[derive(Serialize, Deserialize)]
enum Verdict<T> {
    Made(T),
    /// The ranks that have not come, and the processes that the store has refused, in words.
    Missing(Vec<Rank>, String),
    Failed(Failure),
}

/// The key of the result.
fn table(key: &str) -> String {
    format!("{key}/table")
}

fn entries(key: &str) -> String {
    format!("{key}/of/")
}

/// The number is padded with zeros, so that the order of names is the order of ranks.
fn entry(key: &str, rank: Rank) -> String {
    format!("{}{rank:020}", entries(key))
}
