//! A job: starts its ranks, each in a process group of its own, and waits until the last has ended.

use std::{
    env,
    ffi::{OsStr, OsString},
    io,
    os::{fd::AsFd, unix::process::CommandExt},
    process::{Child, Command, ExitCode, Stdio},
    sync::{
        Arc,
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::{
    process::{
        Pid, Resource, Signal, WaitId, WaitIdOptions, getpid, getrlimit, kill_process_group, setrlimit,
        waitid,
    },
    rand::{GetRandomFlags, getrandom},
};
use unisono::{Failure, launch, rendezvous::StoreServer};
use unisono_transport::ofi;

use super::{
    guard::Hold,
    port::Port,
    rank, signals,
    sink::{Sink, Stream},
};
use crate::{cgroup::Kills, invocation};

/// How long ranks have to end after SIGTERM before SIGKILL.
const GRACE: Duration = Duration::from_secs(2);
/// After a rank has failed, the others are ended once nothing was written for the first time, and after the second at the latest:
/// they may be saying why they fail, too.
const QUIET: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
/// How long all outputs may stay silent after the last rank has ended before the job ends: a process that has left its rank's
/// process group may keep an output open for ever. If it keeps writing, a signal ends the job.
const SILENCE: Duration = Duration::from_millis(500);

/// File descriptors that this process needs besides those for the ranks: its own, and those to start a rank.
const OWN_DESCRIPTORS: u64 = 64;
/// File descriptors for further connections to the store, of processes that have not yet identified themselves.
const SPARE_DESCRIPTORS: u64 = 256;

/// The job to start.
#[derive(Debug)]
pub(crate) struct Job {
    /// The number of ranks.
    pub(crate) ranks: u32,
    /// The program, as `exec` takes it: a path, or a name to be found in PATH.
    pub(crate) program: OsString,
    /// Its arguments.
    pub(crate) arguments: Vec<OsString>,
    /// Variables to set in the ranks' environment, besides this process's own and those that every job sets.
    pub(crate) environment: Vec<(&'static str, OsString)>,
    /// Where the ranks' output goes.
    pub(crate) output: Output,
}

/// Where the ranks' standard output and error go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// Line by line to this process's, each line behind `[rank] `.
    Prefixed,
    /// The ranks inherit this process's.
    Passed,
}

/// How a rank or a whole job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// With this exit status.
    Status(i32),
    /// By this signal.
    Signal(i32),
}

impl End {
    /// The exit status as shells compute it.
    pub(crate) fn exit_code(self) -> ExitCode {
        let code = match self {
            Self::Status(status) => status,
            Self::Signal(signal) => 128 + signal,
        };
        ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
    }
}

/// How far the ranks are being ended.
enum Ending {
    No,
    /// A rank has failed: SIGTERM follows once nothing more is read than this, at the latest at this time.
    Quiet(u64, Instant),
    /// SIGTERM was sent; SIGKILL follows at this time.
    Asked(Instant),
    Killed,
}

/// What the launcher waits for.
enum Event {
    /// A rank ended.
    Ended(u32, End),
    /// This process was sent a signal.
    Signal(i32),
    /// This process's standard output or error cannot be written.
    OutputClosed(io::Error),
    /// A rank's standard output or error ended.
    OutputEnded,
}

impl Job {
    /// A job whose ranks run this program with the same command line except `--ranks`, and inherit its output.
    pub(crate) fn again(ranks: u32) -> Self {
        let mut itself = invocation::words().iter().cloned();
        let program = itself.next().unwrap_or_default();
        let mut arguments: Vec<OsString> = itself.collect();
        let mut words = invocation::arguments().iter().cloned();
        while let Some(word) = words.next() {
            if word == "--ranks" {
                words.next();
            } else if !word.to_string_lossy().starts_with("--ranks=") {
                arguments.push(word);
            }
        }
        Self { ranks, program, arguments, environment: Vec::new(), output: Output::Passed }
    }

    /// Starts the ranks and returns when all have ended: how the first rank that failed ended, or the signal that ended the job. To be
    /// called on the main thread, because the kernel kills a rank when the thread that started it ends.
    pub(crate) fn run(&self) -> io::Result<End> {
        if signals::children_are_reaped() {
            return Err(io::Error::other(
                "SIGCHLD is ignored here, as in the process that started this one, so it cannot be known how ranks \
                 end; let that process set it to its default first, from a shell: \
                 env --default-signal=CHLD unisono ...",
            ));
        }
        // The job has a token of its own, but a file for one that others can read, or that is not there, is an error here as elsewhere.
        let variable = |name: &str| env::var(name).ok().filter(|_| name == "UNISONO_TOKEN_FILE");
        launch::token(&variable).map_err(io::Error::other)?;
        let (tell, events) = mpsc::channel();
        let to = tell.clone();
        signals::watch(move |signal| drop(to.send(Event::Signal(signal))))
            .map_err(|error| io::Error::new(error.kind(), format!("cannot wait for signals: {error}")))?;
        self.make_room()?;
        let token = token()?;
        let count = usize::try_from(self.ranks).map_err(io::Error::other)?;
        let store =
            StoreServer::bind("127.0.0.1:0", count, token.as_str(), None).map_err(io::Error::other)?;
        // For what else the ranks may be: torch's meet at a store of their own first.
        let port = Port::keep()?;
        let meet = [
            ("UNISONO_STORE", format!("tcp+served://{}", store.address())),
            ("UNISONO_TOKEN", token),
            ("MASTER_ADDR", "127.0.0.1".to_owned()),
            ("MASTER_PORT", port.number.to_string()),
        ];
        // Without /proc nothing can be started.
        let guard = Hold::start().map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("cannot start this program again by {}: {error}", invocation::shown()),
            )
        })?;
        let mut ranks = Ranks {
            guard,
            sink: Arc::new(Sink::new()),
            kills: Kills::now(),
            tell,
            children: Vec::new(),
            watched: 0,
            outputs: 0,
        };
        for number in 0..self.ranks {
            if let Err(error) = ranks.start(number, self.command(number, &meet)) {
                ranks.supervise(&events, Some(End::Status(1)));
                return Err(io::Error::new(error.kind(), format!("cannot start rank {number}: {error}")));
            }
        }
        let end = ranks.supervise(&events, None);
        Ok(match (store.end(), end) {
            (Some((rank, failure)), End::Status(0)) => {
                let how = match failure {
                    Failure::Died { rank: dead, .. } | Failure::Unreachable { rank: dead, .. }
                        if dead == rank =>
                    {
                        "did not leave its world, by leave() or by dropping its group, before its process ended"
                    }
                    _ => "left its world with a failure that no call had returned",
                };
                crate::complain!(
                    "unisono run: all ranks ended with status 0, but rank {rank} {how}: {failure}"
                );
                End::Status(1)
            }
            (_, end) => end,
        })
    }

    /// Raises the limit on file descriptors to what the ranks need: two connections of each to the store, which watches its process
    /// by a third descriptor, and its two outputs if they are forwarded.
    fn make_room(&self) -> io::Result<()> {
        let each = if self.output == Output::Prefixed { 5 } else { 3 };
        let needed = each * u64::from(self.ranks) + OWN_DESCRIPTORS;
        let mut limit = getrlimit(Resource::Nofile);
        if let Some(most) = limit.maximum
            && most < needed
        {
            return Err(io::Error::other(format!(
                "{} ranks take {needed} file descriptors here, and this process may have {most} at most \
                 (ulimit -Hn): raise that limit, or start fewer",
                self.ranks
            )));
        }
        let wanted = needed + SPARE_DESCRIPTORS;
        if limit.current.is_some_and(|current| current < wanted) {
            limit.current = Some(limit.maximum.map_or(wanted, |most| most.min(wanted)));
            setrlimit(Resource::Nofile, limit)?;
        }
        Ok(())
    }

    /// The command that becomes rank `number`; `meet` has the variables of the stores.
    fn command(&self, number: u32, meet: &[(&str, String)]) -> Command {
        let mut command = invocation::command();
        command.arg(rank::NAME).arg(getpid().as_raw_pid().to_string());
        command.arg("--").arg(&self.program).args(&self.arguments);
        let (rank, size) = (number.to_string(), self.ranks.to_string());
        // What torchrun has set for this process says nothing about the ranks; one that finds it was started by another torchrun.
        for (name, _) in
            env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"TORCHELASTIC_"))
        {
            command.env_remove(name);
        }
        for prefix in ["", "UNISONO_"] {
            for local in ["", "LOCAL_"] {
                command.env(format!("{prefix}{local}RANK"), &rank);
                command.env(format!("{prefix}{local}WORLD_SIZE"), &size);
            }
        }
        // Otherwise a rank that crashes or is interrupted ends with status 1, because of libinfinipath, which comes with Debian's
        // libfabric.
        command.env("IPATH_NO_BACKTRACE", "1");
        let (name, value) = ofi::LAUNCH_WITH;
        if env::var_os(name).is_none() {
            command.env(name, value);
        }
        command.envs(meet.iter().map(|(name, value)| (name, value)));
        // The token of this job is in `meet`.
        command.env_remove("UNISONO_TOKEN_FILE");
        command.envs(self.environment.iter().map(|(name, value)| (OsStr::new(name), value)));
        command.stdin(Stdio::null()).process_group(0);
        if self.output == Output::Prefixed {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        command
    }
}

/// The ranks started so far.
struct Ranks {
    guard: Hold,
    sink: Arc<Sink>,
    /// The processes that the kernel had killed for memory when the job began.
    kills: Kills,
    tell: Sender<Event>,
    /// In order of rank. None is reaped before the end of the job, so that the number of a process group is not reused.
    children: Vec<Child>,
    /// How many of them have a thread that waits for their end: all, or all but the last if there are no more threads.
    watched: usize,
    /// How many outputs are being forwarded.
    outputs: usize,
}

impl Ranks {
    fn start(&mut self, number: u32, mut command: Command) -> io::Result<()> {
        let mut child = command.spawn()?;
        let (pid, stdout, stderr) = (pid(&child), child.stdout.take(), child.stderr.take());
        self.guard.add(pid);
        self.children.push(child);
        let tell = self.tell.clone();
        spawn(format!("rank {number}"), move || drop(tell.send(Event::Ended(number, wait(pid)))))?;
        self.watched += 1;
        let prefix = format!("[{number}] ");
        let source = 2 * self.children.len();
        if let Some(stdout) = stdout {
            self.forward((stdout, source), Stream::Out, prefix.clone())?;
        }
        if let Some(stderr) = stderr {
            self.forward((stderr, source + 1), Stream::Err, prefix)?;
        }
        Ok(())
    }

    fn forward(
        &mut self,
        (mut source, number): (impl io::Read + AsFd + Send + 'static, usize),
        to: Stream,
        prefix: String,
    ) -> io::Result<()> {
        let (sink, tell) = (Arc::clone(&self.sink), self.tell.clone());
        spawn(format!("{prefix}{to:?}"), move || {
            // The source stays open until the failure is sent: otherwise the rank's end by SIGPIPE might arrive first.
            if let Err(error) = sink.forward(&mut source, number, to, prefix.as_bytes()) {
                drop(tell.send(Event::OutputClosed(error)));
            }
            drop(tell.send(Event::OutputEnded));
        })?;
        self.outputs += 1;
        Ok(())
    }

    /// Waits for all ranks, and ends them if one fails or a signal arrives; at once if `verdict` is given.
    fn supervise(mut self, events: &Receiver<Event>, mut verdict: Option<End>) -> End {
        let mut living = self.watched;
        let mut ending = if verdict.is_some() { self.end_all() } else { Ending::No };
        while living > 0 {
            let now = Instant::now();
            let event = match ending {
                Ending::No | Ending::Killed => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Ending::Quiet(_, latest) => {
                    events.recv_timeout(latest.saturating_duration_since(now).min(QUIET.0))
                }
                Ending::Asked(until) => events.recv_timeout(until.saturating_duration_since(now)),
            };
            match event {
                Ok(Event::Ended(number, end)) => {
                    living -= 1;
                    if end != End::Status(0) && verdict.is_none() {
                        self.report(number, end, living);
                        verdict = Some(end);
                        ending = Ending::Quiet(self.sink.reads(), now + QUIET.1);
                    }
                }
                Ok(Event::Signal(signal)) if signals::stops(signal) => self.stop_with_us(),
                // The second signal ends the ranks without delay.
                Ok(Event::Signal(_)) if verdict.is_some() => self.send(Signal::KILL),
                Ok(Event::Signal(signal)) => {
                    verdict = Some(End::Signal(signal));
                    ending = self.end_all();
                }
                Ok(Event::OutputClosed(error)) if verdict.is_none() => {
                    verdict = Some(self.unwritable(&error, living));
                    ending = self.end_all();
                }
                Ok(Event::OutputClosed(_)) => {}
                Ok(Event::OutputEnded) => self.outputs -= 1,
                Err(_) => ending = self.go_on_ending(ending),
            }
        }
        // Processes that ranks have started and left behind.
        self.send(Signal::KILL);
        self.drain(events, &mut verdict);
        self.guard.release();
        for mut child in self.children {
            // How it ended is known; this frees its process number.
            drop(child.wait());
        }
        verdict.unwrap_or(End::Status(0))
    }

    /// Asks all process groups to end.
    fn end_all(&self) -> Ending {
        self.send(Signal::TERM);
        Ending::Asked(Instant::now() + GRACE)
    }

    /// Nothing has happened for as long as `ending` allows: does what follows.
    fn go_on_ending(&self, ending: Ending) -> Ending {
        match ending {
            Ending::Quiet(reads, latest)
                if Instant::now() < latest && (self.sink.is_writing() || self.sink.reads() != reads) =>
            {
                Ending::Quiet(self.sink.reads(), latest)
            }
            Ending::Quiet(..) => self.end_all(),
            _ => {
                self.send(Signal::KILL);
                Ending::Killed
            }
        }
    }

    /// Stops all process groups and this process, and continues them when it is continued.
    fn stop_with_us(&self) {
        self.send(Signal::STOP);
        signals::stop_here();
        self.send(Signal::CONT);
    }

    /// Sends a signal to all process groups, also to those whose first process has ended.
    fn send(&self, signal: Signal) {
        for child in &self.children {
            // It fails only if no process is left.
            let _ = kill_process_group(pid(child), signal);
        }
    }

    /// Waits until the ranks' output has been forwarded. If that fails, or a signal ends the wait, a job that has succeeded so far
    /// fails.
    fn drain(&mut self, events: &Receiver<Event>, verdict: &mut Option<End>) {
        let mut reads = self.sink.reads();
        while self.outputs > 0 {
            match events.recv_timeout(SILENCE) {
                Ok(Event::OutputEnded) => self.outputs -= 1,
                Ok(Event::OutputClosed(error)) if verdict.is_none() => {
                    *verdict = Some(self.unwritable(&error, 0))
                }
                Ok(Event::OutputClosed(_) | Event::Ended(..)) => {}
                Err(RecvTimeoutError::Timeout) if self.sink.is_writing() || self.sink.reads() != reads => {
                    reads = self.sink.reads();
                }
                Ok(Event::Signal(signal)) if signals::stops(signal) => self.stop_with_us(),
                Ok(Event::Signal(signal)) => {
                    verdict.get_or_insert(End::Signal(signal));
                    return;
                }
                Err(_) => return,
            }
        }
    }

    /// Prints why the job ends.
    fn report(&self, number: u32, end: End, others: usize) {
        let how = match end {
            End::Status(status) => format!("ended with status {status}"),
            End::Signal(signal) => match signals::name(signal) {
                Some(name) => format!("was killed by signal {signal} ({name})"),
                None => format!("was killed by signal {signal}"),
            },
        };
        let killed = end == End::Signal(Signal::KILL.as_raw());
        let why = self.kills.since(killed).map_or_else(String::new, |why| format!(", {why}"));
        let also = if others > 0 { "; ending the others" } else { "" };
        self.sink.say(&format!("unisono run: rank {number} {how}{why}{also}"));
    }

    /// How a job ends whose output cannot be written, while `living` ranks live. Prints why, unless the reader has closed the output.
    fn unwritable(&self, error: &io::Error, living: usize) -> End {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return End::Signal(Signal::PIPE.as_raw());
        }
        let also = if living > 0 { "; ending the ranks" } else { "" };
        self.sink.say(&format!("unisono run: the ranks' output cannot be written: {error}{also}"));
        End::Status(1)
    }
}

/// Whether a launcher, or a user by hand, has said that this process is a rank.
pub(crate) fn is_launched() -> bool {
    launch::is_set(&|name: &str| env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
}

/// A random token, which distinguishes this job from others that may use the same port.
fn token() -> io::Result<String> {
    let mut bytes = [0_u8; 16];
    let filled = getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(bytes[..filled].iter().map(|byte| format!("{byte:02x}")).collect())
}

fn spawn(name: String, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let no_thread =
        |error: io::Error| io::Error::new(error.kind(), format!("no thread can be started: {error}"));
    thread::Builder::new().name(name).spawn(work).map(drop).map_err(no_thread)
}

fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

/// Waits for the end of a child and leaves it to be reaped.
fn wait(pid: Pid) -> End {
    loop {
        match waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
            Ok(Some(status)) => match (status.exit_status(), status.terminating_signal()) {
                (Some(status), _) => return End::Status(status),
                (None, Some(signal)) => return End::Signal(signal),
                (None, None) => {}
            },
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            // It was reaped elsewhere, so how it ended is unknown.
            Err(_) => return End::Status(255),
        }
    }
}
