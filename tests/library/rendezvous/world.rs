//! Worlds to test in: several ranks' stores, watches and latches in one process.

use std::{
    net::TcpListener,
    process::Command,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;
use tracing_subscriber::EnvFilter;
use unisono::{
    config::{Member, StoreAddress},
    rendezvous::{FailureLatch, Position, PositionSource, Stage, Store, StoreServer, Watch},
};

/// Longer than any step here takes on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Tcp,
    File,
}

pub(crate) const KINDS: [Kind; 2] = [Kind::Tcp, Kind::File];

/// The place of a store: its address, and the port or directory that it holds.
pub(crate) struct Place {
    pub(crate) address: StoreAddress,
    listener: Option<TcpListener>,
    pub(crate) directory: Option<TempDir>,
}

impl Place {
    pub(crate) fn new(kind: Kind) -> Self {
        match kind {
            Kind::Tcp => {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                let port = listener.local_addr().unwrap().port();
                let address = tcp(port, false);
                Self { address, listener: Some(listener), directory: None }
            }
            Kind::File => {
                let directory = tempfile::tempdir().unwrap();
                let address = StoreAddress::File(directory.path().into());
                Self { address, listener: None, directory: Some(directory) }
            }
        }
    }

    /// Opens the store as this rank; as rank 0 with the listener that holds the port.
    pub(crate) fn open(&mut self, rank: usize, ranks: usize) -> Store {
        let member = member(rank, ranks);
        match self.listener.take_if(|_| rank == 0) {
            Some(listener) => Store::host_on(listener, &member, soon()).unwrap(),
            None => Store::open(&self.address, &member, soon()).unwrap(),
        }
    }
}

pub(crate) fn member(rank: usize, ranks: usize) -> Member {
    Member { rank, ranks, job: "test".into() }
}

/// A process with the token of another job.
pub(crate) fn stranger(rank: usize, ranks: usize) -> Member {
    Member { job: "another".into(), ..member(rank, ranks) }
}

/// A store at a port of this host.
pub(crate) fn tcp(port: u16, served: bool) -> StoreAddress {
    StoreAddress::Tcp { host: "127.0.0.1".into(), port, served }
}

/// A store that no rank serves.
pub(crate) fn server(ranks: usize) -> (StoreServer, StoreAddress) {
    let server = StoreServer::bind("127.0.0.1:0", ranks, "test", None).unwrap();
    let address = tcp(server.address().port(), true);
    (server, address)
}

/// The command that runs one of this program's ignored tests as a separate process.
pub(crate) fn itself(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let test = format!("rendezvous::{test}");
    command.args(["--exact", &test, "--ignored", "--nocapture"]);
    command
}

/// In such a process, writes the library's log to stderr.
pub(crate) fn log_to_stderr() {
    let lines = tracing_subscriber::fmt().with_env_filter(EnvFilter::from_default_env());
    lines.with_ansi(false).with_writer(std::io::stderr).init();
}

pub(crate) fn soon() -> Instant {
    Instant::now() + SOON
}

pub(crate) fn after(millis: u64) -> Instant {
    Instant::now() + Duration::from_millis(millis)
}

/// One rank. Its watch is dropped first.
pub(crate) struct One {
    pub(crate) watch: Watch,
    pub(crate) store: Arc<Store>,
    pub(crate) latch: Arc<FailureLatch>,
    pub(crate) position: Arc<PositionSource>,
}

impl One {
    pub(crate) fn new(store: Store) -> Self {
        let latch = Arc::new(FailureLatch::new());
        let position = Arc::new(PositionSource::new());
        position.set(|| Position::of(Stage::Calls));
        let watch = store.watch(Arc::clone(&latch), Arc::clone(&position)).unwrap();
        Self { watch, store: Arc::new(store), latch, position }
    }

    /// Opens the store at this address.
    pub(crate) fn at(address: &StoreAddress, rank: usize, ranks: usize) -> Self {
        Self::new(Store::open(address, &member(rank, ranks), soon()).unwrap())
    }

    /// Leaves in good order, and drops the rank.
    pub(crate) fn leave(self) {
        self.watch.leave();
    }
}

/// All ranks of a world, rank 0 first.
pub(crate) fn stores(kind: Kind, ranks: usize) -> (Place, Vec<Store>) {
    let mut place = Place::new(kind);
    let stores = (0..ranks).map(|rank| place.open(rank, ranks)).collect();
    (place, stores)
}

/// All ranks of a world, each with its watch.
pub(crate) fn world(kind: Kind, ranks: usize) -> (Place, Vec<One>) {
    let (place, stores) = stores(kind, ranks);
    (place, stores.into_iter().map(One::new).collect())
}

/// Makes all ranks leave: rank 0 last, so that no rank waits for another.
pub(crate) fn part(mut world: Vec<One>) {
    while let Some(one) = world.pop() {
        one.leave();
    }
}

/// Runs `body` for every rank in a separate thread, and returns the results in the order of ranks.
pub(crate) fn together<T: Send, S: Sync>(ranks: &[S], body: impl Fn(usize, &S) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> =
            ranks.iter().enumerate().map(|(rank, one)| scope.spawn(move || body(rank, one))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}
