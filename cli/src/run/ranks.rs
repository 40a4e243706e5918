//! The processes of a job: starts them, forwards what they write, and waits until the last has ended.

use std::{
    io::{self, BufReader, Write},
    os::fd::AsFd,
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command},
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::{
    io::retry_on_intr,
    process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid},
};

use super::{
    end::End,
    frames::FramedOutput,
    guard::Hold,
    signals,
    sink::{Sink, Stream},
};
use crate::{cgroup::Kills, invocation};

/// How long ranks have to end after SIGTERM before SIGKILL.
const GRACE: Duration = Duration::from_secs(2);
/// After a rank has failed, the others are ended once they have written nothing for the first of these times, and after the second
/// at the latest: they may be writing why they fail, too.
const QUIET: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
/// How long all outputs may stay silent after the last rank has ended before the job ends: a process that has left its rank's
/// process group may keep an output open for ever. If it keeps writing, a signal ends the job.
const SILENCE: Duration = Duration::from_millis(500);

/// How long hosts have to end their ranks before their connections are closed.
const GRACE_OF_HOSTS: Duration = Duration::from_secs(6);

/// The stage of ending the ranks.
enum Ending {
    No,
    /// A rank has failed: SIGTERM follows once nothing more is read than this, at the latest at this time.
    Quiet(u64, Instant),
    /// SIGTERM was sent; SIGKILL follows at this time.
    Asked(Instant),
    Killed,
}

impl Ending {
    /// The next event; an error if there is none for as long as this stage allows.
    fn next(&self, events: &Receiver<Event>, now: Instant) -> Result<Event, RecvTimeoutError> {
        match *self {
            Self::No | Self::Killed => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Self::Quiet(_, latest) => events.recv_timeout(latest.saturating_duration_since(now).min(QUIET.0)),
            Self::Asked(until) => events.recv_timeout(until.saturating_duration_since(now)),
        }
    }
}

/// What the launcher waits for.
pub(super) enum Event {
    /// A rank, or all ranks of a host, ended.
    Ended(u32, End),
    /// A host reports that one of its ranks has failed.
    Failed(i32),
    /// The connection to this host ended, but not its job; and how it ended.
    Lost(String, String),
    /// A host's answer to the launcher's line, or why it has none.
    Answered(u32, Result<String, String>),
    /// This process was sent a signal.
    Signal(i32),
    /// The launcher on another host sends a signal: it stops for a while, continues, or ends the job.
    Launcher(Signal),
    /// This process's standard output or error cannot be written.
    OutputClosed(io::Error),
    /// A rank's standard output or error ended.
    OutputEnded,
}

/// The processes of a job.
pub(super) enum JobMembers {
    /// Ranks. A launcher on another host has a name for this one, and is told of a failure; there may be ranks elsewhere.
    Ranks { host: Option<String>, elsewhere: bool },
    /// Connections to hosts, which have the ranks.
    Hosts(Vec<HostChannel>),
}

/// The way to tell a host what to do.
pub(super) struct HostChannel {
    /// The host as the user calls it.
    pub(super) host: String,
    pub(super) input: ChildStdin,
}

impl HostChannel {
    pub(super) fn say(&self, line: &str) {
        // If it cannot be written, the connection has ended, which its own thread tells.
        let _ = writeln!(&self.input, "{line}");
    }
}

/// The connection to a host whose ranks have begun.
pub(super) struct HostConnection {
    pub(super) line: HostChannel,
    /// The process that connects.
    pub(super) child: Child,
    /// What the host writes.
    pub(super) output: BufReader<ChildStdout>,
    pub(super) errors: ChildStderr,
}

/// The processes started so far.
pub(super) struct RankProcesses {
    members: JobMembers,
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

impl RankProcesses {
    pub(super) fn new(members: JobMembers, tell: Sender<Event>) -> io::Result<Self> {
        // Without /proc nothing can be started.
        let guard = Hold::start().map_err(|error| {
            let shown = invocation::shown();
            io::Error::new(error.kind(), format!("cannot start this program again by {shown}: {error}"))
        })?;
        let framed = matches!(members, JobMembers::Ranks { host: Some(_), .. });
        Ok(Self {
            members,
            guard,
            sink: Arc::new(Sink::new(framed)),
            kills: Kills::now(),
            tell,
            children: Vec::new(),
            watched: 0,
            outputs: 0,
        })
    }

    pub(super) fn start(&mut self, number: u32, prefix: &str, mut command: Command) -> io::Result<()> {
        let mut child = command.spawn()?;
        let (pid, stdout, stderr) = (Pid::from_child(&child), child.stdout.take(), child.stderr.take());
        self.guard.add(pid);
        self.children.push(child);
        let tell = self.tell.clone();
        spawn(format!("rank {number}"), move || drop(tell.send(Event::Ended(number, wait(pid)))))?;
        self.watched += 1;
        let source = 2 * self.children.len();
        if let Some(stdout) = stdout {
            self.forward((stdout, source), Stream::Out, prefix.to_owned(), || Event::OutputEnded)?;
            self.outputs += 1;
        }
        if let Some(stderr) = stderr {
            self.forward((stderr, source + 1), Stream::Err, prefix.to_owned(), || Event::OutputEnded)?;
            self.outputs += 1;
        }
        Ok(())
    }

    /// Takes the connection of a host, and passes on its output until that ends.
    pub(super) fn take(&mut self, number: u32, connection: HostConnection) -> io::Result<()> {
        let HostConnection { line, child, output, errors } = connection;
        let (pid, source) = (Pid::from_child(&child), 2 * (self.children.len() + 1));
        self.guard.add(pid);
        self.children.push(child);
        let host = line.host.clone();
        if let JobMembers::Hosts(lines) = &mut self.members {
            lines.push(line);
        }
        self.forward((errors, source + 1), Stream::Err, String::new(), || Event::OutputEnded)?;
        self.outputs += 1;
        let tell = self.tell.clone();
        let output = FramedOutput::new(output, move |status| drop(tell.send(Event::Failed(status))));
        self.forward((output, source), Stream::Out, String::new(), move || match wait(pid) {
            // A rank that ended with the status that ssh has for a lost connection was told before.
            end @ (End::Status(255) | End::Signal(_)) => Event::Lost(host, end.words()),
            end => Event::Ended(number, end),
        })?;
        self.watched += 1;
        Ok(())
    }

    /// Passes on a source until it ends; then sends the event that `last` makes.
    fn forward(
        &self,
        (mut source, number): (impl io::Read + AsFd + Send + 'static, usize),
        to: Stream,
        prefix: String,
        last: impl FnOnce() -> Event + Send + 'static,
    ) -> io::Result<()> {
        let (sink, tell) = (Arc::clone(&self.sink), self.tell.clone());
        spawn(format!("{prefix}{to:?}"), move || {
            // The source stays open until the failure is sent: otherwise the rank's end by SIGPIPE might arrive first.
            if let Err(error) = sink.forward(&mut source, number, to, prefix.as_bytes()) {
                drop(tell.send(Event::OutputClosed(error)));
            }
            drop(tell.send(last()));
        })
    }

    /// Waits for all ranks, and ends them if one fails or a signal arrives; at once if `verdict` is given.
    pub(super) fn supervise(mut self, events: &Receiver<Event>, mut verdict: Option<End>) -> End {
        let mut living = self.watched;
        let mut ending = if verdict.is_some() { self.end_all() } else { Ending::No };
        while living > 0 {
            let now = Instant::now();
            let mut failed = None;
            match ending.next(events, now) {
                Ok(Event::Ended(number, end)) => {
                    living -= 1;
                    if end != End::Status(0) && verdict.is_none() {
                        self.report(number, end, living);
                        failed = Some(end);
                    }
                }
                Ok(Event::Failed(status)) => failed = Some(End::Status(status)),
                Ok(Event::Lost(host, how)) => {
                    living -= 1;
                    if verdict.is_none() {
                        self.report_lost(&host, &how);
                    }
                    failed = Some(End::Status(1));
                }
                Ok(Event::Launcher(signal @ (Signal::STOP | Signal::CONT))) => self.send(signal),
                Ok(Event::Launcher(_)) => {
                    verdict.get_or_insert(End::Signal(Signal::TERM.as_raw()));
                    if matches!(ending, Ending::No | Ending::Quiet(..)) {
                        ending = self.end_all();
                    }
                }
                Ok(Event::Answered(..)) => {}
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
            if verdict.is_none() && failed.is_some() {
                verdict = failed;
                ending = Ending::Quiet(self.sink.reads(), now + QUIET.1);
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
        let grace = if matches!(self.members, JobMembers::Hosts(_)) { GRACE_OF_HOSTS } else { GRACE };
        Ending::Asked(Instant::now() + grace)
    }

    /// Takes the next step, because nothing has happened for as long as `ending` allows.
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
        if let JobMembers::Hosts(lines) = &self.members
            && signal != Signal::KILL
        {
            lines.iter().for_each(|line| line.say(&signal.as_raw().to_string()));
            return;
        }
        // A host whose connection is closed ends its ranks.
        for child in &self.children {
            // It fails only if no process is left.
            let _ = kill_process_group(Pid::from_child(child), signal);
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
                Err(RecvTimeoutError::Timeout) if self.sink.is_writing() || self.sink.reads() != reads => {
                    reads = self.sink.reads();
                }
                Ok(Event::Signal(signal)) if signals::stops(signal) => self.stop_with_us(),
                Ok(Event::Signal(signal)) => {
                    verdict.get_or_insert(End::Signal(signal));
                    return;
                }
                // The ranks have ended, and a launcher, too, has all output.
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }

    /// Prints why the job ends.
    fn report(&self, number: u32, end: End, others: usize) {
        // A host has reported it itself.
        let JobMembers::Ranks { host, elsewhere } = &self.members else { return };
        let on = host.as_ref().map_or_else(String::new, |host| format!(" on {host}"));
        let how = match end {
            End::Status(_) => format!("ended with {}", end.words()),
            End::Signal(signal) => {
                let name = signals::name(signal).map_or_else(String::new, |name| format!(" ({name})"));
                format!("was killed by {}{name}", end.words())
            }
        };
        let killed = end == End::Signal(Signal::KILL.as_raw());
        let why = self.kills.since(killed).map_or_else(String::new, |why| format!(", {why}"));
        let also = if others > 0 || *elsewhere { "; ending the others" } else { "" };
        self.sink.say(&format!("unisono run: rank {number}{on} {how}{why}{also}"));
        if host.is_some() {
            self.sink.tell_failure(end.status());
        }
    }

    /// Prints that a host's connection has ended before its job.
    fn report_lost(&self, host: &str, how: &str) {
        self.sink.say(&format!(
            "unisono run: the connection to {host} ended ({how} of ssh), and with it its ranks; ending the others. \
             Either the host or its network failed, or somebody ended the ssh or unisono there"
        ));
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

pub(super) fn spawn(name: String, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let no_thread =
        |error: io::Error| io::Error::new(error.kind(), format!("no thread can be started: {error}"));
    thread::Builder::new().name(name).spawn(work).map(drop).map_err(no_thread)
}

/// Waits for the end of a child and leaves it to be reaped.
pub(super) fn wait(pid: Pid) -> End {
    let ended = retry_on_intr(|| waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT));
    let ended = ended.ok().flatten().and_then(|status| {
        let signal = || status.terminating_signal().map(End::Signal);
        status.exit_status().map(End::Status).or_else(signal)
    });
    // If it was reaped elsewhere, how it ended is unknown.
    ended.unwrap_or(End::Status(255))
}
