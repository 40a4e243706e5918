//! Opens endpoints for real, lets them write to themselves and to each other, and takes the time.

use std::time::{Duration, Instant};

use serde::Serialize;
use unisono_transport::{
    Event, Memory, Posted, Put, Source, Target, Transport,
    ofi::{Ofi, Options},
};

use super::{providers::Providers, report::Section, within};

/// How long one provider may take: opening, and all puts. It takes well under a second.
const PATIENCE: Duration = Duration::from_secs(20);
/// How many puts there and back are timed, after a tenth as many to warm up.
const ROUNDS: usize = 500;
/// How large they are, in bytes.
const BYTES: usize = 8;

/// What one provider did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Trial {
    /// What was asked for; `None` leaves the choice.
    pub(super) request: Option<String>,
    /// Whether it is what was asked for, and not one of the others that people ask for.
    pub(super) asked: bool,
    /// What came of it.
    pub(super) outcome: Result<Success, String>,
}

/// A provider that works.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Success {
    /// Its name.
    pub(super) provider: String,
    /// How long it took to open an endpoint and have it write to itself, in ms.
    pub(super) open_ms: f64,
    /// The median time of a small put, one way, between two endpoints that one thread drives, in µs.
    pub(super) latency_us: f64,
    /// Whether registered memory is pinned, and so counts against the limit on locked memory.
    pub(super) pins: bool,
    /// Whether sources must be registered.
    pub(super) staging: bool,
    /// Whether a wait can sleep until something comes.
    pub(super) wakes: bool,
}

/// What the providers did.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct SelfTest {
    /// A trial for each provider that a way leads to.
    pub(super) trials: Vec<Trial>,
}

impl SelfTest {
    pub(super) fn gather(options: &Options, providers: &Providers) -> Self {
        let mut found = Self::default();
        let mut tried = Vec::new();
        for (at, way) in providers.ways.iter().enumerate() {
            let Ok(taken) = &way.taken else { continue };
            // Several requests may mean the same.
            if tried.contains(&taken) {
                continue;
            }
            tried.push(taken);
            let options = Options { provider: way.request.clone(), ..options.clone() };
            let outcome = within(PATIENCE, move || try_out(&options))
                .unwrap_or_else(|| Err(format!("it did not come back within {} s", PATIENCE.as_secs())));
            found.trials.push(Trial { request: way.request.clone(), asked: at == 0, outcome });
        }
        found
    }

    /// Whether a provider works.
    pub(super) fn works(&self) -> bool {
        self.trials.iter().any(|trial| trial.outcome.is_ok())
    }

    /// The provider that a group would use.
    pub(super) fn chosen(&self) -> Option<&Success> {
        self.trials.iter().find(|trial| trial.asked)?.outcome.as_ref().ok()
    }

    pub(super) fn judge(&self) -> Section {
        let mut section = Section::new("self-test");
        for Trial { request, asked, outcome } in &self.trials {
            let request = request.as_deref().unwrap_or("by default");
            match outcome {
                Ok(success) => {
                    let sleeps = if success.wakes {
                        ""
                    } else {
                        "; waits cannot sleep until something comes, only nap"
                    };
                    section.ok(format!(
                        "{request}: {} wrote to itself, opened in {:.1} ms; about {:.2} us one way for {BYTES} bytes, \
                         both ends driven by one thread{sleeps}",
                        success.provider, success.open_ms, success.latency_us
                    ));
                }
                Err(error) => {
                    let text = format!("{request}: {error}");
                    let mend = "run it again with FI_LOG_LEVEL=info, and see the limits below";
                    // A provider that nobody asked for may fail.
                    if *asked { section.problem(text, mend) } else { section.warn(text, mend) }
                }
            }
        }
        if self.trials.is_empty() {
            section.problem("there is no provider to test", "see the providers above");
        }
        section
    }
}

/// Opens two endpoints and lets a small put go there and back many times.
fn try_out(options: &Options) -> Result<Success, String> {
    let told = |error: unisono_transport::Error| error.to_string();
    let began = Instant::now();
    let here = Ofi::open(options).map_err(told)?;
    let opened = began.elapsed();
    let limits = here.limits().clone();
    let there = Ofi::open(options).map_err(told)?;
    let mut ends = [End::new(here).map_err(told)?, End::new(there).map_err(told)?];
    for (from, to) in [(0, 1), (1, 0)] {
        let address = ends[to].ofi.address().clone();
        let remote = ends[to].window.remote().ok_or("a registered region has no key")?;
        let peer = ends[from].ofi.connect(&address).map_err(told)?;
        ends[from].target = Some((peer, Target { region: remote, offset: 0 }));
    }
    let mut times = Vec::with_capacity(ROUNDS);
    for round in 0..ROUNDS + ROUNDS / 10 {
        let began = Instant::now();
        send(&mut ends, 0, round)?;
        send(&mut ends, 1, round)?;
        if round >= ROUNDS / 10 {
            times.push(began.elapsed() / 2);
        }
    }
    times.sort();
    let median = times.get(times.len() / 2).copied().unwrap_or_default();
    Ok(Success {
        provider: limits.provider,
        open_ms: opened.as_secs_f64() * 1e3,
        latency_us: median.as_secs_f64() * 1e6,
        pins: !limits.cheap_registration,
        staging: limits.local_registration,
        wakes: limits.wakes,
    })
}

/// One endpoint, what it sends from and what it is sent to.
struct End {
    ofi: Ofi,
    source: unisono_transport::Region,
    window: unisono_transport::Region,
    target: Option<(unisono_transport::Peer, Target)>,
    /// Whether a put is under way whose source must not change.
    sending: bool,
}

impl End {
    fn new(mut ofi: Ofi) -> Result<Self, unisono_transport::Error> {
        let source = ofi.register(Memory::map(BYTES, false)?)?;
        let window = ofi.register(Memory::map(BYTES, false)?)?;
        Ok(Self { ofi, source, window, target: None, sending: false })
    }
}

/// Puts a pattern from one end to the other, and waits until it is there and right.
fn send(ends: &mut [End; 2], from: usize, round: usize) -> Result<(), String> {
    let told = |error: unisono_transport::Error| error.to_string();
    let pattern = (round as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    let began = Instant::now();
    let (mut posted, mut arrived) = (false, false);
    let mut events = Vec::new();
    while !(posted && arrived) {
        let end = &mut ends[from];
        if !posted && !end.sending {
            let (to, target) = end.target.ok_or("an endpoint has no peer")?;
            end.source.write(0, &pattern).map_err(told)?;
            let sources = [Source::new(&end.source, 0, BYTES).map_err(told)?];
            let put = Put { to, sources: &sources, target, immediate: 7, token: 1 };
            posted = end.ofi.put(&put).map_err(told)? == Posted::Yes;
            end.sending = posted && BYTES > end.ofi.limits().max_inject;
        }
        for (at, end) in ends.iter_mut().enumerate() {
            end.ofi.poll(&mut events).map_err(told)?;
            for event in events.drain(..) {
                match event {
                    Event::Sent { token: 1 } if end.sending => end.sending = false,
                    Event::Arrived { immediate: 7, .. } if at != from && !arrived => arrived = true,
                    other => return Err(format!("{other:?} came, which was not sent")),
                }
            }
        }
        if began.elapsed() > PATIENCE / 4 {
            return Err(format!(
                "a put of {BYTES} bytes has not arrived after {} s",
                (PATIENCE / 4).as_secs()
            ));
        }
    }
    let mut landed = [0; BYTES];
    ends[1 - from].window.read(0, &mut landed).map_err(told)?;
    if landed == pattern { Ok(()) } else { Err(format!("{landed:x?} landed, but {pattern:x?} was sent")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_found_works_or_says_why() {
        let options = Options { provider: Some("tcp".into()), ..Options::default() };
        let providers = Providers::gather(&options);
        if let Err(reason) = &providers.ways[0].taken {
            println!("SKIPPED: there is no tcp here: {reason}");
            return;
        }
        let test = SelfTest::gather(&options, &providers);
        let success = test.chosen().unwrap_or_else(|| panic!("{test:?}"));
        assert!(success.latency_us > 0.0 && success.open_ms > 0.0 && !success.pins, "{success:?}");
    }

    #[test]
    fn no_such_provider_is_no_panic() {
        let options = Options { provider: Some("no such thing".into()), ..Options::default() };
        let providers = Providers::gather(&options);
        assert!(providers.ways[0].taken.is_err());
        assert!(!SelfTest::gather(&options, &providers).works());
        assert!(try_out(&options).is_err());
    }
}
