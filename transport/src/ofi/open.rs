//! Opens the first provider that fits and passes its self-test.
#![allow(unsafe_code)]

use std::{
    collections::HashMap,
    mem::{ManuallyDrop, MaybeUninit},
    sync::Arc,
    time::{Duration, Instant},
};

use unisono_libfabric_sys as sys;

use super::{
    address, call,
    endpoint::{BATCH, Live, Ofi},
    handle::{Av, Cq, Domain, Endpoint},
    info::{self, Info},
    keepalive::KeepAlive,
    memory::Registrar,
    post::{MAX_SOURCES, Pool},
    provider,
    select::{self, Options},
    self_test, variables,
    version::library_version,
    workarounds::FirstPuts,
};
use crate::{Activity, Error, Limits, eventfd::EventFd};

/// The most puts larger than `max_inject` under way from one endpoint.
const DEPTH: usize = 512;

impl Ofi {
    /// Opens an endpoint of the first provider that fits the options and passes its self-test.
    ///
    /// # Errors
    /// [`Error::NoProvider`] with the reason for each candidate. If there is only one candidate, its own error:
    /// [`Error::SelfTest`] or the failed call.
    pub fn open(options: &Options) -> Result<Self, Error> {
        Self::open_watched(options, &Arc::default())
    }

    /// As [`Self::open`]. `activity` tells a watchdog which call of libfabric the thread is in, from the first call on.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_watched(options: &Options, activity: &Arc<Activity>) -> Result<Self, Error> {
        let (candidates, mut refusals) = select::candidates(options, activity)?;
        let only = candidates.len() == 1;
        let mut left = u32::try_from(candidates.len()).unwrap_or(u32::MAX);
        for (info, why) in candidates {
            // Each of the remaining providers may need as much time.
            let until = |deadline: Instant| deadline.saturating_duration_since(Instant::now()) / left;
            let patience = options.deadline.map_or(self_test::PATIENCE, until).min(self_test::PATIENCE);
            left -= 1;
            let (provider, device, from) = (info.provider(), info.device(), info.ip());
            let from = from.map_or_else(|| "an address of the same kind".to_owned(), |ip| ip.to_string());
            match Self::open_info(&info, options, patience, activity).map_err(call::opening) {
                Ok(ofi) => {
                    crate::log::info!(
                        provider,
                        device,
                        from,
                        why,
                        library = ofi.limits.version,
                        "transport chosen"
                    );
                    return Ok(ofi);
                }
                Err(error) if only => return Err(error),
                Err(error) => {
                    crate::log::warn!(provider, device, %error, "a provider that fits does not work; trying the next");
                    refusals.push(format!("{provider} (device {device}, from {from}): {error}"));
                }
            }
        }
        Err(Error::NoProvider { asked: options.asked(), report: refusals.join("; ") })
    }

    fn open_info(
        info: &Info,
        options: &Options,
        patience: Duration,
        activity: &Arc<Activity>,
    ) -> Result<Self, Error> {
        let (provider, depth) = (info.provider(), info.tx().size.clamp(1, DEPTH));
        let facts = provider::facts_with(&provider, &info.vendor(), library_version());
        let domain = Domain::open(info, activity)?;
        let av = Av::open(&domain, info)?;
        let queue = |size: usize| Cq::open(&domain, size.saturating_add(depth), facts.stuck_descriptor);
        let (cq, arrivals) = match queue(options.arrivals) {
            // The device may not have a queue of this length; the usual length is enough for all but large groups.
            Err(error) if options.arrivals > select::ARRIVALS => {
                crate::log::debug!(%error, wanted = options.arrivals, "using a shorter completion queue");
                (queue(select::ARRIVALS)?, select::ARRIVALS)
            }
            cq => (cq?, options.arrivals),
        };
        let arrivals = arrivals.min(provider::room(&provider, variables::size, variables::switch));
        let endpoint = Endpoint::open(&domain, info, &av, &cq)?;

        let (own, format, (major, minor)) = (endpoint.name()?, info.raw().addr_format, library_version());
        let listens = info::socket_in(format, &own);
        let mode = u64::from(info.domain().mr_mode.unsigned_abs());
        // The bytes that the library copies: none if it takes one source only, because there is no call for that.
        let copied = if facts.one_source { 0 } else { info.tx().inject_size };
        let limits = Limits {
            provider: provider.clone(),
            version: format!("libfabric {major}.{minor}"),
            device: info.device(),
            max_put: info.endpoint().max_msg_size.min(facts.max_put).min(isize::MAX.unsigned_abs()),
            max_inject: if facts.sockets { 0 } else { copied },
            max_copied: copied,
            max_sources: if facts.one_source { 1 } else { info.tx().iov_limit.clamp(1, MAX_SOURCES) },
            local_registration: mode & sys::FI_MR_LOCAL != 0,
            cheap_registration: facts.cheap_registration,
            sockets: facts.sockets,
            arrivals,
            arrivals_per_peer: facts.arrivals_per_peer.min(arrivals),
            more_arrivals: facts.more_arrivals,
            listens: listens.map_or_else(String::new, |at| at.to_string()),
            wakes: cq.wait().is_some(),
            connect_all: facts.crashes_on_lost_peer,
            ..Limits::default()
        };
        // This is done here: if it failed later, objects that live as long as the endpoint would stay for ever.
        let waker = Arc::new(EventFd::new()?);
        let alive = listens.filter(|_| facts.sockets).map(KeepAlive::begin);
        let mut ofi = Self {
            live: ManuallyDrop::new(Live { endpoint, pool: Pool::new(depth) }),
            cq,
            av,
            registrar: Registrar::new(&domain, mode, info.domain().mr_key_size),
            domain,
            facts,
            joined: Vec::with_capacity(copied),
            limits,
            address: address::of(format, &provider, &own),
            known: HashMap::new(),
            peers: Vec::new(),
            firsts: FirstPuts::new(facts.crashes_on_lost_peer),
            completions: Box::new([const { MaybeUninit::uninit() }; BATCH]),
            futile: 0,
            waker,
            alive,
        };
        ofi.test_itself(info.ip(), patience)?;
        Ok(ofi)
    }
}
