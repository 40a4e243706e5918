//! Propagates the roster among many ranks. Rank 0 publishes the roster's length and hash at the store. The roster itself comes down two trees
//! of ranks by the library's broadcast, so that no rank sends more than one roster. A rank fetches from the store only the addresses
//! of its neighbours in the trees, and verifies its connections to these first.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use unisono_engine::{
    Borrowed, CallPlan, Completion, CompletionAction, Contact, Contacts, Engine, Operation, Patience,
    RequestKind, Signature, StalledOperation, Stop, WORLD, WorkRequest,
};
use unisono_schedule::{
    CallSchedule, Collective, Job, Rank, Schedule, Step,
    algorithm::{self, Algorithm},
};

use super::{
    exchange::{self, RosterDigest},
    verification::{EndpointInfo, Verification},
};
use crate::{
    dtype::Dtype,
    error::{Error, Result},
    reduce::{Kernel, ReduceOp},
    rendezvous::Store,
    runtime::roster::{Entry, Roster},
};

/// Two trees, in which every rank sends as much as it receives.
const ALGORITHM: &str = "tree";

/// The roster entries of this rank's neighbours in the trees.
struct TreeNeighbours {
    ranks: usize,
    entries: BTreeMap<Rank, Entry>,
}

impl Contacts for TreeNeighbours {
    fn ranks(&self) -> usize {
        self.ranks
    }

    fn contact(&self, rank: Rank) -> Option<Contact> {
        self.entries.get(&rank).cloned().map(Entry::contact)
    }
}

/// The broadcast of `len` bytes from rank 0, in messages of at most `chunk` bytes.
fn job(rank: Rank, ranks: usize, len: usize, chunk: usize) -> Job<'static> {
    Job { chunk: chunk.max(1), ..Job::new(Collective::Broadcast, rank, ranks, len) }
}

/// The schedule of this job, and its algorithm.
fn schedule(job: &Job<'_>) -> Option<(&'static Algorithm, Box<dyn Schedule>)> {
    let algorithm = algorithm::find(ALGORITHM)?;
    Some((algorithm, algorithm.make(job)?))
}

/// The ranks that this rank sends to or receives from.
fn neighbours(job: &Job<'_>) -> Vec<Rank> {
    let mut all = BTreeSet::new();
    if let Some((_, mut schedule)) = schedule(job) {
        schedule.sources(&mut |from| _ = all.insert(from));
        while let Some(step) = schedule.next(0) {
            if let Step::Put { to, .. } = step {
                all.insert(to);
            }
        }
    }
    all.into_iter().collect()
}

/// Receives the roster of this digest, or sends it if this is rank 0. Returns it, and the ranks whose connections were verified.
pub(super) fn propagate(
    engine: &mut Engine,
    verification: &Verification<'_>,
    store: &Store,
    (digest, roster): (RosterDigest, Option<Arc<Roster>>),
    (chunk_bytes, eager_bytes): (usize, usize),
) -> Result<(Arc<Roster>, Vec<Rank>)> {
    let (rank, ranks) = (verification.monitor.rank, verification.ranks);
    let len = usize::try_from(digest.len).map_err(|error| exchange::unusable(store, error.to_string()))?;
    let job = job(rank, ranks, len, eager_bytes);
    let next = neighbours(&job);
    let entries = next.iter().chain([&rank]);
    let entries = entries.map(|&rank| Ok((rank, exchange::fetch_entry(store, rank, verification.deadline)?)));
    let known = TreeNeighbours { ranks, entries: entries.collect::<Result<_>>()? };
    let host = |rank: &Rank| known.entries.get(rank).map(|entry| entry.host.id);
    let is_remote =
        |other: &&Rank| host(&rank).zip(host(other)).is_some_and(|(here, there)| here.is_remote(&there));
    let remote: Vec<Rank> = next.iter().filter(is_remote).copied().collect();

    let known = Arc::new(known);
    let none = Duration::ZERO;
    let patience = Patience { spin: none, give_way: none, alone: none };
    let set = engine.set_contacts(Arc::clone(&known) as Arc<dyn Contacts>, chunk_bytes, patience);
    set.map_err(|stop| verification.failed(stop, StalledOperation::default()))?;
    let limits = engine.limits().clone();
    let endpoint = |rank: Rank| EndpointInfo::of(known.entries.get(&rank).cloned(), &limits);
    verification.handshake(engine, &endpoint, &next, &remote)?;

    let bytes = roster.as_ref().map_or_else(|| vec![0; len], |roster| roster.bytes());
    let bytes = broadcast(engine, verification, &job, bytes)?;
    if let Some(roster) = roster {
        return Ok((roster, next));
    }
    if *blake3::hash(&bytes).as_bytes() != digest.hash {
        let problem = format!("the roster that came to rank {rank} is not the one that rank 0 published");
        return Err(exchange::unusable(store, problem));
    }
    let roster = Roster::parse(&bytes, ranks);
    let unusable = |why| exchange::unusable(store, format!("the roster cannot be used: {why}"));
    Ok((Arc::new(roster.map_err(unusable)?), next))
}

/// Runs the broadcast on these bytes.
fn broadcast(
    engine: &mut Engine,
    verification: &Verification<'_>,
    job: &Job<'_>,
    mut bytes: Vec<u8>,
) -> Result<Vec<u8>> {
    let call = "the broadcast of the roster";
    let stalled = || StalledOperation { call: call.to_owned(), ..StalledOperation::default() };
    let unable = || verification.failed(Stop::Failed, stalled());
    let len = bytes.len();
    let (algorithm, schedule) = schedule(job).ok_or_else(unable)?;
    let kernel = Kernel::new(Dtype::U8, ReduceOp::Sum).map_err(|_| unable())?;
    // The completion owns the bytes.
    let borrowed = Borrowed::within(&mut bytes, 0..len, 0..len).ok_or_else(unable)?.kept();
    let signature = Signature::new(job, Dtype::U8, ReduceOp::Sum, algorithm.code);
    let plan = Arc::new(CallPlan::new(job.collective, signature, kernel, false));
    let operation = Operation::new((plan, CallSchedule::Made(schedule)), job.ranks, borrowed, None);
    let what = RequestKind::Collective(Box::new(operation));
    let left = verification.deadline.saturating_duration_since(Instant::now());
    let (completion, outcome) = Completion::new(left, CompletionAction::Return(Some(Box::new(bytes))));
    let monitor = verification.monitor;
    let mut driver = engine.driven_by(monitor);
    let taken = driver.take(WORLD, WorkRequest { what, completion });
    let driven = taken.and_then(|()| driver.drive(&|| outcome.ended(), None));
    driven.map_err(|halt| {
        verification.failed(halt.stop, halt.stalled.map_or_else(stalled, |stalled| *stalled))
    })?;
    engine.forget_calls().map_err(|stop| verification.failed(stop, stalled()))?;
    let done = outcome.take().ok_or_else(unable)?.map_err(Error::Failed)?;
    let bytes = done.memory.and_then(|memory| memory.downcast::<Vec<u8>>().ok());
    bytes.map(|bytes| *bytes).ok_or_else(unable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_next_to_each_other_in_the_trees() {
        for ranks in [2, 3, 5, 64, 65, 1000_usize] {
            let next = |rank: Rank| neighbours(&job(rank, ranks, 30 * ranks, 1000));
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

    #[test]
    fn no_rank_sends_more_than_one_roster() {
        const CHUNK: usize = 1000;
        for ranks in [2, 3, 65, 1000_usize] {
            let len = 62 * ranks;
            let sends = |rank: Rank| -> usize {
                let (_, mut schedule) = schedule(&job(rank, ranks, len, CHUNK)).unwrap();
                let steps = std::iter::from_fn(|| schedule.next(0));
                steps.map(|step| if let Step::Put { from, .. } = step { from.len } else { 0 }).sum()
            };
            let sent: Vec<_> = (0..ranks).map(sends).collect();
            // Each tree carries half of the roster, in whole chunks.
            assert!(sent.iter().all(|&bytes| bytes <= len + CHUNK), "{ranks} ranks: {sent:?}");
            assert_eq!(sent.iter().sum::<usize>(), len * (ranks - 1), "each other rank gets one");
        }
    }
}
