//! Cases between processes: memory that processes share, and a peer that is killed.
//!
//! The suite starts itself again as the other process, which gets its provider from the environment and
//! everything else from its standard input, line by line.

use std::{
    io::{self, BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Signal, set_parent_process_death_signal};
use unisono_transport::{
    Address, Error, Event, Mapping, Memory, Notify, Posted, Put, Region, RemoteRegion, Source, Target,
};

use crate::{
    kit::{
        self, Between, Endpoint, FIRST, Outcome, PATIENCE, Scope, bytes_of, ensure, pattern, remote, until,
    },
    mapping,
};

/// The environment variable that makes a process the other one, by the provider's name.
pub(crate) const CHILD: &str = "UNISONO_TEST_CHILD";

/// The cases, by name.
pub(crate) const CASES: &[(&str, ProcessCase)] = &[
    ("processes write to each other", exchange),
    ("a killed process is survived", killed),
    ("a killed process wakes a sleeper", killed_beside_sleep),
    ("an end is closed while puts arrive", closed),
    ("what is fetched from memory that has changed owners does not arrive", fetched_late),
    ("memory of another process is read in place", mapped),
];

const ROUNDS: u32 = 48;
const LARGEST: usize = 300_000;
/// The number of rounds through mapped memory.
const TALKS: u32 = 400;
/// The number of puts of a burst.
const BURST: usize = 100;
/// The immediate of a flood's puts, which are not checked.
const FLOOD: u32 = u32::MAX;
/// The immediate of a put whose source changes owners.
const WITHDRAWN: u32 = 1 << 20;

type Failure = Box<dyn std::error::Error>;
/// A case, given what to open.
type ProcessCase = fn(Between) -> Outcome;

/// One end: two slots to be written to, two to write from.
struct End {
    endpoint: Endpoint,
    window: Region,
    sources: Region,
    remote: RemoteRegion,
    events: Vec<Event>,
}

impl End {
    /// Opens an endpoint, and exchanges addresses with the other process.
    fn meet(between: Between, to: &mut impl Write, from: &mut impl BufRead) -> Result<Self, Failure> {
        let mut endpoint = between.open()?;
        let window = endpoint.register(Memory::map(2 * LARGEST)?)?;
        let sources = endpoint.register(Memory::map(2 * LARGEST)?)?;
        let [base, key, len] = remote(&window)?.words();
        let hex: String = endpoint.address().0.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(to, "{hex} {base} {key} {len}")?;
        to.flush()?;
        let mut line = String::new();
        from.read_line(&mut line)?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let [hex, base, key, len] = words[..] else {
            return Err(format!("the other process said {line:?}").into());
        };
        let address = (0..hex.len() / 2)
            .map(|at| u8::from_str_radix(hex.get(2 * at..2 * at + 2).unwrap_or_default(), 16))
            .collect::<Result<Vec<_>, _>>()?;
        let remote = RemoteRegion::from_words([base.parse()?, key.parse()?, len.parse()?]);
        let peer = endpoint.connect(&Address(address))?;
        ensure!(peer == FIRST, "the first peer is {peer:?}");
        Ok(Self { endpoint, window, sources, remote, events: Vec::new() })
    }

    fn put(&mut self, slot: usize, len: usize, immediate: u32) -> Result<Posted, Failure> {
        let sources = [Source::new(&self.sources, slot * LARGEST, len)?];
        let target = Target { region: self.remote, offset: (slot * LARGEST) as u64 };
        Ok(kit::put(
            &mut *self.endpoint,
            &Put {
                to: FIRST,
                sources: &sources,
                target,
                immediate,
                token: 0,
                notify: Notify::IfNotInjected,
                fetch: false,
            },
        )?)
    }

    /// In every round both write to each other and check what arrived. `seeds` are this end's and the other's.
    fn rounds(&mut self, seeds: [u32; 2]) -> Outcome {
        let inject = self.endpoint.limits().max_inject;
        let len_of = |round: u32, seed: u32| match round % 6 {
            0 => 1 + (round + seed) as usize,
            1 => inject.max(1),
            2 => inject + 1,
            3 => 65_536,
            4 => LARGEST,
            _ => 4096 + seed as usize,
        };
        // The other may be one round ahead, in the other slot.
        let mut early = None;
        for round in 0..ROUNDS {
            let slot = (round % 2) as usize;
            let [len, expected] = seeds.map(|seed| len_of(round, seed));
            kit::write(&self.sources, slot * LARGEST, &pattern(round ^ (seeds[0] << 16), len))?;
            let (mut posted, mut sent, mut arrived) = (false, len <= inject, early.take());
            until(&format!("round {round}"), || {
                if !posted {
                    posted = self.put(slot, len, round)? == Posted::Yes;
                }
                self.endpoint.poll(&mut self.events)?;
                if self.events.is_empty() && posted {
                    self.endpoint.park(Duration::from_millis(10), &[], &mut || false)?;
                }
                for event in std::mem::take(&mut self.events) {
                    match event {
                        Event::Arrived { immediate, len } if immediate == round && arrived.is_none() => {
                            arrived = Some(len)
                        }
                        Event::Arrived { immediate, len } if immediate == round + 1 && early.is_none() => {
                            early = Some(len)
                        }
                        Event::Sent { token: 0 } if !sent => sent = true,
                        other => return Err(format!("{other:?} in round {round}").into()),
                    }
                }
                Ok(posted && sent && arrived.is_some())
            })?;
            let reported = arrived.flatten();
            ensure!(
                reported.is_none_or(|reported| reported == expected),
                "round {round}: {reported:?} bytes are reported, not {expected}"
            );
            let landed = bytes_of(&self.window, slot * LARGEST, expected)?;
            ensure!(
                landed == pattern(round ^ (seeds[1] << 16), expected),
                "round {round}: {expected} bytes are damaged"
            );
        }
        Ok(())
    }

    /// Puts and polls without checking, for a while or until it fails; returns the failure.
    fn flood(&mut self, time: Duration) -> Option<Failure> {
        let began = Instant::now();
        while began.elapsed() < time {
            let mut step = || -> Outcome {
                let _ = self.put(0, 65_536, FLOOD)?;
                self.endpoint.poll(&mut self.events)?;
                self.events.clear();
                Ok(())
            };
            if let Err(error) = step() {
                return Some(error);
            }
        }
        None
    }

    /// Begins a long put, closes the endpoint before the peer has polled, and writes to the put's source, as an owner may who has it
    /// back. Says so, and lives on.
    fn withdraw(mut self) -> Outcome {
        kit::write(&self.sources, 0, &pattern(WITHDRAWN, LARGEST))?;
        until("a put that is withdrawn", || Ok(self.put(0, LARGEST, WITHDRAWN)? == Posted::Yes))?;
        drop(self.endpoint);
        kit::write(&self.sources, 0, &vec![0xee; LARGEST])?;
        println!("withdrawn");
        io::stdin().lock().read_line(&mut String::new())?;
        Ok(())
    }

    /// Talks through mapped memory, and returns that of the other's; nothing if it cannot be mapped.
    fn talk(&mut self, seeds: [u32; 2]) -> Result<Option<Region>, Failure> {
        let mut view = None;
        until("memory that is mapped, or is not", || {
            match self.endpoint.map(FIRST, &self.remote)? {
                Mapping::Yes(mapped) => view = Some(mapped),
                Mapping::No => {}
                Mapping::NotYet => {
                    self.endpoint.poll(&mut self.events)?;
                    return Ok(false);
                }
            }
            Ok(true)
        })?;
        if let Some(view) = &view {
            mapping::talk(&mut *self.endpoint, [&self.window, view], TALKS, seeds)?;
        }
        Ok(view)
    }

    /// As many puts as an endpoint might be given credit for, and progress until it fails or is killed.
    fn burst(&mut self) {
        let mut left = BURST;
        loop {
            if left > 0 {
                match self.put(0, 4096, FLOOD) {
                    Ok(Posted::Yes) => left -= 1,
                    Ok(Posted::Full) => {}
                    Err(_) => return,
                }
            }
            if self.endpoint.poll(&mut self.events).is_err() {
                return;
            }
            self.events.clear();
        }
    }
}

/// The other process, and the pipes to it.
struct Other {
    child: Child,
    input: ChildStdin,
    output: Option<BufReader<ChildStdout>>,
}

impl Other {
    fn start(between: Between) -> Result<Self, Failure> {
        let mut child = Command::new(std::env::current_exe()?)
            .env(CHILD, between.name())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("a child without pipes".into());
        };
        Ok(Self { child, input, output: Some(BufReader::new(output)) })
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // It may have ended by itself; either way it is not left behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The longest the other process may take: by far more than it needs in an emulated machine on a busy host.
const LONGEST: Duration = PATIENCE.saturating_mul(10);

/// The other process: rounds, then what it is asked: to flood, or to put some, until it is killed; to withdraw a put; or to end.
pub(crate) fn child(provider: &str) -> ExitCode {
    // The process ends when the suite ends or a call hangs, so that the suite does not wait for it.
    let tied = set_parent_process_death_signal(Some(Signal::KILL));
    thread::spawn(|| {
        thread::sleep(LONGEST);
        eprintln!("the watchdog ends the other process");
        std::process::exit(99);
    });
    let run = || -> Outcome {
        tied?;
        let mut end = End::meet(Between::named(provider), &mut io::stdout(), &mut io::stdin().lock())?;
        end.rounds([2, 1])?;
        println!("done");
        let mut line = String::new();
        io::stdin().lock().read_line(&mut line)?;
        match line.trim() {
            "flood" => while end.flood(Duration::from_secs(1)).is_none() {},
            "burst" => end.burst(),
            "withdraw" => return end.withdraw(),
            "map" => {
                kit::publish(&end.window, 0, 0)?;
                println!("ready");
                drop(end.talk([2, 1])?);
            }
            // The parent's last acknowledgements may still need this one's progress.
            _ => end.endpoint.poll(&mut end.events)?,
        }
        Ok(())
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the other process: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Starts the other process and goes through all rounds with it.
fn acquainted(between: Between) -> Result<(Other, End), Failure> {
    let mut other = Other::start(between)?;
    let mut output = other.output.take().ok_or("a child without output")?;
    let mut end = End::meet(between, &mut other.input, &mut output)?;
    end.rounds([1, 2])?;
    // Progress for the other's last round, until it says that it is through.
    let (sender, receiver) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let mut line = String::new();
        let outcome = output.read_line(&mut line).map(|_| line);
        // It fails if the rounds failed, because the pipe is closed.
        let _ = sender.send((outcome, output));
    });
    let mut said = None;
    until("the other process", || {
        end.endpoint.poll(&mut end.events)?;
        said = receiver.try_recv().ok();
        Ok(said.is_some())
    })?;
    match said {
        Some((Ok(line), output)) if line.trim() == "done" => {
            other.output = Some(output);
            Ok((other, end))
        }
        said => Err(format!("the other process said {:?}", said.map(|said| said.0)).into()),
    }
}

fn exchange(between: Between) -> Outcome {
    let (mut other, end) = acquainted(between)?;
    writeln!(other.input, "end")?;
    let status = other.child.wait()?;
    ensure!(status.success(), "the other process ended with {status}");
    drop(end);
    Ok(())
}

/// One closes its end while the other's puts arrive.
fn closed(between: Between) -> Outcome {
    let (mut other, mut end) = acquainted(between)?;
    writeln!(other.input, "burst")?;
    until("the first of many", || {
        end.endpoint.poll(&mut end.events)?;
        Ok(!end.events.is_empty())
    })?;
    drop(end);
    Ok(())
}

/// One closes its end before the other has polled, and its memory changes owners. What arrives must be what was put; an error, or
/// nothing, is as good.
fn fetched_late(between: Between) -> Outcome {
    let (mut other, mut end) = acquainted(between)?;
    writeln!(other.input, "withdraw")?;
    let mut line = String::new();
    other.output.as_mut().ok_or("a child without output")?.read_line(&mut line)?;
    ensure!(line.trim() == "withdrawn", "the other process said {line:?}");
    let began = Instant::now();
    let mut arrived = false;
    while !arrived
        && began.elapsed() < Duration::from_millis(100)
        && end.endpoint.poll(&mut end.events).is_ok()
    {
        let events = std::mem::take(&mut end.events);
        arrived = events.iter().any(|event| matches!(event, Event::Arrived { immediate: WITHDRAWN, .. }));
    }
    if arrived {
        let landed = bytes_of(&end.window, 0, LARGEST)?;
        ensure!(
            landed == pattern(WITHDRAWN, LARGEST),
            "what arrives are the bytes of the memory's next owner"
        );
    }
    Ok(())
}

/// Each reads in place what the other has written to memory that it has allocated, also when the other has ended.
fn mapped(between: Between) -> Outcome {
    let (mut other, mut end) = acquainted(between)?;
    let near = matches!(between, Between::Shm(Some(_)) | Between::Mux(_, Scope::One, Some(_)));
    ensure!(end.remote.mappable || !near, "what was allocated cannot be mapped");
    kit::publish(&end.window, 0, 0)?;
    writeln!(other.input, "map")?;
    let mut line = String::new();
    other.output.as_mut().ok_or("a child without output")?.read_line(&mut line)?;
    ensure!(line.trim() == "ready", "the other process said {line:?}");
    let view = end.talk([1, 2])?;
    ensure!(view.is_some() == (near && end.remote.mappable), "mapped: {}", view.is_some());
    let status = other.child.wait()?;
    ensure!(status.success(), "the other process ended with {status}");
    drop(end);
    view.map_or(Ok(()), |view| mapping::last(&view, TALKS, 2))
}

fn names_the_peer(error: &Failure) -> bool {
    matches!(error.downcast_ref(), Some(Error::Completion { peer: Some(FIRST), .. }))
}

/// One sleeps when the other is killed: it wakes, gets an error with the peer's name, and nothing of the peer is left.
fn killed_beside_sleep(between: Between) -> Outcome {
    if !between.names_the_dead() {
        println!(
            "SKIPPED: {}, killed beside sleep: not every provider notices that a process is killed",
            between.name()
        );
        return Ok(());
    }
    let descriptors = || Ok::<_, io::Error>(std::fs::read_dir("/proc/self/fd")?.count());
    let before = descriptors()?;
    let (mut other, mut end) = acquainted(between)?;
    let began = Instant::now();
    let mut killed = false;
    let error = loop {
        if let Err(error) = end.endpoint.poll(&mut end.events) {
            break error.into();
        }
        if !killed {
            other.child.kill()?;
            killed = true;
        }
        end.endpoint.park(Duration::from_secs(20), &[], &mut || false)?;
        ensure!(began.elapsed() < Duration::from_secs(10), "a sleeper does not hear that its peer has ended");
    };
    ensure!(names_the_peer(&error), "a peer that was killed gave {error:?}");
    drop((end, other));
    let after = descriptors()?;
    ensure!(after <= before, "{before} descriptors are open before, {after} after");
    Ok(())
}

/// Both flood each other, one is killed, and the other continues with a new one.
fn killed(between: Between) -> Outcome {
    let (mut other, mut end) = acquainted(between)?;
    writeln!(other.input, "flood")?;
    if let Some(error) = end.flood(Duration::from_millis(100)) {
        return Err(format!("before anybody was killed: {error}").into());
    }
    other.child.kill()?;
    let began = Instant::now();
    // An error is welcome, but not every provider notices.
    let error = end.flood(Duration::from_millis(300));
    ensure!(
        !between.names_the_dead() || error.as_ref().is_some_and(names_the_peer),
        "a peer that was killed gave {error:?}"
    );
    ensure!(began.elapsed() < Duration::from_secs(5), "a flood of 300 ms took {:?}", began.elapsed());
    drop(end);
    drop(other);
    exchange(between)
}
