//! Joins the world: ranks open their transports, exchange addresses and settings at the store, verify their connections,
//! and wait for each other once.

use std::{
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use unisono_engine::{Bounds, Engine, MAX_RANKS, Patience, Settings, WORLD};
use unisono_schedule::select::table::Table;
use unisono_transport::{Activity, Limits, Transport};

use crate::{
    config::Config,
    error::{Error, Failure, Result, list},
    group::{
        ProcessGroup,
        handle::Handle,
        membership::{
            exchange::{self, Decision, JoinInfo},
            propagation::propagate,
            settings::{affordable_chunk, selection, tuning, windows},
            transport,
            verification::Verification,
        },
        plan::{CallOptions, PlanOptions},
        shared::GroupState,
    },
    rendezvous::Store,
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

impl ProcessGroup {
    /// Joins the world that the environment describes: the variables of torchrun, Slurm, Open MPI, MPICH or `unisono run` (see
    /// [`crate::launch`]), and the settings of [`Config`]. Without a launcher the process is a world of one rank.
    ///
    /// # Errors
    /// [`Error::Config`] if variables are missing or invalid, otherwise as [`Self::join`]. If the variables say where the store is, this
    /// tells the other ranks the error, and they do not wait for this rank.
    pub fn from_env() -> Result<Self> {
        Self::from_env_with(|_| ())
    }

    /// As [`from_env`](Self::from_env), with settings that the program changes before it joins. If the program sets a store, the process
    /// joins there, even if no variable says where ranks meet.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use unisono::ProcessGroup;
    /// # fn main() -> unisono::Result<()> {
    /// let group = ProcessGroup::from_env_with(|config| config.timeout = Duration::from_secs(20))?;
    /// # drop(group);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`from_env`](Self::from_env).
    pub fn from_env_with(change: impl FnOnce(&mut Config)) -> Result<Self> {
        let (mut config, problem) = Config::read_or_tell()?;
        let (placeless, ranks) = (config.store.is_none(), config.ranks);
        change(&mut config);
        let (nowhere, alone) = (placeless && ranks > 1, placeless && ranks == 1);
        if let (true, true, Some(problem)) = (alone, config.store.is_some(), Config::unlaunched()) {
            let unknown = Config { rank: usize::MAX, ranks: 0, ..config };
            return Err(unknown.cannot_join(problem));
        }
        match problem {
            Some(problem) if !nowhere || config.store.is_none() => Err(config.cannot_join(problem)),
            _ => Self::join(config),
        }
    }

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
        let store = config.store.as_ref().map(open).transpose().map_err(|error| config.not_opened(error))?;
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
            transport::open(config, store, &activity, deadline)
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

    /// Exchanges [addresses and settings](JoinInfo) with the other ranks, and verifies the connections.
    fn bootstrap(
        deadline: Instant,
        (config, bounds): (&Config, Bounds),
        mut transport: Box<dyn Transport>,
        monitor: &Monitor,
        store: Option<&Store>,
    ) -> Result<Joined> {
        let (rank, ranks) = (config.rank, config.ranks);
        let (selection, reduction) = (selection(config)?, config.reduction);
        let options =
            CallOptions { plan: PlanOptions { selection, reduction, pipeline: None }, timeout: None };
        let (tuned, hash) = tuning(config)?;
        let affinity = Affinity::of(config)?;
        let mut settings = windows(config, bounds);
        check_arrivals(config, &settings, transport.limits())?;
        settings.chunk_bytes = affordable_chunk(&mut *transport, &settings, ranks)?;
        let mut engine = Engine::new(transport, rank, ranks, settings)?;
        if ranks > 1 {
            engine.allocate_large_handshakes(settings.chunk_bytes)?;
        }
        let limits = engine.limits().clone();
        let mut agreed = config.same_on_all_ranks();
        agreed.push(("the contents of the tuning file (UNISONO_TUNING)", hash));
        let agreed = agreed.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let entry = Entry::here(&limits, store, engine.contact());
        let info = JoinInfo::new((&limits.provider, limits.one_host), &agreed, settings.chunk_bytes, entry);
        let listed = bounds.listed;
        let (decision, kept) = exchange::exchange(store, (rank, ranks), (&info, &agreed), listed, deadline)?;
        let verification = Verification { monitor, store, ranks, deadline };
        let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let (roster, chunk_bytes, verified) = match (decision, store) {
            (Decision::Fits { chunk_bytes, roster }, _) => (Arc::new(roster), bytes(chunk_bytes), None),
            (Decision::Propagates(digest), Some(store)) => {
                let (given, chunk_bytes) = ((digest, kept), bytes(digest.chunk_bytes));
                let bytes = (chunk_bytes, settings.eager_bytes);
                let (roster, verified) = propagate(&mut engine, &verification, store, given, bytes)?;
                (roster, chunk_bytes, Some(verified))
            }
            _ => return Err(Error::Failed(Failure::Closed)),
        };

        let peers: Vec<_> = (0..ranks).filter_map(|rank| roster.peer(rank)).collect();
        let (ranks_here, cores) =
            peers.get(rank).map_or((1, 1), |me| peer::sharing(me.host.boot, peers.iter()));
        let patience = patience(config, ranks_here > cores);
        let with = peer::sharers(rank, &peers);
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

        verification.complete(&mut engine, &roster, verified.as_deref(), (chunk_bytes, patience))?;
        if let Some(processor) = peer::begins_on(rank, &peers) {
            affinity::begin_on(processor);
        }
        settings.chunk_bytes = chunk_bytes;
        Ok(Joined { engine, settings, roster, tuned, affinity, options })
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
        let joined = watched.and_then(|()| open(&config, store.as_ref())).and_then(|transport| {
            opened.get_or_init(|| transport.limits().clone());
            Self::bootstrap(deadline, (&config, bounds), transport, &monitor, store.as_ref())
        });
        let Joined { engine, settings, roster, tuned, affinity, options } = match joined {
            Ok(joined) => joined,
            Err(error) => return Err(monitor.give_up(error)),
        };
        monitor.current.finish(None);
        if let Some(watch) = &monitor.watch {
            watch.be_patient(config.timeout);
        }
        store.iter().for_each(Store::hang_up);
        let (rank, ranks) = (config.rank, config.ranks);
        let with = (roster, tuned, affinity);
        let runtime = Arc::new(Runtime::new((rank, config, monitor), engine, settings, with, store));
        runtime.callers.enter();
        let weak = Arc::downgrade(&runtime);
        runtime
            .monitor
            .position
            .set(move || weak.upgrade().map(|runtime| runtime.position()).unwrap_or_default());
        let known = ("world".to_owned(), None);
        let shared = GroupState::new(runtime, WORLD, (rank, (0..ranks).collect()), known);
        Ok(Self::of(Handle::of(shared, options, None)))
    }
}

/// The parts of the world once all ranks have joined.
struct Joined {
    engine: Engine,
    settings: Settings,
    roster: Arc<Roster>,
    tuned: Table,
    affinity: Affinity,
    options: CallOptions,
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

/// Checks that there are not too many ranks, and that the transport holds all puts that may be in flight: of one peer, or else the rank
/// cannot join; and of all peers, or else it is warned.
fn check_arrivals(config: &Config, settings: &Settings, limits: &Limits) -> Result<()> {
    if config.ranks > MAX_RANKS {
        return Err(Error::Config {
            name: "ranks".to_owned(),
            value: Some(config.ranks.to_string()),
            problem: format!("a world has at most {MAX_RANKS} ranks"),
        });
    }
    let (provider, rank) = (&limits.provider, config.rank);
    // Through its windows, and its end.
    let (wanted, most) = (settings.arrivals_among(1) + 1, limits.arrivals_per_peer);
    if wanted > most {
        return Err(Error::Config {
            name: "lanes (UNISONO_LANES)".to_owned(),
            value: Some(config.lanes.to_string()),
            problem: format!(
                "with as many, {wanted} puts of one peer may be in flight, and {provider} takes {most}; use fewer"
            ),
        });
    }
    let (wanted, most, more) =
        (settings.arrivals_among(config.ranks - 1), limits.arrivals, limits.more_arrivals);
    if wanted > most {
        crate::log::warn!(
            rank, %provider, wanted, most, more,
            "some calls among all ranks may fail: more puts to one rank may be in flight than its provider holds"
        );
    }
    Ok(())
}

/// How long a rank waits before it sleeps. `crowded`: true if ranks share cores.
fn patience(config: &Config, crowded: bool) -> Patience {
    Patience {
        spin: config.spin.unwrap_or(if crowded { Duration::ZERO } else { SPIN }),
        give_way: GIVE_WAY,
        alone: if crowded { GIVE_WAY } else { ALONE },
    }
}
