//! Chooses the transport by which ranks reach each other: memory that they share within a host, libfabric between hosts. Ranks tell
//! each other at the store where they run before they open libfabric.

use std::{collections::HashSet, sync::Arc, time::Instant};

use serde::{Deserialize, Serialize};
use unisono_schedule::Rank;
use unisono_transport::{
    Activity, Transport,
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
}

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
        Ok(beside(Some((host.scope(), shared)), fabric))
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
    let scope = host.scope();
    let mine = Reach { host, provider: config.provider.clone(), refused };
    let all = match store {
        Some(store) => exchange_values(store, "reach", (config.rank, config.ranks), &mine, deadline)?,
        None => vec![mine],
    };
    let asking = |reach: &Reach| reach.provider.clone().unwrap_or_else(|| "auto".to_owned());
    alike(PROVIDER, &all.iter().map(asking).collect::<Vec<_>>(), PROVIDER_ADVICE)?;
    let rank = config.rank;
    if !wants_shm {
        let fabric = fabric(config, asked, store, activity, deadline)?;
        tracing::info!(rank, "{}", describe_transport(&fabric.limits().provider));
        return Ok(Box::new(fabric));
    }
    let (endpoint, why) = match (endpoint, apart(&all)) {
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
    let scopes = scopes(&all);
    let mut seen = HashSet::new();
    if scopes.iter().flatten().all(|scope| seen.insert(scope)) {
        tracing::info!(rank, why, "{}", describe_transport(&fabric.limits().provider));
        return Ok(Box::new(fabric));
    }
    let with = |&other: &Rank| other != rank && endpoint.is_some() && scopes[other] == Some(scope);
    let with = list(&(0..all.len()).filter(with).collect::<Vec<_>>());
    let both = beside(endpoint.map(|endpoint| (scope, endpoint)), fabric);
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

/// For every rank, what it shares memory with; nothing if it cannot share.
fn scopes(all: &[Reach]) -> Vec<Option<u128>> {
    all.iter().map(|reach| reach.refused.is_none().then(|| reach.host.scope())).collect()
}

/// The error if ranks must use this provider, which cannot reach all of them because of the problem.
pub(super) fn cannot_reach(provider: &str, problem: &str) -> Error {
    let problem = format!("{problem}; or let ranks meet by tcp or verbs, which reach all of them");
    Error::Failed(Failure::Settings { name: format!("UNISONO_PROVIDER={provider}"), problem })
}

/// Why these ranks cannot share memory, if they cannot.
fn apart(all: &[Reach]) -> Option<String> {
    let refused = |(rank, reach): (Rank, &Reach)| {
        let why = reach.refused.as_ref()?;
        Some(format!("rank {rank} on {} has no shared memory: {why}", reach.host.name))
    };
    let hosts: Vec<&Host> = all.iter().map(|reach| &reach.host).collect();
    all.iter().enumerate().find_map(refused).or_else(|| Host::apart(&hosts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_shared_with_nobody_where_the_host_is_unknown() {
        assert!(shared_memory(&Host::here()).is_ok());
        let unknown = Host { network: 0, ..Host::here() };
        assert!(shared_memory(&unknown).unwrap_err().contains("/proc/self/ns"));
    }
}
