//! An endpoint whose peers do what none does: show a wrong token, hand over what is no ring, write what is no record, end.

use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::{
    board::Board,
    control::{Given, MOST, Message},
    ring::{Kind, Reader, Record, Writer},
    segment::Segment,
    socket::Received,
    *,
};
use crate::{Notify, Registration, RemoteRegion, Source, Target};

/// A put from a hostile peer is judged after so many polls at the latest.
const ENOUGH: u32 = 4 * LOOK_IDLE[1];

/// Puts all of `source`.
fn put(
    from: &mut Endpoint,
    source: &Region,
    to: Peer,
    target: &Region,
    immediate: u32,
) -> Result<Posted, Error> {
    put_to(from, source, to, target.remote().unwrap(), immediate)
}

/// The same, to what may be a part of a region.
fn put_to(
    from: &mut Endpoint,
    source: &Region,
    to: Peer,
    region: RemoteRegion,
    immediate: u32,
) -> Result<Posted, Error> {
    let sources = [Source::new(source, 0, source.len())?];
    let target = Target { region, offset: 0 };
    let put = Put { to, sources: &sources, target, immediate, token: 3, notify: Notify::Always };
    // SAFETY: the tests leave sources as they are, and look at targets after the arrival.
    unsafe { from.put(&put) }
}

fn polled(endpoint: &mut Endpoint) -> (Vec<Event>, Option<Error>) {
    let mut events = Vec::new();
    for _ in 0..ENOUGH {
        if let Err(error) = endpoint.poll(&mut events) {
            return (events, Some(error));
        }
    }
    (events, None)
}

/// A connection to an endpoint, on which nothing was sent.
fn connection(to: &Endpoint) -> Socket {
    let Ok(Connected::Yes(socket)) = socket::connection(&to.place) else { panic!("nobody listens") };
    socket
}

/// A connection that has shown the token, and the ring that belongs to it. `from` is whom it says it is.
fn greeted(to: &Endpoint, from: &Place) -> (Socket, OwnedFd) {
    let socket = connection(to);
    let (file, _) = segment::create(ring::SEGMENT).unwrap();
    let hello = Message::Hello { token: to.place.token(), from: from.bytes() };
    assert_eq!(socket::send(&socket, &hello, Some(&file)), socket::Posted::Yes);
    (socket, file)
}

/// An endpoint that knows somebody, who does what the test wants.
fn acquainted() -> (Endpoint, Place) {
    let mut endpoint = Endpoint::open().unwrap();
    let place = Place::new().unwrap();
    assert_eq!(endpoint.connect(&place.address()).unwrap(), Peer(0));
    (endpoint, place)
}

/// Whether it names the first peer.
fn names_it(error: Option<&Error>) -> bool {
    matches!(error, Some(Error::Completion { peer: Some(Peer(0)), .. }))
}

/// It works: one put to itself lands.
fn still_works(endpoint: &mut Endpoint) {
    let own = endpoint.address().clone();
    let myself = endpoint.connect(&own).unwrap();
    let region = endpoint.register(Memory::map(8, false).unwrap()).unwrap();
    assert_eq!(put(endpoint, &region, myself, &region, 77).unwrap(), Posted::Yes);
    let (events, error) = polled(endpoint);
    assert!(error.is_none(), "{error:?}");
    assert!(events.contains(&Event::Arrived { immediate: 77, len: Some(8) }), "{events:?}");
}

#[test]
fn allocated_memory_is_written_by_the_peer_itself() {
    let (mut here, mut there) = (Endpoint::open().unwrap(), Endpoint::open().unwrap());
    let peer = here.connect(there.address()).unwrap();
    let len = 16 * ring::SEGMENT;
    let (source, window) = (here.allocate(len, false).unwrap(), there.allocate(len, false).unwrap());
    // SAFETY: no put reads it.
    unsafe { source.write(len - 5, b"hello").unwrap() };
    // The first asks for the memory.
    assert_eq!(put(&mut here, &source, peer, &window, 1).unwrap(), Posted::Yes);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    while theirs.is_empty() {
        here.poll(&mut ours).unwrap();
        there.poll(&mut theirs).unwrap();
    }
    ours.clear();
    // SAFETY: the put before has arrived.
    unsafe { window.write(len - 5, b"other").unwrap() };
    // Now the bytes are there at once, though they fit no ring and the peer does nothing.
    assert_eq!(put(&mut here, &source, peer, &window, 2).unwrap(), Posted::Yes);
    here.poll(&mut ours).unwrap();
    assert_eq!(ours, [Event::Sent { token: 3 }]);
    let mut bytes = [0; 5];
    // SAFETY: it was sent.
    unsafe { window.read(len - 5, &mut bytes).unwrap() };
    assert_eq!(&bytes, b"hello");
    there.poll(&mut theirs).unwrap();
    assert_eq!(theirs.last(), Some(&Event::Arrived { immediate: 2, len: Some(len) }));
}

#[test]
fn memory_that_is_gone_is_no_longer_mapped_by_peers() {
    let (mut here, mut there) = (Endpoint::open().unwrap(), Endpoint::open().unwrap());
    let peer = here.connect(there.address()).unwrap();
    let source = here.allocate(20_000, false).unwrap();
    for round in 0..5 {
        let window = there.allocate(20_000, false).unwrap();
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            assert_eq!(put(&mut here, &source, peer, &window, round).unwrap(), Posted::Yes);
            while theirs.is_empty() {
                here.poll(&mut ours).unwrap();
                there.poll(&mut theirs).unwrap();
            }
            theirs.clear();
        }
        assert_eq!(here.peers[0].outgoing.as_ref().unwrap().mappings(), 1);
        drop(window);
        assert!(polled(&mut there).1.is_none() && polled(&mut here).1.is_none());
        assert_eq!(here.peers[0].outgoing.as_ref().unwrap().mappings(), 0);
    }
}

#[test]
fn memory_of_a_memfd_is_read_by_peers_and_written_by_its_owner() {
    let (mut here, mut there) = (Endpoint::open().unwrap(), Endpoint::open().unwrap());
    let peer = here.connect(there.address()).unwrap();
    let len = 20_000;
    let file = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, 3 * len as u64).unwrap();
    // SAFETY: what is in it is looked at when puts have arrived.
    let memory = || unsafe { Memory::of_memfd(&file, 8192, len).unwrap() };
    let (source, window) = (here.allocate(len, false).unwrap(), there.register(memory()).unwrap());
    let region = window.remote().unwrap();
    assert!(region.mappable);
    let view = loop {
        match here.map(peer, &region).unwrap() {
            Mapping::Yes(view) => break view,
            Mapping::NotYet => drop((polled(&mut there), polled(&mut here))),
            Mapping::No => panic!("it is not mapped"),
        }
    };
    for round in 1..4 {
        // SAFETY: the put before has arrived.
        unsafe { source.write(0, &vec![round; len]).unwrap() };
        assert_eq!(lands(&mut here, &mut there, &source, &window), vec![round; len]);
        let mut seen = vec![0; len];
        // SAFETY: as above.
        unsafe { view.read(0, &mut seen).unwrap() };
        assert_eq!(seen, vec![round; len]);
    }
    // Who says that it has written there itself does not tell the truth.
    assert_eq!(there.table.lock().check(region.key, 0, 8), Err(control::Refusal::Unregistered));
    // What is small is not shared.
    // SAFETY: nobody accesses it.
    let small = unsafe { Memory::of_memfd(&file, 0, 100).unwrap() };
    assert!(!there.register(small).unwrap().remote().unwrap().mappable);
    // It stays the file's when the endpoint is gone.
    drop(there);
    // SAFETY: nobody puts to it.
    unsafe { window.write(0, &[9; 8]).unwrap() };
    let mut seen = [0; 8];
    rustix::io::pread(&file, &mut seen, 8192).unwrap();
    assert_eq!(seen, [9; 8]);
}

#[test]
fn memory_beyond_what_is_shared_is_registered_as_any_other() {
    let mut endpoint = Endpoint::open().unwrap();
    let most = board::PLACES as usize;
    let mut regions: Vec<_> = (0..most).map(|_| endpoint.allocate(20_000, false).unwrap()).collect();
    let file = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, 20_000).unwrap();
    // SAFETY: nobody accesses it.
    let memory = || unsafe { Memory::of_memfd(&file, 0, 20_000).unwrap() };
    let is_shared = |region: Region| region.remote().unwrap().mappable;
    assert!(!is_shared(endpoint.register(memory()).unwrap()));
    assert!(!is_shared(endpoint.allocate(20_000, false).unwrap()));
    for _ in 0..3 {
        regions.pop();
        assert!(is_shared(endpoint.register(memory()).unwrap()));
        regions.push(endpoint.allocate(20_000, false).unwrap());
        assert!(is_shared(regions[most - 1].clone()));
    }
}

#[test]
fn who_does_not_know_the_token_is_disconnected() {
    let (mut here, mut there) = (Endpoint::open().unwrap(), Endpoint::open().unwrap());
    let mut address = there.address().clone();
    *address.0.last_mut().unwrap() ^= 1;
    let peer = here.connect(&address).unwrap();
    let (source, window) =
        (here.allocate(8, false).unwrap(), there.register(Memory::map(8, false).unwrap()).unwrap());
    let _ = put(&mut here, &source, peer, &window, 9).unwrap();
    let (events, error) = polled(&mut there);
    assert!(events.is_empty() && error.is_none(), "{events:?} {error:?}");
    let error = polled(&mut here).1;
    assert!(names_it(error.as_ref()), "{error:?}");
    still_works(&mut there);
}

#[test]
fn an_endpoint_that_many_have_looked_for_is_near_and_works() {
    let mut endpoint = Endpoint::open().unwrap();
    // More than may connect before it looks (net.core.somaxconn).
    for _ in 0..5000 {
        assert!(Endpoint::is_near(endpoint.address()).unwrap());
    }
    assert!(!Endpoint::is_near(&Place::new().unwrap().address()).unwrap());
    let refused = Endpoint::is_near(&Address(b"near".into()));
    assert!(matches!(refused, Err(Error::BadAddress { .. })), "{refused:?}");
    let began = std::time::Instant::now();
    let own = endpoint.address().clone();
    let myself = endpoint.connect(&own).unwrap();
    let region = endpoint.register(Memory::map(8, false).unwrap()).unwrap();
    let (mut events, mut begun) = (Vec::new(), false);
    while !events.contains(&Event::Arrived { immediate: 77, len: Some(8) }) {
        assert!(began.elapsed() < Duration::from_secs(30), "nothing arrives");
        begun = begun || put(&mut endpoint, &region, myself, &region, 77).unwrap() == Posted::Yes;
        endpoint.poll(&mut events).unwrap();
    }
}

#[test]
fn what_is_no_greeting_disconnects_a_stranger() {
    let mut endpoint = Endpoint::open().unwrap();
    let stranger = Place::new().unwrap();
    let hello = Message::Hello { token: endpoint.place.token(), from: stranger.bytes() };
    let nobody = Message::Hello { token: endpoint.place.token(), from: [7; address::LEN] };
    let ring = segment::create(ring::SEGMENT).unwrap().0;
    let short = segment::create(4096).unwrap().0;
    let unsealed = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&unsealed, ring::SEGMENT as u64).unwrap();
    let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    let cases = [
        (hello, None),
        (hello, Some(&short)),
        (hello, Some(&unsealed)),
        (hello, Some(&null)),
        (nobody, Some(&ring)),
        (Message::Welcome, Some(&ring)),
        (Message::Want { key: 1, address: 2 }, None),
        (Message::Forget { key: 1, address: 2 }, None),
    ];
    for (message, file) in cases {
        let socket = connection(&endpoint);
        assert_eq!(socket::send(&socket, &message, file), socket::Posted::Yes);
        assert!(polled(&mut endpoint).1.is_none(), "{message:?}");
        assert!(matches!(socket::receive(&socket), Ok(Received::End)), "{message:?}");
    }
    let socket = connection(&endpoint);
    rustix::io::write(&*socket, &[9; MOST + 20]).unwrap();
    assert!(polled(&mut endpoint).1.is_none());
    // One that says nothing, and one that ends at once, are no matter.
    let _silent = connection(&endpoint);
    drop(connection(&endpoint));
    still_works(&mut endpoint);
}

#[test]
fn a_peer_that_writes_what_is_no_record_is_named_and_a_stranger_is_not() {
    let (mut endpoint, place) = acquainted();
    let stranger = Place::new().unwrap();
    for (from, named) in [(&stranger, false), (&place, true)] {
        let (_socket, file) = greeted(&endpoint, from);
        let ring = Segment::own(&file, ring::SEGMENT).unwrap();
        ring.words()[0].store(u64::MAX - 63, Ordering::Release);
        let error = polled(&mut endpoint).1;
        assert_eq!(names_it(error.as_ref()), named, "{error:?}");
        if !named {
            still_works(&mut endpoint);
        }
    }
    assert!(names_it(endpoint.poll(&mut Vec::new()).err().as_ref()), "the failure is latched");
    assert!(names_it(endpoint.park(Duration::from_secs(20), &mut || false).err().as_ref()));
}

#[test]
fn what_was_written_before_a_peer_died_is_read_first() {
    for closes in [true, false] {
        let (mut endpoint, place) = acquainted();
        let window = endpoint.register(Memory::map(8, false).unwrap()).unwrap();
        let (socket, file) = greeted(&endpoint, &place);
        let mut writer = Writer::new(Segment::own(&file, ring::SEGMENT).unwrap());
        let key = window.remote().unwrap().key;
        let count = 3 * BATCH;
        for _ in 0..count {
            let record = Record { kind: Kind::Put, immediate: 5, len: 8, total: 8, key, offset: 0 };
            let bytes = [1_u8; 8];
            assert!(writer.has_room(8).unwrap());
            // SAFETY: eight bytes, as the record says.
            unsafe { writer.push(&record, std::iter::once((bytes.as_ptr(), 8))) };
        }
        if closes {
            let _ = socket::send(&socket, &Message::Bye, None);
        }
        drop((socket, writer, file));
        let (events, error) = polled(&mut endpoint);
        assert_eq!(events.len(), count);
        assert_eq!(names_it(error.as_ref()), !closes, "{error:?}");
        assert!(endpoint.incoming.iter().all(Option::is_none), "the connection is gone");
    }
}

/// What a peer answers that no endpoint answers is an error with its name.
#[test]
fn a_hostile_reader_is_named() {
    let large = 1 << 20;
    let short = segment::create(4096).unwrap().0;
    let cases = [
        (Message::Welcome, None),
        (Message::Welcome, Some(&short)),
        (Message::Want { key: 1, address: 2 }, None),
        (Message::Bye, Some(&short)),
    ];
    for (number, (message, file)) in cases.into_iter().enumerate() {
        let (mut endpoint, place) = acquainted();
        let listener = socket::listener(&place).unwrap();
        let source = endpoint.allocate(large, false).unwrap();
        // Any key of memory that can be mapped does: its own.
        assert_eq!(put(&mut endpoint, &source, Peer(0), &source, 1).unwrap(), Posted::Yes);
        let socket = socket::accepted(&listener).unwrap().expect("it has connected");
        let key = source.remote().unwrap().key;
        let given = Given { key, base: 0, len: large as u64, offset: 0, place: 0, number: 1, writable: true };
        let answer = if number == 1 { Message::Memory(given) } else { message };
        if number == 1 {
            let board = Board::new().unwrap().0;
            assert_eq!(socket::send(&socket, &Message::Welcome, Some(&board)), socket::Posted::Yes);
        }
        assert_eq!(socket::send(&socket, &answer, file), socket::Posted::Yes);
        let error = polled(&mut endpoint).1;
        assert!(names_it(error.as_ref()), "{answer:?}: {error:?}");
    }
}

/// Whatever the reason, for instance that this process may have no more mappings or address space.
#[test]
fn what_cannot_be_mapped_is_written_through_the_ring() {
    let vast: usize = 1 << 55;
    let memory = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&memory, segment::whole(vast).unwrap() as u64).unwrap();
    fcntl_add_seals(&memory, SealFlags::SHRINK).unwrap();
    let (mut endpoint, place) = acquainted();
    let listener = socket::listener(&place).unwrap();
    let source = endpoint.allocate(20_000, false).unwrap();
    let key = source.remote().unwrap().key;
    assert_eq!(put(&mut endpoint, &source, Peer(0), &source, 1).unwrap(), Posted::Yes);
    let socket = socket::accepted(&listener).unwrap().expect("it has connected");
    let Ok(Received::Message(Message::Hello { .. }, Some(file))) = socket::receive(&socket) else {
        panic!("it does not greet")
    };
    let (board, _) = Board::new().map(|(file, board)| (file, board.put(5, 9))).unwrap();
    assert_eq!(socket::send(&socket, &Message::Welcome, Some(&board)), socket::Posted::Yes);
    let answer = Message::Memory(Given {
        key,
        base: 0,
        len: vast as u64,
        offset: 0,
        place: 5,
        number: 9,
        writable: true,
    });
    assert_eq!(socket::send(&socket, &answer, Some(&memory)), socket::Posted::Yes);
    let error = polled(&mut endpoint).1;
    assert!(error.is_none(), "{error:?}");
    for _ in 0..3 {
        assert_eq!(put(&mut endpoint, &source, Peer(0), &source, 1).unwrap(), Posted::Yes);
    }
    let mut reader = Reader::new(Segment::own(&file, ring::SEGMENT).unwrap());
    let mut bytes = 0;
    while let Some(record) = reader.next().unwrap() {
        assert_ne!(record.kind, Kind::Landed);
        bytes += record.len;
        reader.consume(&record);
    }
    assert_eq!(bytes, 4 * 20_000);
    let mut asked = 0;
    while let Ok(Received::Message(message, _)) = socket::receive(&socket) {
        asked += usize::from(matches!(message, Message::Want { .. }));
    }
    assert_eq!(asked, 1, "it is asked for once");
}

#[test]
fn a_reader_that_moves_its_head_beyond_the_tail_is_named() {
    let (mut endpoint, place) = acquainted();
    let listener = socket::listener(&place).unwrap();
    let source = endpoint.register(Memory::map(1 << 20, false).unwrap()).unwrap();
    assert_eq!(put(&mut endpoint, &source, Peer(0), &source, 1).unwrap(), Posted::Yes);
    let socket = socket::accepted(&listener).unwrap().expect("it has connected");
    let Ok(Received::Message(Message::Hello { .. }, Some(file))) = socket::receive(&socket) else {
        panic!("it does not greet")
    };
    let ring = Segment::own(&file, ring::SEGMENT).unwrap();
    ring.words()[16].store(1 << 40, Ordering::Release);
    let error = polled(&mut endpoint).1;
    assert!(names_it(error.as_ref()), "{error:?}");
}

/// What another transport might do to register memory: under this key, with its address as the base.
fn registered_elsewhere(key: u64) -> impl Fn(Memory) -> Result<Region, Error> {
    move |memory| {
        let (base, len) = (memory.base().addr() as u64, memory.len() as u64);
        let remote = RemoteRegion { base, key, len, mappable: false };
        let registration = Registration { remote, descriptor: std::ptr::null_mut(), guard: Box::new(()) };
        Ok(Region::registered(memory, registration))
    }
}

/// Puts all of a source to a region, and waits for the arrival.
fn arrives(here: &mut Endpoint, there: &mut Endpoint, source: &Region, target: RemoteRegion) {
    assert_eq!(put_to(here, source, Peer(0), target, 1).unwrap(), Posted::Yes);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    while theirs.is_empty() {
        here.poll(&mut ours).unwrap();
        there.poll(&mut theirs).unwrap();
    }
}

/// The same, and what is there then.
fn lands(here: &mut Endpoint, there: &mut Endpoint, source: &Region, target: &Region) -> Vec<u8> {
    arrives(here, there, source, target.remote().unwrap());
    let mut bytes = vec![0; source.len()];
    // SAFETY: it has arrived, and nobody puts again.
    unsafe { target.read(0, &mut bytes).unwrap() };
    bytes
}

#[test]
fn regions_of_one_key_are_told_apart_by_their_addresses() {
    let (mut here, mut there) = (Endpoint::open().unwrap(), Endpoint::open().unwrap());
    here.connect(there.address()).unwrap();
    let register = registered_elsewhere(7);
    let len = 20_000;
    let memory = |len| Memory::map(len, false).unwrap();
    let source = here.register(memory(len)).unwrap();
    let empty = there.register_again(memory(0), &register).unwrap();
    let mut windows: Vec<_> = (0..4).map(|_| there.register_again(memory(len), &register).unwrap()).collect();
    windows.extend((0..3).map(|_| there.allocate_again(len, false, &register).unwrap()));
    assert_eq!(
        windows.iter().map(|window| window.remote().unwrap().mappable).collect::<Vec<_>>(),
        [false, false, false, false, true, true, true]
    );
    drop(empty);
    for round in 1..8 {
        for window in &windows {
            let bytes = vec![round; len];
            // SAFETY: no put reads it.
            unsafe { source.write(0, &bytes).unwrap() };
            assert_eq!(lands(&mut here, &mut there, &source, window), bytes);
        }
        let gone = windows.swap_remove(0);
        let remote = gone.remote().unwrap();
        drop(gone);
        assert!(windows.iter().all(|window| window.remote().unwrap() != remote));
    }
    assert!(polled(&mut there).1.is_none() && polled(&mut here).1.is_none());
}

#[test]
fn regions_of_one_key_and_their_parts_are_mapped_each_by_itself() {
    let (mut here, mut there) = (Endpoint::open().unwrap(), Endpoint::open().unwrap());
    here.connect(there.address()).unwrap();
    let len = 20_000;
    let source = here.allocate(len, false).unwrap();
    let register = registered_elsewhere(7);
    let windows: Vec<_> = (0..3).map(|_| there.allocate_again(2 * len, false, &register).unwrap()).collect();
    let mapped = |here: &Endpoint| here.peers[0].outgoing.as_ref().map_or(0, |it| it.mappings());
    for round in 1..6 {
        for (number, window) in windows.iter().enumerate() {
            let whole = window.remote().unwrap();
            let part = RemoteRegion { base: whole.base + len as u64, len: len as u64, ..whole };
            let bytes = vec![round * 10 + u8::try_from(number).unwrap(); len];
            // SAFETY: no put reads it.
            unsafe { source.write(0, &bytes).unwrap() };
            arrives(&mut here, &mut there, &source, part);
            let mut landed = vec![0; len];
            // SAFETY: it has arrived, and nobody puts again.
            unsafe { window.read(len, &mut landed).unwrap() };
            assert_eq!(landed, bytes);
        }
        // One of them is asked for at a time, and the answer comes.
        assert!(polled(&mut there).1.is_none() && polled(&mut here).1.is_none());
    }
    assert_eq!(mapped(&here), windows.len());
    drop(windows);
    assert!(polled(&mut there).1.is_none() && polled(&mut here).1.is_none());
    assert_eq!(mapped(&here), 0);
}

/// The writer has mapped the first, and has not been told that it is gone when it writes to the second.
#[test]
fn a_key_that_is_given_again_names_the_new_memory() {
    let (mut here, mut there) = (Endpoint::open().unwrap(), Endpoint::open().unwrap());
    here.connect(there.address()).unwrap();
    let len = 20_000;
    let source = here.allocate(len, false).unwrap();
    for round in 1..6 {
        let bytes = vec![round; len];
        // SAFETY: no put reads it.
        unsafe { source.write(0, &bytes).unwrap() };
        let window = there.allocate_again(len, false, registered_elsewhere(7)).unwrap();
        // Through the ring, and then, until it is mapped, as well.
        for _ in 0..2 * LOOK_IDLE[1] {
            assert_eq!(lands(&mut here, &mut there, &source, &window), bytes);
        }
        let mapped = here.peers[0].outgoing.as_ref().unwrap().mappings();
        assert_eq!(mapped, 1);
    }
}

#[test]
fn memory_has_one_second_registration() {
    let endpoint = Endpoint::open().unwrap();
    let memory = Memory::map(8, false).unwrap();
    let twice =
        endpoint.register_again(memory, |memory| endpoint.register_again(memory, registered_elsewhere(7)));
    assert!(matches!(twice, Err(Error::Unexpected { .. })), "{twice:?}");
}
