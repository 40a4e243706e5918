//! A store among many strangers, in a separate process whose log the test reads: they do not delay ranks that join, and do not fill the log.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::net::sockopt::set_socket_linger;
use unisono::{config::JobIdentity, rendezvous::StoreServer};

use super::{
    raw::{PREAMBLE, connect, hello},
    world::{One, itself, log_to_stderr, part, soon, tcp},
};

/// More than the number of unproved connections that a store of two ranks accepts.
const MANY: usize = 300;

/// A store in a separate process.
struct Served {
    process: Child,
    address: SocketAddr,
}

impl Served {
    fn start(at: &str, token: &str) -> Self {
        let mut process = itself("flood::a_separate_store")
            .env("UNISONO_TEST_STORE", format!("{at} {token}"))
            .env("RUST_LOG", "warn")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(process.stdout.as_mut().unwrap());
        let mut line = String::new();
        while !line.contains("serves ") {
            line.clear();
            assert!(stdout.read_line(&mut line).unwrap() > 0, "it ended before it served");
        }
        let address = line.trim().rsplit(' ').next().unwrap().parse().unwrap();
        Self { process, address }
    }

    /// Ends the process, and returns the lines of its log.
    fn log(mut self) -> Vec<String> {
        drop(self.process.stdin.take());
        let mut log = String::new();
        self.process.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        assert!(self.process.wait().unwrap().success(), "{log}");
        log.lines().map(str::to_owned).collect()
    }
}

#[test]
#[ignore = "what the other tests start as a separate process"]
fn a_separate_store() {
    let Ok(message) = std::env::var("UNISONO_TEST_STORE") else { return };
    log_to_stderr();
    let (at, token) = message.split_once(' ').unwrap();
    let listener = TcpListener::bind(at).unwrap();
    let server = StoreServer::serve(listener, 2, JobIdentity::from(token), None).unwrap();
    println!("serves {}", server.address());
    let _ = std::io::stdin().read(&mut [0]);
}

#[test]
fn a_flood_of_strangers_delays_nobody_and_fills_no_log() {
    let store = Served::start("127.0.0.1:0", "test");
    let at = store.address;
    let address = tcp(at.port(), true);
    // More connections than the store accepts: some send nothing, some begin a hello, some send a hello and prove nothing.
    let openings = [&b""[..], &PREAMBLE[..5], &hello(1, 2)];
    let silent: Vec<TcpStream> = (0..MANY)
        .map(|i| {
            let mut stream = connect(at);
            stream.write_all(openings[i % 3]).unwrap();
            stream
        })
        .collect();
    let begun = Instant::now();
    let zero = One::at(&address, 0, 2);
    let joined = begun.elapsed();
    // And some come and go.
    let flood = thread::spawn(move || {
        for i in 0..6000 {
            let mut stream = connect(at);
            // Its port is free again at once.
            set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
            let _ = stream.write_all([&b"GET / HTTP/1.1\r\n\r\n"[..], &PREAMBLE[..5], &hello(1, 2)][i % 3]);
        }
    });
    let begun = Instant::now();
    let one = One::at(&address, 1, 2);
    one.store.set("k", b"v").unwrap();
    assert_eq!(zero.store.get("k", soon()).unwrap().as_deref(), Some(&b"v"[..]));
    let took = begun.elapsed();
    flood.join().unwrap();
    assert!(!zero.latch.raised() && !one.latch.raised());
    part(vec![zero, one]);
    drop(silent);
    let log = store.log();
    // A stranger may take 10 s to say who it is.
    assert!(joined < Duration::from_secs(6) && took < Duration::from_secs(6), "{joined:?} {took:?}");
    assert!(log.len() < 30, "{} lines:\n{}", log.len(), log[..30].join("\n"));
    let warnings = log.iter().filter(|line| line.contains("more connections within")).count();
    assert!(warnings >= 1 && log.iter().any(|line| line.contains("drops a connection")), "{log:#?}");
    println!("joined after {joined:.1?} and {took:.1?}; {} lines", log.len());
}

#[test]
fn a_store_without_a_token_warns_where_others_reach_it() {
    for (at, token, warned) in [("0.0.0.0:0", "", 1), ("0.0.0.0:0", "secret", 0), ("127.0.0.1:0", "", 0)] {
        let log = Served::start(at, token).log();
        let lines = log.iter().filter(|line| line.contains("set UNISONO_TOKEN")).count();
        assert_eq!(lines, warned, "{at} {token:?}: {log:?}");
        assert!(
            !log.iter().any(|line| line.contains("secret,") && line.contains(token) && !token.is_empty())
        );
    }
}
