//! Jobs over shm that are killed leave nothing behind: no process, no file in /dev/shm, no socket.

use std::{
    collections::BTreeSet,
    fs,
    io::Read,
    process::{self, Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    process::{Pid, Signal, kill_process},
};

const RANKS: usize = 3;
/// The variable that only a job's processes have, with a value for each job.
const MARK: &str = "LEFTOVERS_OF";
/// The longest wait for a job to begin, or to end.
const PATIENCE: Duration = Duration::from_secs(30);

/// A job whose ranks do not end by themselves.
struct Job {
    mark: String,
    launcher: Child,
}

impl Job {
    fn start(name: &str) -> Self {
        let mark = format!("{MARK}={} {name}", process::id());
        let mut bench = Command::new(env!("CARGO_BIN_EXE_unisono"));
        bench.args(["bench", "all_reduce", "--ranks", "3", "--provider", "shm", "--no-raw"]);
        bench.args(["-b", "8", "-e", "8", "-n", "100000000"]);
        bench.env(MARK, mark.split_once('=').unwrap().1);
        bench.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        Self { mark, launcher: bench.spawn().unwrap() }
    }

    /// Its processes, without those that wait to be reaped, which have no environment.
    fn processes(&self) -> Vec<Pid> {
        let all = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().file_name());
        let all = all.filter_map(|name| Pid::from_raw(name.to_str()?.parse().ok()?));
        let marked = |pid: &Pid| {
            let variables = fs::read(format!("/proc/{}/environ", pid.as_raw_pid())).unwrap_or_default();
            variables.split(|byte| *byte == 0).any(|variable| variable == self.mark.as_bytes())
        };
        all.filter(marked).collect()
    }

    /// Waits until each rank has a socket, and each reads memory that each other one writes. Returns the ranks' processes and sockets' names.
    fn met(&mut self) -> (Vec<Pid>, Vec<String>) {
        let begun = Instant::now();
        loop {
            let (mut ranks, mut names) = (Vec::new(), Vec::new());
            for process in self.processes() {
                let own = names_of(process);
                if !own.is_empty() {
                    ranks.push(process);
                    names.extend(own);
                }
            }
            names.sort();
            names.dedup();
            if ranks.len() == RANKS && all_share(&ranks) {
                assert_eq!(names.len(), RANKS, "{names:?}");
                return (ranks, names);
            }
            if begun.elapsed() > PATIENCE || self.launcher.try_wait().unwrap().is_some() {
                drop(self.launcher.kill());
                let mut said = String::new();
                self.launcher.stderr.take().unwrap().read_to_string(&mut said).unwrap();
                panic!("the ranks do not meet over shm; they have {names:?}: {said}");
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // None is left unless the test has failed.
        self.processes().into_iter().for_each(kill);
        drop(self.launcher.wait());
    }
}

/// Kills a process, if it has not ended yet.
fn kill(process: Pid) {
    assert!(matches!(kill_process(process, Signal::KILL), Ok(()) | Err(Errno::SRCH)), "{process:?}");
}

/// The targets of a process's descriptors: files, and `socket:[NUMBER]`.
fn open(process: Pid) -> Vec<String> {
    let all = fs::read_dir(format!("/proc/{}/fd", process.as_raw_pid())).into_iter().flatten().flatten();
    all.filter_map(|entry| Some(fs::read_link(entry.path()).ok()?.to_str()?.to_owned())).collect()
}

/// The files in /dev/shm that a process has open or mapped.
fn files_of(process: Pid) -> Vec<String> {
    let maps = fs::read_to_string(format!("/proc/{}/maps", process.as_raw_pid())).unwrap_or_default();
    let mapped = maps.lines().filter_map(|line| Some(line[line.find('/')?..].to_owned()));
    mapped.chain(open(process)).filter(|file| file.starts_with("/dev/shm/")).collect()
}

/// The memory that a process shares, by the numbers of its files: memory that it only reads, and memory that it writes.
fn shared(process: Pid) -> [BTreeSet<String>; 2] {
    let maps = fs::read_to_string(format!("/proc/{}/maps", process.as_raw_pid())).unwrap_or_default();
    // An address, rights, an offset, a device, a number and a name.
    let rows = maps.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let memory: Vec<_> = rows.filter(|row| row.len() > 5 && row[5].starts_with("/memfd:")).collect();
    ["r--s", "rw-s"]
        .map(|rights| memory.iter().filter(|row| row[1] == rights).map(|row| row[4].to_owned()).collect())
}

/// True if each of these processes reads memory that each other one writes.
fn all_share(ranks: &[Pid]) -> bool {
    let all: Vec<_> = ranks.iter().copied().map(shared).collect();
    let reads = |one: usize, other: usize| one == other || !all[one][0].is_disjoint(&all[other][1]);
    (0..all.len()).all(|one| (0..all.len()).all(|other| reads(one, other)))
}

/// The sockets on this host with names of unisono's: the number of each, and its name.
fn sockets() -> Vec<(String, String)> {
    let text = fs::read_to_string("/proc/net/unix").unwrap();
    let rows = text.lines().map(|line| line.split_whitespace().skip(6));
    let named = rows.filter_map(|mut row| Some((row.next()?.to_owned(), row.next()?.to_owned())));
    named.filter(|(_, name)| name.starts_with("@unisono-")).collect()
}

/// The names of a process's sockets, one for each socket.
fn names_of(process: Pid) -> Vec<String> {
    let open = open(process);
    let own = sockets().into_iter().filter(|(number, _)| open.contains(&format!("socket:[{number}]")));
    own.map(|(_, name)| name).collect()
}

/// Kills the processes of a job that `choose` chooses of its launcher and its ranks.
fn leaves_nothing(name: &str, choose: impl Fn(Pid, &[Pid]) -> Vec<Pid>) {
    let mut job = Job::start(name);
    let (ranks, names) = job.met();
    // A rank that has no files leaves none.
    let files: Vec<_> = ranks.iter().copied().flat_map(files_of).collect();
    assert!(files.is_empty(), "ranks have files in /dev/shm: {files:?}");
    choose(Pid::from_child(&job.launcher), &ranks).into_iter().for_each(kill);
    let killed = Instant::now();
    assert!(!job.launcher.wait().unwrap().success());
    // A process that ends has lost its memory, and so no longer counts, before its sockets are closed.
    let left = || sockets().into_iter().filter(|(_, name)| names.contains(name)).collect::<Vec<_>>();
    while !job.processes().is_empty() || !left().is_empty() {
        let late = killed.elapsed() >= PATIENCE;
        assert!(
            !late,
            "these processes still run: {:?}; of {names:?} these sockets are left: {:?}",
            job.processes(),
            left()
        );
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_job_with_a_killed_rank_leaves_nothing() {
    leaves_nothing("rank", |_, ranks| ranks[..1].to_vec());
}

#[test]
fn a_job_whose_ranks_are_all_killed_leaves_nothing() {
    leaves_nothing("ranks", |_, ranks| ranks.to_vec());
}

#[test]
fn a_job_whose_launcher_is_killed_leaves_nothing() {
    leaves_nothing("launcher", |launcher, _| vec![launcher]);
}
