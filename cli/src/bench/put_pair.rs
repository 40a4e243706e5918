//! Raw puts between two ranks: each has an endpoint and a window, and nothing above the transport. The ranks are rank 0 and
//! the first rank of the second half, since launchers place neighbours on one host.
#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use unisono::{
    ProcessGroup,
    group::{open_transport, transport_options},
};
use unisono_transport::{
    Address, Event, Notify, Peer, Posted, Put, Region, RemoteRegion, Source, Target, Transport, ofi::Options,
};

use super::{Result, ranks::second, room_for};

/// Puts in flight in bandwidth tests: enough to keep a link busy. All of them read the same
/// source and are written to the same place, as in libfabric's `fi_rma_bw` and in perftest's `ib_write_bw`.
pub(crate) const WINDOW: usize = 16;

/// The longest time in which a peer may send nothing, and the number of polls from one look at the clock to the next.
const PATIENCE: Duration = Duration::from_secs(30);
const CLOCK: u64 = 4096;

/// The immediate of the puts that are counted, and that of acknowledgements.
const DATA: u32 = 1;
const ACKNOWLEDGE: u32 = 2;

/// One of two ranks that put into each other's memory.
pub(crate) struct Pair {
    transport: Box<dyn Transport>,
    peer: Peer,
    /// True for rank 0, which begins.
    first: bool,
    /// The source of all puts.
    source: Region,
    /// Keeps the window open.
    _window: Region,
    target: RemoteRegion,
    events: Vec<Event>,
    /// The puts and the acknowledgements that have arrived, without those of measurements that have ended. The peer may be one
    /// measurement ahead.
    data: u64,
    acknowledged: u64,
    /// The number of polls since the last event, and the time of the first of these that looked at the clock.
    silent: u64,
    since: Instant,
}

/// Registers memory and writes to each of its pages. Otherwise all pages would be the same page of zeros, which is always in the
/// cache.
fn touched(
    transport: &mut dyn Transport,
    bytes: usize,
) -> std::result::Result<Region, unisono_transport::Error> {
    const PAGE: usize = 4 << 10;
    let region = transport.allocate(bytes)?;
    // SAFETY: no put is under way yet.
    (0..bytes).step_by(PAGE).try_for_each(|page| unsafe { region.write(page, &[1]) })?;
    Ok(region)
}

/// Makes endpoints on rank 0 and on the [`second`] with windows for puts of up to `bytes`; `None` on the others, which
/// must call it too.
pub(crate) fn pair(group: &ProcessGroup, bytes: usize) -> Result<Option<Pair>> {
    let other = second(group.size()).and_then(|second| match group.rank() {
        0 => Some(second),
        rank => (rank == second).then_some(0),
    });
    type Contact = Option<(Vec<u8>, [u64; 3])>;
    let Some(other) = other else {
        group.all_gather_object(&Contact::None)?;
        return Ok(None);
    };
    // The group's provider, even if the user has not asked for it.
    let provider = Some(group.limits().provider.clone());
    let options = Options { provider, ..transport_options(group.config()) };
    let mut transport = open_transport(&options)?;
    let window = touched(&mut *transport, bytes.max(8))?;
    let source = touched(&mut *transport, bytes.max(8))?;
    let remote = window.remote().ok_or("a registered region has no key")?;
    let contact: Contact = Some((transport.address().0.clone(), remote.words()));
    let mut contacts = group.all_gather_object(&contact)?;
    let (address, words) = contacts.swap_remove(other).ok_or("the other rank has no endpoint")?;
    let peer = transport.connect(&Address(address))?;
    let target = RemoteRegion::from_words(words);
    let (_window, events, since) = (window, Vec::new(), Instant::now());
    let (data, acknowledged, silent) = (0, 0, 0);
    let first = group.rank() == 0;
    let pair =
        Pair { transport, peer, first, source, _window, target, events, data, acknowledged, silent, since };
    Ok(Some(pair))
}

impl Pair {
    fn poll(&mut self) -> Result<()> {
        self.transport.poll(&mut self.events)?;
        self.silent = if self.events.is_empty() { self.silent + 1 } else { 0 };
        // A look at the clock takes time, so most polls do without.
        match self.silent {
            CLOCK => self.since = Instant::now(),
            polls if polls > 0 && polls.is_multiple_of(CLOCK) && self.since.elapsed() > PATIENCE => {
                return Err(format!("nothing arrived from the peer for {PATIENCE:?}").into());
            }
            _ => {}
        }
        for event in self.events.drain(..) {
            match event {
                Event::Arrived { immediate: DATA, .. } => self.data += 1,
                Event::Arrived { immediate: ACKNOWLEDGE, .. } => self.acknowledged += 1,
                Event::Arrived { immediate, .. } => {
                    return Err(
                        format!("a put with the immediate {immediate}, which neither rank sends").into()
                    );
                }
                Event::Sent { .. } => {}
            }
        }
        Ok(())
    }

    fn put(&mut self, bytes: usize, immediate: u32) -> Result<()> {
        loop {
            let put = Put {
                to: self.peer,
                sources: &[Source::new(&self.source, 0, bytes)?],
                target: Target { region: self.target, offset: 0 },
                immediate,
                token: 0,
                notify: Notify::IfNotInjected,
                fetch: false,
            };
            // SAFETY: nothing writes to the source, and nothing reads the window.
            if unsafe { self.transport.put(&put)? } == Posted::Yes {
                return Ok(());
            }
            self.poll()?;
        }
    }

    /// Half of a round trip's seconds, for each of `count` round trips of `bytes`, in ascending order.
    pub(crate) fn ping_pong(&mut self, bytes: usize, count: usize) -> Result<Vec<f64>> {
        let mut times = room_for(count)?;
        for _ in 0..count {
            let begun = Instant::now();
            if self.first {
                self.put(bytes, DATA)?;
            }
            while self.data == 0 {
                self.poll()?;
            }
            self.data -= 1;
            if !self.first {
                self.put(bytes, DATA)?;
            }
            times.push(begun.elapsed().as_secs_f64() / 2.0);
        }
        times.sort_unstable_by(f64::total_cmp);
        Ok(times)
    }

    /// The seconds for `count` puts of `bytes` to arrive and be acknowledged, from the first rank or from `both` at once; with at most
    /// `window` unacknowledged.
    pub(crate) fn stream(&mut self, bytes: usize, window: usize, count: u64, both: bool) -> Result<f64> {
        let [to_send, to_receive] = [self.first, !self.first].map(|one| if both || one { count } else { 0 });
        let (mut posted, mut answered) = (0, 0);
        // An acknowledgement is for half a window.
        let window = window as u64;
        let half = (window / 2).max(1);
        let [to_hear, to_answer] = [to_send, to_receive].map(|puts| puts.div_ceil(half));
        let begun = Instant::now();
        while posted < to_send
            || self.acknowledged < to_hear
            || self.data < to_receive
            || answered < to_answer
        {
            let posts = posted < to_send && posted < self.acknowledged * half + window;
            if posts {
                self.put(bytes, DATA)?;
                posted += 1;
            }
            let due = if self.data >= to_receive { to_answer } else { self.data / half };
            if answered < due {
                self.put(8.min(bytes), ACKNOWLEDGE)?;
                answered += 1;
            } else if !posts {
                self.poll()?;
            }
        }
        self.data -= to_receive;
        self.acknowledged -= to_hear;
        Ok(begun.elapsed().as_secs_f64())
    }
}

/// The best of a few measurements of the bytes a second that rank 0 puts to the [`second`] at 1 MiB; on every rank. `None` in a
/// world of one.
pub(crate) fn bandwidth(group: &ProcessGroup) -> Result<Option<f64>> {
    const BYTES: usize = 1 << 20;
    const COUNT: u64 = 128;
    if group.size() < 2 {
        return Ok(None);
    }
    let mut pair = pair(group, BYTES)?;
    let mut best = [0.0_f64];
    if let Some(pair) = &mut pair {
        for _ in 0..4 {
            let seconds = pair.stream(BYTES, WINDOW, COUNT, false)?;
            best[0] = best[0].max((COUNT * BYTES as u64) as f64 / seconds);
        }
        // The other side may still be waiting for the last acknowledgement to leave.
        let until = Instant::now() + Duration::from_millis(5);
        while Instant::now() < until {
            pair.poll()?;
        }
    }
    group.barrier()?;
    // Rank 0 sends, so its measurement counts.
    group.broadcast(&mut best, 0)?;
    Ok(Some(best[0]))
}
