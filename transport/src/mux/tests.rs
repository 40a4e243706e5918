//! Endpoints of one scope and of others that talk at once, sleep, and fail.

use std::{
    collections::hash_map::RandomState,
    hash::BuildHasher,
    net::Ipv4Addr,
    sync::{
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::Instant,
};

use super::*;
use crate::{
    RemoteRegion, Source, Target,
    inproc::Hub,
    observed::{Call, Observed},
    ofi::{Ofi, Options},
    sim,
};

/// The longest any wait may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Numbers that differ from test to test and from run to run. A test that fails prints the seed.
struct Random(u64);

impl Random {
    fn new() -> Self {
        let seed = RandomState::new().hash_one(0);
        println!("seed {seed}");
        Self(seed | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `bound`.
    fn below(&mut self, bound: usize) -> usize {
        usize::try_from((self.next() >> 11) % bound as u64).unwrap()
    }
}

fn tcp() -> Box<dyn Transport> {
    let towards = Some(Ipv4Addr::LOCALHOST.into());
    Box::new(Ofi::open(&Options { provider: Some("tcp".into()), towards, ..Options::default() }).unwrap())
}

/// Makes fabrics whose endpoints reach each other.
type Fabrics = Box<dyn FnMut() -> Box<dyn Transport>>;

fn fabrics(random: &mut Random) -> Vec<Fabrics> {
    let hub = Hub::new();
    let config =
        sim::Config { seed: random.below(1000) as u64, virtual_addresses: true, ..Default::default() };
    let sim = sim::Fabric::new(config);
    vec![Box::new(move || Box::new(hub.open())), Box::new(move || Box::new(sim.open())), Box::new(tcp)]
}

fn near(scope: u128, fabric: Box<dyn Transport>) -> Mux {
    Mux::new(scope, Some(shm::Endpoint::open().unwrap()), fabric)
}

fn write(region: &Region, offset: usize, bytes: &[u8]) {
    // SAFETY: the tests write where no put is under way.
    unsafe { region.write(offset, bytes).unwrap() };
}

fn read(region: &Region, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    // SAFETY: the tests read what has arrived.
    unsafe { region.read(offset, &mut bytes).unwrap() };
    bytes
}

/// Puts all of `source`. The token is the immediate.
fn put(
    from: &mut Mux,
    to: Peer,
    source: &Region,
    region: RemoteRegion,
    offset: usize,
    (immediate, notify): (u32, Notify),
) -> Result<Posted, Error> {
    let sources = [Source::new(source, 0, source.len())?];
    let target = Target { region, offset: offset as u64 };
    let put = Put { to, sources: &sources, target, immediate, token: immediate.into(), notify, fetch: false };
    // SAFETY: the tests leave sources as they are until they are sent, and look at targets after the arrival.
    unsafe { from.put(&put) }
}

/// What one endpoint writes to another, one put after the other.
struct Flow {
    from: usize,
    to: usize,
    peer: Peer,
    window: Region,
    source: Region,
    offset: usize,
    bytes: Vec<u8>,
    /// The puts that are left to begin.
    left: usize,
    begun: bool,
    arrived: bool,
    sent: bool,
    notify: Notify,
}

const WINDOW: usize = 60_000;

/// Memory of any kind.
fn region(mux: &mut Mux, len: usize, random: &mut Random) -> Region {
    match random.below(3) {
        0 => mux.register(Memory::map(len).unwrap()).unwrap(),
        _ => mux.allocate(len).unwrap(),
    }
}

impl Flow {
    /// The next put: other bytes, and often other memory, which is freed while other puts are under way.
    fn prepare(&mut self, all: &mut [Mux], random: &mut Random) {
        let len = match random.below(4) {
            0 => 1 + random.below(300),
            1 => 1 + random.below(WINDOW),
            2 => WINDOW,
            _ => 1 + random.below(6000),
        };
        self.bytes = std::iter::repeat_with(|| random.next().to_le_bytes()[7]).take(len).collect();
        self.offset = random.below(WINDOW - len + 1);
        if random.below(3) == 0 {
            self.window = region(&mut all[self.to], WINDOW, random);
        }
        let from = &mut all[self.from];
        let limits = from.limits();
        self.source = if len <= limits.max_inject || !limits.local_registration && random.below(2) == 0 {
            Region::unregistered(Memory::map(len).unwrap())
        } else {
            region(from, len, random)
        };
        write(&self.source, 0, &self.bytes);
        self.notify = [Notify::Always, Notify::IfNotInjected, Notify::IfNotCopied][random.below(3)];
        let limits = all[self.from].limits();
        let tells = match self.notify {
            Notify::Always => true,
            Notify::IfNotInjected => len > limits.max_inject,
            Notify::IfNotCopied => len > limits.max_copied,
        };
        (self.begun, self.arrived, self.sent) = (false, false, !tells);
    }
}

#[test]
fn endpoints_of_two_scopes_talk_all_at_once() {
    let mut random = Random::new();
    for mut fabric in fabrics(&mut random) {
        let by_fabric = Arc::new(AtomicU64::new(0));
        let mut open = |scope| {
            let by_fabric = Arc::clone(&by_fabric);
            let see = move |call: Call<'_>| {
                by_fabric.fetch_add(matches!(call, Call::Put(_, Posted::Yes)).into(), Ordering::Relaxed);
            };
            near(scope, Box::new(Observed::new(fabric(), see)))
        };
        let mut all = [open(5), open(5), open(6)];
        let mut flows = Vec::new();
        for from in 0..3 {
            for to in 0..3 {
                let address = all[to].address().clone();
                let peer = all[from].connect(&address).unwrap();
                assert_eq!(all[from].connect(&address).unwrap(), peer);
                let window = region(&mut all[to], WINDOW, &mut random);
                let (source, bytes) = (window.clone(), Vec::new());
                let mut flow = Flow {
                    from,
                    to,
                    peer,
                    window,
                    source,
                    offset: 0,
                    bytes,
                    left: 60,
                    begun: false,
                    arrived: false,
                    sent: false,
                    notify: Notify::Always,
                };
                flow.prepare(&mut all, &mut random);
                flows.push(flow);
            }
        }
        let began = Instant::now();
        let (mut events, mut puts_between_scopes) = (Vec::new(), 0);
        while flows.iter().any(|flow| flow.left > 0) {
            assert!(began.elapsed() < PATIENCE, "it ends");
            for (number, flow) in flows.iter_mut().enumerate() {
                if flow.left > 0 && !flow.begun {
                    let what = (u32::try_from(number).unwrap(), flow.notify);
                    let region = flow.window.remote().unwrap();
                    let posted =
                        put(&mut all[flow.from], flow.peer, &flow.source, region, flow.offset, what).unwrap();
                    flow.begun = posted == Posted::Yes;
                    let between = (flow.from == 2) != (flow.to == 2);
                    puts_between_scopes += u64::from(flow.begun && between);
                }
            }
            for (me, mux) in all.iter_mut().enumerate() {
                mux.poll(&mut events).unwrap();
                for event in events.drain(..) {
                    match event {
                        Event::Arrived { immediate, len } => {
                            let flow = &mut flows[immediate as usize];
                            assert!(flow.to == me && flow.begun && !flow.arrived, "{event:?} at {me}");
                            assert!(len.is_none_or(|len| len == flow.bytes.len()), "{event:?}");
                            let landed = read(&flow.window, flow.offset, flow.bytes.len());
                            assert!(
                                landed == flow.bytes,
                                "{} bytes of {immediate} are damaged",
                                landed.len()
                            );
                            flow.arrived = true;
                        }
                        Event::Sent { token } => {
                            let flow = &mut flows[usize::try_from(token).unwrap()];
                            assert!(flow.from == me && flow.begun && !flow.sent, "{event:?} at {me}");
                            flow.sent = true;
                        }
                    }
                }
            }
            for flow in &mut flows {
                if flow.left > 0 && flow.arrived && flow.sent {
                    flow.left -= 1;
                    flow.prepare(&mut all, &mut random);
                }
            }
        }
        assert_eq!(by_fabric.load(Ordering::Relaxed), puts_between_scopes);
    }
}

/// Puts one message, and waits for it.
fn lands(here: &mut Mux, there: &mut Mux, to: Peer) {
    let window = there.allocate(40_000).unwrap();
    let source = here.allocate(40_000).unwrap();
    write(&source, 39_999, &[9]);
    let (began, mut begun, mut events) = (Instant::now(), false, Vec::new());
    while !events.iter().any(|event| matches!(event, Event::Arrived { immediate: 3, .. })) {
        assert!(began.elapsed() < PATIENCE, "nothing arrives");
        if !begun {
            let region = window.remote().unwrap();
            let what = (3, Notify::IfNotInjected);
            begun = put(here, to, &source, region, 0, what).unwrap() == Posted::Yes;
        }
        here.poll(&mut Vec::new()).unwrap();
        there.poll(&mut events).unwrap();
    }
    assert_eq!(read(&window, 39_999, 1), [9]);
}

#[test]
fn without_shared_memory_the_fabric_serves_both_directions() {
    let hub = Hub::new();
    let (mut with, mut without) = (near(5, Box::new(hub.open())), Mux::new(5, None, Box::new(hub.open())));
    let far = with.connect(without.address()).unwrap();
    let back = without.connect(with.address()).unwrap();
    for _ in 0..2 {
        lands(&mut with, &mut without, far);
        lands(&mut without, &mut with, back);
    }
    assert_eq!(with.routes, [(Way::Fabric, Peer(0))]);
    let provider = "shm,inproc".to_owned();
    assert_eq!((&with.limits().provider, with.limits().shares), (&provider, Some(5)));
    assert_eq!(*without.limits(), Limits { provider, ..hub.open().limits().clone() });
    let began = Instant::now();
    without.waker().wake();
    without.park(PATIENCE, &[], &mut || false).unwrap();
    without.park(Duration::from_millis(1), &[], &mut || false).unwrap();
    assert!(began.elapsed() < PATIENCE);
}

/// The error with which a poll ends, and the events that were reported before.
fn fails(mux: &mut Mux) -> (Vec<Event>, Error) {
    let (began, mut events) = (Instant::now(), Vec::new());
    loop {
        assert!(began.elapsed() < PATIENCE, "no error");
        let before = events.len();
        if let Err(error) = mux.poll(&mut events) {
            assert_eq!(events.len(), before, "with {error}");
            return (events, error);
        }
    }
}

fn names(error: &Error, peer: Peer) -> bool {
    matches!(error, Error::Completion { .. }) && error.peer() == Some(peer)
}

#[test]
fn a_peer_that_fails_is_named_by_its_number_here() {
    let hub = Hub::new();
    let mut here = near(5, Box::new(hub.open()));
    let open = |scope| near(scope, Box::new(hub.open()));
    // The parts alternate, so that no number is that of the part.
    let mut others = [open(6), open(5), open(7), open(5)];
    let peers = others.each_ref().map(|other| here.connect(other.address()).unwrap());
    assert_eq!(peers, [0, 1, 2, 3].map(Peer));
    let own = here.allocate(20_000).unwrap();
    let remote = own.remote().unwrap();
    // The put arrives by the fabric, and is reported although shared memory fails first.
    let [far, ..] = &mut others;
    let back = far.connect(here.address()).unwrap();
    let source = far.allocate(8).unwrap();
    let what = (11, Notify::IfNotInjected);
    assert_eq!(put(far, back, &source, remote, 0, what).unwrap(), Posted::Yes);
    let small = here.allocate(8).unwrap();
    let (began, mut polled) = (Instant::now(), Ok(()));
    // This endpoint's region is not the peer's, which must answer first.
    while put(&mut here, peers[3], &small, remote, 0, what).unwrap() == Posted::Full {
        assert!(began.elapsed() < PATIENCE, "no answer");
        others[3].poll(&mut Vec::new()).unwrap();
    }
    while polled.is_ok() {
        assert!(began.elapsed() < PATIENCE, "no error");
        others[3].poll(&mut Vec::new()).unwrap();
        // The fabric is not polled, so that it has something when shared memory fails.
        polled = here.shm.as_mut().unwrap().poll(&mut Vec::new());
    }
    let (events, error) = fails(&mut here);
    assert_eq!(events, [Event::Arrived { immediate: 11, len: Some(8) }]);
    assert!(names(&error, peers[3]), "{error:?}");
    let error = here.park(PATIENCE, &[], &mut || false).unwrap_err();
    assert!(names(&error, peers[3]), "{error:?}");

    let mut here = near(5, Box::new(hub.open()));
    let peers = others.each_ref().map(|other| here.connect(other.address()).unwrap());
    drop(others);
    for peer in peers {
        let error = put(&mut here, peer, &small, remote, 0, what).unwrap_err();
        assert!(names(&error, peer), "{peer:?}: {error:?}");
    }
    let unknown = put(&mut here, Peer(4), &small, remote, 0, what);
    assert!(matches!(unknown, Err(Error::BadPut { .. })), "{unknown:?}");
}

#[test]
fn an_address_is_refused_by_the_part_that_would_serve_it() {
    let hub = Hub::new();
    let (mut here, there) = (near(5, Box::new(hub.open())), near(5, Box::new(hub.open())));
    let Address(bytes) = there.address();
    let parts = AddressParts::parse(bytes).unwrap();
    let bad = [
        AddressParts { shm: b"near", ..parts },
        AddressParts { shm: parts.fabric, ..parts },
        AddressParts { scope: 6, fabric: b"far", ..parts },
        AddressParts { shm: b"", fabric: parts.shm, ..parts },
    ];
    for parts in bad {
        let refused = here.connect(&parts.address());
        let Err(Error::BadAddress { address, provider, .. }) = refused else {
            panic!("{parts:?}: {refused:?}")
        };
        assert_eq!((address, provider.as_str()), (parts.address(), "shm,inproc"));
    }
    assert_eq!(here.connect(there.address()).unwrap(), Peer(0));
    // Another address of the same endpoint.
    assert_eq!(here.connect(&AddressParts { fabric: b"", ..parts }.address()).unwrap(), Peer(0));
    assert_eq!(here.connect(&AddressParts { scope: 6, ..parts }.address()).unwrap(), Peer(1));
}

/// What wakes a sleeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Near,
    Far,
    Waker,
}

#[test]
fn a_sleeper_is_woken_by_each_part_and_by_its_waker() {
    const ROUNDS: u32 = 150;
    let mut random = Random::new();
    for mut fabric in fabrics(&mut random) {
        let [mut sleeper, mut close, mut distant] = [5, 5, 6].map(|scope| near(scope, fabric()));
        let window = sleeper.allocate(8).unwrap();
        let region = window.remote().unwrap();
        let ends = [&mut close, &mut distant].map(|mux| {
            let peer = mux.connect(sleeper.address()).unwrap();
            (peer, mux.allocate(8).unwrap())
        });
        let (waker, parks) = (sleeper.waker(), Arc::new(AtomicU64::new(0)));
        let (sender, receiver) = mpsc::channel();
        let counts = Arc::clone(&parks);
        let thread = thread::spawn(move || {
            let (mut events, mut last) = (Vec::new(), 0);
            while last < ROUNDS {
                sleeper.poll(&mut events).unwrap();
                for event in events.drain(..) {
                    let Event::Arrived { immediate, .. } = event else { panic!("{event:?}") };
                    last = immediate;
                    sender.send(immediate).unwrap();
                }
                if last < ROUNDS {
                    sleeper.park(2 * PATIENCE, &[], &mut || false).unwrap();
                    counts.fetch_add(1, Ordering::Relaxed);
                }
            }
            sleeper
        });
        for round in 1..=ROUNDS {
            // The wake comes before it sleeps, while it falls asleep, or long after.
            thread::sleep(Duration::from_micros([0, 1, 10, 100, 1000][random.below(5)]));
            let by = if round == ROUNDS { By::Near } else { [By::Near, By::Far, By::Waker][random.below(3)] };
            let before = parks.load(Ordering::Relaxed);
            let (began, mut begun) = (Instant::now(), false);
            loop {
                let mux = if by == By::Far { &mut distant } else { &mut close };
                let (peer, source) = &ends[usize::from(by == By::Far)];
                match by {
                    By::Waker if !begun => waker.wake(),
                    By::Near | By::Far if !begun => {
                        let what = (round, Notify::IfNotInjected);
                        begun = put(mux, *peer, source, region, 0, what).unwrap() == Posted::Yes;
                    }
                    _ => {}
                }
                begun |= by == By::Waker;
                mux.poll(&mut Vec::new()).unwrap();
                let heard = match by {
                    By::Waker => parks.load(Ordering::Relaxed) > before,
                    By::Near | By::Far => receiver.try_recv().is_ok_and(|immediate| immediate == round),
                };
                if heard {
                    break;
                }
                assert!(began.elapsed() < PATIENCE, "{by:?} does not wake the sleeper");
            }
        }
        drop(thread.join().unwrap());
    }
}

#[test]
fn a_fabric_of_sockets_that_is_idle_is_polled_one_time_in_four() {
    let polls = Arc::new(AtomicU64::new(0));
    let counts = Arc::clone(&polls);
    let see = move |call: Call<'_>| {
        counts.fetch_add(matches!(call, Call::Poll).into(), Ordering::Relaxed);
    };
    let mut mux = near(5, Box::new(Observed::new(tcp(), see)));
    let polled = |mux: &mut Mux, times: u32| {
        for _ in 0..times {
            mux.poll(&mut Vec::new()).unwrap();
        }
        polls.swap(0, Ordering::Relaxed)
    };
    assert_eq!(polled(&mut mux, IDLE_AFTER), u64::from(IDLE_AFTER));
    assert_eq!(polled(&mut mux, 100 * IDLE_EVERY), 100);
    for times in 0..IDLE_EVERY {
        polled(&mut mux, times);
        mux.park(Duration::ZERO, &[], &mut || false).unwrap();
        assert_eq!(polled(&mut mux, 1), 1, "what ended a sleep is looked at");
    }
    let mut other = near(6, tcp());
    let peer = mux.connect(other.address()).unwrap();
    lands(&mut mux, &mut other, peer);
    polled(&mut mux, 0);
    assert_eq!(polled(&mut mux, IDLE_AFTER), u64::from(IDLE_AFTER));
}
