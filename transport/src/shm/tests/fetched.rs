//! Puts whose bytes the reader fetches from the writer's process: when they are, and what comes of writers that close or lie.

use super::*;
use crate::peer_memory::OwnPermit;

const LEN: usize = 300_000;

/// A put of a whole region that the peer may fetch.
fn put_to_be_fetched(from: &mut Endpoint, source: &Region, target: &Region) -> Posted {
    let sources = [Source::new(source, 0, source.len()).unwrap()];
    let target = Target { region: target.remote().unwrap(), offset: 0 };
    let (immediate, token, notify) = (5, 9, Notify::IfNotInjected);
    let put = Put { to: Peer(0), sources: &sources, target, immediate, token, notify, fetch: true };
    // SAFETY: the tests leave sources as they are, and look at targets after the arrival.
    unsafe { from.put(&put) }.unwrap()
}

/// Two endpoints that let their peers read them, or not; the first is connected to the second, and knows whether that can read it.
fn pair(readable: [bool; 2]) -> [Endpoint; 2] {
    let [mut here, mut there] = readable.map(|readable| Endpoint::open_with(readable).unwrap());
    meet(&mut here, &mut there);
    drop((polled(&mut there), polled(&mut here)));
    [here, there]
}

/// A region of plain memory that holds this byte.
fn filled(endpoint: &mut Endpoint, byte: u8) -> Region {
    let region = endpoint.register(Memory::map(LEN).unwrap()).unwrap();
    // SAFETY: no put goes there yet.
    unsafe { region.write(0, &[byte; LEN]).unwrap() };
    region
}

/// True if all of a region holds this byte.
fn holds(region: &Region, byte: u8) -> bool {
    let mut bytes = vec![0; LEN];
    // SAFETY: no put is under way.
    unsafe { region.read(0, &mut bytes).unwrap() };
    bytes == [byte; LEN]
}

fn is_readable() -> bool {
    let own = OwnPermit::new(true).unwrap();
    let readable = crate::peer_memory::PeerMemory::of(own.permit()).is_some();
    if !readable {
        println!("SKIPPED: puts that are fetched: the system refuses to read memory of processes");
    }
    readable
}

#[test]
fn bytes_are_fetched_where_the_writer_can_be_read() {
    let readable = is_readable();
    for writer in [true, false] {
        for reader in [true, false] {
            let [mut here, mut there] = pair([writer, reader]);
            assert_eq!(here.reads(Peer(0)).unwrap(), writer && reader && readable);
            let (source, target) = (filled(&mut here, 3), filled(&mut there, 4));
            for round in 0..5 {
                assert_eq!(put_to_be_fetched(&mut here, &source, &target), Posted::Yes);
                let (mut arrived, mut sent) = (Vec::new(), Vec::new());
                // What is fetched fits the ring, and what is copied does not.
                here.poll(&mut sent).unwrap();
                assert!(sent.is_empty(), "round {round}");
                while arrived.is_empty() || sent.is_empty() {
                    there.poll(&mut arrived).unwrap();
                    here.poll(&mut sent).unwrap();
                }
                assert_eq!(arrived, [Event::Arrived { immediate: 5, len: Some(LEN) }]);
                assert_eq!(sent, [Event::Sent { token: 9 }]);
                assert!(holds(&target, 3));
                assert!(!here.peers[0].state.open().unwrap().has_pending());
            }
        }
    }
}

#[test]
fn a_writer_that_sleeps_is_woken_when_its_put_was_fetched() {
    if !is_readable() {
        return;
    }
    let [mut here, mut there] = pair([true; 2]);
    let (source, target) = (filled(&mut here, 3), filled(&mut there, 4));
    assert_eq!(put_to_be_fetched(&mut here, &source, &target), Posted::Yes);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            let mut arrived = Vec::new();
            while arrived.is_empty() {
                there.poll(&mut arrived).unwrap();
            }
        });
        let (began, mut sent) = (std::time::Instant::now(), Vec::new());
        while sent.is_empty() {
            here.park(Duration::from_secs(20), &[], &mut || false).unwrap();
            here.poll(&mut sent).unwrap();
        }
        assert!(began.elapsed() < Duration::from_secs(10), "nothing woke it");
    });
}

/// What the writer's memory holds after its endpoint is gone may be another's.
#[test]
fn what_a_writer_withdraws_does_not_arrive() {
    if !is_readable() {
        return;
    }
    let [mut here, mut there] = pair([true; 2]);
    let (source, target) = (filled(&mut here, 3), filled(&mut there, 4));
    assert_eq!(put_to_be_fetched(&mut here, &source, &target), Posted::Yes);
    drop(here);
    // SAFETY: its endpoint is gone.
    unsafe { source.write(0, &[66; LEN]).unwrap() };
    let (events, error) = polled(&mut there);
    assert_eq!((&events[..], error.is_none()), (&[][..], true), "{error:?}");
    still_works(&mut there);
}

/// A put that waits for its reader is no put that was sent.
#[test]
fn a_reader_that_closes_fails_what_it_has_not_fetched() {
    if !is_readable() {
        return;
    }
    for fetches in [true, false] {
        let [mut here, mut there] = pair([true; 2]);
        let (source, target) = (filled(&mut here, 3), filled(&mut there, 4));
        assert_eq!(put_to_be_fetched(&mut here, &source, &target), Posted::Yes);
        let mut arrived = Vec::new();
        while fetches && arrived.is_empty() {
            there.poll(&mut arrived).unwrap();
        }
        drop(there);
        let (events, error) = polled(&mut here);
        assert_eq!(events.contains(&Event::Sent { token: 9 }), fetches, "{events:?}");
        assert_eq!(names_it(error.as_ref()), !fetches, "{error:?}");
    }
}

#[test]
fn a_record_of_memory_that_is_not_there_is_its_writers_failure() {
    if !is_readable() {
        return;
    }
    let own = OwnPermit::new(true).unwrap();
    for (permit, address, len, said) in [
        (own.permit(), 4096, 20_000, "has no 20000 bytes at 0x1000"),
        (ReadPermit::NONE, 4096, 20_000, "memory to read of which nothing is known"),
        (own.permit(), 4096, ring::MOST_FETCHED + 1, "a length that no put has"),
    ] {
        let (mut endpoint, place) = acquainted();
        let target = endpoint.register(Memory::map(400_000).unwrap()).unwrap();
        let (link, file) = (connection(&endpoint, &place), segment::create(ring::SEGMENT, Access::ReadWrite));
        let (file, segment) = file.unwrap();
        assert_eq!(link.send(&ConnectionMessage::Ring(permit), Some(&file)), socket::SendOutcome::Yes);
        let (key, len) = (target.remote().unwrap().key, len as u64);
        let record = Record { kind: RecordKind::Fetch, immediate: 1, len, total: len, key, offset: 0 };
        let address = u64::to_ne_bytes(address);
        // SAFETY: the bytes are borrowed.
        unsafe { Writer::new(segment).push(&record, std::iter::once((address.as_ptr(), 8))) };
        let (events, error) = polled(&mut endpoint);
        assert_eq!(events, []);
        assert!(names_it(error.as_ref()) && error.as_ref().unwrap().to_string().contains(said), "{error:?}");
        assert_eq!(last_words(&link), Some(ConnectionMessage::Dropped));
    }
}
