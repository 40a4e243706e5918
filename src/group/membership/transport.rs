//! Chooses and opens the transport by which ranks reach each other: memory that they share within a host, libfabric between hosts. Ranks
//! [discover](discovery) which of them share memory before they open libfabric.

use std::{sync::Arc, time::Instant};

use unisono_transport::{
    Activity, Transport,
    mux::{Mux, fabric_of},
    ofi::{Ofi, Options},
    shm::{self, PROVIDER as SHM},
};

use super::settings::transport_options;
use super::{
    discovery::{self, Connectivity, SharedMemoryInfo},
    exchange::cannot_reach,
};
use crate::{
    config::Config,
    error::{Error, Result},
    rendezvous::Store,
    runtime::host::Host,
};

/// Opens an endpoint of the transport that `options.provider` names, for programs that measure the transport below a group: `shm`, a
/// provider of libfabric, or `shm,` and a provider, which are memory that ranks share within a host and libfabric between hosts. Without a
/// name it is libfabric's best.
///
/// ```
/// # use unisono::{Config, group::{open_transport, transport_options}};
/// # fn main() -> unisono::Result<()> {
/// let config = Config { provider: Some("shm".to_owned()), ..Config::default() };
/// let endpoint = open_transport(&transport_options(&config))?;
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
    let shared = shared_memory(&host, true)
        .map_err(|why| Error::Failed(cannot_reach(&format!("{SHM},{provider}"), &why)))?;
    let fabric = Ofi::open(&Options { provider: Some(provider.to_owned()), ..options.clone() })?;
    Ok(beside(Some((host.id.scope(&[]), shared)), fabric))
}

/// How the ranks of a group over this provider reach each other, in words: the [provider](unisono_transport::Limits::provider) is
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

/// An endpoint of shared memory to use beside a fabric, or why there is none.
fn shared_memory(host: &Host, peer_reads: bool) -> std::result::Result<shm::Endpoint, String> {
    host.unknown().map_or(Ok(()), Err)?;
    shm::Endpoint::open_with(peer_reads).map_err(|error| error.to_string())
}

/// Shared memory, with a number that names the ranks that share it, and a fabric.
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
    // This is read before other files are opened: if the limit on open files is reached, it cannot be read.
    let host = Host::here();
    let (endpoint, refused) = match wants_shm.then(|| shared_memory(&host, config.peer_reads)) {
        Some(Ok(endpoint)) => (Some(endpoint), None),
        refused => (None, refused.and_then(std::result::Result::err)),
    };
    let address = endpoint.as_ref().map_or_else(Vec::new, |endpoint| endpoint.address().0.clone());
    let mine = SharedMemoryInfo { host, provider: config.provider.clone(), refused, address };
    let rank = config.rank;
    let (connectivity, scope) = discovery::discover(store, (rank, config.ranks), &mine, deadline)?;
    let (shared, why) = match connectivity {
        Connectivity::SharedMemory => {
            crate::log::info!(rank, "{}", describe_transport(SHM));
            // A rank that cannot share memory has published that.
            return match endpoint {
                Some(endpoint) => Ok(Box::new(endpoint)),
                None => Ok(Box::new(shm::Endpoint::open_with(config.peer_reads)?)),
            };
        }
        Connectivity::Fabric { shared, why } => (shared, why),
    };
    let provider = if wants_shm { asked.and_then(fabric_of) } else { asked };
    let asked = transport_options(config);
    let towards = match store {
        Some(store) => discovery::interface_towards(config, store, asked.towards, deadline)?,
        None => asked.towards,
    };
    let provider = provider.map(str::to_owned);
    let options = Options { deadline: Some(deadline), towards, provider, ..asked };
    let fabric = Ofi::open_watched(&options, activity)?;
    let transport: Box<dyn Transport> = match shared {
        true => beside(scope.zip(endpoint), fabric),
        false => Box::new(fabric),
    };
    crate::log::info!(rank, why, "{}", describe_transport(&transport.limits().provider));
    Ok(transport)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_memory_is_shared_where_the_host_is_unknown() {
        assert!(shared_memory(&Host::here(), true).is_ok());
        let mut unknown = Host::here();
        unknown.id.network = 0;
        assert!(shared_memory(&unknown, true).unwrap_err().contains("/proc/self/ns"));
    }
}
