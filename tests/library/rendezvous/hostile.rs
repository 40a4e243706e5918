//! The store among strangers: scanners, other programs, other versions, and members that misbehave.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use unisono::{
    Error,
    config::{JobIdentity, Member},
    error::Refusal,
    rendezvous::{MAX_KEY, Store, StoreServer},
};

use super::{
    raw::{PREAMBLE, Raw, connect, hello},
    world::{Kind, One, SOON, after, member, part, server, soon, stores, stranger, tcp, world},
};

/// Sends bytes and returns the answer until the server closes.
fn send(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = connect(address);
    let mut back = Vec::new();
    // The server may close during the write, and should.
    let _ = stream.write_all(bytes);
    let _ = stream.read_to_end(&mut back);
    back
}

#[test]
fn connections_without_the_token_are_closed() {
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
    // Random bytes, sometimes after a correct beginning.
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
    let one = Store::open(&address, &member(1, 2), soon()).unwrap();
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
    Store::open(&address, &member(0, 2), soon()).unwrap().set("k", b"v").unwrap();
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[test]
fn other_jobs_and_other_versions_are_refused() {
    let (server, address) = server(2);
    let error = Store::open(&address, &stranger(1, 2), soon()).err().unwrap();
    assert!(matches!(error, Error::Refused { rank: 1, refusal: Refusal::Token, .. }), "{error}");
    let other = JobIdentity { id: "slurm-7.0".into(), ..JobIdentity::from("test") };
    let error = Store::open(&address, &Member { job: other, ..member(1, 2) }, soon()).err().unwrap();
    let wanted = Refusal::Job { store: String::new(), ours: "slurm-7.0".into() };
    assert!(matches!(&error, Error::Refused { rank: 1, refusal, .. } if *refusal == wanted), "{error}");
    // A client of another version gets an error that names this version.
    for version in [PREAMBLE[8] - 1, PREAMBLE[8] + 1] {
        let mut other = hello(1, 2);
        other[8] = version;
        assert_eq!(send(server.address(), &other), PREAMBLE);
    }

    // And this client gets one that names the server's version.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut stream = listener.accept().unwrap().0;
            stream.write_all(b"unisono\x1a\x01\x00").unwrap();
            let _ = stream.read(&mut [0; 1024]);
        });
        let error = Store::join("127.0.0.1", port, &member(1, 2), soon()).err().unwrap();
        let version = Refusal::Version { store: 1, ours: PREAMBLE[8].into() };
        assert!(matches!(&error, Error::Refused { refusal, .. } if *refusal == version), "{error}");
    });
}

#[test]
fn another_program_at_the_port_is_recognised() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let error = Store::host("127.0.0.1", port, &member(0, 2), soon()).err().unwrap();
    assert!(error.to_string().contains("another process listens there"), "{error}");
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut stream = listener.accept().unwrap().0;
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
            // A second server that sends nothing.
            let _silent = listener.accept().unwrap();
            thread::sleep(Duration::from_millis(300));
        });
        let error = Store::join("127.0.0.1", port, &member(1, 2), soon()).err().unwrap();
        assert!(error.to_string().contains("not a store of this library"), "{error}");
        let error = Store::join("127.0.0.1", port, &member(1, 2), after(100)).err().unwrap();
        assert!(error.to_string().contains("has said nothing for"), "{error}");
    });
}

#[test]
fn rank_0_serves_before_its_hosts_name_is_known_and_the_others_try_until_the_end() {
    // The library asks no resolver for a text that cannot be a name.
    let host = "no..such.host";
    let store = Store::host(host, 0, &member(0, 2), soon()).unwrap();
    let begun = Instant::now();
    let error = Store::join(host, 1, &member(1, 2), after(50)).err().unwrap();
    assert!(error.to_string().contains("cannot resolve \"no..such.host\""), "{error}");
    assert!(begun.elapsed() >= Duration::from_millis(50), "its name may yet become known");
    Store::join("127.0.0.1", store.reached().1.port(), &member(1, 2), soon()).unwrap();
}

#[test]
fn the_master_may_come_late() {
    let (_held, port) = super::ports::held().unwrap();
    thread::scope(|scope| {
        let late = scope.spawn(move || {
            thread::sleep(Duration::from_millis(100));
            Store::host("127.0.0.1", port, &member(0, 2), soon())
        });
        let early = Store::join("127.0.0.1", port, &member(1, 2), soon());
        let _host = late.join().unwrap().unwrap();
        early.unwrap();
    });
}

#[test]
fn a_member_that_misbehaves_is_lost_to_the_others() {
    let (server, address) = server(2);
    let one = One::at(&address, 0, 2);
    let mut raw = Raw::enter(server.address(), 1, 2, "test").unwrap();
    raw.stream.write_all(&u32::MAX.to_le_bytes()).unwrap();
    let failure = one.latch.wait(SOON).unwrap();
    assert!(
        failure.to_string().contains("rank 1 is not reachable (raw: the store has closed its connection"),
        "{failure}"
    );
    one.leave();
}

#[test]
fn one_that_gave_up_before_it_was_let_in_may_come_again() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    // Delayed until both the hello and the end of the connection are there.
    connect(at).write_all(&hello(1, 2)).unwrap();
    let _server = StoreServer::serve(listener, 2, "test", None).unwrap();
    let address = tcp(at.port(), true);
    let all = [0, 1].map(|rank| One::at(&address, rank, 2));
    assert!(all.iter().all(|one| !one.latch.raised()));
    part(all.into());
}

#[test]
fn a_member_that_does_not_read_holds_up_nobody() {
    let (server, address) = server(2);
    let store = Store::open(&address, &member(0, 2), soon()).unwrap();
    store.set("big", &vec![7; 1 << 20]).unwrap();
    let mut raw = Raw::enter(server.address(), 1, 2, "test").unwrap();
    // Get { key: "big", wait: 0 }, again and again, without reading what comes.
    for _ in 0..200 {
        raw.send(&(1_u32, "big", 0_u64));
    }
    let begun = Instant::now();
    for _ in 0..20 {
        store.set("k", b"v").unwrap();
    }
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    // Once it reads, everything is there.
    let mut back = vec![0; 200 << 20];
    raw.stream.read_exact(&mut back).unwrap();
}

#[test]
fn what_a_member_asks_for_waits_until_it_reads() {
    let (server, address) = server(2);
    let store = Store::open(&address, &member(0, 2), soon()).unwrap();
    store.set("big", &vec![7; 1 << 20]).unwrap();
    let mut raw = Raw::enter(server.address(), 1, 2, "test").unwrap();
    // Collect { prefix: "b", count: 0, wait: 0 } more often than a socket takes replies, and Set { key, value }.
    for _ in 0..64 {
        raw.send(&(2_u32, "b", 0_u64, 0_u64));
    }
    raw.send(&(0_u32, "after", &b"v"[..]));
    assert_eq!(store.get("after", after(500)).unwrap(), None, "the server has answered all at once");
    raw.stream.read_exact(&mut vec![0; 64 << 20]).unwrap();
    assert_eq!(store.get("after", soon()).unwrap().as_deref(), Some(&b"v"[..]));
}

#[test]
fn keys_that_are_too_long_are_refused_by_the_server_too() {
    let (server, _address) = server(2);
    let mut raw = Raw::enter(server.address(), 1, 2, "test").unwrap();
    let key = "k".repeat(MAX_KEY + 1);
    // Get { key, wait } and Collect { prefix, count, wait }, with a wait of a minute.
    raw.send(&(1_u32, &key, 60_000_u64));
    raw.send(&(2_u32, &key, 1_u64, 60_000_u64));
    for _ in 0..2 {
        let reply = raw.receive();
        assert!(String::from_utf8_lossy(&reply).contains("a key of 1025 bytes"), "{reply:?}");
    }
}

#[test]
fn sixty_four_ranks_join_and_leave() {
    let (_place, all) = stores(Kind::Tcp, 64);
    let all: Vec<One> = all.into_iter().map(One::new).collect();
    assert!(all[63].watch.positions(SOON).unwrap().iter().all(Option::is_some));
    part(all);
    let (_place, all) = world(Kind::File, 8);
    assert!(all[7].watch.positions(SOON).unwrap().iter().all(Option::is_some));
    part(all);
}
