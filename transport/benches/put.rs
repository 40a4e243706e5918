//! Measures puts: latency in one direction, bytes per second, and messages per second, in process, over shared memory and over libfabric.
//!
//! Two endpoints in two threads. `UNISONO_BENCH_PROVIDERS` names the libfabric providers (default `tcp`).
//! libfabric's own figures on the same machine come from `fi_rma_pingpong -o writedata` and
//! `fi_rma_bw -o writedata`, each with `-e rdm -p PROVIDER`; the window, and the one buffer that is written
//! over and over, are theirs.
#![allow(unsafe_code)]

use std::{
    net::Ipv4Addr,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use criterion::{BenchmarkId, Criterion, Throughput};
use unisono_transport::{
    Address, Error, Event, Memory, Notify, Peer, Posted, Put, Region, RemoteRegion, Source, Target,
    Transport,
    inproc::Hub,
    ofi::{Ofi, Options},
    shm,
};

/// Puts under way at once.
const WINDOW: usize = 64;
/// The largest put measured.
const LARGEST: usize = 1 << 20;

/// What the other end does on an arrival.
const NOTHING: u32 = 0;
const ANSWER: u32 = 1;
const END: u32 = 2;

type Endpoint = Box<dyn Transport>;
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// One end: its endpoint, the buffer it writes from and to, and the other end's.
struct End {
    endpoint: Endpoint,
    peer: Peer,
    buffer: Region,
    remote: RemoteRegion,
    events: Vec<Event>,
}

impl End {
    /// Writes `len` bytes as soon as there is room; gives back how many arrivals and sent puts it saw.
    fn put(&mut self, len: usize, immediate: u32) -> Result<(usize, usize), Failure> {
        let buffer = self.buffer.clone();
        let sources = [Source::new(&buffer, 0, len)?];
        let target = Target { region: self.remote, offset: 0 };
        let put = Put {
            to: self.peer,
            sources: &sources,
            target,
            immediate,
            token: 0,
            notify: Notify::IfNotInjected,
            fetch: false,
        };
        let (mut arrived, mut sent) = (0, 0);
        // SAFETY: one end puts while the other waits for it, and nobody looks at what lands.
        while unsafe { self.endpoint.put(&put)? } == Posted::Full {
            let (more_arrived, more_sent) = self.poll()?;
            arrived += more_arrived;
            sent += more_sent;
        }
        Ok((arrived, sent))
    }

    fn poll(&mut self) -> Result<(usize, usize), Error> {
        self.endpoint.poll(&mut self.events)?;
        let all = self.events.len();
        let arrived = self.events.drain(..).filter(|event| matches!(event, Event::Arrived { .. })).count();
        Ok((arrived, all - arrived))
    }

    /// Answers until asked to end.
    fn serve(mut self, len_of_answer: &mpsc::Receiver<usize>) -> Result<(), Failure> {
        let mut answer = 1;
        loop {
            self.endpoint.poll(&mut self.events)?;
            let mut answers = 0;
            for event in self.events.drain(..) {
                match event {
                    Event::Arrived { immediate: ANSWER, .. } => answers += 1,
                    Event::Arrived { immediate: END, .. } => return Ok(()),
                    _ => {}
                }
            }
            for _ in 0..answers {
                answer = len_of_answer.try_iter().last().unwrap_or(answer);
                self.put(answer, NOTHING)?;
            }
        }
    }

    /// One put there and one back, `rounds` times.
    fn ping_pong(&mut self, len: usize, rounds: u64) -> Result<Duration, Failure> {
        let began = Instant::now();
        for _ in 0..rounds {
            let (mut arrived, _) = self.put(len, ANSWER)?;
            while arrived == 0 {
                arrived += self.poll()?.0;
            }
        }
        Ok(began.elapsed())
    }

    /// `count` puts, `WINDOW` at once, the last one answered.
    fn stream(&mut self, len: usize, count: u64) -> Result<Duration, Failure> {
        let reports = len > self.endpoint.limits().max_inject;
        let (mut under_way, mut answered) = (0, 0);
        let began = Instant::now();
        for number in 1..=count {
            let last = number == count;
            let (arrived, sent) = self.put(len, if last { ANSWER } else { NOTHING })?;
            under_way = (under_way + usize::from(reports)).saturating_sub(sent);
            answered += arrived;
            while under_way >= WINDOW {
                let (arrived, sent) = self.poll()?;
                under_way -= sent;
                answered += arrived;
            }
        }
        while answered == 0 || under_way > 0 {
            let (arrived, sent) = self.poll()?;
            under_way -= sent;
            answered += arrived;
        }
        Ok(began.elapsed())
    }
}

/// Both ends, each knowing the other.
fn pair(allocated: bool, mut open: impl FnMut() -> Result<Endpoint, Error>) -> Result<(End, End), Failure> {
    let mut nodes = [open()?, open()?];
    let addresses: Vec<Address> = nodes.iter().map(|endpoint| endpoint.address().clone()).collect();
    let mut buffers = Vec::new();
    for endpoint in &mut nodes {
        let buffer =
            if allocated { endpoint.allocate(LARGEST)? } else { endpoint.register(Memory::map(LARGEST)?)? };
        // SAFETY: nobody puts yet.
        unsafe { buffer.write(0, &vec![1; LARGEST])? };
        buffers.push(buffer);
    }
    let mut ends = Vec::new();
    for (me, mut endpoint) in nodes.into_iter().enumerate() {
        let other = 1 - me;
        let peer = endpoint.connect(&addresses[other])?;
        let remote = buffers[other].remote().ok_or("a registered buffer has no remote")?;
        ends.push(End { endpoint, peer, buffer: buffers[me].clone(), remote, events: Vec::new() });
    }
    match (ends.pop(), ends.pop()) {
        (Some(far), Some(near)) => Ok((near, far)),
        _ => Err("no two ends".into()),
    }
}

fn measure(
    criterion: &mut Criterion,
    name: &str,
    allocated: bool,
    open: impl FnMut() -> Result<Endpoint, Error>,
) -> Result<(), Failure> {
    let (mut near, far) = pair(allocated, open)?;
    let (sender, receiver) = mpsc::channel();
    let server = thread::spawn(move || far.serve(&receiver));
    let mut failure: Option<Failure> = None;
    let mut keep = |outcome: Result<Duration, Failure>| match outcome {
        Ok(duration) => duration,
        Err(error) => {
            failure = Some(error);
            // Criterion wants a time that is not zero; the benchmark ends with the error below.
            Duration::from_secs(1)
        }
    };

    let mut group = criterion.benchmark_group("put/one way");
    for len in [8, 64, 4096, 65536] {
        sender.send(len)?;
        group.bench_function(BenchmarkId::new(name, len), |bencher| {
            bencher.iter_custom(|rounds| keep(near.ping_pong(len, rounds)) / 2);
        });
    }
    group.finish();

    sender.send(1)?;
    let mut group = criterion.benchmark_group("put/stream");
    for len in [8, 4096, 65536, LARGEST] {
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function(BenchmarkId::new(name, len), |bencher| {
            bencher.iter_custom(|count| keep(near.stream(len, count)));
        });
    }
    group.finish();

    near.put(1, END)?;
    while !server.is_finished() {
        near.poll()?;
    }
    server.join().map_err(|_| "the serving thread panicked")??;
    failure.map_or(Ok(()), Err)
}

fn main() -> Result<(), Failure> {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .sample_size(20)
        .configure_from_args();
    let hub = Hub::new();
    measure(&mut criterion, "inproc", false, || Ok(Box::new(hub.open())))?;
    measure(&mut criterion, "shm", false, || Ok(Box::new(shm::Endpoint::open()?)))?;
    measure(&mut criterion, "shm-allocated", true, || Ok(Box::new(shm::Endpoint::open()?)))?;
    let providers = std::env::var("UNISONO_BENCH_PROVIDERS").unwrap_or_else(|_| "tcp".into());
    for provider in providers.split(',').filter(|name| !name.is_empty()) {
        let towards = Some(Ipv4Addr::LOCALHOST.into());
        let options = Options { provider: Some(provider.into()), towards, ..Options::default() };
        match Ofi::open(&options) {
            Ok(_) => measure(&mut criterion, &format!("ofi:{provider}"), false, || {
                Ok(Box::new(Ofi::open(&options)?))
            })?,
            Err(error) => println!("SKIPPED: puts over ofi:{provider}: {error}"),
        }
    }
    criterion.final_summary();
    Ok(())
}
