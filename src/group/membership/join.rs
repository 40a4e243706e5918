//! Joins the world: ranks meet at the store, open their transports, exchange addresses and settings, check their connections,
//! and wait for each other once.

use std::{
    net::{IpAddr, ToSocketAddrs},
    sync::{Arc, OnceLock, atomic::AtomicU64},
    time::{Duration, Instant},
};

use unisono_schedule::{
    Rank,
    select::{self, Chooser, Selection, table::Table},
    windows::{BULK_SLOTS, EAGER_SLOTS},
};
use unisono_transport::{Activity, Limits, Transport, ofi::Options};

use crate::{
    config::{Config, StoreAddress, fnv},
    engine::{Bounds, Engine, MAX_RANKS, Patience, Settings, WORLD},
    error::{Error, Failure, Refusal, Result, list},
    group::{
        ProcessGroup,
        handle::Handle,
        members::Members,
        membership::{
            cards::{self, JoinInfo, Known},
            greeting::Check,
            reach,
            spread::spread,
        },
        order::Order,
        plan::{
            Planner,
            spec::{CallOptions, PlanOptions},
        },
        shared::Shared,
    },
    outside,
    rendezvous::{LINGER, Store},
    runtime::{
        Runtime,
        affinity::{self, Affinity},
        monitor::Monitor,
        peer,
        roster::{Entry, Roster},
        watchdog::{Subject, Watchdog},
    },
};

/// How long to poll without yielding if every rank has its own core: a few times the time of a message over TCP on the
/// loopback (5 µs). Longer polling gained nothing there, and was slow if another program used one of the cores.
const SPIN: Duration = Duration::from_micros(20);

/// How long to poll and yield before the rank sleeps on the transport.
const GIVE_WAY: Duration = Duration::from_micros(200);

/// The same if every rank has its own core and no other thread runs there. It is longer than the only peer takes to copy or reduce a
/// megabyte (0.1 to 0.5 ms): docs/decisions/050-long-yield.md.
const ALONE: Duration = Duration::from_millis(1);

impl Config {
    /// The options with which [`ProcessGroup::join`] opens libfabric. If the configuration names no interface, the interface
    /// that leads to the store is used, unless the store's address is a loopback address here, which ranks of other hosts
    /// cannot reach.
    ///
    /// ```
    /// # use unisono::Config;
    /// let config = Config { provider: Some("tcp".to_owned()), ..Config::default() };
    /// assert_eq!(config.transport_options().provider.as_deref(), Some("tcp"));
    /// ```
    #[must_use]
    pub fn transport_options(&self) -> Options {
        let config = self;
        let towards = match &config.store {
            Some(StoreAddress::Tcp { host, .. }) => leads_to(config, host),
            Some(StoreAddress::Among { hosts, .. }) => hosts.first().and_then(|host| leads_to(config, host)),
            _ => None,
        };
        Options {
            provider: config.provider.clone(),
            interface: config.interface.clone(),
            towards,
            process: config.local_rank.unwrap_or(0),
            arrivals: Options::default()
                .arrivals
                .max(windows(config, Bounds::default()).arrivals_among(config.ranks)),
            deadline: None,
        }
    }
}

impl ProcessGroup {
    /// Joins the world that a configuration describes. Returns when all ranks have joined and their connections are checked.
    ///
    /// # Errors
    /// [`Error::Config`] if a setting is invalid or not available on this host; [`Error::Tuning`] if the file that
    /// `UNISONO_TUNING` names cannot be read or is not well-formed; [`Error::Rendezvous`] if the store cannot be reached or
    /// used, or this rank is too late; [`Error::Refused`] if the store does not admit this rank; [`Error::Missing`] if some
    /// ranks do not come in time; [`Error::Transport`] if no provider is usable or memory is short. If a rank cannot join, it
    /// reports this to the store, and the other ranks get [`Error::Failed`]. All ranks get [`Error::Failed`] if a rank dies
    /// while they join, if their settings differ, or if the connection check fails.
    pub fn join(config: Config) -> Result<Self> {
        config.validate().map_err(|problem| config.cannot_join(problem))?;
        let deadline = Instant::now() + config.join_timeout;
        let open = |address| Store::open(address, &config.member(), deadline);
        let store = config.store.as_ref().map(open).transpose().map_err(|error| unopened(&config, error))?;
        Self::join_before(deadline, config, store)
    }

    /// As [`join`](Self::join), at a store that is open already, which [`Config::store`] names: for a rank that serves the store on a free
    /// port and tells the others which port it is.
    ///
    /// ```no_run
    /// # use std::time::Instant;
    /// # use unisono::{Config, ProcessGroup, config::StoreAddress, rendezvous::Store};
    /// # fn main() -> unisono::Result<()> {
    /// let mut config = Config { rank: 0, ranks: 2, token: "a secret".into(), ..Config::default() };
    /// let store = Store::host("10.0.0.1", 0, &config.member(), Instant::now() + config.join_timeout)?;
    /// let port = store.reached().1.port();
    /// println!("tell rank 1 that the store is at 10.0.0.1:{port}");
    /// config.store = Some(StoreAddress::Tcp { host: "10.0.0.1".to_owned(), port, served: false });
    /// let group = ProcessGroup::join_at(config, store)?;
    /// # drop(group);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`join`](Self::join).
    pub fn join_at(config: Config, store: Store) -> Result<Self> {
        config.validate().map_err(|problem| config.cannot_join(problem))?;
        Self::join_before(Instant::now() + config.join_timeout, config, Some(store))
    }

    fn join_before(deadline: Instant, config: Config, store: Option<Store>) -> Result<Self> {
        let activity = Arc::default();
        let given = (store, Bounds::default());
        Self::join_over(deadline, config, given, Arc::clone(&activity), |config, store| {
            reach::open(config, store, &activity, deadline)
        })
    }

    /// Joins over a given transport and store, for instance to run the ranks of a test as threads of one process. A world of
    /// one rank needs no store. A program that cannot open the store or the transport tells the other ranks by
    /// [`Config::cannot_join`].
    ///
    /// ```
    /// # use std::time::Instant;
    /// # use unisono::{Config, ProcessGroup, config::StoreAddress, rendezvous::Store};
    /// # use unisono_transport::inproc::Hub;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (hub, directory) = (Hub::new(), tempfile::tempdir()?);
    /// let address = StoreAddress::File(directory.path().into());
    /// let join = |rank: usize| -> unisono::Result<()> {
    ///     let config = Config { rank, ranks: 2, store: Some(address.clone()), ..Config::default() };
    ///     let within = Instant::now() + config.join_timeout;
    ///     let store = Store::open(&address, &config.member(), within)
    ///         .map_err(|error| config.cannot_join(error))?;
    ///     let group = ProcessGroup::with(config, Box::new(hub.open()), Some(store))?;
    ///     assert_eq!(group.all_gather_object(&rank)?, [0, 1]);
    ///     group.leave()
    /// };
    /// std::thread::scope(|scope| {
    ///     let other = scope.spawn(|| join(1));
    ///     join(0)?;
    ///     other.join().unwrap()
    /// })?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Self::join`].
    pub fn with(config: Config, transport: Box<dyn Transport>, store: Option<Store>) -> Result<Self> {
        Self::bounded(config, transport, store, Bounds::default())
    }

    /// As [`with`](Self::with), with these limits.
    pub(crate) fn bounded(
        config: Config,
        transport: Box<dyn Transport>,
        store: Option<Store>,
        bounds: Bounds,
    ) -> Result<Self> {
        config.validate()?;
        let activity = transport.activity();
        Self::join_over(Instant::now() + config.join_timeout, config, (store, bounds), activity, |_, _| {
            Ok(transport)
        })
    }

    /// Exchanges [cards](JoinInfo) with the other ranks and checks the connections.
    fn meet(
        deadline: Instant,
        (config, bounds): (&Config, Bounds),
        mut transport: Box<dyn Transport>,
        monitor: &Monitor,
        store: Option<&Store>,
    ) -> Result<Joined> {
        let (rank, ranks) = (config.rank, config.ranks);
        if ranks > MAX_RANKS {
            return Err(Error::Config {
                name: "ranks".to_owned(),
                value: Some(ranks.to_string()),
                problem: format!("a world has at most {MAX_RANKS} ranks"),
            });
        }
        let plan = PlanOptions { selection: selection(config)?, reduction: config.reduction, pipeline: None };
        let options = CallOptions { plan, timeout: None };
        let (tuned, hash) = tuning(config)?;
        let affinity = Affinity::of(config)?;
        let mut settings = windows(config, bounds);
        let (wanted, most) = (settings.arrivals_per_peer(), transport.limits().arrivals_per_peer);
        if wanted > most {
            return Err(Error::Config {
                name: "lanes (UNISONO_LANES)".to_owned(),
                value: Some(config.lanes.to_string()),
                problem: format!(
                    "with as many, {wanted} puts of one peer may be in flight, and {} takes {most}; use fewer",
                    transport.limits().provider
                ),
            });
        }
        let (wanted, limits) = (settings.arrivals_among(ranks - 1), transport.limits());
        if wanted > limits.arrivals {
            let (provider, most, more) = (&limits.provider, limits.arrivals, limits.more_arrivals);
            crate::log::warn!(
                rank, %provider, wanted, most, more,
                "some calls among all ranks may fail: more puts to one rank may be in flight than its provider holds"
            );
        }
        settings.chunk_bytes = affordable_chunk(&mut *transport, &settings, ranks)?;
        let mut engine = Engine::new(transport, rank, ranks, settings)?;
        if ranks > 1 {
            engine.take_large_greetings(settings.chunk_bytes)?;
        }
        let limits = engine.limits().clone();
        let alike =
            config.alike().into_iter().chain([("the contents of the tuning file (UNISONO_TUNING)", hash)]);
        let alike = alike.map(|(name, value)| (name.to_owned(), value)).collect();
        let entry = Entry::here(&limits, store, engine.contact());
        let card = JoinInfo::new((&limits.provider, limits.one_host), &alike, settings.chunk_bytes, entry);
        let listed = bounds.listed;
        let known = cards::exchange(store, (rank, ranks), (&card, &alike), listed, deadline)?;
        let check = Check { monitor, store, ranks, deadline };
        let (roster, chunk_bytes, greeted) = match (known, store) {
            (Known::Spread(published, roster), Some(store)) => {
                let chunk_bytes = usize::try_from(published.chunk_bytes).unwrap_or(usize::MAX);
                let given = (published, roster);
                let bytes = (chunk_bytes, settings.eager_bytes);
                let (roster, greeted) = spread(&mut engine, &check, store, given, bytes)?;
                (roster, chunk_bytes, Some(greeted))
            }
            (Known::All(roster, chunk_bytes), _) => (roster, chunk_bytes, None),
            (Known::Spread(..), None) => return Err(Error::Failed(Failure::Closed)),
        };

        let peers: Vec<_> = (0..ranks).filter_map(|rank| roster.peer(rank)).collect();
        let (ranks_here, cores) =
            peers.get(rank).map_or((1, 1), |me| peer::sharing(me.host.boot, peers.iter()));
        let crowded = ranks_here > cores;
        let patience = Patience {
            spin: config.spin.unwrap_or(if crowded { Duration::ZERO } else { SPIN }),
            give_way: GIVE_WAY,
            alone: if crowded { GIVE_WAY } else { ALONE },
        };
        let chooser = peer::chooser(&peers, &limits.provider);
        let shares = peers.get(rank).and_then(|me| me.shares);
        let with = |&other: &Rank| other != rank && shares.is_some() && peers[other].shares == shares;
        let with: Vec<Rank> = (0..peers.len()).filter(with).collect();
        crate::log::info!(
            rank,
            ranks,
            provider = %limits.provider,
            version = %limits.version,
            shares_memory_with = (!with.is_empty()).then(|| list(&with)),
            ranks_here,
            cores,
            chunk_bytes,
            "joined"
        );

        check.meet(&mut engine, &roster, greeted.as_deref(), (chunk_bytes, patience))?;
        if let Some(processor) = peer::begins_on(rank, &peers) {
            affinity::begin_on(processor);
        }
        Ok(Joined {
            engine,
            settings: Settings { chunk_bytes, ..settings },
            chooser,
            roster,
            tuned,
            affinity,
            options,
        })
    }

    /// Joins over an open store. Every error from here on is reported to the other ranks.
    fn join_over(
        deadline: Instant,
        config: Config,
        (store, bounds): (Option<Store>, Bounds),
        activity: Arc<Activity>,
        open: impl FnOnce(&Config, Option<&Store>) -> Result<Box<dyn Transport>>,
    ) -> Result<Self> {
        let mut monitor = Monitor::begin(&config, store.as_ref())?;
        let opened = Arc::default();
        monitor.current.due_by(deadline);
        let watched = watchdog(&monitor, &config, activity, Arc::clone(&opened))
            .map(|watchdog| monitor.watchdog = watchdog);
        let met = watched.and_then(|()| open(&config, store.as_ref())).and_then(|transport| {
            opened.get_or_init(|| transport.limits().clone());
            Self::meet(deadline, (&config, bounds), transport, &monitor, store.as_ref())
        });
        let Joined { engine, settings, chooser, roster, tuned, affinity, options } = match met {
            Ok(met) => met,
            Err(error) => return Err(monitor.give_up(error)),
        };
        monitor.current.finish(None);
        if let Some(watch) = &monitor.watch {
            watch.be_patient(config.timeout);
        }
        store.iter().for_each(Store::hang_up);
        let (rank, ranks) = (config.rank, config.ranks);
        let runtime = Arc::new(Runtime::new(
            (rank, config, monitor),
            engine,
            settings,
            (roster, tuned.clone(), affinity),
            store,
        ));
        runtime.callers.enter();
        let weak = Arc::downgrade(&runtime);
        runtime
            .monitor
            .position
            .set(move || weak.upgrade().map(|runtime| runtime.position()).unwrap_or_default());
        let tuned = tuned.of(ranks);
        let planner = Planner::new(rank, chooser, tuned, settings, &runtime.limits);
        let shared = Shared {
            runtime,
            comm_id: WORLD,
            planner,
            members: Members((0..ranks).collect()),
            name: "world".to_owned(),
            label: None,
            id: 0,
            order: Order::default(),
            latest: AtomicU64::new(0),
        };
        Ok(Self::of(Handle::of(shared, options, None)))
    }
}

/// The parts of the world once all ranks have met.
struct Joined {
    engine: Engine,
    settings: Settings,
    chooser: Chooser,
    roster: Arc<Roster>,
    tuned: Table,
    affinity: Affinity,
    options: CallOptions,
}

/// How long a rank without a store tries to tell the store of another rank that it cannot join.
const TELL: Duration = Duration::from_secs(1);

/// If there is a store of this rank's job, tells it that this rank cannot join because it could not open its own. Returns `error`.
fn unopened(config: &Config, error: Error) -> Error {
    let Some(address) = &config.store else { return error };
    let why = match &error {
        Error::Refused { refusal: refusal @ Refusal::Token, .. } => refusal.to_string(),
        // Another process that also has rank 0 may serve the store there.
        Error::Rendezvous { problem, .. } if serves(config, address) => problem.clone(),
        _ => return error,
    };
    tell(config, address, &[], &why, Instant::now() + TELL);
    error
}

fn serves(config: &Config, address: &StoreAddress) -> bool {
    let elsewhere = matches!(address, StoreAddress::Tcp { served: true, .. } | StoreAddress::Pmi { .. });
    config.rank == 0 && !elsewhere
}

/// Tells the other ranks' store that this process cannot join.
fn tell(config: &Config, address: &StoreAddress, jobs: &[String], why: &str, deadline: Instant) {
    if let Err(error) = Store::cannot_join(address, &config.member(), jobs, why, deadline) {
        untold(config, &error);
    }
}

fn untold(config: &Config, error: &Error) {
    crate::log::info!(rank = config.rank, %error, "cannot tell the other ranks that this rank cannot join");
}

/// If it reaches the store, tells the other ranks that this process cannot join. The process may belong to one of `jobs`.
pub(super) fn report(config: &Config, jobs: &[String], why: &str) {
    let Some(address) = config.store.as_ref().filter(|_| config.ranks != 1) else { return };
    let deadline = Instant::now() + LINGER.min(config.join_timeout);
    if !serves(config, address) {
        return tell(config, address, jobs, why, deadline);
    }
    // This rank serves the store, which tells the other ranks.
    let config = Config { ranks: config.ranks.max(2), ..config.clone() };
    let failure = Failure::Joining { rank: config.rank, why: why.to_owned() };
    let store = Store::open(address, &config.member(), deadline);
    let monitor = store.and_then(|store| Ok((Monitor::begin(&config, Some(&store))?, store)));
    match monitor {
        Ok((monitor, _store)) => drop(monitor.give_up(Error::Failed(failure))),
        Err(error) => untold(&config, &error),
    }
}

/// The watchdog over calls of libfabric; `None` in a world of one rank, which waits for no peer.
fn watchdog(
    monitor: &Monitor,
    config: &Config,
    activity: Arc<Activity>,
    limits: Arc<OnceLock<Limits>>,
) -> Result<Option<Watchdog>> {
    let Some(watch) = monitor.watch.as_ref().filter(|_| config.ranks > 1) else { return Ok(None) };
    let subject = Subject {
        rank: monitor.rank,
        limits,
        timeout: config.timeout,
        activity,
        latch: Arc::clone(&monitor.latch),
        current: Arc::clone(&monitor.current),
        watch: Arc::clone(watch),
    };
    Watchdog::begin(subject).map(Some).map_err(|error| Error::Thread {
        thread: "the watchdog's thread",
        problem: format!("{error}; raise the limit on processes (ulimit -u)"),
    })
}

/// The windows that a configuration asks for.
const fn windows(config: &Config, bounds: Bounds) -> Settings {
    Settings {
        eager_bytes: config.eager(),
        eager_slots: EAGER_SLOTS,
        chunk_bytes: config.chunk,
        bulk_slots: BULK_SLOTS,
        lanes: config.lanes,
        bounds,
    }
}

/// The address by which the store's host is reached, unless it is a loopback address that other hosts cannot reach.
fn leads_to(config: &Config, host: &str) -> Option<IpAddr> {
    let address = (host, 0).to_socket_addrs().ok().and_then(|mut all| all.next()).map(|at| at.ip());
    let here = config.local_ranks == Some(config.ranks);
    address.filter(|&address| here || !StoreAddress::names_itself(host, address))
}

/// The algorithms that the configuration allows.
fn selection(config: &Config) -> Result<Selection> {
    let Some(text) = &config.algorithm else { return Ok(Selection::default()) };
    Selection::parse(text).map_err(|problem| Error::Config {
        name: "UNISONO_ALGORITHM".to_owned(),
        value: Some(text.clone()),
        problem,
    })
}

/// The longest tuning file, in bytes: some 100,000 rows.
const MAX_TUNING: u64 = 8 << 20;

/// The tuning file's table, empty if there is no file, and a hash of the file, which ranks compare.
fn tuning(config: &Config) -> Result<(Table, String)> {
    let Some(file) = &config.tuning else { return Ok((Table::default(), "none".to_owned())) };
    let wrong = |problem: String| Error::Tuning { file: file.clone(), problem };
    let text = outside::read_text(file, MAX_TUNING).map_err(|error| wrong(error.to_string()))?;
    let table = Table::parse(&text).map_err(wrong)?;
    Ok((table, format!("{:016x}", fnv(text.as_bytes()))))
}

/// The largest chunk, at most the configured one, whose windows can be registered within this process's limit on locked memory. All ranks
/// use the smallest of their chunks.
fn affordable_chunk(transport: &mut dyn Transport, settings: &Settings, ranks: usize) -> Result<usize> {
    /// Below this size, pipelining costs more than it gains.
    const LEAST: usize = 4 << 10;
    let mut chunk = settings.chunk_bytes;
    if transport.limits().cheap_registration {
        return Ok(chunk);
    }
    loop {
        let (eager, bulk) = select::neighbours(ranks);
        let bytes = Settings { chunk_bytes: chunk, ..*settings }.estimate(eager, bulk);
        match transport.allocate(bytes) {
            Ok(_) => break,
            Err(error @ unisono_transport::Error::Register { .. }) if chunk / 2 >= LEAST => {
                crate::log::warn!(bytes, chunk, %error, "windows do not fit the limit on locked memory; using smaller ones");
                chunk /= 2;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(chunk)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, mknodat};

    use super::*;

    #[test]
    fn tuning_files_that_are_none_are_refused_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        mknodat(CWD, at("fifo"), FileType::Fifo, 0o600.into(), 0).unwrap();
        std::fs::File::create(at("long")).unwrap().set_len(1 << 42).unwrap();
        for (file, words) in [
            ("/dev/zero".into(), "it is a character device, and a regular file is wanted"),
            (at("fifo"), "it is a FIFO, and a regular file is wanted"),
            (at(""), "it is a directory, and a regular file is wanted"),
            (at("long"), "it is longer than 8388608 bytes, the most that such a file may have"),
        ] {
            let config = Config { tuning: Some(file.clone()), ..Config::default() };
            let message = tuning(&config).map(drop).unwrap_err().to_string();
            assert_eq!(message, format!("tuning file {}: {words}", file.display()));
        }
    }
}
