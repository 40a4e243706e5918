//! The bootstrap exchange at the store: each rank publishes its [`JoinInfo`], its address and settings. Rank 0 checks that the settings agree,
//! and makes the roster of all addresses.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use unisono_engine::VERSION;
use unisono_schedule::Rank;

use crate::{
    error::{Error, Failure, Result, clean, rank_list},
    rendezvous::{self, Store},
    runtime::{
        host::Host,
        roster::{Entry, Roster},
    },
};

/// The settings that must be the same on all ranks: names and values.
pub(super) type AgreedSettings = Vec<(String, String)>;

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
        settings: &AgreedSettings,
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

/// What rank 0 publishes at the store about a roster that ranks propagate among themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RosterDigest {
    /// The bytes of a chunk, the smallest of all ranks'.
    pub chunk_bytes: u64,
    /// The length of the roster, and its hash. The roster itself does not come through the store, whose messages cannot be forged, so ranks
    /// check it.
    pub len: u64,
    pub hash: [u8; blake3::OUT_LEN],
}

/// What rank 0 decides about the join info of all ranks.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Decision {
    /// All ranks fit together. They use the smallest of their chunks.
    Fits { chunk_bytes: u64, roster: Roster },
    /// All ranks fit together, and they propagate the roster among themselves.
    Propagates(RosterDigest),
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
    let bytes = postcard::to_allocvec(value);
    let bytes = bytes.map_err(|error| unusable(store, format!("encoding {key}: {error}")))?;
    rendezvous::decide(store, key, (rank, ranks), &bytes, deadline, make)
}

/// The error if what a store has cannot be used.
pub(super) fn unusable(store: &Store, problem: impl Into<String>) -> Error {
    Error::Rendezvous { store: store.name().to_owned(), problem: problem.into() }
}

/// The values of all ranks.
pub(super) fn decode_all<T: DeserializeOwned>(all: &[Vec<u8>]) -> std::result::Result<Vec<T>, Failure> {
    let read = |(rank, bytes): (Rank, &Vec<u8>)| {
        let why = |error| format!("the value that it published cannot be decoded: {error}");
        postcard::from_bytes(bytes).map_err(|error| Failure::Joining { rank, why: why(error) })
    };
    all.iter().enumerate().map(read).collect()
}

/// The roster entry in the join info of a rank that has taken part in the exchange.
pub(super) fn fetch_entry(store: &Store, rank: Rank, deadline: Instant) -> Result<Entry> {
    let broken = |problem: String| unusable(store, format!("the join info of rank {rank} {problem}"));
    let bytes = rendezvous::entry_of(store, KEY, rank, deadline)?;
    let bytes = bytes.ok_or_else(|| broken("is gone".to_owned()))?;
    let info = postcard::from_bytes::<JoinInfo>(&bytes);
    Ok(info.map_err(|error| broken(format!("cannot be decoded: {error}")))?.entry)
}

/// The store's key of the exchange.
const KEY: &str = "join";

/// Exchanges the join info of all ranks. If there are more than `listed` ranks, they must propagate the roster afterwards, which only rank 0
/// gets here.
pub(super) fn exchange(
    store: Option<&Store>,
    (rank, ranks): (Rank, usize),
    (info, settings): (&JoinInfo, &AgreedSettings),
    listed: usize,
    deadline: Instant,
) -> Result<(Decision, Option<Arc<Roster>>)> {
    let mut kept = None;
    let make = |all: Vec<Vec<u8>>| {
        let (decision, roster) = compare(&all, listed)?;
        kept = roster;
        Ok(decision)
    };
    match decide(store, KEY, (rank, ranks), info, deadline, make)? {
        propagates @ Decision::Propagates(_) => Ok((propagates, kept)),
        Decision::Fits { chunk_bytes, roster } => {
            let roster = roster.checked(ranks).map_err(|problem| Error::Rendezvous {
                store: store.map_or_else(String::new, |store| store.name().to_owned()),
                problem: format!("the roster cannot be used: {problem}"),
            })?;
            Ok((Decision::Fits { chunk_bytes, roster }, None))
        }
        Decision::Differs => {
            let () =
                decide(store, "settings", (rank, ranks), settings, deadline, |all| compare_settings(&all))?;
            let problem = "the ranks' settings have different hashes, and are equal".to_owned();
            Err(Error::Failed(Failure::Settings { name: "settings".to_owned(), problem }))
        }
    }
}

/// Compares the join info of all ranks. Returns the decision of rank 0, and the roster if there are more than `listed` ranks.
fn compare(all: &[Vec<u8>], listed: usize) -> std::result::Result<(Decision, Option<Arc<Roster>>), Failure> {
    // The join info of other versions may have other fields after the version.
    let version = |bytes: &Vec<u8>| postcard::take_from_bytes::<u32>(bytes).map_or(0, |(wire, _)| wire);
    let versions: Vec<_> = all.iter().map(|bytes| version(bytes).to_string()).collect();
    check_agreement("the version of the protocol", &versions, "")?;
    let infos: Vec<JoinInfo> = decode_all(all)?;
    let providers: Vec<_> = infos.iter().map(|info| info.provider.clone()).collect();
    check_agreement(PROVIDER, &providers, PROVIDER_ADVICE)?;
    if infos.iter().any(|info| info.settings != infos[0].settings) {
        return Ok((Decision::Differs, None));
    }
    if let Some(JoinInfo { provider, one_host: true, .. }) = infos.first() {
        let hosts: Vec<_> =
            infos.iter().map(|info| (info.entry.host.name.as_str(), info.entry.host.id)).collect();
        if let Some(problem) = Host::cannot_share_memory(&hosts) {
            return Err(cannot_reach(provider, &problem));
        }
    }
    let chunk_bytes = infos.iter().map(|info| info.chunk_bytes).min().unwrap_or(0);
    let entries: Vec<_> = infos.into_iter().map(|info| info.entry).collect();
    let roster = Roster::of(&entries);
    if all.len() <= listed.max(1) {
        return Ok((Decision::Fits { chunk_bytes, roster }, None));
    }
    let bytes = roster.bytes();
    let (len, hash) = (bytes.len() as u64, *blake3::hash(&bytes).as_bytes());
    Ok((Decision::Propagates(RosterDigest { chunk_bytes, len, hash }), Some(Arc::new(roster))))
}

/// The failure if the settings of some ranks differ: the first setting that differs, and which ranks have which value.
fn compare_settings(all: &[Vec<u8>]) -> std::result::Result<(), Failure> {
    let all: Vec<AgreedSettings> = decode_all(all)?;
    let mut wanted = all.first().into_iter().flatten();
    wanted.try_for_each(|(wanted, _)| {
        let of = |settings: &AgreedSettings| {
            let setting = settings.iter().find(|(name, _)| name == wanted);
            setting.map_or_else(|| "unknown".to_owned(), |(_, value)| value.clone())
        };
        check_agreement(wanted, &all.iter().map(of).collect::<Vec<_>>(), "")
    })
}

/// The provider's name in the error, and the error's advice.
pub(super) const PROVIDER: &str = "the provider (UNISONO_PROVIDER)";
pub(super) const PROVIDER_ADVICE: &str =
    "; set it to one that all hosts have: `unisono doctor` says on each what the others lack there";

/// The most characters of a rank's setting in the error.
const SHOWN: usize = 200;

/// The failure if the ranks' settings (in the order of ranks) differ. It says which ranks have which.
pub(super) fn check_agreement(
    name: &str,
    settings: &[String],
    advice: &str,
) -> std::result::Result<(), Failure> {
    let mut values: BTreeMap<String, Vec<Rank>> = BTreeMap::new();
    for (rank, setting) in settings.iter().enumerate() {
        values.entry(clean(setting, SHOWN)).or_default().push(rank);
    }
    if values.len() <= 1 {
        return Ok(());
    }
    let values: Vec<_> =
        values.iter().map(|(what, ranks)| format!("{what} on {}", rank_list(ranks))).collect();
    let problem = format!("must be alike on all ranks, and is {}{advice}", values.join("; "));
    Err(Failure::Settings { name: name.to_owned(), problem })
}

/// The failure if the ranks must use this provider, and it cannot reach all of them because of `problem`.
pub(super) fn cannot_reach(provider: &str, problem: &str) -> Failure {
    let problem = format!("{problem}; or let ranks meet by tcp or verbs, which reach all of them");
    Failure::Settings { name: format!("UNISONO_PROVIDER={provider}"), problem }
}
