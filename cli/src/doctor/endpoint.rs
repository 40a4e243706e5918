//! The hidden subcommand that is one of the two processes of the self-test: opens an endpoint, gets the other's address from
//! doctor, and sends a small put back and forth many times. A provider that crashes or hangs ends this process, not doctor.
#![allow(unsafe_code)]

use std::{
    io::{self, BufRead, Write},
    net::IpAddr,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use unisono_transport::{
    Address, Event, Memory, Notify, Peer, Posted, Put, Region, RemoteRegion, Source, Target, Transport,
    ofi::{Ofi, Options},
};

/// What the subcommand is called.
pub(crate) const NAME: &str = "doctor-one-endpoint";

/// How many puts there and back are timed, after a tenth as many to warm up.
const ROUNDS: u32 = 500;
/// How large they are, in bytes.
pub(super) const BYTES: usize = 8;
/// How long one put may take to arrive, and how long the other end is waited for when all is done.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long an endpoint may take to open, all candidates of a provider together; the two then have the rest of doctor's time.
const OPENING: Duration = Duration::from_secs(12);
/// What every put carries.
const IMMEDIATE: u32 = 7;

/// One end of the self-test.
#[derive(clap::Args)]
pub(crate) struct OneEndpoint {
    /// Puts first, and takes the time.
    #[arg(long)]
    first: bool,
    #[arg(long)]
    provider: Option<String>,
    #[arg(long)]
    interface: Option<String>,
    #[arg(long)]
    towards: Option<IpAddr>,
}

impl OneEndpoint {
    /// The arguments that make such an end.
    pub(super) fn arguments(options: &Options, first: bool) -> Vec<String> {
        let mut arguments = vec![NAME.to_owned()];
        arguments.extend(first.then(|| "--first".to_owned()));
        let interface = options.interface.as_ref().map(ToString::to_string);
        let towards = options.towards.map(|towards| towards.to_string());
        let settings =
            [("provider", options.provider.clone()), ("interface", interface), ("towards", towards)];
        arguments
            .extend(settings.into_iter().filter_map(|(name, value)| Some(format!("--{name}={}", value?))));
        arguments
    }

    pub(crate) fn run(self) -> ExitCode {
        let failed = |problem: String| say(&Said::Failed(problem)).and(Err(()));
        match self.examine() {
            Ok(()) => ExitCode::SUCCESS,
            // Whoever does not listen any more has given up.
            Err(problem) => failed(problem).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS),
        }
    }

    fn examine(self) -> Result<(), String> {
        let options = Options {
            provider: self.provider,
            interface: self.interface.and_then(|interface| interface.parse().ok()),
            towards: self.towards,
            deadline: Some(Instant::now() + OPENING),
            ..Options::default()
        };
        let began = Instant::now();
        let mut ofi = Ofi::open(&options).map_err(told)?;
        let opened = began.elapsed();
        let map = || Memory::map(BYTES, false).map_err(told);
        let (source, window) = (ofi.register(map()?).map_err(told)?, ofi.register(map()?).map_err(told)?);
        let RemoteRegion { base, key, len } = window.remote().ok_or("a registered region has no key")?;
        let (limits, Address(address)) = (ofi.limits().clone(), ofi.address().clone());
        let contact = Contact { address, region: [base, key, len] };
        let opened = Opened {
            provider: limits.provider,
            open_ms: opened.as_secs_f64() * 1e3,
            pins: !limits.cheap_registration,
            staging: limits.local_registration,
            wakes: limits.wakes,
            sockets: limits.sockets,
            caution: limits.caution.to_owned(),
        };
        say(&Said::Opened(opened, contact)).map_err(|()| "doctor is gone")?;

        let Contact { address, region: [base, key, len] } =
            hear(&mut io::stdin().lock()).ok_or("doctor told nothing of the other end")?;
        let to = ofi.connect(&Address(address)).map_err(told)?;
        let target = Target { region: RemoteRegion { base, key, len }, offset: 0 };
        let mut line = Line { ofi, source, window, to, target, sending: false, arrived: 0 };
        let mut times = Vec::new();
        for round in 0..ROUNDS + ROUNDS / 10 {
            let began = Instant::now();
            if self.first {
                line.put(round)?;
                line.take(round)?;
            } else {
                line.take(round)?;
                line.put(round)?;
            }
            if round >= ROUNDS / 10 {
                times.push(began.elapsed() / 2);
            }
        }
        times.sort();
        let median = times.get(times.len() / 2).copied().unwrap_or_default();
        say(&Said::Done { latency_us: median.as_secs_f64() * 1e6 }).map_err(|()| "doctor is gone")?;
        line.stay();
        Ok(())
    }
}

/// What an end says to doctor: a line of JSON each.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Said {
    /// Its endpoint is open, and there the other reaches it.
    Opened(Opened, Contact),
    /// All puts have come.
    Done {
        /// The median time of one, in µs.
        latency_us: f64,
    },
    /// Something went wrong.
    Failed(String),
}

/// An endpoint that is open.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Opened {
    /// Its provider's name.
    pub(super) provider: String,
    /// How long it took to open it and, where it can, to have it write to itself, in ms.
    pub(super) open_ms: f64,
    /// Whether registered memory is pinned, and so counts against the limit on locked memory.
    pub(super) pins: bool,
    /// Whether sources must be registered.
    pub(super) staging: bool,
    /// Whether a wait can sleep until something comes.
    pub(super) wakes: bool,
    /// Whether it goes through the kernel's sockets.
    pub(super) sockets: bool,
    /// What may go wrong with it; may be empty.
    pub(super) caution: String,
}

/// Where an endpoint is reached.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Contact {
    address: Vec<u8>,
    /// Base, key and length of where it may be written to.
    region: [u64; 3],
}

/// Reads the next line.
pub(super) fn hear<T: DeserializeOwned>(from: &mut impl BufRead) -> Option<T> {
    let mut line = String::new();
    from.read_line(&mut line).ok()?;
    serde_json::from_str(&line).ok()
}

fn say(what: &Said) -> Result<(), ()> {
    let line = serde_json::to_string(what).map_err(|_| ())?;
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}").and_then(|()| stdout.flush()).map_err(|_| ())
}

fn told(error: unisono_transport::Error) -> String {
    error.to_string()
}

/// The way to the other end.
struct Line {
    // First, so that it is closed before the memory is let go.
    ofi: Ofi,
    source: Region,
    window: Region,
    to: Peer,
    target: Target,
    /// Whether a put is under way whose source must not change.
    sending: bool,
    /// How many puts have arrived that were not yet taken.
    arrived: u32,
}

impl Line {
    /// Puts the pattern of a round.
    fn put(&mut self, round: u32) -> Result<(), String> {
        let began = Instant::now();
        while self.sending {
            self.poll(began, "sent")?;
        }
        // SAFETY: the put before has been sent, or was copied.
        unsafe { self.source.write(0, &pattern(round)).map_err(told)? };
        loop {
            let sources = [Source::new(&self.source, 0, BYTES).map_err(told)?];
            let put = Put {
                to: self.to,
                sources: &sources,
                target: self.target,
                immediate: IMMEDIATE,
                token: 1,
                notify: Notify::IfNotInjected,
            };
            // SAFETY: the source changes when this was sent; the other end looks when this has arrived, and puts then.
            if unsafe { self.ofi.put(&put).map_err(told)? } == Posted::Yes {
                self.sending = BYTES > self.ofi.limits().max_inject;
                return Ok(());
            }
            self.poll(began, "accepted")?;
        }
    }

    /// Waits for the put of a round, and looks at what landed.
    fn take(&mut self, round: u32) -> Result<(), String> {
        let began = Instant::now();
        while self.arrived == 0 {
            self.poll(began, "here")?;
        }
        self.arrived -= 1;
        let mut landed = [0; BYTES];
        // SAFETY: the put has arrived, and the other end does not put before it was answered.
        unsafe { self.window.read(0, &mut landed).map_err(told)? };
        let wanted = pattern(round);
        if landed == wanted { Ok(()) } else { Err(format!("{landed:x?} landed, but {wanted:x?} was put")) }
    }

    /// Makes progress; gives way where nothing happened, since both ends may share a core.
    fn poll(&mut self, began: Instant, what: &str) -> Result<(), String> {
        let mut events = Vec::new();
        self.ofi.poll(&mut events).map_err(told)?;
        if events.is_empty() {
            thread::yield_now();
        }
        for event in events {
            match event {
                Event::Sent { token: 1 } if self.sending => self.sending = false,
                Event::Arrived { immediate: IMMEDIATE, .. } => self.arrived += 1,
                other => return Err(format!("{other:?} came, which was not put")),
            }
        }
        if began.elapsed() > PATIENCE {
            return Err(format!("a put of {BYTES} bytes is not {what} after {} s", PATIENCE.as_secs()));
        }
        Ok(())
    }

    /// Makes progress for the other end's sake until doctor closes our input.
    fn stay(mut self) {
        let closed = thread::spawn(|| io::copy(&mut io::stdin().lock(), &mut io::sink()));
        let began = Instant::now();
        // The other end may be gone already, which is no failure any more.
        while !closed.is_finished() && self.poll(began, "here").is_ok() {}
    }
}

/// What is put in a round: never the same twice.
fn pattern(round: u32) -> [u8; BYTES] {
    u64::from(round).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()
}
