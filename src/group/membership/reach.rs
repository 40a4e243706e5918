//! Chooses the transport of the world: shared memory if all ranks can share it, else libfabric. Ranks tell each other at the store
//! where they run before they open anything else.

use std::{sync::Arc, time::Instant};

use serde::{Deserialize, Serialize};
use unisono_schedule::Rank;
use unisono_transport::{
    Activity, Transport,
    ofi::{Ofi, Options},
    shm,
};

use super::{
    address,
    alike::{PROVIDER, PROVIDER_ADVICE, alike},
};
use crate::{
    config::Config,
    error::{Error, Failure, Result},
    group::ProcessGroup,
    rendezvous::{Store, exchange_values},
    runtime::host::Host,
};

/// The name by which `UNISONO_PROVIDER` asks for shared memory.
const SHM: &str = "shm";

/// What every rank publishes before it opens libfabric.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Reach {
    host: Host,
    /// The provider that the rank asks for.
    provider: Option<String>,
    /// Why the rank has no endpoint of shared memory, if it wants one.
    refused: Option<String>,
}

/// Opens the transport by which all ranks reach each other.
pub(super) fn open(
    config: &Config,
    store: Option<&Store>,
    activity: &Arc<Activity>,
    deadline: Instant,
) -> Result<Box<dyn Transport>> {
    let asked = config.provider.as_deref();
    // Before files are opened: where there may be no more, it cannot be read.
    let host = Host::here();
    let endpoint = asked.is_none_or(|provider| provider == SHM).then(shm::Endpoint::open);
    let refused = endpoint.as_ref().and_then(|opened| opened.as_ref().err()).map(ToString::to_string);
    let mine = Reach { host, provider: config.provider.clone(), refused };
    let all = match store {
        Some(store) => exchange_values(store, "reach", (config.rank, config.ranks), &mine, deadline)?,
        None => vec![mine],
    };
    let asking = |reach: &Reach| reach.provider.clone().unwrap_or_else(|| "auto".to_owned());
    alike(PROVIDER, &all.iter().map(asking).collect::<Vec<_>>(), PROVIDER_ADVICE)?;
    let why = match (endpoint, apart(&all)) {
        (Some(Ok(endpoint)), None) => {
            tracing::info!(rank = config.rank, "all ranks share memory; no provider of libfabric is opened");
            return Ok(Box::new(endpoint));
        }
        (Some(_), Some(problem)) if asked.is_some() => return Err(cannot_reach(SHM, &problem)),
        (Some(_), apart) => apart.unwrap_or_default(),
        (None, _) => "it is asked for".to_owned(),
    };
    tracing::info!(rank = config.rank, why, "libfabric is used");
    fabric(config, store, activity, deadline)
}

/// Opens libfabric.
fn fabric(
    config: &Config,
    store: Option<&Store>,
    activity: &Arc<Activity>,
    deadline: Instant,
) -> Result<Box<dyn Transport>> {
    let asked = ProcessGroup::transport_options(config);
    let towards = match store {
        Some(store) => address::towards(config, store, asked.towards, deadline)?,
        None => asked.towards,
    };
    let options = Options { deadline: Some(deadline), towards, ..asked };
    Ok(Box::new(Ofi::open_watched(&options, activity)?))
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
