//! The tcp store among strangers: scanners, other programs, other versions, and members that misbehave.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use unisono::{
    Error,
    config::{Member, StoreAddress},
    error::Refusal,
    rendezvous::{MAX_KEY, TcpServer, TcpStore, open},
};

use crate::world::{Kind, One, SOON, after, member, part, soon, stores, world};

const PREAMBLE: &[u8] = b"unisono\x1a\x01\x00";

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream
}

/// A hello as docs of the wire have it: token's hash, rank, ranks, who, purpose 0.
fn hello(rank: u64, ranks: u64) -> Vec<u8> {
    let token = b"test".iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let body = postcard::to_allocvec(&(token, rank, ranks, "raw", 0_u32)).unwrap();
    [PREAMBLE, &u32::try_from(body.len()).unwrap().to_le_bytes(), &body].concat()
}

/// Sends bytes and gives what comes back until the server closes.
fn send(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = connect(address);
    let mut back = Vec::new();
    // The server may close while this is still writing, which is what is wanted.
    let _ = stream.write_all(bytes);
    let _ = stream.read_to_end(&mut back);
    back
}

fn server(ranks: usize) -> (TcpServer, StoreAddress) {
    let server = TcpServer::bind("127.0.0.1:0", ranks, "test", None).unwrap();
    let address = StoreAddress::Tcp { host: "127.0.0.1".into(), port: server.address().port(), served: true };
    (server, address)
}

#[test]
fn strangers_are_shown_the_door() {
    let (server, address) = server(2);
    let huge = [PREAMBLE, &u32::MAX.to_le_bytes(), b"x"].concat();
    let nonsense = [PREAMBLE, &8_u32.to_le_bytes(), &[0xff; 8]].concat();
    for bytes in
        [b"GET / HTTP/1.1\r\nHost: here\r\n\r\n".as_slice(), b"\x16\x03\x01\x02\x00", &huge, &nonsense]
    {
        let begun = Instant::now();
        assert_eq!(send(server.address(), bytes), b"", "{bytes:?}");
        assert!(begun.elapsed() < Duration::from_secs(5), "closed at once, not when its time is over");
    }
    // Bytes at random, sometimes after a right beginning.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for i in 0..100 {
        let noise: Vec<u8> = (0..i * 7)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state.to_le_bytes()[0]
            })
            .collect();
        let opening = if i % 2 == 0 { PREAMBLE } else { b"" };
        let mut stream = connect(server.address());
        let _ = stream.write_all(&[opening, &noise].concat());
    }
    let one = open(&address, &member(1, 2), soon()).unwrap();
    one.set("k", b"v").unwrap();
}

#[test]
fn those_that_say_nothing_keep_nobody_out() {
    let (server, address) = server(2);
    let silent: Vec<TcpStream> = (0..200).map(|_| connect(server.address())).collect();
    for mut stream in &silent {
        stream.write_all(&PREAMBLE[..5]).unwrap();
    }
    let begun = Instant::now();
    open(&address, &member(0, 2), soon()).unwrap().set("k", b"v").unwrap();
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[test]
fn other_jobs_and_other_versions_are_refused() {
    let (server, address) = server(2);
    let other = Member { token: "another job".into(), ..member(1, 2) };
    let error = open(&address, &other, soon()).err().unwrap();
    assert!(matches!(error, Error::Refused { rank: 1, refusal: Refusal::Token, .. }), "{error}");
    // A client of version 2 hears of version 1.
    let mut newer = hello(1, 2);
    newer[8] = 2;
    assert_eq!(send(server.address(), &newer), PREAMBLE);

    // And this client, of a server of version 2.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut stream = listener.accept().unwrap().0;
            stream.write_all(b"unisono\x1a\x02\x00").unwrap();
            let _ = stream.read(&mut [0; 1024]);
        });
        let error = TcpStore::join("127.0.0.1", port, &member(1, 2), soon()).err().unwrap();
        let version = Refusal::Version { store: 2, ours: 1 };
        assert!(matches!(&error, Error::Refused { refusal, .. } if *refusal == version), "{error}");
    });
}

#[test]
fn another_program_at_the_port_is_recognised() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let error = TcpStore::host("127.0.0.1", port, &member(0, 2), soon()).err().unwrap();
    assert!(error.to_string().contains("another process listens there"), "{error}");
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut stream = listener.accept().unwrap().0;
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
            // A second one that says nothing.
            let _silent = listener.accept().unwrap();
            thread::sleep(Duration::from_millis(300));
        });
        let error = TcpStore::join("127.0.0.1", port, &member(1, 2), soon()).err().unwrap();
        assert!(error.to_string().contains("not a store of this library"), "{error}");
        let error = TcpStore::join("127.0.0.1", port, &member(1, 2), after(100)).err().unwrap();
        assert!(error.to_string().contains("has said nothing for"), "{error}");
    });
    let error = TcpStore::join("no-such-host.invalid", 1, &member(1, 2), after(50)).err().unwrap();
    assert!(error.to_string().contains("cannot resolve"), "{error}");
}

#[test]
fn the_master_may_come_late() {
    let (_held, port) = crate::ports::held().unwrap();
    thread::scope(|scope| {
        let late = scope.spawn(move || {
            thread::sleep(Duration::from_millis(100));
            TcpStore::host("127.0.0.1", port, &member(0, 2), soon())
        });
        let early = TcpStore::join("127.0.0.1", port, &member(1, 2), soon());
        let _host = late.join().unwrap().unwrap();
        early.unwrap();
    });
}

#[test]
fn a_member_that_misbehaves_is_dead_to_the_others() {
    let (server, address) = server(2);
    let one = One::new(open(&address, &member(0, 2), soon()).unwrap());
    let mut raw = connect(server.address());
    raw.write_all(&hello(1, 2)).unwrap();
    raw.read_exact(&mut [0; 10]).unwrap();
    raw.write_all(&u32::MAX.to_le_bytes()).unwrap();
    let failure = one.alarm.wait(SOON).unwrap();
    assert!(failure.to_string().contains("rank 1 died (raw: "), "{failure}");
    one.leave();
}

#[test]
fn one_that_gave_up_before_it_was_let_in_may_come_again() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    // Held up until both the hello and the end of the connection are there.
    connect(at).write_all(&hello(1, 2)).unwrap();
    let _server = TcpServer::serve(listener, 2, "test", None).unwrap();
    let address = StoreAddress::Tcp { host: "127.0.0.1".into(), port: at.port(), served: true };
    let all = [0, 1].map(|rank| One::new(open(&address, &member(rank, 2), soon()).unwrap()));
    assert!(all.iter().all(|one| !one.alarm.raised()));
    part(all.into());
}

#[test]
fn a_member_that_does_not_read_holds_up_nobody() {
    let (server, address) = server(2);
    let store = open(&address, &member(0, 2), soon()).unwrap();
    store.set("big", &vec![7; 1 << 20]).unwrap();
    let mut raw = connect(server.address());
    raw.write_all(&hello(1, 2)).unwrap();
    // Get { key: "big", wait: 0 }, again and again, without reading what comes.
    let get = postcard::to_allocvec(&(1_u32, "big", 0_u64)).unwrap();
    let get = [&u32::try_from(get.len()).unwrap().to_le_bytes(), &get[..]].concat();
    raw.write_all(&get.repeat(200)).unwrap();
    let begun = Instant::now();
    for _ in 0..20 {
        store.set("k", b"v").unwrap();
    }
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    // Once it reads, everything is there.
    let mut back = vec![0; 200 << 20];
    raw.read_exact(&mut back).unwrap();
}

#[test]
fn what_a_member_asks_for_waits_until_it_reads() {
    let (server, address) = server(2);
    let store = open(&address, &member(0, 2), soon()).unwrap();
    store.set("big", &vec![7; 1 << 20]).unwrap();
    let mut raw = connect(server.address());
    raw.write_all(&hello(1, 2)).unwrap();
    let frame = |body: Vec<u8>| [&u32::try_from(body.len()).unwrap().to_le_bytes(), &body[..]].concat();
    // Collect { prefix: "b", count: 0, wait: 0 } more often than a socket takes replies, and Set { key, value }.
    let collect = frame(postcard::to_allocvec(&(2_u32, "b", 0_u64, 0_u64)).unwrap());
    let set = frame(postcard::to_allocvec(&(0_u32, "after", &b"v"[..])).unwrap());
    raw.write_all(&[collect.repeat(64), set].concat()).unwrap();
    assert_eq!(store.get("after", after(500)).unwrap(), None, "the server has answered all at once");
    raw.read_exact(&mut vec![0; 64 << 20]).unwrap();
    assert_eq!(store.get("after", soon()).unwrap().as_deref(), Some(&b"v"[..]));
}

#[test]
fn keys_that_are_too_long_are_refused_by_the_server_too() {
    let (server, _address) = server(2);
    let mut raw = connect(server.address());
    raw.write_all(&hello(1, 2)).unwrap();
    let key = "k".repeat(MAX_KEY + 1);
    // Get { key, wait } and Collect { prefix, count, wait }, with a wait of a minute.
    let get = postcard::to_allocvec(&(1_u32, &key, 60_000_u64)).unwrap();
    let collect = postcard::to_allocvec(&(2_u32, &key, 1_u64, 60_000_u64)).unwrap();
    for body in [get, collect] {
        raw.write_all(&u32::try_from(body.len()).unwrap().to_le_bytes()).unwrap();
        raw.write_all(&body).unwrap();
    }
    let (mut back, wanted) = (Vec::new(), b"a key of 1025 bytes");
    while back.windows(wanted.len()).filter(|window| window == wanted).count() < 2 {
        let mut byte = [0];
        raw.read_exact(&mut byte).unwrap();
        back.extend(byte);
    }
}

#[test]
fn sixty_four_ranks_meet_and_part() {
    let (_place, all) = stores(Kind::Tcp, 64);
    let all: Vec<One> = all.into_iter().map(One::new).collect();
    assert!(all[63].watch.positions(SOON).iter().all(Option::is_some));
    part(all);
    let (_place, all) = world(Kind::File, 8);
    assert!(all[7].watch.positions(SOON).iter().all(Option::is_some));
    part(all);
}
