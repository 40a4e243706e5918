//! Chooses the host that this rank's network interface must lead to, so that ranks of other hosts can reach this rank.

use std::{net::IpAddr, time::Instant};

use crate::{config::Config, error::Result, rendezvous::Store};

/// Key of the address at which a rank of another host reaches the store; empty if all ranks are on the store's host.
const STORE: &str = "reached/at";
/// Key of the number of ranks that have arrived.
const ARRIVED: &str = "reached/ranks";

/// The host that this rank's interface must lead to: `towards`, or, if the store's host knows itself by a loopback address, the address at
/// which ranks of other hosts reach the store. In that case this waits until one of them has reached it.
pub(crate) fn towards(
    config: &Config,
    store: &Store,
    towards: Option<IpAddr>,
    deadline: Instant,
) -> Result<Option<IpAddr>> {
    let here = config.local_ranks == Some(config.ranks);
    if here {
        return Ok(towards);
    }
    let at = store.reached().1.ip();
    let reachable = match at {
        IpAddr::V4(at) => !at.is_loopback() && !at.is_link_local(),
        IpAddr::V6(at) => !at.is_loopback() && !at.is_unicast_link_local(),
    };
    if reachable {
        store.set(STORE, at.to_string().as_bytes())?;
    }
    let all = usize::try_from(store.add(ARRIVED, 1)?) == Ok(config.ranks);
    if all && store.get(STORE, Instant::now())?.is_none() {
        store.set(STORE, b"")?;
    }
    if towards.is_some() {
        return Ok(towards);
    }
    // If no rank sets it in time, the exchange that follows names the ranks that have not come.
    let Some(address) = store.get(STORE, deadline)? else { return Ok(None) };
    Ok(String::from_utf8_lossy(&address).parse().ok())
}
