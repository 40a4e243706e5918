//! An endpoint whose peers break the protocol: they hand over no ring, write no valid record, or end; and strangers.

mod fetched;
pub(crate) mod guarded;
mod keys;

use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::{
    board::Board,
    control::{ConnectionMessage, Given},
    ring::{Reader, Record, RecordKind, Writer},
    segment::{Access, Segment},
    socket::{Link, Received},
    *,
};
use crate::{Notify, Registration, RemoteRegion, Source, Target, peer_memory::ReadPermit};

/// A put from a hostile peer is judged after this many polls at the latest.
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

/// Puts all of `source` to what may be a part of a region.
fn put_to(
    from: &mut Endpoint,
    source: &Region,
    to: Peer,
    region: RemoteRegion,
    immediate: u32,
) -> Result<Posted, Error> {
    let sources = [Source::new(source, 0, source.len())?];
    let target = Target { region, offset: 0 };
    let put =
        Put { to, sources: &sources, target, immediate, token: 3, notify: Notify::Always, fetch: false };
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

/// `here` connects to `there`, until it can write to it.
fn meet(here: &mut Endpoint, there: &mut Endpoint) -> Peer {
    let peer = here.connect(there.address()).unwrap();
    while here.outgoing(peer).unwrap().is_none() {
        there.look(Duration::ZERO, false).unwrap();
    }
    peer
}

/// A connection to an endpoint, on which nothing was sent. `from` is the place that it claims to have.
fn connection(to: &Endpoint, from: &EndpointPlace) -> Link {
    let Ok(Some(link)) = socket::connect_to(&to.place, from.name) else { panic!("nobody listens") };
    link
}

/// A connection, and the ring that belongs to it.
fn connected(to: &Endpoint, from: &EndpointPlace) -> (Link, OwnedFd) {
    let link = connection(to, from);
    let (file, _) = segment::create(ring::SEGMENT, Access::ReadWrite).unwrap();
    assert_eq!(link.send(&ConnectionMessage::Ring(ReadPermit::NONE), Some(&file)), socket::SendOutcome::Yes);
    (link, file)
}

/// The last message before the other end is closed.
fn last_words(link: &Link) -> Option<ConnectionMessage> {
    let mut last = None;
    loop {
        match link.receive().unwrap() {
            Received::Message(message, _) => last = Some(message),
            Received::End => return last,
            other => panic!("{other:?} after {last:?}"),
        }
    }
}

/// An endpoint connects to its first peer, which listens here, and is accepted. The connection, and its ring.
fn accepted(endpoint: &mut Endpoint, listener: &Listener, board: &OwnedFd) -> (Link, OwnedFd) {
    assert!(endpoint.outgoing(Peer(0)).unwrap().is_none());
    let Ok(Accepted::From(from, link)) = listener.accept() else { panic!("it does not connect") };
    assert_eq!(from, endpoint.place.name);
    assert_eq!(
        link.send(&ConnectionMessage::Accept(ReadPermit::NONE), Some(board)),
        socket::SendOutcome::Yes
    );
    assert!(endpoint.outgoing(Peer(0)).unwrap().is_some());
    let Ok(Received::Message(ConnectionMessage::Ring(_), Some(file))) = link.receive() else {
        panic!("no ring")
    };
    (link, file)
}

/// An endpoint that knows a peer, which does what the test wants.
fn acquainted() -> (Endpoint, EndpointPlace) {
    let mut endpoint = Endpoint::open().unwrap();
    let place = EndpointPlace::new().unwrap();
    assert_eq!(endpoint.connect(&place.address()).unwrap(), Peer(0));
    (endpoint, place)
}

fn names_it(error: Option<&Error>) -> bool {
    matches!(error, Some(Error::Completion { peer: Some(Peer(0)), .. }))
}

/// Checks that it works: one put to itself lands.
fn still_works(endpoint: &mut Endpoint) {
    let own = endpoint.address().clone();
    let myself = endpoint.connect(&own).unwrap();
    while endpoint.outgoing(myself).unwrap().is_none() {
        endpoint.look(Duration::ZERO, false).unwrap();
    }
    let region = endpoint.register(Memory::map(8).unwrap()).unwrap();
    assert_eq!(put(endpoint, &region, myself, &region, 77).unwrap(), Posted::Yes);
    let (events, error) = polled(endpoint);
    assert!(error.is_none(), "{error:?}");
    assert!(events.contains(&Event::Arrived { immediate: 77, len: Some(8) }), "{events:?}");
}

#[test]
fn allocated_memory_is_written_by_the_peer_itself() {
    let (mut here, mut there) = (Endpoint::open().unwrap(), Endpoint::open().unwrap());
    let peer = meet(&mut here, &mut there);
    let len = 16 * ring::SEGMENT;
    let (source, window) = (here.allocate(len).unwrap(), there.allocate(len).unwrap());
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
    let peer = meet(&mut here, &mut there);
    let source = here.allocate(20_000).unwrap();
    for round in 0..5 {
        let window = there.allocate(20_000).unwrap();
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            assert_eq!(put(&mut here, &source, peer, &window, round).unwrap(), Posted::Yes);
            while theirs.is_empty() {
                here.poll(&mut ours).unwrap();
                there.poll(&mut theirs).unwrap();
            }
            theirs.clear();
        }
        assert_eq!(here.peers[0].state.open().unwrap().mappings(), 1);
        drop(window);
        assert!(polled(&mut there).1.is_none() && polled(&mut here).1.is_none());
        assert_eq!(here.peers[0].state.open().unwrap().mappings(), 0);
    }
}

#[test]
fn memory_of_a_memfd_is_read_by_peers_and_written_by_its_owner() {
    let (mut here, mut there) = (Endpoint::open().unwrap(), Endpoint::open().unwrap());
    let peer = meet(&mut here, &mut there);
    let len = 20_000;
    let file = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, 3 * len as u64).unwrap();
    // SAFETY: what is in it is looked at when puts have arrived.
    let memory = || unsafe { Memory::of_memfd(&file, 8192, len).unwrap() };
    let (source, window) = (here.allocate(len).unwrap(), there.register(memory()).unwrap());
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
    // A peer that claims to have written there itself does not tell the truth.
    assert_eq!(there.table.lock().check(region.key, 0, 8), Err(control::WriteRefusal::Unregistered));
    // Small memory is not shared. SAFETY: nothing accesses it.
    let small = unsafe { Memory::of_memfd(&file, 0, 100).unwrap() };
    assert!(!there.register(small).unwrap().remote().unwrap().mappable);
    // The memory still belongs to the file when the endpoint is gone.
    drop(there);
    // SAFETY: no put goes to it.
    unsafe { window.write(0, &[9; 8]).unwrap() };
    let mut seen = [0; 8];
    rustix::io::pread(&file, &mut seen, 8192).unwrap();
    assert_eq!(seen, [9; 8]);
}

#[test]
fn memory_beyond_what_is_shared_is_registered_as_any_other() {
    let mut endpoint = Endpoint::open().unwrap();
    let most = board::PLACES as usize;
    let mut regions: Vec<_> = (0..most).map(|_| endpoint.allocate(20_000).unwrap()).collect();
    let file = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, 20_000).unwrap();
    // SAFETY: nothing accesses it.
    let memory = || unsafe { Memory::of_memfd(&file, 0, 20_000).unwrap() };
    let is_shared = |region: Region| region.remote().unwrap().mappable;
    assert!(!is_shared(endpoint.register(memory()).unwrap()));
    assert!(!is_shared(endpoint.allocate(20_000).unwrap()));
    for _ in 0..3 {
        regions.pop();
        assert!(is_shared(endpoint.register(memory()).unwrap()));
        regions.push(endpoint.allocate(20_000).unwrap());
        assert!(is_shared(regions[most - 1].clone()));
    }
}

#[test]
fn who_does_not_know_the_token_is_disconnected() {
    let (mut here, mut there) = (Endpoint::open().unwrap(), Endpoint::open().unwrap());
    let mut address = there.address().clone();
    // The last byte of the token, before the proof.
    address.0[address::LEN - size_of::<address::EndpointToken>() - 1] ^= 1;
    let peer = here.connect(&address).unwrap();
    assert!(here.outgoing(peer).unwrap().is_none());
    assert!(there.incoming.is_empty() && !there.look(Duration::ZERO, false).unwrap(), "it has come");
    let error = polled(&mut here).1;
    assert!(names_it(error.as_ref()), "{error:?}");
    still_works(&mut there);
}

#[test]
fn an_answer_without_the_proof_opens_nothing() {
    let (mut here, mut there) = (Endpoint::open().unwrap(), Endpoint::open().unwrap());
    let mut address = there.address().clone();
    *address.0.last_mut().unwrap() ^= 1;
    let peer = here.connect(&address).unwrap();
    for _ in 0..3 {
        assert!(here.outgoing(peer).unwrap().is_none(), "it was answered");
        assert!(polled(&mut there).1.is_none() && polled(&mut here).1.is_none());
    }
    assert_eq!(there.incoming.iter().flatten().count(), 1);
    still_works(&mut there);
}

#[test]
fn an_endpoint_that_many_have_looked_for_is_near_and_works() {
    let mut endpoint = Endpoint::open().unwrap();
    for _ in 0..5000 {
        assert!(Endpoint::is_near(endpoint.address()).unwrap());
    }
    assert!(!Endpoint::is_near(&EndpointPlace::new().unwrap().address()).unwrap());
    let refused = Endpoint::is_near(&Address(b"near".into()));
    assert!(matches!(refused, Err(Error::BadAddress { .. })), "{refused:?}");
    still_works(&mut endpoint);
}

#[test]
fn what_is_no_ring_disconnects_the_peer_alone() {
    let mut endpoint = Endpoint::open().unwrap();
    let stranger = EndpointPlace::new().unwrap();
    let ring = segment::create(ring::SEGMENT, Access::ReadWrite).unwrap().0;
    let short = segment::create(4096, Access::ReadWrite).unwrap().0;
    let unsealed = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&unsealed, ring::SEGMENT as u64).unwrap();
    let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    let cases = [
        (ConnectionMessage::Ring(ReadPermit::NONE), None),
        (ConnectionMessage::Ring(ReadPermit::NONE), Some(&short)),
        (ConnectionMessage::Ring(ReadPermit::NONE), Some(&unsealed)),
        (ConnectionMessage::Ring(ReadPermit::NONE), Some(&null)),
        (ConnectionMessage::Accept(ReadPermit::NONE), Some(&ring)),
        (ConnectionMessage::Connect { from: stranger.name }, Some(&ring)),
        (ConnectionMessage::Forget { key: 1, address: 2 }, None),
    ];
    for (message, file) in cases {
        let link = connection(&endpoint, &stranger);
        assert_eq!(link.send(&message, file), socket::SendOutcome::Yes);
        assert!(polled(&mut endpoint).1.is_none(), "{message:?}");
        assert_eq!(last_words(&link), Some(ConnectionMessage::Dropped), "{message:?}");
    }
    // A stranger that sends nothing, and one that ends at once, do no harm.
    let _silent = connection(&endpoint, &stranger);
    drop(connection(&endpoint, &stranger));
    still_works(&mut endpoint);
}

#[test]
fn a_peer_that_writes_what_is_no_record_is_named_and_a_stranger_is_not() {
    let (mut endpoint, place) = acquainted();
    let stranger = EndpointPlace::new().unwrap();
    for (from, named) in [(&stranger, false), (&place, true)] {
        let (link, file) = connected(&endpoint, from);
        let ring = Segment::own(&file, ring::SEGMENT).unwrap();
        ring.words()[0].store(u64::MAX - 63, Ordering::Release);
        let error = polled(&mut endpoint).1;
        assert_eq!(names_it(error.as_ref()), named, "{error:?}");
        // The peer lives, and must not take this endpoint for dead.
        assert_eq!(last_words(&link), Some(ConnectionMessage::Dropped));
        if !named {
            still_works(&mut endpoint);
        }
    }
    assert!(names_it(endpoint.poll(&mut Vec::new()).err().as_ref()), "the failure is latched");
    assert!(names_it(endpoint.park(Duration::from_secs(20), &[], &mut || false).err().as_ref()));
}

/// Both ends of a connection that is dropped live.
#[test]
fn a_connection_that_a_peer_drops_is_no_death() {
    let check_forged = |error: Option<Error>| {
        assert!(names_it(error.as_ref()), "{error:?}");
        let message = error.map_or_else(String::new, |error| error.to_string());
        assert!(message.contains("dropped") && !message.contains("has ended"), "{message}");
    };
    let (mut here, mut there) = (Endpoint::open().unwrap(), Endpoint::open().unwrap());
    meet(&mut here, &mut there);
    there.connect(here.address()).unwrap();
    assert!(polled(&mut there).1.is_none());
    let Some(Some(incoming)) = there.incoming.first_mut() else { panic!("no connection") };
    incoming.corrupt();
    check_forged(polled(&mut there).1);
    check_forged(polled(&mut here).1);
    let (mut endpoint, place) = acquainted();
    let (link, _file) = connected(&endpoint, &place);
    assert_eq!(link.send(&ConnectionMessage::Dropped, None), socket::SendOutcome::Yes);
    check_forged(polled(&mut endpoint).1);
}

/// The permissions of the mapping at this address.
fn permissions(address: *const u8) -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let range = |line: &str| {
        let (from, to) = line.split_whitespace().next()?.split_once('-')?;
        let [from, to] = [from, to].map(|end| usize::from_str_radix(end, 16).unwrap());
        Some(from..to)
    };
    let line = maps.lines().find(|line| range(line).is_some_and(|range| range.contains(&address.addr())));
    line.unwrap().split_whitespace().nth(1).unwrap().to_owned()
}

#[test]
fn what_is_only_read_is_mapped_for_reading() {
    let (mut here, mut there) = (Endpoint::open().unwrap(), Endpoint::open().unwrap());
    let peer = meet(&mut here, &mut there);
    let len = 20_000;
    let source = here.register(Memory::map(len).unwrap()).unwrap();
    for (shown, owned) in [(there.share(len).unwrap(), false), (there.allocate(len).unwrap(), true)] {
        let region = shown.remote().unwrap();
        assert!(region.mappable);
        let view = loop {
            match here.map(peer, &region).unwrap() {
                Mapping::Yes(view) => break view,
                Mapping::NotYet => drop((polled(&mut there), polled(&mut here))),
                Mapping::No => panic!("it is not mapped"),
            }
        };
        assert_eq!((&permissions(view.base())[..], &permissions(shown.base())[..]), ("r--s", "rw-s"));
        // Puts still write to it: straight to allocated memory, and through the ring otherwise.
        for round in 1..4 {
            let bytes = vec![round; len];
            // SAFETY: no put reads it.
            unsafe { source.write(0, &bytes).unwrap() };
            assert_eq!(lands(&mut here, &mut there, &source, &shown), bytes);
            assert!(polled(&mut there).1.is_none() && polled(&mut here).1.is_none());
        }
        let straight = here.peers[0].state.open().unwrap().writes_straight_to(&region);
        assert_eq!(straight, owned);
        // A peer cannot map shown memory for writing, although it has the descriptor.
        let (link, _ring) = connected(&there, &here.place);
        let want = ConnectionMessage::Want { key: region.key, address: 0, access: Access::ReadWrite };
        assert_eq!(link.send(&want, None), socket::SendOutcome::Yes);
        let given = std::iter::repeat_with(|| {
            assert!(polled(&mut there).1.is_none());
            link.receive().unwrap()
        });
        let (file, given) = given
            .take(3)
            .find_map(|received| match received {
                Received::Message(ConnectionMessage::Memory(given), Some(file)) => Some((file, given)),
                _ => None,
            })
            .expect("it is given");
        assert_eq!(given.writable, owned);
        assert_eq!(Segment::of_peer(&file, 0, len, Access::ReadWrite).is_ok(), owned);
        assert_eq!(rustix::io::pwrite(&file, &[1], 0).is_ok(), owned);
        assert_eq!(link.send(&ConnectionMessage::Bye, None), socket::SendOutcome::Yes);
    }
}

#[test]
fn what_was_written_before_a_peer_died_is_read_first() {
    for closes in [true, false] {
        let (mut endpoint, place) = acquainted();
        let window = endpoint.register(Memory::map(8).unwrap()).unwrap();
        let (link, file) = connected(&endpoint, &place);
        let mut writer = Writer::new(Segment::own(&file, ring::SEGMENT).unwrap());
        let key = window.remote().unwrap().key;
        let count = 3 * BATCH;
        for _ in 0..count {
            let record = Record { kind: RecordKind::Put, immediate: 5, len: 8, total: 8, key, offset: 0 };
            let bytes = [1_u8; 8];
            assert!(writer.has_room(8).unwrap());
            // SAFETY: eight bytes, as the record says.
            unsafe { writer.push(&record, std::iter::once((bytes.as_ptr(), 8))) };
        }
        if closes {
            let _ = link.send(&ConnectionMessage::Bye, None);
        }
        drop((link, writer, file));
        let (events, error) = polled(&mut endpoint);
        assert_eq!(events.len(), count);
        assert_eq!(names_it(error.as_ref()), !closes, "{error:?}");
        assert!(endpoint.incoming.iter().all(Option::is_none), "the connection is gone");
    }
}

/// An answer that no endpoint gives is an error with the peer's name.
#[test]
fn a_hostile_reader_is_named() {
    let large = 1 << 20;
    let short = segment::create(4096, Access::ReadWrite).unwrap().0;
    let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    let (len, access) = (large as u64, Access::ReadWrite);
    let given = Given { key: 0, base: 0, len, offset: 0, place: 0, number: 1, access, writable: true };
    let cases = [
        (false, ConnectionMessage::Accept(ReadPermit::NONE), None),
        (false, ConnectionMessage::Accept(ReadPermit::NONE), Some(&null)),
        (false, ConnectionMessage::Want { key: 1, address: 2, access: Access::Read }, None),
        (true, ConnectionMessage::Memory(given), Some(&short)),
        (true, ConnectionMessage::Want { key: 1, address: 2, access: Access::Read }, None),
        (true, ConnectionMessage::Bye, Some(&short)),
    ];
    let board = Board::new().unwrap().0;
    for (is_accepted, message, file) in cases {
        let (mut endpoint, place) = acquainted();
        let listener = Listener::open(&place).unwrap();
        let link = if is_accepted {
            accepted(&mut endpoint, &listener, &board).0
        } else {
            assert!(endpoint.outgoing(Peer(0)).unwrap().is_none());
            let Ok(Accepted::From(_, link)) = listener.accept() else { panic!("it does not connect") };
            link
        };
        let mut answer = message;
        if let ConnectionMessage::Memory(given) = &mut answer {
            let source = endpoint.allocate(large).unwrap();
            // Any key of memory that can be mapped does: its own.
            assert_eq!(put(&mut endpoint, &source, Peer(0), &source, 1).unwrap(), Posted::Yes);
            given.key = source.remote().unwrap().key;
        }
        assert_eq!(link.send(&answer, file), socket::SendOutcome::Yes);
        let error = polled(&mut endpoint).1;
        assert!(names_it(error.as_ref()), "{answer:?}: {error:?}");
    }
}

/// The reason does not matter: for instance, this process may have no more mappings or address space.
#[test]
fn what_cannot_be_mapped_is_written_through_the_ring() {
    let vast: usize = 1 << 55;
    let memory = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&memory, segment::whole(vast).unwrap() as u64).unwrap();
    fcntl_add_seals(&memory, SealFlags::SHRINK).unwrap();
    let (mut endpoint, place) = acquainted();
    let listener = Listener::open(&place).unwrap();
    let source = endpoint.allocate(20_000).unwrap();
    let key = source.remote().unwrap().key;
    let (board, _) = Board::new().map(|(file, board)| (file, board.put(5, 9))).unwrap();
    let (link, file) = accepted(&mut endpoint, &listener, &board);
    assert_eq!(put(&mut endpoint, &source, Peer(0), &source, 1).unwrap(), Posted::Yes);
    let answer = ConnectionMessage::Memory(Given {
        key,
        base: 0,
        len: vast as u64,
        offset: 0,
        place: 5,
        number: 9,
        access: Access::ReadWrite,
        writable: true,
    });
    assert_eq!(link.send(&answer, Some(&memory)), socket::SendOutcome::Yes);
    let error = polled(&mut endpoint).1;
    assert!(error.is_none(), "{error:?}");
    for _ in 0..3 {
        assert_eq!(put(&mut endpoint, &source, Peer(0), &source, 1).unwrap(), Posted::Yes);
    }
    let mut reader = Reader::new(Segment::own(&file, ring::SEGMENT).unwrap());
    let mut bytes = 0;
    while let Some(record) = reader.next().unwrap() {
        assert_ne!(record.kind, RecordKind::Landed);
        bytes += record.len;
        reader.consume(&record);
    }
    assert_eq!(bytes, 4 * 20_000);
    let mut asked = 0;
    while let Ok(Received::Message(message, _)) = link.receive() {
        asked += usize::from(matches!(message, ConnectionMessage::Want { .. }));
    }
    assert_eq!(asked, 1, "it is asked for once");
}

#[test]
fn a_reader_that_moves_its_head_beyond_the_tail_is_named() {
    let (mut endpoint, place) = acquainted();
    let listener = Listener::open(&place).unwrap();
    let (_link, file) = accepted(&mut endpoint, &listener, &Board::new().unwrap().0);
    let source = endpoint.register(Memory::map(1 << 20).unwrap()).unwrap();
    assert_eq!(put(&mut endpoint, &source, Peer(0), &source, 1).unwrap(), Posted::Yes);
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

/// Puts all of a source to a region, and returns what is there then.
fn lands(here: &mut Endpoint, there: &mut Endpoint, source: &Region, target: &Region) -> Vec<u8> {
    arrives(here, there, source, target.remote().unwrap());
    let mut bytes = vec![0; source.len()];
    // SAFETY: it has arrived, and no other put comes.
    unsafe { target.read(0, &mut bytes).unwrap() };
    bytes
}
