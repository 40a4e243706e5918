//! The tools of the cases: openers of endpoints, patterns, and deadlines. Only this file of the suite touches memory that puts read
//! and write.
#![allow(unsafe_code)]

use std::{
    collections::{HashMap, hash_map::RandomState},
    error,
    hash::BuildHasher,
    os::fd::BorrowedFd,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use unisono_transport::{
    Activity, Address, Error, Event, Limits, Mapping, Memory, Notify, Peer, Posted, Put, Ready, Region,
    RemoteRegion, Source, Target, Transport, Wake,
    inproc::Hub,
    mux::Mux,
    ofi::{Ofi, Options},
    shm,
};

use crate::sim::{Config, Fabric};

/// How a case ends.
pub(crate) type Outcome = Result<(), Box<dyn error::Error>>;
/// A case, given its own opener.
pub(crate) type Case = fn(&mut Opener) -> Outcome;

/// The environment variable with the providers that must run.
pub(crate) const PROVIDERS: &str = "UNISONO_TEST_PROVIDERS";

/// The longest any wait may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Ends the case with a message unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+).into());
        }
    };
}
pub(crate) use ensure;

/// An endpoint of whatever kind.
pub(crate) type Endpoint = Box<dyn Transport>;

/// A transport to be judged.
pub(crate) struct Kind {
    pub(crate) name: String,
    /// What is tried between processes too, if anything.
    pub(crate) between: Option<Between>,
    make: Box<dyn Fn() -> Opener>,
}

/// A transport between processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Between {
    /// A provider of libfabric.
    Ofi(&'static str),
    /// Shared memory, and what memory a case gets, if not what it asks for.
    Shm(Option<Made>),
    /// Our shared memory beside this provider.
    Mux(&'static str, Scope, Option<Made>),
}

/// In which scope each of several endpoints is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// All in one: they share memory.
    One,
    /// Each in its own.
    Own,
}

/// The fabric beside shared memory, where a name says nothing else.
const BESIDE: &str = "tcp";

/// What names end with that say what memory a case gets.
const ENDS: [(&str, Made); 2] = [("-allocated", Made::Allocated), ("-memfd", Made::Memfd)];

impl Between {
    /// What `name` names: a provider of libfabric, `shm`, `mux`, or `mux+verbs` for another fabric than tcp; behind `mux` perhaps `-far`, for
    /// their own scopes, and behind both of ours perhaps `-allocated` or `-memfd`.
    pub(crate) fn named(name: &str) -> Self {
        let cut = ENDS.iter().find_map(|&(end, made)| Some((name.strip_suffix(end)?, Some(made))));
        let (way, made) = cut.unwrap_or((name, None));
        if way == "shm" {
            return Self::Shm(made);
        }
        let (way, scope) = way.strip_suffix("-far").map_or((way, Scope::One), |way| (way, Scope::Own));
        match way.split_once('+') {
            None if way == "mux" => Self::Mux(BESIDE, scope, made),
            // Leaked once for each transport.
            Some(("mux", fabric)) => Self::Mux(fabric.to_owned().leak(), scope, made),
            _ => Self::Ofi(name.to_owned().leak()),
        }
    }

    pub(crate) fn name(self) -> String {
        let (way, made) = match self {
            Self::Ofi(provider) => return provider.to_owned(),
            Self::Shm(made) => ("shm".to_owned(), made),
            Self::Mux(fabric, scope, made) => {
                let fabric = if fabric == BESIDE { String::new() } else { format!("+{fabric}") };
                (format!("mux{fabric}{}", if scope == Scope::Own { "-far" } else { "" }), made)
            }
        };
        let end = ENDS.iter().find(|(_, end)| Some(*end) == made);
        way + end.map_or("", |(end, _)| end)
    }

    /// True if it notices, and says, that a peer's process has ended. Not every provider of libfabric does.
    pub(crate) fn names_the_dead(self) -> bool {
        matches!(self, Self::Shm(_) | Self::Mux(_, Scope::One, _))
    }

    pub(crate) fn open(self) -> Result<Endpoint, Error> {
        let fabric =
            |provider| -> Result<Endpoint, Error> { Ok(Box::new(Ofi::open(&Kind::options(provider))?)) };
        match self {
            Self::Ofi(provider) => fabric(provider),
            Self::Shm(made) => Ok(instead(made, Box::new(shm::Endpoint::open()?))),
            Self::Mux(provider, scope, made) => {
                let scope = match scope {
                    Scope::One => 0,
                    // Nobody else's.
                    Scope::Own => u128::from(RandomState::new().hash_one(std::process::id())),
                };
                Ok(instead(made, mux(scope, fabric(provider)?)?))
            }
        }
    }
}

/// Shared memory beside this fabric.
fn mux(scope: u128, fabric: Endpoint) -> Result<Endpoint, Error> {
    Ok(Box::new(Mux::new(scope, Some(shm::Endpoint::open()?), fabric)))
}

/// What memory a case gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Made {
    /// What the transport allocates.
    Allocated,
    /// A part of a memfd.
    Memfd,
}

/// A transport with such memory where a case registers some that it has just mapped, or allocates some.
struct Instead(Endpoint, Made);

fn instead(made: Option<Made>, transport: Endpoint) -> Endpoint {
    match made {
        Some(made) => Box::new(Instead(transport, made)),
        None => transport,
    }
}

/// Zeros in a memfd, behind what is not theirs, of which nobody has a descriptor.
fn in_memfd(len: usize) -> Result<Memory, Error> {
    const BEFORE: u64 = 128 << 10;
    if len == 0 {
        return Memory::map(len);
    }
    let refused = |error: rustix::io::Errno| Error::Map { bytes: len, reason: error.to_string() };
    let file = memfd_create("conformance", MemfdFlags::ALLOW_SEALING).map_err(refused)?;
    ftruncate(&file, BEFORE + len as u64).map_err(refused)?;
    // SAFETY: nobody else maps it, but the peers of a case.
    unsafe { Memory::of_memfd(file, BEFORE, len) }
}

// SAFETY: as the transport within.
unsafe impl Transport for Instead {
    fn limits(&self) -> &Limits {
        self.0.limits()
    }

    fn address(&self) -> &Address {
        self.0.address()
    }

    fn connect(&mut self, address: &Address) -> Result<Peer, Error> {
        self.0.connect(address)
    }

    fn register(&mut self, memory: Memory) -> Result<Region, Error> {
        self.allocate(memory.len())
    }

    fn allocate(&mut self, len: usize) -> Result<Region, Error> {
        match self.1 {
            Made::Allocated => self.0.allocate(len),
            Made::Memfd => self.0.register(in_memfd(len)?),
        }
    }

    unsafe fn put(&mut self, put: &Put<'_>) -> Result<Posted, Error> {
        // SAFETY: by the caller's promise.
        unsafe { self.0.put(put) }
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), Error> {
        self.0.poll(events)
    }

    fn share(&mut self, len: usize) -> Result<Region, Error> {
        self.0.share(len)
    }

    fn map(&mut self, peer: Peer, region: &RemoteRegion) -> Result<Mapping, Error> {
        self.0.map(peer, region)
    }

    fn reads(&mut self, peer: Peer) -> Result<bool, Error> {
        self.0.reads(peer)
    }

    unsafe fn read(&mut self, peer: Peer, address: u64, into: *mut u8, len: usize) -> Result<(), Error> {
        // SAFETY: by the caller's promise.
        unsafe { self.0.read(peer, address, into, len) }
    }

    fn notify(&mut self, peers: &[Peer]) -> Result<(), Error> {
        self.0.notify(peers)
    }

    fn park(&mut self, timeout: Duration, others: &[BorrowedFd<'_>], ready: Ready<'_>) -> Result<(), Error> {
        self.0.park(timeout, others, ready)
    }

    fn waker(&self) -> Arc<dyn Wake> {
        self.0.waker()
    }

    fn activity(&self) -> Arc<Activity> {
        self.0.activity()
    }
}

/// Opens endpoints that can reach each other.
pub(crate) struct Opener(Box<dyn FnMut() -> Result<Endpoint, Error>>);

impl Kind {
    pub(crate) fn all() -> Vec<Self> {
        if let Ok(named) = std::env::var(PROVIDERS) {
            return named.split(',').map(|name| Self::between(Between::named(name))).collect();
        }
        let mut kinds = vec![Self {
            name: "inproc".into(),
            between: None,
            make: Box::new(|| {
                let hub = Hub::new();
                Opener(Box::new(move || Ok(Box::new(hub.open()))))
            }),
        }];
        for (name, made) in [("inproc, allocated", Made::Allocated), ("inproc, memfd", Made::Memfd)] {
            kinds.push(Self {
                name: name.into(),
                between: None,
                make: Box::new(move || {
                    let hub = Hub::new();
                    Opener(Box::new(move || Ok(Box::new(Instead(Box::new(hub.open()), made)))))
                }),
            });
        }
        for seed in 0..6 {
            // Seeds differ in more than delays, so that each switch is seen both ways.
            let config = Config {
                seed,
                max_inject: if seed % 2 == 0 { 64 } else { 0 },
                max_sources: [4, 2, 1][usize::try_from(seed % 3).unwrap_or(0)],
                local_registration: seed % 3 != 0,
                virtual_addresses: seed % 2 == 0,
                depth: if seed % 3 == 0 { 3 } else { 64 },
                reports_len: seed % 2 == 1,
                ..Config::default()
            };
            kinds.push(Self {
                name: format!("sim, seed {seed}"),
                between: None,
                make: Box::new(move || {
                    let fabric = Fabric::new(config.clone());
                    Opener(Box::new(move || Ok(Box::new(fabric.open()))))
                }),
            });
        }
        let made = [None, Some(Made::Allocated), Some(Made::Memfd)];
        kinds.extend(made.map(|made| Self::between(Between::Shm(made))));
        let near = made.map(|made| (Scope::One, made));
        for (whose, made) in near.into_iter().chain([(Scope::Own, None)]) {
            let between = Between::Mux(BESIDE, whose, made);
            // Within a process beside inproc.
            kinds.push(Self {
                name: between.name(),
                between: Some(between),
                make: Box::new(move || {
                    let (hub, mut scope) = (Hub::new(), 0);
                    Opener(Box::new(move || {
                        scope += u128::from(whose == Scope::Own);
                        Ok(instead(made, mux(scope, Box::new(hub.open()))?))
                    }))
                }),
            });
        }
        kinds.push(Self::between(Between::Ofi("tcp")));
        kinds
    }

    /// What to open for a libfabric provider.
    pub(crate) fn options(provider: &str) -> Options {
        // Software providers stay on the loopback; a NIC cannot reach it and chooses for itself.
        let loopback = ["tcp", "net", "tcp;ofi_rxm"].contains(&provider);
        let towards = loopback.then_some(std::net::Ipv4Addr::LOCALHOST.into());
        // More arrivals than puts that may be under way from an endpoint (512), so that a flood meets these; but few, for
        // soft-RoCE has short queues.
        let arrivals = if loopback { 2048 } else { 1024 };
        Options { provider: Some(provider.into()), towards, arrivals, ..Options::default() }
    }

    fn between(what: Between) -> Self {
        let name = if let Between::Ofi(provider) = what { format!("ofi:{provider}") } else { what.name() };
        let make = Box::new(move || Opener(Box::new(move || what.open())));
        Self { name, between: Some(what), make }
    }

    pub(crate) fn opener(&self) -> Opener {
        (self.make)()
    }
}

impl Opener {
    pub(crate) fn open(&mut self) -> Result<Endpoint, Error> {
        (self.0)()
    }

    /// Two endpoints, each knowing the other as its peer 0.
    pub(crate) fn pair(&mut self) -> Result<(Endpoint, Endpoint), Error> {
        let (mut here, mut there) = (self.open()?, self.open()?);
        here.connect(there.address())?;
        there.connect(here.address())?;
        Ok((here, there))
    }
}

/// The first peer.
pub(crate) const FIRST: Peer = Peer(0);

/// Bytes that differ from place to place and from seed to seed.
pub(crate) fn pattern(seed: u32, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state.to_le_bytes()
    };
    let mut bytes = vec![0; len];
    bytes.chunks_mut(4).for_each(|chunk| chunk.copy_from_slice(&next()[..chunk.len()]));
    bytes
}

/// A registered region holding these bytes.
pub(crate) fn filled(transport: &mut dyn Transport, bytes: &[u8]) -> Result<Region, Error> {
    let region = transport.register(Memory::map(bytes.len())?)?;
    write(&region, 0, bytes)?;
    Ok(region)
}

/// What a peer is given of a registered region.
pub(crate) fn remote(region: &Region) -> Result<RemoteRegion, Box<dyn error::Error>> {
    region.remote().ok_or_else(|| "a registered region has no remote".into())
}

/// The bytes of a region.
pub(crate) fn bytes_of(region: &Region, offset: usize, len: usize) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0; len];
    // SAFETY: a case looks at what has arrived, or at what may no longer be written.
    unsafe { region.read(offset, &mut bytes)? };
    Ok(bytes)
}

/// Writes bytes to a region.
pub(crate) fn write(region: &Region, offset: usize, bytes: &[u8]) -> Result<(), Error> {
    // SAFETY: a case writes to sources of puts that have ended, or have not begun, and to windows to which none is under way.
    unsafe { region.write(offset, bytes) }
}

/// A word of memory that both ends access, at this place counted in words.
fn word(region: &Region, at: usize) -> Result<&AtomicU64, Box<dyn error::Error>> {
    let place = at * size_of::<AtomicU64>();
    ensure!(place + size_of::<AtomicU64>() <= region.len(), "word {at} is not in {} bytes", region.len());
    // SAFETY: in the region, which begins at a page; all access this word as an atomic.
    Ok(unsafe { AtomicU64::from_ptr(region.base().add(place).cast()) })
}

/// Publishes a word in this end's memory: who reads it sees what was written before.
pub(crate) fn publish(region: &Region, at: usize, value: u64) -> Outcome {
    word(region, at)?.store(value, Ordering::Release);
    Ok(())
}

/// Reads a word that the other end has published.
pub(crate) fn published(region: &Region, at: usize) -> Result<u64, Box<dyn error::Error>> {
    Ok(word(region, at)?.load(Ordering::Acquire))
}

/// Begins a put.
pub(crate) fn put(transport: &mut dyn Transport, put: &Put<'_>) -> Result<Posted, Error> {
    // Every case has puts that are fetched, and others.
    let put = Put { fetch: put.immediate.is_multiple_of(2), ..*put };
    // SAFETY: a case leaves sources as they are until they are sent, or copied, and looks at windows after
    // the arrival. Where several puts go to the same bytes, it looks at none before all have ended, and puts alike.
    unsafe { transport.put(&put) }
}

/// Reads bytes of the first peer's process.
pub(crate) fn read(transport: &mut dyn Transport, from: *const u8, into: &mut [u8]) -> Result<(), Error> {
    // SAFETY: the slice is borrowed for that.
    unsafe { transport.read(FIRST, from.addr() as u64, into.as_mut_ptr(), into.len()) }
}

/// All of a region as one source, to an offset in the first peer's region.
pub(crate) fn put_all(
    transport: &mut dyn Transport,
    source: &Region,
    region: RemoteRegion,
    offset: u64,
    immediate: u32,
) -> Result<Posted, Error> {
    let sources = [Source::new(source, 0, source.len())?];
    let target = Target { region, offset };
    let (token, notify) = (immediate.into(), Notify::IfNotInjected);
    put(transport, &Put { to: FIRST, sources: &sources, target, immediate, token, notify, fetch: false })
}

/// Counts events in any order.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) arrived: HashMap<u32, usize>,
    pub(crate) sent: HashMap<u64, usize>,
    /// The lengths that arrivals reported.
    pub(crate) lens: Vec<usize>,
    events: Vec<Event>,
}

impl Tally {
    /// Polls once; says whether anything happened.
    pub(crate) fn poll(&mut self, transport: &mut dyn Transport) -> Result<bool, Error> {
        transport.poll(&mut self.events)?;
        let any = !self.events.is_empty();
        for event in self.events.drain(..) {
            match event {
                Event::Arrived { immediate, len } => {
                    *self.arrived.entry(immediate).or_default() += 1;
                    self.lens.extend(len);
                }
                Event::Sent { token } => *self.sent.entry(token).or_default() += 1,
            }
        }
        Ok(any)
    }

    /// Fails unless exactly these arrived and were sent, each once.
    pub(crate) fn expect(
        &self,
        arrived: impl IntoIterator<Item = u32>,
        sent: impl IntoIterator<Item = u64>,
    ) -> Outcome {
        let arrived: HashMap<u32, usize> = arrived.into_iter().map(|immediate| (immediate, 1)).collect();
        let sent: HashMap<u64, usize> = sent.into_iter().map(|token| (token, 1)).collect();
        ensure!(self.arrived == arrived, "arrived {:?}, wanted {arrived:?}", self.arrived);
        ensure!(self.sent == sent, "sent {:?}, wanted {sent:?}", self.sent);
        Ok(())
    }
}

/// Repeats until the step returns true; fails at the deadline.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> Result<bool, Box<dyn error::Error>>) -> Outcome {
    let began = Instant::now();
    while !done()? {
        ensure!(began.elapsed() < PATIENCE, "{what}: nothing after {PATIENCE:?}");
    }
    Ok(())
}

/// Repeats a step for a while.
pub(crate) fn linger(time: Duration, mut go: impl FnMut() -> Outcome) -> Outcome {
    let began = Instant::now();
    while began.elapsed() < time {
        go()?;
    }
    Ok(())
}
