//! The parent's side: the ranks' stores, their processes, and their output. No process outlives its world or runs
//! longer than [`PATIENCE`].

use std::{
    error::Error,
    io::Read,
    os::fd::OwnedFd,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc::{self, Receiver},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use unisono::{Failure, rendezvous::StoreServer};

use crate::{ensure, ports, rank, suite};

/// The longest that a process may take, far more than any needs: four ranks in an emulated machine take 90 s, and twice that on a busy
/// host.
pub(crate) const PATIENCE: Duration = Duration::from_secs(400);

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The processes of a job under test.
pub(crate) struct TestJob {
    provider: String,
    ranks: usize,
    /// The stores of the groups that the ranks form one after the other.
    stores: Vec<String>,
    servers: Vec<StoreServer>,
    /// Keeps the port of rank 0's store.
    _held: Option<OwnedFd>,
    _directory: Option<tempfile::TempDir>,
    /// The token, which keeps the worlds of other tests apart.
    token: String,
    processes: Vec<Process>,
    patience: Duration,
}

struct Process {
    rank: usize,
    child: Child,
    outputs: [JoinHandle<String>; 2],
    /// Signals that the outputs have ended, and so that the process has ended or will at once.
    ended: Receiver<()>,
}

/// How a process ended, and its output.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) rank: usize,
    pub(crate) status: ExitStatus,
    said: String,
    pub(crate) errors: String,
}

impl TestJob {
    /// A world of this many ranks that form `groups` groups, one after the other.
    pub(crate) fn new(provider: &str, ranks: usize, groups: usize) -> Result<Self> {
        let mut world = Self::empty(provider, ranks);
        for _ in 0..groups {
            let server = StoreServer::bind("127.0.0.1:0", ranks, world.token.as_str(), None)?;
            world.stores.push(format!("tcp+served://{}", server.address()));
            world.servers.push(server);
        }
        Ok(world)
    }

    /// A world whose rank 0 serves the store.
    pub(crate) fn served_by_rank_0(provider: &str, ranks: usize) -> Result<Self> {
        let (held, port) = ports::held()?;
        let mut world = Self::at(provider, ranks, &format!("tcp://127.0.0.1:{port}"));
        world._held = Some(held);
        Ok(world)
    }

    /// A world with a store that one of its ranks, or another process, serves.
    pub(crate) fn at(provider: &str, ranks: usize, store: &str) -> Self {
        let mut world = Self::empty(provider, ranks);
        world.stores.push(store.to_owned());
        world
    }

    /// A world with a store in this directory.
    pub(crate) fn in_directory(provider: &str, ranks: usize, directory: &Path) -> Self {
        let mut world = Self::empty(provider, ranks);
        world.stores.push(format!("file://{}", directory.display()));
        world
    }

    /// A world with a store in a new directory.
    pub(crate) fn in_a_directory(provider: &str, ranks: usize) -> Result<Self> {
        let mut world = Self::empty(provider, ranks);
        let directory = tempfile::tempdir()?;
        world.stores.push(format!("file://{}", directory.path().display()));
        world._directory = Some(directory);
        Ok(world)
    }

    fn empty(provider: &str, ranks: usize) -> Self {
        static WORLDS: AtomicUsize = AtomicUsize::new(0);
        let number = WORLDS.fetch_add(1, Ordering::Relaxed);
        Self {
            provider: provider.into(),
            ranks,
            stores: Vec::new(),
            servers: Vec::new(),
            _held: None,
            _directory: None,
            token: format!("tests/processes, {}, {number}", std::process::id()),
            processes: Vec::new(),
            patience: PATIENCE,
        }
    }

    /// Lets processes take longer than [`PATIENCE`], if this is longer.
    pub(crate) fn set_patience(&mut self, patience: Duration) {
        self.patience = patience.max(PATIENCE);
    }

    /// Starts a rank in its role, with these variables besides those of every rank.
    pub(crate) fn start(&mut self, rank: usize, role: &str, more: &[(&str, &str)]) -> Result<()> {
        // Without /proc, the system does not give the path.
        let named = || std::env::args_os().next().map(Into::into);
        let program = std::env::current_exe().ok().or_else(named).ok_or("this program has no name")?;
        self.start_by(Command::new(program), rank, role, more)
    }

    /// The same, by a command that starts this program in another place.
    pub(crate) fn start_by(
        &mut self,
        mut command: Command,
        rank: usize,
        role: &str,
        more: &[(&str, &str)],
    ) -> Result<()> {
        let stores = self.stores.join(" ");
        let mut child = command
            .env(rank::ROLE, role)
            .env(rank::STORES, &stores)
            .env("UNISONO_RANK", rank.to_string())
            .env("UNISONO_WORLD_SIZE", self.ranks.to_string())
            .env("UNISONO_STORE", stores.split(' ').next().unwrap_or_default())
            .env("UNISONO_TOKEN", &self.token)
            .envs((self.provider != rank::DEFAULT).then_some(("UNISONO_PROVIDER", &self.provider)))
            .env("UNISONO_TIMEOUT", "60s")
            .env("UNISONO_JOIN_TIMEOUT", "60s")
            .env(rank::LIMIT, self.patience.as_secs().to_string())
            .env_remove(suite::BRIEF)
            .env_remove(suite::PROVIDERS)
            .envs(suite::brief().then_some((rank::BRIEF, "1")))
            .envs(more.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let (tell, ended) = mpsc::channel();
        let stdout = listen(child.stdout.take(), Some(tell));
        let stderr = listen(child.stderr.take(), None);
        self.processes.push(Process { rank, child, outputs: [stdout, stderr], ended });
        Ok(())
    }

    /// Starts all ranks in the same role.
    pub(crate) fn start_all(&mut self, role: &str, more: &[(&str, &str)]) -> Result<()> {
        (0..self.ranks).try_for_each(|rank| self.start(rank, role, more))
    }

    /// Waits until the first process started for a rank has stopped on SIGSTOP.
    pub(crate) fn stopped(&self, rank: usize) -> Result<()> {
        let process = self.processes.iter().find(|process| process.rank == rank).ok_or("no such process")?;
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let begun = Instant::now();
        let id = WaitId::Pid(Pid::from_child(&process.child));
        // A process that has ended cannot stop.
        let early = |error| format!("rank {rank} ended before it stopped: {error}");
        while waitid(id.clone(), stopped).map_err(early)?.is_none() {
            ensure!(begun.elapsed() < PATIENCE, "rank {rank} does not stop");
            thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Sends a signal to a rank's process.
    pub(crate) fn signal(&self, rank: usize, signal: Signal) -> Result<()> {
        let process = self.processes.iter().find(|process| process.rank == rank).ok_or("no such process")?;
        Ok(kill_process(Pid::from_child(&process.child), signal)?)
    }

    /// Waits for the process that ends first, and removes it from the world.
    pub(crate) fn end_first(&mut self) -> Result<End> {
        let begun = Instant::now();
        loop {
            if let Some(at) = self.processes.iter().position(|process| process.ended.try_recv().is_ok()) {
                return finish(self.processes.remove(at));
            }
            ensure!(begun.elapsed() < PATIENCE, "no process ends");
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits for the processes for which `which` is true, and removes them from the world, in the order in which they were started.
    pub(crate) fn end(&mut self, which: impl Fn(usize) -> bool) -> Result<Vec<End>> {
        let (ending, rest) = self.processes.drain(..).partition(|process| which(process.rank));
        self.processes = rest;
        // A process that is left when this returns early must not be left behind.
        let mut ending = Ending(ending);
        let patience = self.patience;
        let deadline = Instant::now() + patience;
        let mut ends = Vec::new();
        while !ending.0.is_empty() {
            let late =
                ending.0[0].ended.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_err();
            let mut process = ending.0.remove(0);
            if late {
                process.child.kill()?;
            }
            let end = finish(process)?;
            ensure!(!late, "rank {} is not done after {patience:?}: {}{}", end.rank, end.said, end.errors);
            ends.push(end);
        }
        Ok(ends)
    }

    /// Ends the store of the first group. Returns the rank that left with a failure of which its program did not know, and the failure.
    pub(crate) fn late(&mut self) -> Option<(usize, Failure)> {
        self.servers.pop().and_then(StoreServer::end)
    }

    /// Waits for all processes.
    pub(crate) fn end_all(mut self) -> Result<Vec<End>> {
        self.end(|_| true)
    }
}

/// Processes that are killed when this is dropped.
struct Ending(Vec<Process>);

impl Drop for Ending {
    fn drop(&mut self) {
        for process in &mut self.0 {
            // It may have ended by itself.
            let _ = process.child.kill();
            let _ = process.child.wait();
        }
    }
}

impl Drop for TestJob {
    fn drop(&mut self) {
        drop(Ending(std::mem::take(&mut self.processes)));
        // No rank is left that needs the stores.
        self.servers.clear();
    }
}

/// Waits for a process that has closed its output or was killed.
fn finish(mut process: Process) -> Result<End> {
    let status = process.child.wait()?;
    let [said, errors] = process.outputs.map(|output| output.join().unwrap_or_default());
    Ok(End { rank: process.rank, status, said, errors })
}

/// Reads an output to its end, in a thread.
fn listen(output: Option<impl Read + Send + 'static>, tell: Option<mpsc::Sender<()>>) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut output) = output {
            // Keep the output before an error.
            let _ = output.read_to_end(&mut bytes);
        }
        // The receiver may have been dropped.
        let _ = tell.map(|tell| tell.send(()));
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

impl End {
    /// The first value that the process printed under a keyword.
    pub(crate) fn said(&self, key: &str) -> Result<&str> {
        let lines = || self.said.lines();
        lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')).ok_or_else(|| {
            format!(
                "rank {} ({}) said no {key:?}, but {:?}; {}",
                self.rank, self.status, self.said, self.errors
            )
            .into()
        })
    }

    /// The number that it printed under a keyword.
    pub(crate) fn number(&self, key: &str) -> Result<i64> {
        Ok(self.said(key)?.parse()?)
    }

    /// Fails unless all these processes succeeded. The error has the end of each that did not, because one may wait for another.
    pub(crate) fn all_well<'e>(ends: impl IntoIterator<Item = &'e Self>) -> Result<()> {
        let failed = ends.into_iter().filter_map(|end| end.well().err()).map(|error| error.to_string());
        let failed: Vec<_> = failed.collect();
        ensure!(failed.is_empty(), "{}", failed.join("\n"));
        Ok(())
    }

    /// Fails unless the process succeeded.
    pub(crate) fn well(&self) -> Result<()> {
        ensure!(
            self.status.success(),
            "rank {} ended with {}: {}{}",
            self.rank,
            self.status,
            self.said,
            self.errors
        );
        Ok(())
    }
}

/// The value that all processes printed under a keyword, which must be the same.
pub(crate) fn same<'e>(ends: &[&'e End], key: &str) -> Result<&'e str> {
    let first = ends.first().ok_or("nobody")?.said(key)?;
    for end in ends {
        let said = end.said(key)?;
        ensure!(said == first, "rank {} says {key} {said:?}, rank {} {first:?}", end.rank, ends[0].rank);
    }
    Ok(first)
}
