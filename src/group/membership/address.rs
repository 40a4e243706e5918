//! By which addresses ranks reach each other.

use std::{net::IpAddr, time::Instant};

use crate::{config::Config, error::Result, rendezvous::Store};

/// The address at which a rank that is not on the store's machine reaches the store; empty if no rank is elsewhere.
const STORE: &str = "reached/at";
/// How many ranks have come.
const COME: &str = "reached/ranks";

/// The host that this rank's interface is to lead to: `towards`, or, where the store's machine knows itself by a loopback
/// address, the address of that machine at which others reach it. For that it waits until one of another machine has come.
pub(crate) fn towards(
    config: &Config,
    store: &dyn Store,
    towards: Option<IpAddr>,
    deadline: Instant,
) -> Result<Option<IpAddr>> {
    let here = config.local_ranks == Some(config.ranks);
    let Some((_, at)) = store.reached().filter(|_| !here) else { return Ok(towards) };
    let elsewhere = match at {
        IpAddr::V4(at) => !at.is_loopback() && !at.is_link_local(),
        IpAddr::V6(at) => !at.is_loopback() && !at.is_unicast_link_local(),
    };
    if elsewhere {
        store.set(STORE, at.to_string().as_bytes())?;
    }
    let all = usize::try_from(store.add(COME, 1)?) == Ok(config.ranks);
    if all && store.get(STORE, Instant::now())?.is_none() {
        store.set(STORE, b"")?;
    }
    if towards.is_some() {
        return Ok(towards);
    }
    // Whoever has not come by then is named where cards are exchanged.
    let Some(told) = store.get(STORE, deadline)? else { return Ok(None) };
    Ok(String::from_utf8_lossy(&told).parse().ok())
}
