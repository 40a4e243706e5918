//! Checks a put before it begins, in one place, so that all transports refuse the same puts.

use crate::{Error, Limits, Put, Target};

impl Put<'_> {
    /// The put's length, and the address of its target as the peer's key counts, if a transport with these limits and this many known
    /// peers may begin it.
    ///
    /// # Errors
    /// [`Error::BadPut`] and [`Error::Bounds`], as [`Transport::put`](crate::Transport::put) says.
    pub fn check(&self, limits: &Limits, peers: usize) -> Result<(usize, u64), Error> {
        let bad = |reason| Err(Error::BadPut { reason });
        let count = self.sources.len();
        if count == 0 || count > limits.max_sources {
            return bad(format!("it has {count} sources; 1 to {} are wanted", limits.max_sources));
        }
        let len = self.len();
        if len == 0 || len > limits.max_put {
            return bad(format!("it has {len} bytes; 1 to {} are wanted", limits.max_put));
        }
        if self.to.0 as usize >= peers {
            return bad(format!("peer {} is unknown; {peers} peers are connected", self.to.0));
        }
        let Target { region, offset } = self.target;
        if offset.checked_add(len as u64).is_none_or(|end| end > region.len) {
            let [offset, region] = [offset, region.len].map(|it| usize::try_from(it).unwrap_or(usize::MAX));
            return Err(Error::Bounds { offset, len, region });
        }
        let Some(address) = region.base.checked_add(offset) else {
            return bad(format!("{:?} is beyond the end of memory", self.target));
        };
        if limits.local_registration
            && len > limits.max_inject
            && self.sources.iter().any(|source| !source.is_empty() && source.region().remote().is_none())
        {
            return bad(format!(
                "provider {} sends {len} bytes only from registered memory, and a source is not registered",
                limits.provider
            ));
        }
        Ok((len, address))
    }
}
