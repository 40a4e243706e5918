//! Rehearses how many ranks join: imagined ranks, one after the other in this process, by the code that real ranks run at the store
//! and on the roster.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use serde::{Serialize, de::DeserializeOwned};
use unisono_schedule::{Rank, Step, windows::EAGER_BYTES};

use super::{
    cards::{self, Alike, JoinInfo, Meeting},
    near::{self, Camps, Reach, Tried},
    spread,
};
use crate::{
    config::Config,
    engine::{Bounds, Engine},
    error::{Error, Failure, Result},
    group::ProcessGroup,
    rendezvous::{self, Board as _, MemoryStore, Sent, Verdict},
    runtime::roster::{Entry, Roster, imagined},
};

/// What it takes that this many ranks join.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct JoinCost {
    /// The requests of all ranks to the store, after they are connected.
    pub requests: u64,
    /// The bytes of these requests.
    pub requests_bytes: u64,
    /// The bytes of the store's replies, which the process of rank 0 sends if it serves the store.
    pub replies_bytes: u64,
    /// The bytes of the roster, which every rank gets.
    pub roster_bytes: usize,
    /// The messages among ranks by which the roster is spread; none where the store sends it.
    pub messages: u64,
    /// The bytes of these messages.
    pub messages_bytes: u64,
    /// The bytes of that rank's messages that sends most.
    pub most_bytes: u64,
    /// The most cards that a rank fetches.
    pub most_fetched: usize,
    /// The time that rank 0 takes to make the roster.
    pub made: Duration,
    /// The time that any other rank takes to read it.
    pub read: Duration,
    /// The bytes of the roster in a rank's memory.
    pub roster_memory: usize,
    /// The other bytes that a rank keeps of all ranks.
    pub engine_memory: usize,
    /// The bytes of registered memory that it has for all ranks.
    pub registered_memory: usize,
}

impl ProcessGroup {
    /// Rehearses how `ranks` ranks join, of which `ranks_per_host` share a host: they are imagined in this process, and exchange their
    /// cards by the code that real ranks run, at a store in memory.
    ///
    /// ```
    /// let cost = unisono::ProcessGroup::simulate_join(1000, 64)?;
    /// assert!(cost.roster_bytes <= 64 * 1000 && cost.most_bytes <= 64 * 1000);
    /// # Ok::<(), unisono::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Config`] if there are no ranks or more than a world may have; [`Error::Rendezvous`] if what they tell each other is too
    /// much for a store.
    pub fn simulate_join(ranks: usize, ranks_per_host: usize) -> Result<JoinCost> {
        if ranks == 0 || ranks_per_host == 0 || ranks > crate::engine::MAX_RANKS {
            let (name, problem) = ("ranks".to_owned(), "there must be some, and not too many".to_owned());
            return Err(Error::Config { name, value: Some(ranks.to_string()), problem });
        }
        let (store, listed) = (MemoryStore::default(), Bounds::default().listed);
        let entries = imagined::entries(ranks, ranks_per_host, ranks_per_host > 1);
        reach(&store, &entries)?;

        let alike = Config::default().alike().into_iter().map(|(name, value)| (name.to_owned(), value));
        let alike: Alike = alike.collect();
        let (mut roster, mut made) = (None, Duration::ZERO);
        let card = |entry| JoinInfo::new(("tcp", false), &alike, EAGER_BYTES, entry);
        let met = exchange(&store, cards::KEY, entries.into_iter().map(card), |all| {
            let begun = Instant::now();
            let (meeting, spread) = cards::meet(&all, listed)?;
            (roster, made) = (spread, begun.elapsed());
            Ok(meeting)
        })?;
        let mut cost = match (met, roster) {
            (Meeting::Fits { roster, .. }, _) => JoinCost::of(&roster, ranks),
            (_, Some(roster)) => spread(&store, &roster, ranks)?,
            _ => return Err(Error::Failed(Failure::Closed)),
        };
        cost.made = made;
        for rank in 0..ranks {
            store.set(&format!("greetings/{rank}"), &[0])?;
        }
        exchange(&store, "met", (0..ranks).map(drop), |_| Ok(()))?;
        let Sent { requests, asked, answered } = store.sent();
        Ok(JoinCost { requests, requests_bytes: asked, replies_bytes: answered, ..cost })
    }
}

/// Every rank's part in an exchange, rank 0's before those that hear of it. Returns what they hear.
fn exchange<T: Serialize, R: Serialize + DeserializeOwned>(
    store: &MemoryStore,
    key: &str,
    values: impl Iterator<Item = T>,
    make: impl FnOnce(Vec<Vec<u8>>) -> std::result::Result<R, Failure>,
) -> Result<R> {
    let now = Instant::now();
    let mut ranks = 0;
    for value in values {
        rendezvous::enter(store, key, ranks, &postcard::to_allocvec(&value).unwrap_or_default())?;
        ranks += 1;
    }
    let mut verdict = rendezvous::conclude(store, key, ranks, now, make)?;
    for rank in 1..ranks {
        verdict = rendezvous::hear(store, key, (rank, ranks), now)?;
    }
    match verdict {
        Verdict::Made(made) => Ok(made),
        Verdict::Failed(failure) => Err(Error::Failed(failure)),
        Verdict::Missing(..) => Err(Error::Failed(Failure::Closed)),
    }
}

/// Every rank's part in finding out which share memory: each reaches the first of its host.
fn reach(store: &MemoryStore, entries: &[Entry]) -> Result<()> {
    let reach = |(rank, entry): (Rank, &Entry)| {
        let (host, address) = (entry.host.clone(), imagined::near(rank));
        Reach { host, provider: None, refused: None, address }
    };
    let all: Vec<Reach> = entries.iter().enumerate().map(reach).collect();
    let mut camps = Camps::default();
    if exchange(store, near::KEY, all.iter(), |all| camps.begin(&all))?.is_some() {
        return Ok(());
    }
    camps.name(store, 0)?;
    for mine in &all {
        near::named(store, 0, mine, Instant::now())?;
    }
    let tried = all.iter().map(|_| Tried::Ok(Some(0)));
    exchange(store, &near::key(0), tried, |all| camps.hear(&all, 0)).map(drop)
}

/// Every rank's part in spreading the roster.
fn spread(store: &MemoryStore, roster: &Arc<Roster>, ranks: usize) -> Result<JoinCost> {
    let mut cost = JoinCost::of(roster, ranks);
    for rank in 0..ranks {
        let job = spread::job(rank, ranks, cost.roster_bytes, EAGER_BYTES);
        let next = spread::relatives(&job);
        cost.most_fetched = cost.most_fetched.max(next.len() + 1);
        for &rank in next.iter().chain([&rank]) {
            cards::fetch(store, rank, Instant::now())?;
        }
        let (messages, bytes) = sent(&job);
        cost.messages += messages;
        cost.messages_bytes += bytes;
        cost.most_bytes = cost.most_bytes.max(bytes);
    }
    Ok(cost)
}

/// The messages of a rank in this broadcast, and the bytes of their elements.
fn sent(job: &unisono_schedule::Job<'_>) -> (u64, u64) {
    let Some((_, mut schedule)) = spread::schedule(job) else { return (0, 0) };
    let steps = std::iter::from_fn(|| schedule.next(0));
    steps.fold((0, 0), |(messages, bytes), step| match step {
        Step::Put { from, .. } => (messages + 1, bytes + from.len as u64),
        _ => (messages, bytes),
    })
}

impl JoinCost {
    fn of(roster: &Roster, ranks: usize) -> Self {
        let bytes = roster.bytes();
        let begun = Instant::now();
        let read = Roster::parse(&bytes, ranks).map(|roster| roster.memory());
        let (kept, registered) = Engine::PER_RANK;
        Self {
            requests: 0,
            requests_bytes: 0,
            replies_bytes: 0,
            roster_bytes: bytes.len(),
            messages: 0,
            messages_bytes: 0,
            most_bytes: 0,
            most_fetched: 0,
            made: Duration::ZERO,
            read: begun.elapsed(),
            roster_memory: read.unwrap_or_default(),
            engine_memory: ranks * kept,
            registered_memory: ranks * registered,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_rank_sends_or_holds_more_than_64_bytes_for_each_rank() {
        for (ranks, per_host) in [(1000, 64), (1000, 8), (1000, 1), (65, 64), (64, 64), (1, 1)] {
            let cost = ProcessGroup::simulate_join(ranks, per_host).unwrap();
            println!("{ranks} ranks, {per_host} a host: {cost:?}");
            if ranks == 1000 {
                let most = 64 * ranks;
                assert!(cost.roster_bytes <= most && cost.most_bytes <= most as u64, "{cost:?}");
                assert!(cost.roster_memory <= most + 16_000, "{cost:?}");
                assert!(cost.replies_bytes <= 2560 * ranks as u64, "no n² of bytes: {cost:?}");
            }
            assert_eq!(cost.messages > 0, ranks > 64, "few get it from the store");
        }
        let message = ProcessGroup::simulate_join(0, 1).map(drop).unwrap_err();
        assert!(matches!(message, Error::Config { .. }));
    }

    #[test]
    fn ranks_are_next_to_each_other_in_the_trees() {
        for ranks in [2, 3, 5, 64, 65, 1000_usize] {
            let next = |rank: Rank| spread::relatives(&spread::job(rank, ranks, 30 * ranks, 1000));
            let all: Vec<_> = (0..ranks).map(next).collect();
            for (rank, next) in all.iter().enumerate() {
                assert!(!next.is_empty() && next.len() <= 6, "{next:?}");
                assert!(
                    next.iter().all(|&other| other != rank && all[other].contains(&rank)),
                    "{rank}: {next:?}"
                );
            }
        }
    }
}
