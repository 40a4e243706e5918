//! libfabric: one endpoint with one completion queue in one domain, driven by one thread at a time.
//!
//! [`Ofi::open`] chooses a provider by what it says it can do, opens it, and has it write to itself once
//! before it is trusted (which efa and opx do through shared memory, not by the card). Everything asked of
//! providers is in `info.rs`, everything known of them beyond what they say in `provider.rs`.
#![allow(unsafe_code)]

mod address;
mod alarm;
mod call;
mod choice;
mod completion;
mod handle;
mod info;
mod interface;
mod leftovers;
mod near;
mod neighbours;
mod provider;
mod put;
mod region;
mod self_test;
mod variables;

use std::{
    collections::HashMap,
    mem::{ManuallyDrop, MaybeUninit},
    sync::Arc,
    time::{Duration, Instant},
};

use unisono_libfabric_sys as sys;

use self::{
    alarm::Alarm,
    handle::{Av, Cq, Domain, Endpoint, Fabric},
    info::Info,
    leftovers::Name,
    provider::Provider,
    put::{MAX_SOURCES, Pool, UnderWay, Vectors},
    region::Registrar,
};
use crate::{
    Activity, Address, Error, Event, LibraryCall, Limits, Memory, Peer, Posted, Put, Region, Source,
    Transport, Wake, check,
};

pub use self::{
    address::socket_address,
    choice::{Candidate, Options, headers_version, library_version, survey},
    interface::Interfaces,
    leftovers::sweep,
};

/// How many completions are read at once.
const BATCH: usize = 64;
/// The most puts larger than `max_inject` under way from one endpoint.
const DEPTH: usize = 512;
/// Where the kernel's sockets do the work, puts of at most this many bytes are copied even where the library would not: 8 KiB and a
/// header. To copy more takes longer than the poll that tells that a put has left (ARCHITECTURE.md, "Who waits for copies").
const STAGED: usize = (8 << 10) + 64;
/// How long `park` sleeps at most where there is nothing to wait on.
const NAP: Duration = Duration::from_micros(50);
/// How often in a row the library may forbid to sleep and then have nothing, before `park` naps all the
/// same: `ofi_rxm` does so for milliseconds on end while a connection is being made.
const FUTILE: u32 = 32;
/// The longest such nap.
const LONG_NAP: Duration = Duration::from_millis(1);
/// An endpoint that must be closed at rest is closed when nothing has arrived for this long ...
const QUIET: Duration = Duration::from_millis(50);
/// ... or when it has been waited for this long. Without credit for more, peers soon stop by themselves.
const RESTLESS: Duration = Duration::from_secs(1);
/// What an address begins with, so that another kind's is told apart.
const MAGIC: &[u8; 4] = b"ofi1";

/// An endpoint of a libfabric provider.
pub struct Ofi {
    live: ManuallyDrop<Live>,
    cq: Arc<Cq>,
    av: Arc<Av>,
    domain: Arc<Domain>,
    registrar: Registrar,
    facts: Provider,
    limits: Limits,
    address: Address,
    /// Every address given to the library, and the peer that was made of it.
    known: HashMap<Address, (u64, Option<Peer>)>,
    peers: Vec<u64>,
    /// How far the first put to each peer is, where peers answer it blindly; else empty.
    firsts: Vec<First>,
    completions: Box<[MaybeUninit<sys::fi_cq_data_entry>; BATCH]>,
    /// Puts of at most this many bytes the library copies.
    injects: usize,
    /// Where the sources of a put are joined that the library copies.
    joined: Vec<u8>,
    /// How often in a row the library has forbidden to sleep and then had nothing.
    futile: u32,
    alarm: Arc<Alarm>,
}

/// How far the first put to a peer is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum First {
    Untried,
    /// The peer was asked, and has not answered.
    Asked,
    Taken,
}

/// What must not be let go before the endpoint is closed.
struct Live {
    // Order matters: the endpoint is closed first, and only then is the memory let go that it may read.
    endpoint: Endpoint,
    pool: Pool,
    /// What its memory is called in /dev/shm, if it is.
    _name: Option<Name>,
}

// SAFETY: the completion entries hold pointers that nobody follows; everything else is `Send` by itself.
unsafe impl Send for Ofi {}

impl std::fmt::Debug for Ofi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ofi")
            .field("limits", &self.limits)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Ofi {
    /// Opens the first provider that does what is asked, fits, and passes its self-test.
    ///
    /// # Errors
    /// [`Error::NoProvider`] with the reason for each candidate; [`Error::SelfTest`] or the failed call if
    /// the only candidate did not work.
    pub fn open(options: &Options) -> Result<Self, Error> {
        Self::open_watched(options, &Arc::default())
    }

    /// The same, where whoever watches sees in `activity` from the first call of libfabric's on in which it is.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_watched(options: &Options, activity: &Arc<Activity>) -> Result<Self, Error> {
        let (candidates, mut refusals) = choice::candidates(options, activity)?;
        let only = candidates.len() == 1;
        let mut left = u32::try_from(candidates.len()).unwrap_or(u32::MAX);
        for (info, why) in candidates {
            // Each of those that are left may need as long.
            let until = |deadline: Instant| deadline.saturating_duration_since(Instant::now()) / left;
            let patience = options.deadline.map_or(self_test::PATIENCE, until).min(self_test::PATIENCE);
            left -= 1;
            let (provider, device, from) = (info.provider(), info.device(), info.ip());
            let from = from.map_or_else(|| "an address of its own kind".to_owned(), |ip| ip.to_string());
            match Self::open_info(&info, options, patience, activity).map_err(call::opening) {
                Ok(ofi) => {
                    tracing::info!(
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
                    tracing::warn!(provider, device, %error, "a provider that fits does not work; trying the next");
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
        let provider = info.provider();
        let facts = provider::facts_with(&provider, &info.vendor(), library_version());
        let depth = info.tx().size.clamp(1, DEPTH);
        let memory = if facts.named_memory {
            sweep();
            Some(Name::take()?)
        } else {
            None
        };
        let named = memory
            .as_ref()
            .map(|name| activity.during(LibraryCall::Find, || info::named(&provider, name.as_str())));
        let named = named.transpose()?;
        let info = named.as_ref().unwrap_or(info);
        let fabric = Fabric::open(info, activity)?;
        let serial = if facts.trusts_neighbours { neighbours::serial() } else { Arc::default() };
        let domain = Domain::open(&fabric, info, serial)?;
        let av = Av::open(&domain, info)?;
        let queue =
            |arrivals: usize| Cq::open(&domain, arrivals.saturating_add(depth), facts.stuck_descriptor);
        let (cq, arrivals) = match queue(options.arrivals) {
            // Devices have their limits, and as many as usual serve all but large groups.
            Err(error) if options.arrivals > choice::ARRIVALS => {
                tracing::debug!(%error, wanted = options.arrivals, "a shorter completion queue serves");
                (queue(choice::ARRIVALS)?, choice::ARRIVALS)
            }
            cq => (cq?, options.arrivals),
        };
        let arrivals = arrivals.min(provider::room(&provider, variables::size, variables::switch));
        let endpoint = Endpoint::open(&domain, info, &av, &cq)?;

        let own = endpoint.name()?;
        let (major, minor) = library_version();
        let mode = u64::from(info.domain().mr_mode.unsigned_abs());
        let injects = if facts.one_source { 0 } else { info.tx().inject_size };
        let staged = if facts.queues_injected && mode & sys::FI_MR_LOCAL == 0 { STAGED } else { 0 };
        let limits = Limits {
            provider: provider.clone(),
            version: format!("libfabric {major}.{minor}"),
            device: info.device(),
            max_put: info.endpoint().max_msg_size.min(facts.max_put).min(isize::MAX.unsigned_abs()),
            max_inject: if facts.queues_injected { 0 } else { injects },
            max_copied: injects.max(staged),
            max_sources: if facts.one_source { 1 } else { info.tx().iov_limit.clamp(1, MAX_SOURCES) },
            local_registration: mode & sys::FI_MR_LOCAL != 0,
            cheap_registration: facts.cheap_registration,
            arrivals,
            arrivals_per_peer: facts.arrivals_per_peer.min(arrivals),
            more_arrivals: facts.more_arrivals,
            listens: info::socket_in(info.raw().addr_format, &own)
                .map_or_else(String::new, |at| at.to_string()),
            wakes: cq.wait().is_some(),
            caution: facts.caution,
            connect_all: facts.answers_blindly,
        };
        let mut address = MAGIC.to_vec();
        address.extend_from_slice(&info.raw().addr_format.to_le_bytes());
        let name = provider.as_bytes();
        address.extend_from_slice(&u32::try_from(name.len()).unwrap_or(0).to_le_bytes());
        address.extend_from_slice(name);
        address.extend_from_slice(&own);

        let pool = Pool::new(u32::try_from(depth).unwrap_or(1), staged)?;
        // Here, since what lives as long as the endpoint would stay for good if this failed later.
        let alarm = Arc::new(Alarm::new()?);
        let address = Address(address);
        if facts.trusts_neighbours {
            neighbours::enter(&address);
        }
        let mut ofi = Self {
            live: ManuallyDrop::new(Live { endpoint, pool, _name: memory }),
            cq,
            av,
            registrar: Registrar::new(&domain, mode, info.domain().mr_key_size),
            domain,
            facts,
            joined: Vec::with_capacity(injects),
            injects,
            limits,
            address,
            known: HashMap::new(),
            peers: Vec::new(),
            firsts: Vec::new(),
            completions: Box::new([const { MaybeUninit::uninit() }; BATCH]),
            futile: 0,
            alarm,
        };
        if facts.to_itself {
            ofi.test_itself(info.ip(), patience)?;
        }
        Ok(ofi)
    }

    /// The part of an address that libfabric made, if the address is of our kind.
    fn name_in<'a>(&self, address: &'a Address) -> Result<&'a [u8], Error> {
        let bad = |reason: String| Error::BadAddress {
            address: address.clone(),
            provider: self.limits.provider.clone(),
            reason,
        };
        let (format, provider, name) =
            address::parts(address).ok_or_else(|| bad("it is not one of libfabric's".into()))?;
        if provider != self.limits.provider.as_bytes() {
            return Err(bad(format!("it belongs to provider {:?}", String::from_utf8_lossy(provider))));
        }
        let own =
            self.address.0.get(4..8).and_then(|own| own.first_chunk()).map(|own| u32::from_le_bytes(*own));
        if own != Some(format) {
            return Err(bad(format!("its format is {format}, this endpoint's is {own:?}")));
        }
        // The library is not told how long a name is. Names of fixed formats are as long as our own; strings
        // end with a zero.
        let own_len = self.address.0.len().saturating_sub(address.0.len() - name.len());
        let complete = if format == sys::FI_ADDR_STR {
            name.iter().position(|byte| *byte == 0).is_some_and(|end| end + 1 == name.len())
        } else {
            name.len() == own_len
        };
        if complete { Ok(name) } else { Err(bad(format!("a name of {} bytes is not whole", name.len()))) }
    }

    /// Reads what arrives, for nobody, until nothing more does.
    fn rest(&mut self) {
        let began = Instant::now();
        let mut last = began;
        let mut events = Vec::new();
        while last.elapsed() < QUIET && began.elapsed() < RESTLESS {
            // What has failed has ended, too.
            if self.poll(&mut events).is_err() || !events.is_empty() {
                last = Instant::now();
                events.clear();
            } else {
                std::thread::sleep(LONG_NAP);
            }
        }
    }

    /// What posting a put gave.
    fn posted(&mut self, call: &'static str, result: isize, put: &Put<'_>) -> Result<Posted, Error> {
        let posted = match i64::try_from(result) {
            Ok(0) => Posted::Yes,
            Ok(code) if code == -call::AGAIN => Posted::Full,
            Ok(code) if code < 0 => {
                let (code, peer) = (code.saturating_neg(), Some(put.to));
                let (context, reason) = ("to begin a put".to_owned(), call::reason(code));
                return Err(Error::Call { call, context, peer, code, reason });
            }
            _ => return Err(Error::Unexpected { call, value: result.to_string() }),
        };
        if let Some(first) = self.firsts.get_mut(put.to.0 as usize) {
            match posted {
                Posted::Yes => *first = First::Taken,
                Posted::Full if *first == First::Untried => *first = First::Asked,
                Posted::Full => {}
            }
        }
        Ok(posted)
    }
}

// SAFETY: libfabric tells of a remote write when its bytes have landed, and of a write of ours when it reads the sources no more;
// it writes to what is registered, which closing a registration or the endpoint ends. What it is told is what the put says.
unsafe impl Transport for Ofi {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn address(&self) -> &Address {
        &self.address
    }

    fn connect(&mut self, address: &Address) -> Result<Peer, Error> {
        if self.facts.trusts_neighbours
            && *address != self.address
            && neighbours::unreachable(address, library_version())
        {
            return Err(Error::BadAddress {
                address: address.clone(),
                provider: self.limits.provider.clone(),
                reason: format!(
                    "with {} its endpoints reach those of other processes only; `memory` serves within one",
                    self.limits.version
                ),
            });
        }
        let known = match self.known.get(address) {
            Some((_, Some(peer))) => return Ok(*peer),
            Some((known, None)) => *known,
            None => self.av.insert(self.name_in(address)?)?,
        };
        let peer = Peer(u32::try_from(self.peers.len()).map_err(|_| Error::BadAddress {
            address: address.clone(),
            provider: self.limits.provider.clone(),
            reason: "there are too many peers".into(),
        })?);
        self.peers.push(known);
        if self.facts.answers_blindly {
            self.firsts.push(First::Untried);
        }
        self.known.insert(address.clone(), (known, Some(peer)));
        Ok(peer)
    }

    fn register(&mut self, memory: Memory) -> Result<Region, Error> {
        self.registrar.register(memory, &self.live.endpoint)
    }

    unsafe fn put(&mut self, put: &Put<'_>) -> Result<Posted, Error> {
        let len = check::put(put, &self.limits, self.peers.len())?;
        let unknown = || Error::BadPut { reason: format!("peer {} is unknown", put.to.0) };
        let to = *self.peers.get(put.to.0 as usize).ok_or_else(unknown)?;
        let target = put.target.region.base.checked_add(put.target.offset).ok_or_else(|| Error::BadPut {
            reason: format!("{:?} is beyond the end of memory", put.target),
        })?;
        let key = put.target.region.key;
        let told = put.ends_told(&self.limits);
        if !told && len <= self.injects {
            let start = if let [source] = put.sources {
                put::start(source).cast_const()
            } else {
                // SAFETY: there is room for `injects` bytes; the sources are at rest by the contract of
                // `Transport::put`.
                unsafe { put::join(put.sources, self.joined.as_mut_ptr()) };
                self.joined.as_ptr()
            };
            let serial = self.domain.enter(LibraryCall::Inject);
            // SAFETY: the endpoint is open; `len` bytes are readable; the library copies them.
            let result = unsafe {
                sys::fi_inject_writedata(
                    self.live.endpoint.as_ptr(),
                    start.cast(),
                    len,
                    put.immediate.into(),
                    to,
                    target,
                    key,
                )
            };
            drop(serial);
            return self.posted("fi_inject_writedata", result, put);
        }
        // Of what is copied the library hands the kernel one piece instead of three: over tcp a broadcast of 8 B between 2
        // ranks takes 8.7 µs instead of 9.8.
        let copied = len <= self.injects;
        // What is copied needs no registration.
        let registered = self.limits.local_registration && !copied;
        if registered {
            let foreign = |source: &&Source<'_>| !source.is_empty() && !self.registrar.made(source.region());
            if put.sources.iter().any(|source| foreign(&source)) {
                return Err(Error::BadPut { reason: "a source is registered with another transport".into() });
            }
        }
        let Some((number, context)) = self.live.pool.reserve() else {
            return Ok(Posted::Full);
        };
        // Nobody waits for the end of what is to be copied and the library does not copy: it is here.
        let mut vectors = if told {
            Vectors::new(put.sources, registered)
        } else {
            Vectors::one(self.live.pool.copy(number, put.sources, len))
        };
        let remote = sys::fi_rma_iov { addr: target, len, key };
        let endpoint = self.live.endpoint.as_ptr();
        let serial = self.domain.enter(LibraryCall::Write);
        // SAFETY: the endpoint is open; the source memory is kept by the pool, and the context stays in place, until the
        // completion or the endpoint's end.
        let (call, result) = unsafe {
            if self.facts.one_source {
                vectors.write_data(endpoint, to, &remote, put.immediate, context)
            } else {
                vectors.write_message(endpoint, to, &remote, put.immediate, context, copied)
            }
        };
        drop(serial);
        let outcome = self.posted(call, result, put);
        match outcome {
            Ok(Posted::Yes) => self.live.pool.keep(number, UnderWay::new(put, told)),
            _ => self.live.pool.release(number),
        }
        outcome
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), Error> {
        let serial = self.domain.enter(LibraryCall::Poll);
        // SAFETY: the queue is open and its format is `FI_CQ_FORMAT_DATA`; at most `BATCH` entries are written.
        let result =
            unsafe { sys::fi_cq_read(self.cq.as_ptr(), self.completions.as_mut_ptr().cast(), BATCH) };
        drop(serial);
        let count = match usize::try_from(result) {
            Ok(count) => count,
            Err(_) if i64::try_from(result) == Ok(-call::AGAIN) => return Ok(()),
            Err(_) if i64::try_from(result) == Ok(-call::ERROR_AVAILABLE) => {
                return Err(completion::failure(&self.cq, &self.domain, &self.live.pool));
            }
            Err(_) => {
                return Err(call::failure(
                    "fi_cq_read",
                    i64::try_from(result).unwrap_or(i64::MIN),
                    String::new(),
                ));
            }
        };
        self.futile = 0;
        for entry in self.completions.iter().take(count) {
            // SAFETY: the library has written the first `count` entries.
            let entry = unsafe { entry.assume_init_ref() };
            events.extend(completion::judge(&mut self.live.pool, &self.facts, entry)?);
        }
        Ok(())
    }

    fn park(&mut self, timeout: Duration) -> Result<(), Error> {
        let Some(fd) = self.cq.wait() else {
            return self.alarm.sleep(None, timeout.min(NAP));
        };
        if !self.cq.may_sleep()? {
            self.futile += 1;
            if self.futile > FUTILE {
                let nap = (NAP * (self.futile - FUTILE)).min(LONG_NAP).min(timeout);
                self.futile %= 2 * FUTILE;
                return self.alarm.sleep(None, nap);
            }
            return Ok(());
        }
        self.futile = 0;
        self.alarm.sleep(Some(&fd), timeout)
    }

    fn waker(&self) -> Arc<dyn Wake> {
        Arc::<Alarm>::clone(&self.alarm)
    }

    fn activity(&self) -> Arc<Activity> {
        self.domain.activity()
    }
}

impl Drop for Ofi {
    fn drop(&mut self) {
        // In a forked child all stays open: connections and queues are the parent's too.
        if !self.domain.is_ours() {
            return;
        }
        // Who was asked may yet answer.
        if self.facts.close_at_rest || self.firsts.contains(&First::Asked) {
            self.rest();
        }
        self.registrar.unbind();
        // SAFETY: taken out once, here, and not touched again.
        let live = unsafe { ManuallyDrop::take(&mut self.live) };
        if self.facts.trusts_neighbours {
            neighbours::retire(&self.address, live);
        } else if self.facts.unsafe_to_close {
            // It stays open until the process ends, and nobody drives it: nothing lands any more.
            std::mem::forget(live);
        }
    }
}
