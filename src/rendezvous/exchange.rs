//! Gives every rank the bytes of every other rank, through a store, before ranks are connected.

use std::{collections::HashMap, time::Instant};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use unisono_schedule::Rank;

use super::Store;
use crate::error::{Error, Result};

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
    let begun = Instant::now();
    let bad = |problem: String| Error::Rendezvous { store: store.name().to_owned(), problem };
    let table = format!("{key}/table");
    let publish = |verdict: &Verdict| match postcard::to_allocvec(verdict) {
        Ok(encoded) => store.set(&table, &encoded),
        Err(error) => Err(bad(format!("encoding {table}: {error}"))),
    };
    store.set(&entry(key, rank), &[PRESENT, bytes].concat())?;

    let verdict = if rank == 0 {
        let verdict = verdict(key, ranks, store.collect(&entries(key), ranks, deadline)?);
        publish(&verdict)?;
        verdict
    } else if let Some(encoded) = store.get(&table, deadline)? {
        postcard::from_bytes(&encoded).map_err(|error| bad(format!("{table} cannot be read: {error}")))?
    } else {
        let missing = match verdict(key, ranks, store.collect(&entries(key), ranks, Instant::now())?) {
            Verdict::Missing(missing) => missing,
            // All have come, but rank 0 has not said so in time.
            Verdict::All(_) => vec![0],
        };
        // The entries come first: they end rank 0's wait. The table ends the wait of all others, which then exit, and a rank
        // that still waited would take them for dead. The store may end with rank 0, and then nobody is left to tell.
        let verdict = Verdict::Missing(missing.clone());
        let told = missing.iter().try_for_each(|&rank| store.set(&entry(key, rank), ABSENT));
        if let Err(error) = told.and_then(|()| publish(&verdict)) {
            tracing::debug!(rank, %error, "cannot tell the other ranks that this rank stopped waiting for them");
        }
        verdict
    };
    match verdict {
        Verdict::All(all) if all.len() == ranks => Ok(all),
        Verdict::All(all) => Err(bad(format!("{table} has {} entries for {ranks} ranks", all.len()))),
        Verdict::Missing(missing) if missing.contains(&rank) => Err(bad(format!(
            "rank {rank} came too late: the other ranks had stopped waiting for it; start all ranks closer together or \
             set a longer UNISONO_JOIN_TIMEOUT"
        ))),
        Verdict::Missing(missing) => {
            let (store, waited) = (store.name().to_owned(), begun.elapsed());
            Err(Error::Missing { store, rank, ranks, missing, waited })
        }
    }
}

/// Gives every rank's value to every rank, as [`exchange`].
pub(crate) fn exchange_values<T: Serialize + DeserializeOwned>(
    store: &Store,
    key: &str,
    (rank, ranks): (Rank, usize),
    value: &T,
    deadline: Instant,
) -> Result<Vec<T>> {
    let broken = |problem: String| Error::Rendezvous { store: store.name().to_owned(), problem };
    let bytes = postcard::to_allocvec(value).map_err(|error| broken(error.to_string()))?;
    let all = exchange(store, key, rank, ranks, &bytes, deadline)?;
    let read = |(from, bytes): (Rank, &Vec<u8>)| {
        postcard::from_bytes(bytes)
            .map_err(|error| broken(format!("rank {from} published what cannot be decoded: {error}")))
    };
    all.iter().enumerate().map(read).collect()
}

/// The first byte of an entry: a rank's bytes follow, or another rank has stopped waiting for this one.
const PRESENT: &[u8] = &[1];
const ABSENT: &[u8] = &[0];

/// The result of an exchange.
#[derive(Serialize, Deserialize)]
enum Verdict {
    All(Vec<Vec<u8>>),
    Missing(Vec<Rank>),
}

fn entries(key: &str) -> String {
    format!("{key}/of/")
}

/// Zero-padded, so that the order of names is the order of ranks.
fn entry(key: &str, rank: Rank) -> String {
    format!("{}{rank:020}", entries(key))
}

fn verdict(key: &str, ranks: usize, entries: Vec<(String, Vec<u8>)>) -> Verdict {
    let mut here: HashMap<String, Vec<u8>> = entries.into_iter().collect();
    let mut all = Vec::with_capacity(ranks);
    let mut missing = Vec::new();
    for rank in 0..ranks {
        match here.remove(&entry(key, rank)) {
            Some(bytes) if bytes.starts_with(PRESENT) => {
                all.push(bytes.get(PRESENT.len()..).unwrap_or_default().to_vec())
            }
            _ => missing.push(rank),
        }
    }
    if missing.is_empty() { Verdict::All(all) } else { Verdict::Missing(missing) }
}
