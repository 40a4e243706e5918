//! Chooses the transport by which ranks reach each other: memory that they share within a host, libfabric between hosts. Ranks tell
//! each other at the store where they run before they open libfabric. Those that say they are on one host try it: machines that were
//! restored from one snapshot say so too.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Instant,
};

use serde::{Deserialize, Serialize};
use unisono_schedule::Rank;
use unisono_transport::{
    Activity, Address, Transport,
    mux::{Mux, fabric_of},
    ofi::{Ofi, Options},
    shm::{self, PROVIDER as SHM},
};

use super::{
    address,
    alike::{PROVIDER, PROVIDER_ADVICE, alike},
};
use crate::{
    config::Config,
    error::{Error, Failure, Result, list},
    group::ProcessGroup,
    rendezvous::{Store, exchange_values},
    runtime::host::Host,
};

/// What every rank publishes before it opens libfabric.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Reach {
    host: Host,
    /// The provider that the rank asks for.
    provider: Option<String>,
    /// Why the rank cannot share memory, if it would.
    refused: Option<String>,
    /// Where its shared memory is reached; empty if it has none.
    address: Vec<u8>,
}

/// The first rank whose shared memory a rank reaches, itself at the latest, among those that say they are on its host; or why it may
/// reach none.
type First = std::result::Result<Rank, String>;

impl ProcessGroup {
    /// An endpoint of what `options.provider` names, for programs that measure what lies below a group: `shm`, a provider of libfabric,
    /// or `shm,` and a provider, which are memory that ranks share within a host and libfabric between hosts. Without a name it is
    /// libfabric's best.
    ///
    /// ```
    /// # use unisono::{Config, ProcessGroup};
    /// # fn main() -> unisono::Result<()> {
    /// let config = Config { provider: Some("shm".to_owned()), ..Config::default() };
    /// let endpoint = ProcessGroup::open_transport(&ProcessGroup::transport_options(&config))?;
    /// assert_eq!(endpoint.limits().provider, "shm");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Transport`] if it cannot be opened; [`Error::Failed`] if there is no shared memory beside a provider.
    pub fn open_transport(options: &Options) -> Result<Box<dyn Transport>> {
        let named = options.provider.as_deref();
        if named == Some(SHM) {
            return Ok(Box::new(shm::Endpoint::open()?));
        }
        let Some(provider) = named.and_then(fabric_of) else {
            return Ok(Box::new(Ofi::open(options)?));
        };
        let host = Host::here();
        let shared = shared_memory(&host).map_err(|why| cannot_reach(&format!("{SHM},{provider}"), &why))?;
        let fabric = Ofi::open(&Options { provider: Some(provider.to_owned()), ..options.clone() })?;
        Ok(beside(Some((host.scope(&[]), shared)), fabric))
    }
}

/// By what the ranks of a group over this provider reach each other, in words: the [provider](unisono_transport::Limits::provider) is
/// `shm`, one of libfabric, or `shm,` and one of libfabric.
///
/// ```
/// use unisono::group::describe_transport;
///
/// assert_eq!(describe_transport("shm,net"), "ranks of one host share memory; libfabric's net reaches the others");
/// ```
#[must_use]
pub fn describe_transport(provider: &str) -> String {
    match (provider, fabric_of(provider)) {
        (SHM, _) => "all ranks share memory; libfabric is not opened".to_owned(),
        (_, Some(fabric)) => {
            format!("ranks of one host share memory; libfabric's {fabric} reaches the others")
        }
        (fabric, None) => format!("libfabric's {fabric} reaches all ranks"),
    }
}

/// An endpoint of shared memory beside a fabric, or why there is none.
fn shared_memory(host: &Host) -> std::result::Result<shm::Endpoint, String> {
    host.unknown().map_or(Ok(()), Err)?;
    shm::Endpoint::open().map_err(|error| error.to_string())
}

/// Shared memory, with what names those who share it, and a fabric.
fn beside(shared: Option<(u128, shm::Endpoint)>, fabric: Ofi) -> Box<dyn Transport> {
    let (scope, endpoint) = shared.unzip();
    Box::new(Mux::new(scope.unwrap_or_default(), endpoint, Box::new(fabric)))
}

/// Opens the transport by which all ranks reach each other.
pub(super) fn open(
    config: &Config,
    store: Option<&Store>,
    activity: &Arc<Activity>,
    deadline: Instant,
) -> Result<Box<dyn Transport>> {
    let asked = config.provider.as_deref();
    let wants_shm = asked.is_none_or(|asked| asked == SHM || fabric_of(asked).is_some());
    // Before files are opened: where there may be no more, it cannot be read.
    let host = Host::here();
    let (endpoint, refused) = match wants_shm.then(|| shared_memory(&host)) {
        Some(Ok(endpoint)) => (Some(endpoint), None),
        refused => (None, refused.and_then(std::result::Result::err)),
    };
    let address = endpoint.as_ref().map_or_else(Vec::new, |endpoint| endpoint.address().0.clone());
    let mine = Reach { host, provider: config.provider.clone(), refused, address };
    let rank = config.rank;
    let exchanged = match store {
        Some(store) => exchange_values(store, "reach", (rank, config.ranks), &mine, deadline)?,
        None => vec![mine],
    };
    let asking = |reach: &Reach| reach.provider.clone().unwrap_or_else(|| "auto".to_owned());
    alike(PROVIDER, &exchanged.iter().map(asking).collect::<Vec<_>>(), PROVIDER_ADVICE)?;
    if !wants_shm {
        let fabric = fabric(config, asked, store, activity, deadline)?;
        tracing::info!(rank, "{}", describe_transport(&fabric.limits().provider));
        return Ok(Box::new(fabric));
    }
    let firsts = firsts(store, rank, &exchanged, deadline)?;
    let (endpoint, why) = match (endpoint, apart(&exchanged, &firsts)) {
        (Some(endpoint), None) => {
            tracing::info!(rank, "{}", describe_transport(SHM));
            return Ok(Box::new(endpoint));
        }
        (endpoint, apart) => (endpoint, apart.unwrap_or_default()),
    };
    if asked == Some(SHM) {
        return Err(cannot_reach(SHM, &why));
    }
    let provider = asked.and_then(fabric_of);
    let fabric = fabric(config, provider, store, activity, deadline)?;
    let scopes = scopes(&exchanged, &firsts);
    let mut seen = HashSet::new();
    if scopes.iter().flatten().all(|scope| seen.insert(scope)) {
        tracing::info!(rank, why, "{}", describe_transport(&fabric.limits().provider));
        return Ok(Box::new(fabric));
    }
    let scope = scopes.get(rank).copied().flatten();
    let with = |&other: &Rank| other != rank && scope.is_some() && scopes[other] == scope;
    let with = list(&(0..scopes.len()).filter(with).collect::<Vec<_>>());
    let both = beside(scope.zip(endpoint), fabric);
    tracing::info!(rank, with, why, "{}", describe_transport(&both.limits().provider));
    Ok(both)
}

/// Opens libfabric.
fn fabric(
    config: &Config,
    provider: Option<&str>,
    store: Option<&Store>,
    activity: &Arc<Activity>,
    deadline: Instant,
) -> Result<Ofi> {
    let asked = ProcessGroup::transport_options(config);
    let towards = match store {
        Some(store) => address::towards(config, store, asked.towards, deadline)?,
        None => asked.towards,
    };
    let provider = provider.map(str::to_owned);
    let options = Options { deadline: Some(deadline), towards, provider, ..asked };
    Ok(Ofi::open_watched(&options, activity)?)
}

/// For every rank, the first that it reaches. Ranks try it only where several say they are on one host.
fn firsts(store: Option<&Store>, rank: Rank, all: &[Reach], deadline: Instant) -> Result<Vec<First>> {
    let mut seen = HashSet::new();
    let alone = claims(all).into_iter().flatten().all(|scope| seen.insert(scope));
    let Some(store) = store.filter(|_| !alone) else { return Ok((0..all.len()).map(Ok).collect()) };
    exchange_values(store, "first", (rank, all.len()), &first(rank, all), deadline)
}

/// The first rank that this one reaches.
fn first(rank: Rank, all: &[Reach]) -> First {
    let claims = claims(all);
    let with = |&other: &Rank| claims[other].is_some() && claims[other] == claims[rank];
    let mut names = HashSet::new();
    if !(0..all.len()).filter(with).all(|other| names.insert(&all[other].address)) {
        return Err(
            "ranks have drawn the same random name, as on machines that were restored from one snapshot"
                .into(),
        );
    }
    for other in (0..rank).filter(with) {
        let address = Address(all[other].address.clone());
        if shm::Endpoint::is_near(&address).map_err(|error| error.to_string())? {
            return Ok(other);
        }
    }
    Ok(rank)
}

/// For every rank, what those have in common who say that they share memory with it; nothing if it has none.
fn claims(all: &[Reach]) -> Vec<Option<u128>> {
    all.iter().map(|reach| reach.refused.is_none().then(|| reach.host.scope(&[]))).collect()
}

/// The same for those who do share it.
fn scopes(all: &[Reach], firsts: &[First]) -> Vec<Option<u128>> {
    let scope = |(reach, first): (&Reach, &First)| {
        let first = all.get(*first.as_ref().ok()?)?;
        reach.refused.is_none().then(|| reach.host.scope(&first.address))
    };
    all.iter().zip(firsts).map(scope).collect()
}

/// The error if ranks must use this provider, which cannot reach all of them because of the problem.
pub(super) fn cannot_reach(provider: &str, problem: &str) -> Error {
    let problem = format!("{problem}; or let ranks meet by tcp or verbs, which reach all of them");
    Error::Failed(Failure::Settings { name: format!("UNISONO_PROVIDER={provider}"), problem })
}

/// Why these ranks cannot share memory, if they cannot.
fn apart(all: &[Reach], firsts: &[First]) -> Option<String> {
    let refused = |(rank, (reach, first)): (Rank, (&Reach, &First))| {
        let why = reach.refused.as_ref().or_else(|| first.as_ref().err())?;
        Some(format!("rank {rank} on {} has no shared memory: {why}", reach.host.name))
    };
    let hosts: Vec<&Host> = all.iter().map(|reach| &reach.host).collect();
    let told = all.iter().zip(firsts).enumerate().find_map(refused).or_else(|| Host::apart(&hosts));
    told.or_else(|| unreached(all, firsts))
}

/// Why ranks that say they are on one host are not, if they are not.
fn unreached(all: &[Reach], firsts: &[First]) -> Option<String> {
    let mut camps: BTreeMap<Rank, Vec<Rank>> = BTreeMap::new();
    for (rank, first) in firsts.iter().enumerate() {
        camps.entry(*first.as_ref().ok()?).or_default().push(rank);
    }
    let told = |(first, ranks): (&Rank, &Vec<Rank>)| {
        format!("ranks {} on {}", list(ranks), all.get(*first).map_or("", |reach| &reach.host.name))
    };
    (camps.len() > 1).then(|| {
        format!(
            "boot_id says that all ranks are on one host, but they cannot connect there, as on machines that were restored from one \
             snapshot: {}",
            camps.iter().map(told).collect::<Vec<_>>().join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranks of one host, as they say, with endpoints of their own.
    fn ranks(count: usize) -> (Vec<shm::Endpoint>, Vec<Reach>) {
        let open = |_| shm::Endpoint::open().unwrap();
        let endpoints: Vec<_> = (0..count).map(open).collect();
        let reach = |endpoint: &shm::Endpoint| Reach {
            host: Host { name: "alpha".into(), ..Host::here() },
            provider: None,
            refused: None,
            address: endpoint.address().0.clone(),
        };
        let all = endpoints.iter().map(reach).collect();
        (endpoints, all)
    }

    fn firsts(all: &[Reach]) -> Vec<First> {
        (0..all.len()).map(|rank| first(rank, all)).collect()
    }

    #[test]
    fn ranks_of_one_host_reach_the_first_of_them_that_has_shared_memory() {
        let (_endpoints, mut all) = ranks(4);
        assert_eq!(firsts(&all), [0, 0, 0, 0].map(Ok));
        assert_eq!(apart(&all, &firsts(&all)), None);
        all[0].refused = Some("there is none".into());
        let found = firsts(&all);
        assert_eq!(found, [0, 1, 1, 1].map(Ok));
        let scopes = scopes(&all, &found);
        assert!(scopes[0].is_none() && scopes[1].is_some() && scopes[1..].iter().all(|it| *it == scopes[1]));
        assert_eq!(apart(&all, &found).unwrap(), "rank 0 on alpha has no shared memory: there is none");
    }

    /// A closed endpoint is reached as little as one of another machine.
    #[test]
    fn ranks_that_only_say_they_are_on_one_host_share_no_memory() {
        let (mut endpoints, all) = ranks(4);
        endpoints.drain(..2);
        let mut found = firsts(&all);
        assert_eq!(found[2..], [2, 2].map(Ok));
        found[1] = Ok(0);
        let scopes = scopes(&all, &found);
        assert!(scopes.iter().all(Option::is_some) && scopes[0] == scopes[1] && scopes[2] == scopes[3]);
        assert_ne!(scopes[0], scopes[2]);
        let told = apart(&all, &found).unwrap();
        assert!(told.ends_with("snapshot: ranks 0, 1 on alpha, ranks 2, 3 on alpha"), "{told}");
        found[3] = Err("it may not connect".into());
        assert_eq!(super::scopes(&all, &found)[3], None);
        assert_eq!(apart(&all, &found).unwrap(), "rank 3 on alpha has no shared memory: it may not connect");
    }

    #[test]
    fn ranks_that_drew_the_same_name_share_no_memory() {
        let (_endpoints, mut all) = ranks(3);
        all[2].address = all[0].address.clone();
        for first in firsts(&all) {
            assert!(first.unwrap_err().contains("the same random name"));
        }
        all[2].host.network += 1;
        assert_eq!(firsts(&all), [0, 0, 2].map(Ok), "they do not say they are on one host");
    }

    #[test]
    fn memory_is_shared_with_nobody_where_the_host_is_unknown() {
        assert!(shared_memory(&Host::here()).is_ok());
        let unknown = Host { network: 0, ..Host::here() };
        assert!(shared_memory(&unknown).unwrap_err().contains("/proc/self/ns"));
    }
}
