//! The data that ranks exchange at the store when they join: each rank's card, and the roster of all, which rank 0 makes of the cards.

use std::{sync::Arc, time::Instant};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use unisono_engine::VERSION;
use unisono_schedule::Rank;

use super::alike::{PROVIDER, PROVIDER_ADVICE, alike, cannot_reach};
use crate::{
    error::{Error, Failure, Result},
    rendezvous::{self, Store},
    runtime::{
        host::Host,
        roster::{Entry, Roster},
    },
};

/// The settings that must be the same on all ranks: names and values.
pub(super) type Alike = Vec<(String, String)>;

/// The data that a rank publishes when it joins.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct JoinInfo {
    /// The version of the wire format; it comes first, because the other fields may differ between versions.
    wire: u32,
    provider: String,
    /// A hash of the settings that must be the same on all ranks.
    settings: u64,
    /// The largest chunk whose windows this rank can register.
    chunk_bytes: u64,
    /// True if the transport reaches ranks of one host only.
    one_host: bool,
    entry: Entry,
}

impl JoinInfo {
    pub(super) fn new(
        (provider, one_host): (&str, bool),
        settings: &Alike,
        chunk_bytes: usize,
        entry: Entry,
    ) -> Self {
        let settings = postcard::to_allocvec(settings).unwrap_or_default();
        let settings =
            blake3::hash(&settings).as_bytes().first_chunk().copied().map_or(0, u64::from_le_bytes);
        let (provider, chunk_bytes) = (provider.to_owned(), chunk_bytes as u64);
        Self { wire: VERSION, provider, settings, chunk_bytes, one_host, entry }
    }
}

/// The value that rank 0 publishes at the store about a roster that ranks spread among themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Published {
    /// The bytes of a chunk, the smallest of all ranks'.
    pub chunk_bytes: u64,
    /// The length of the roster, and its hash. The roster itself does not come through the store, whose messages cannot be forged, so ranks
    /// check it.
    pub len: u64,
    pub hash: [u8; blake3::OUT_LEN],
}

impl Published {
    /// The description of a roster that is sent as these bytes.
    fn new(roster: &[u8], chunk_bytes: u64) -> Self {
        Self { chunk_bytes, len: roster.len() as u64, hash: *blake3::hash(roster).as_bytes() }
    }
}

/// The result that rank 0 computes from the cards of all ranks.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Meeting {
    /// All ranks fit together. They use the smallest of their chunks.
    Fits { chunk_bytes: u64, roster: Roster },
    /// All ranks fit together, and they spread the roster among themselves.
    Spreads(Published),
    /// Their settings differ.
    Differs,
}

/// Collects the encoded values of all ranks at rank 0, and returns on every rank the result that rank 0 computes from them. A world of
/// one rank needs no store.
pub(super) fn decide<T: Serialize, R: Serialize + DeserializeOwned>(
    store: Option<&Store>,
    key: &str,
    (rank, ranks): (Rank, usize),
    value: &T,
    deadline: Instant,
    make: impl FnOnce(Vec<Vec<u8>>) -> std::result::Result<R, Failure>,
) -> Result<R> {
    let Some(store) = store else {
        let bytes = postcard::to_allocvec(value).unwrap_or_default();
        return make(vec![bytes]).map_err(Error::Failed);
    };
    let bytes = postcard::to_allocvec(value).map_err(|error| Error::Rendezvous {
        store: store.name().to_owned(),
        problem: format!("encoding {key}: {error}"),
    })?;
    rendezvous::decide(store, key, (rank, ranks), &bytes, deadline, make)
}

/// The values of all ranks.
pub(super) fn decode_all<T: DeserializeOwned>(all: &[Vec<u8>]) -> std::result::Result<Vec<T>, Failure> {
    let read = |(rank, bytes): (Rank, &Vec<u8>)| {
        let why = |error| format!("the value that it published cannot be decoded: {error}");
        postcard::from_bytes(bytes).map_err(|error| Failure::Joining { rank, why: why(error) })
    };
    all.iter().enumerate().map(read).collect()
}

/// The knowledge of a rank after the exchange of cards.
pub(super) enum Known {
    /// All ranks, and the bytes of a chunk.
    All(Arc<Roster>, usize),
    /// The roster that ranks spread; only rank 0 has it.
    Spread(Published, Option<Arc<Roster>>),
}

/// The card of a rank that has taken part in the exchange.
pub(super) fn fetch(store: &Store, rank: Rank, deadline: Instant) -> Result<Entry> {
    let broken = |problem: String| Error::Rendezvous { store: store.name().to_owned(), problem };
    let bytes = rendezvous::entry_of(store, KEY, rank, deadline)?;
    let bytes = bytes.ok_or_else(|| broken(format!("the card of rank {rank} is gone")))?;
    let card: JoinInfo = postcard::from_bytes(&bytes)
        .map_err(|error| broken(format!("the card of rank {rank} cannot be decoded: {error}")))?;
    Ok(card.entry)
}

/// The key of the exchange of cards.
const KEY: &str = "join";

/// Exchanges the cards of all ranks. If there are more than `listed` ranks, they must spread the roster afterwards.
pub(super) fn exchange(
    store: Option<&Store>,
    (rank, ranks): (Rank, usize),
    (card, settings): (&JoinInfo, &Alike),
    listed: usize,
    deadline: Instant,
) -> Result<Known> {
    let mut kept = None;
    let make = |all: Vec<Vec<u8>>| {
        let (meeting, roster) = meet(&all, listed)?;
        kept = roster;
        Ok(meeting)
    };
    match decide(store, KEY, (rank, ranks), card, deadline, make)? {
        Meeting::Spreads(published) => Ok(Known::Spread(published, kept)),
        Meeting::Fits { chunk_bytes, roster } => {
            let roster = roster.checked(ranks).map_err(|problem| Error::Rendezvous {
                store: store.map_or_else(String::new, |store| store.name().to_owned()),
                problem: format!("the roster cannot be used: {problem}"),
            })?;
            Ok(Known::All(Arc::new(roster), usize::try_from(chunk_bytes).unwrap_or(usize::MAX)))
        }
        Meeting::Differs => {
            let () = decide(store, "settings", (rank, ranks), settings, deadline, |all| compare(&all))?;
            let problem = "the ranks' settings have different hashes, and are alike".to_owned();
            Err(Error::Failed(Failure::Settings { name: "settings".to_owned(), problem }))
        }
    }
}

/// The answer of rank 0 to the cards of all ranks, and the roster if there are more than `listed` ranks.
fn meet(all: &[Vec<u8>], listed: usize) -> std::result::Result<(Meeting, Option<Arc<Roster>>), Failure> {
    match meeting(all)? {
        Meeting::Fits { chunk_bytes, roster } if all.len() > listed.max(1) => {
            let published = Published::new(&roster.bytes(), chunk_bytes);
            Ok((Meeting::Spreads(published), Some(Arc::new(roster))))
        }
        meeting => Ok((meeting, None)),
    }
}

/// Computes rank 0's result from the cards of all ranks.
fn meeting(all: &[Vec<u8>]) -> std::result::Result<Meeting, Failure> {
    // Cards of other versions may have other fields after the version.
    let version = |bytes: &Vec<u8>| postcard::take_from_bytes::<u32>(bytes).map_or(0, |(wire, _)| wire);
    let versions: Vec<_> = all.iter().map(|bytes| version(bytes).to_string()).collect();
    alike("the version of the protocol", &versions, "")?;
    let cards: Vec<JoinInfo> = decode_all(all)?;
    let providers: Vec<_> = cards.iter().map(|card| card.provider.clone()).collect();
    alike(PROVIDER, &providers, PROVIDER_ADVICE)?;
    if cards.iter().any(|card| card.settings != cards[0].settings) {
        return Ok(Meeting::Differs);
    }
    if let Some(JoinInfo { provider, one_host: true, .. }) = cards.first() {
        let hosts: Vec<_> =
            cards.iter().map(|card| (card.entry.host.name.as_str(), card.entry.host.id)).collect();
        if let Some(problem) = Host::apart(&hosts) {
            return Err(cannot_reach(provider, &problem));
        }
    }
    let chunk_bytes = cards.iter().map(|card| card.chunk_bytes).min().unwrap_or(0);
    let entries: Vec<_> = cards.into_iter().map(|card| card.entry).collect();
    Ok(Meeting::Fits { chunk_bytes, roster: Roster::of(&entries) })
}

/// The failure if the settings of some ranks differ: the first setting that differs, and which ranks have which value.
fn compare(all: &[Vec<u8>]) -> std::result::Result<(), Failure> {
    let all: Vec<Alike> = decode_all(all)?;
    let mut wanted = all.first().into_iter().flatten();
    wanted.try_for_each(|(wanted, _)| {
        let of = |settings: &Alike| {
            let setting = settings.iter().find(|(name, _)| name == wanted);
            setting.map_or_else(|| "unknown".to_owned(), |(_, value)| value.clone())
        };
        alike(wanted, &all.iter().map(of).collect::<Vec<_>>(), "")
    })
}
