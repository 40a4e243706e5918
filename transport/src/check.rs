//! Checks a put before it begins, in one place, so that all transports refuse the same puts.

use crate::{Error, Limits, Put};

/// The put's length, if a transport with these limits and this many known peers may begin it.
pub(crate) fn put(put: &Put<'_>, limits: &Limits, peers: usize) -> Result<usize, Error> {
    let bad = |reason: String| Err(Error::BadPut { reason });
    let count = put.sources.len();
    if count == 0 || count > limits.max_sources {
        return bad(format!("it has {count} sources; 1 to {} are wanted", limits.max_sources));
    }
    let len = put.len();
    if len == 0 || len > limits.max_put {
        return bad(format!("it has {len} bytes; 1 to {} are wanted", limits.max_put));
    }
    if usize::try_from(put.to.0).map_or(true, |to| to >= peers) {
        return bad(format!("peer {} is unknown; {peers} peers are connected", put.to.0));
    }
    let end = u64::try_from(len).ok().and_then(|len| put.target.offset.checked_add(len));
    if end.is_none_or(|end| end > put.target.region.len) {
        return Err(Error::Bounds {
            offset: usize::try_from(put.target.offset).unwrap_or(usize::MAX),
            len,
            region: usize::try_from(put.target.region.len).unwrap_or(usize::MAX),
        });
    }
    if limits.local_registration
        && len > limits.max_inject
        && put.sources.iter().any(|source| !source.is_empty() && source.region().remote().is_none())
    {
        return bad(format!(
            "provider {} sends {len} bytes only from registered memory, and a source is not registered",
            limits.provider
        ));
    }
    Ok(len)
}
