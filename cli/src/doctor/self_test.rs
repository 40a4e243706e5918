//! Lets two processes open endpoints and write to each other, with every provider that fits, and two ranks reduce
//! with the one that a group would use.

use std::{
    io::{BufReader, Write},
    os::unix::process::ExitStatusExt,
    process::{Child, Command, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde::Serialize;
use unisono_transport::ofi::Options;

use super::{
    endpoint::{BYTES, Contact, OneEndpoint, Opened, Said, hear},
    group::{self, Reduced},
    providers::Providers,
    report::Section,
};

/// How long one provider may take: opening, and all puts. It takes well under a second.
const PATIENCE: Duration = Duration::from_secs(20);

/// What one provider did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Trial {
    /// What was asked for; `None` leaves the choice.
    pub(super) request: Option<String>,
    /// Whether it is what was asked for, and not one of the others that people ask for.
    pub(super) asked: bool,
    /// The provider that came first and did not work, and why.
    pub(super) failed: Option<(String, String)>,
    /// The one that did; `None` if there was no other.
    pub(super) success: Option<Success>,
}

/// A provider that works.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Success {
    /// Its endpoint.
    #[serde(flatten)]
    pub(super) opened: Opened,
    /// The median time of a small put, one way, between two processes, in µs.
    pub(super) latency_us: f64,
}

/// What the providers did.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct SelfTest {
    /// A trial for each provider that a way leads to.
    pub(super) trials: Vec<Trial>,
    /// What two ranks in a group did with the one asked for; `None` if it does not work between processes.
    pub(super) group: Option<Result<Reduced, String>>,
}

impl SelfTest {
    pub(super) fn gather(options: &Options, providers: &Providers) -> Self {
        let with = |provider| {
            let options = Options { provider, ..options.clone() };
            try_out(&mut |first| ours(&options, first), PATIENCE)
        };
        let mut found = Self::default();
        let mut tried = Vec::new();
        for (at, way) in providers.ways.iter().enumerate() {
            let Ok(taken) = &way.taken else { continue };
            // Several requests may mean the same.
            if tried.contains(&taken) {
                continue;
            }
            tried.push(taken);
            let mut trial =
                Trial { request: way.request.clone(), asked: at == 0, failed: None, success: None };
            // A group would pass on to what comes next, and so hide why the first failed.
            match with(Some(taken.name.clone())) {
                Ok(success) => trial.success = Some(success),
                Err(reason) => {
                    trial.failed = Some((taken.name.clone(), reason));
                    if way.request.as_ref() != Some(&taken.name) {
                        trial.success = with(way.request.clone()).ok();
                    }
                }
            }
            found.trials.push(trial);
        }
        if found.chosen().is_some() {
            found.group = Some(group::try_out(providers.provider.as_deref(), providers.interface.as_deref()));
        }
        found
    }

    /// The providers that work.
    pub(super) fn working(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for success in self.trials.iter().filter_map(|trial| trial.success.as_ref()) {
            if !names.contains(&success.opened.provider.as_str()) {
                names.push(&success.opened.provider);
            }
        }
        names
    }

    /// The provider that a group would use.
    pub(super) fn chosen(&self) -> Option<&Opened> {
        let trial = self.trials.iter().find(|trial| trial.asked)?;
        trial.success.as_ref().map(|success| &success.opened)
    }

    pub(super) fn judge(&self) -> Section {
        let mut section = Section::new("self-test");
        for Trial { request, asked, failed, success } in &self.trials {
            let request = request.as_deref().unwrap_or("by default");
            if let Some((name, reason)) = failed {
                let text = format!("{request}: {name} fits, but does not work: {reason}");
                let mut mend = "see the limits below; FI_LOG_LEVEL=info has libfabric say more".to_owned();
                if name.starts_with("verbs") {
                    mend += "; on soft-RoCE set FI_UNIVERSE_SIZE=32";
                }
                // A provider that nobody asked for may fail.
                if *asked && success.is_none() {
                    section.problem(text, mend);
                } else {
                    section.warn(text, mend);
                }
            }
            if let Some(Success { opened, latency_us }) = success {
                let Opened { provider, open_ms, .. } = opened;
                let sleeps =
                    if opened.wakes { "" } else { "; waits can only nap, not sleep until something comes" };
                section.ok(format!(
                    "{request}: {provider} works between two processes: opened in {open_ms:.1} ms, {BYTES} bytes \
                     one way in about {latency_us:.2} us{sleeps}"
                ));
                if let Some((what, mend)) = opened.caution.split_once("; ") {
                    section.warn(what, mend);
                }
            }
        }
        match &self.group {
            Some(Ok(reduced)) => section.ok(reduced.words()),
            Some(Err(problem)) => section.problem(
                format!("two ranks in a group: {problem}"),
                "see the environment above; try `unisono bench all_reduce --ranks 2 -e 1M`",
            ),
            None => {}
        }
        if self.trials.is_empty() {
            section.problem("there is no provider to test", "see the providers above");
        }
        section
    }
}

/// The command that becomes an end.
fn ours(options: &Options, first: bool) -> Command {
    // The link stays good when the file of this program has been replaced by a newer one.
    let mut command = Command::new("/proc/self/exe");
    // A crash shall show as the signal it was (see run/job.rs).
    command.args(OneEndpoint::arguments(options, first)).env("IPATH_NO_BACKTRACE", "1");
    command
}

/// Lets two ends, made by these commands, talk.
fn try_out(command: &mut dyn FnMut(bool) -> Command, patience: Duration) -> Result<Success, String> {
    let deadline = Instant::now() + patience;
    let mut ends = [Process::start(command(true))?, Process::start(command(false))?];
    let mut opened = Vec::new();
    for end in &mut ends {
        match end.next(deadline)? {
            Said::Opened(what, contact) => opened.push((what, contact)),
            other => return Err(format!("an end said {other:?} before it was open")),
        }
    }
    let [(first, contact), (second, other)] =
        <[_; 2]>::try_from(opened).map_err(|_| "there are not two ends".to_owned())?;
    if first.provider != second.provider {
        return Err(format!("one process got {}, the other {}", first.provider, second.provider));
    }
    let [one, two] = &mut ends;
    one.tell(&other)?;
    two.tell(&contact)?;
    // One that crashed knows better than one that waited for it in vain.
    let mut said = ends.each_mut().map(|end| end.next(deadline));
    if ends[1].crashed() {
        said.reverse();
    }
    let mut latency_us = None;
    for (at, said) in said.into_iter().enumerate() {
        match said? {
            Said::Done { latency_us: time } if at == 0 => latency_us = Some(time),
            Said::Done { .. } => {}
            other => return Err(format!("an end said {other:?} instead of being done")),
        }
    }
    let latency_us = latency_us.ok_or("no time was taken")?;
    Ok(Success { opened: first, latency_us })
}

/// A process that is an end. It is killed when dropped.
struct Process {
    child: Child,
    said: Receiver<Said>,
}

impl Process {
    fn start(mut command: Command) -> Result<Self, String> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("a process for the test cannot be started: {error}"))?;
        let (tell, said) = mpsc::channel();
        if let Some(stdout) = child.stdout.take() {
            let mut stdout = BufReader::new(stdout);
            thread::spawn(move || {
                while let Some(line) = hear(&mut stdout) {
                    if tell.send(line).is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Self { child, said })
    }

    /// What it says next; what it says of a failure, or of its end, is an error.
    fn next(&mut self, deadline: Instant) -> Result<Said, String> {
        match self.said.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(Said::Failed(problem)) => Err(problem),
            Ok(said) => Ok(said),
            Err(RecvTimeoutError::Timeout) => Err("it hangs: its process was silent and was killed".into()),
            Err(RecvTimeoutError::Disconnected) => Err(self.end(deadline)),
        }
    }

    /// Whether it was killed by a signal.
    fn crashed(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(status)) if status.signal().is_some())
    }

    /// How it ended.
    fn end(&mut self, deadline: Instant) -> String {
        while Instant::now() < deadline {
            match self.child.try_wait() {
                Ok(Some(status)) => {
                    return match status.signal() {
                        Some(signal) => match Signal::from_named_raw(signal) {
                            Some(name) => {
                                format!("it crashed: its process was killed by signal {signal} ({name:?})")
                            }
                            None => format!("it crashed: its process was killed by signal {signal}"),
                        },
                        None => format!("its process ended: {status}"),
                    };
                }
                Ok(None) => thread::sleep(Duration::from_millis(1)),
                Err(error) => return format!("its process is lost: {error}"),
            }
        }
        "its process says what is not understood".into()
    }

    fn tell(&mut self, contact: &Contact) -> Result<(), String> {
        let mut line = serde_json::to_string(contact).map_err(|error| error.to_string())?;
        line.push('\n');
        let stdin = self.child.stdin.as_mut().ok_or("a process has no input")?;
        stdin.write_all(line.as_bytes()).map_err(|error| format!("a process does not listen: {error}"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A process that is done ends when its input is closed; any other has nothing left to say.
        drop(self.child.stdin.take());
        let deadline = Instant::now() + Duration::from_secs(1);
        while self.said.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_ok() {}
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said of ends that are shell scripts.
    fn scripts(script: &str, patience: Duration) -> String {
        let mut shell = |_| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        try_out(&mut shell, patience).unwrap_err()
    }

    #[test]
    fn ends_that_fail_are_told_apart() {
        let long = Duration::from_secs(20);
        assert!(scripts("kill -SEGV $$", long).contains("signal 11"), "a crash");
        assert!(scripts("exit 3", long).contains("status: 3"), "an end");
        assert!(scripts("echo '{\"Failed\":\"no way\"}'; cat", long).contains("no way"), "a failure");
        assert!(scripts("echo '{\"Done\":{\"latency_us\":1}}'; cat", long).contains("before it was open"));
        assert!(scripts("echo nonsense; exit 0", long).contains("status: 0"));
        assert_eq!(
            scripts("exec sleep 60", Duration::from_millis(100)),
            "it hangs: its process was silent and was killed"
        );
    }

    #[test]
    fn a_program_that_is_not_there_is_told() {
        let said = try_out(&mut |_| Command::new("/no/such/program"), PATIENCE).unwrap_err();
        assert!(said.contains("cannot be started"), "{said}");
    }
}
