//! The store and processes that do not know the job's token: one that knows everything else, one that has listened, one that has
//! the port, and one that is on the route.

use std::{
    io::{Read, Write},
    net::TcpListener,
    thread,
};

use unisono::{
    Error, Failure,
    config::{JobIdentity, Member},
    error::Refusal,
    rendezvous::Store,
};

use super::{
    raw::{CHALLENGE, PREAMBLE, Raw, between, connect, frame, hello, keys, tag, watch},
    world::{One, SOON, after, member, part, server, soon},
};

/// `Verdict::Unproved { ending: false }`.
const UNPROVED: [u8; 2] = [1, 0];

#[test]
fn a_stranger_without_the_token_becomes_no_rank_and_ends_no_group() {
    let (server, address) = server(3);
    let all = [0, 1].map(|rank| One::at(&address, rank, 3));
    all[0].store.set("k", b"v").unwrap();
    for guess in ["", "Test", "test ", "password"] {
        // As the rank that is missing, as a rank that has joined, and as the watch of each session.
        for rank in 0..3 {
            assert_eq!(Raw::enter(server.address(), rank, 3, guess).err().unwrap(), UNPROVED, "{guess}");
            for session in 0..4 {
                let mut raw = Raw::proving(server.address(), &watch(rank, 3, session), guess);
                assert_eq!(raw.plain().unwrap(), UNPROVED, "{guess}");
            }
        }
    }
    // Without a proof, or with the proof of another: the store ignores the messages that follow.
    let failure = Failure::Died { rank: 2, how: "hardware fault, call the stranger".into() };
    for body in [frame(&()), frame(&(0_u32, &failure)), frame(&(1_u32, "k", 0_u64))] {
        let mut stream = connect(server.address());
        stream.write_all(&watch(0, 3, 1)).unwrap();
        stream.read_exact(&mut vec![0; PREAMBLE.len() + CHALLENGE]).unwrap();
        stream.write_all(&[&body[..], &[7; 32]].concat()).unwrap();
        // The server closes while some bytes are unread, or answers that the process is unproved.
        let mut back = Vec::new();
        let _ = stream.read_to_end(&mut back);
        assert!(
            back.is_empty()
                || back == frame(&UNPROVED)[4..]
                || back == [&[2, 0, 0, 0], &UNPROVED[..]].concat()
        );
    }
    assert!(all.iter().all(|one| !one.latch.raised()), "{:?}", all[0].latch.failure());
    assert_eq!(all[1].store.get("k", soon()).unwrap().as_deref(), Some(&b"v"[..]));
    // The rank itself can still join.
    let last = One::at(&address, 2, 3);
    assert_eq!(last.store.get("k", soon()).unwrap().as_deref(), Some(&b"v"[..]));
    part(all.into_iter().chain([last]).collect());
}

#[test]
fn a_stranger_hears_nothing_that_depends_on_the_token() {
    let (server, _address) = server(2);
    let mut messages = Vec::new();
    for _ in 0..2 {
        let mut stream = connect(server.address());
        stream.write_all(&hello(1, 2)).unwrap();
        let mut challenge = vec![0; PREAMBLE.len() + CHALLENGE];
        stream.read_exact(&mut challenge).unwrap();
        stream.write_all(&[&frame(&())[..], &[0; 32]].concat()).unwrap();
        let mut verdict = Vec::new();
        stream.read_to_end(&mut verdict).unwrap();
        assert_eq!(verdict, [&[2, 0, 0, 0], &UNPROVED[..]].concat());
        messages.push(challenge);
    }
    let (fixed, nonce) = messages[0].split_at(PREAMBLE.len() + 5);
    assert_eq!(fixed, [PREAMBLE, &33_u32.to_le_bytes(), &[0]].concat(), "a challenge of 32 bytes");
    assert_ne!(nonce, &messages[1][fixed.len()..], "another one each time");
}

#[test]
fn a_recorded_handshake_opens_nothing() {
    let (server, _address) = server(2);
    let (way, said) = between(server.address(), |_, _| {});
    let store = Store::join("127.0.0.1", way.port(), &member(1, 2), soon()).unwrap();
    store.set("k", b"v").unwrap();
    let said = said.lock().unwrap().clone();
    let mut replay = connect(server.address());
    // The rank is taken; but the store checks the proof before it says so.
    replay.write_all(&said).unwrap();
    let mut back = vec![0; PREAMBLE.len() + CHALLENGE + 6];
    replay.read_exact(&mut back).unwrap();
    assert_eq!(back[back.len() - 2..], UNPROVED);
    assert_eq!(store.get("k", soon()).unwrap().as_deref(), Some(&b"v"[..]));
}

#[test]
fn what_is_changed_on_the_way_is_not_taken() {
    let (server, address) = server(2);
    let other = One::at(&address, 0, 2);
    // Long after the handshake, one byte of a value changes.
    let (way, _) = between(server.address(), |at, bytes| {
        let begin = 4096_usize.saturating_sub(at);
        if let Some(byte) = bytes.get_mut(begin).filter(|_| at <= 4096) {
            *byte ^= 1;
        }
    });
    let store = Store::join("127.0.0.1", way.port(), &member(1, 2), soon()).unwrap();
    let error = store.set("k", &[7; 8192]).unwrap_err();
    assert!(matches!(error, Error::Rendezvous { .. }), "{error}");
    let failure = other.latch.wait(SOON).unwrap();
    assert!(matches!(failure, Failure::Unreachable { rank: 1, .. }), "{failure}");
    assert_eq!(other.store.get("k", after(0)).unwrap(), None);
    other.leave();
}

/// The answers of a false server to a client's proof.
enum Answer {
    /// It returns the client's proof.
    Reflected,
    /// It makes a proof with a token that it has guessed.
    Guessed,
    /// It refuses with the failure of a group, which only members get.
    Failure,
}

#[test]
fn a_server_without_the_token_learns_nothing() {
    for answer in [Answer::Reflected, Answer::Guessed, Answer::Failure] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            stream.set_read_timeout(Some(SOON)).unwrap();
            let mut opening = vec![0; PREAMBLE.len() + 4];
            stream.read_exact(&mut opening).unwrap();
            let len = u32::from_le_bytes(*opening.last_chunk().unwrap());
            let mut hello = vec![0; usize::try_from(len).unwrap()];
            stream.read_exact(&mut hello).unwrap();
            opening.extend(hello);
            let failure = Failure::Aborted { rank: 2, why: "call the stranger".into() };
            if matches!(answer, Answer::Failure) {
                let no = frame(&(1_u32, Refusal::Failed(Box::new(failure)), false));
                stream.write_all(&[PREAMBLE, &no].concat()).unwrap();
            } else {
                let challenge = [PREAMBLE, &frame(&(0_u32, [9_u8; 32]))].concat();
                stream.write_all(&challenge).unwrap();
                let mut proof = [0; 36];
                stream.read_exact(&mut proof).unwrap();
                let mut keys = keys("guessed", &opening, &challenge);
                // A correct answer, with a welcome without a host.
                let welcome = frame(&(0_u32, 1_u64, None::<u64>));
                let mut tag = tag(&mut keys[1], &welcome);
                if matches!(answer, Answer::Reflected) {
                    tag.copy_from_slice(&proof[4..]);
                }
                stream.write_all(&[&frame(&0_u32)[..], &welcome, &tag].concat()).unwrap();
            }
            let mut more = Vec::new();
            let _ = stream.read_to_end(&mut more);
            more
        });
        let error = Store::join("127.0.0.1", port, &member(1, 2), soon()).err().unwrap();
        assert!(error.to_string().contains("does not know the job's token"), "{error}");
        assert_eq!(server.join().unwrap(), b"", "nothing after its proof");
    }
}

#[test]
fn jobs_without_a_token_meet_and_are_told_apart_by_their_ids() {
    let job = |id: &str| JobIdentity { id: id.into(), ..JobIdentity::default() };
    let long = "x".repeat(1000);
    for id in ["", "slurm-5.0", &long] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let member = |rank, id: &str| Member { rank, ranks: 2, job: job(id) };
        let _first = Store::host_on(listener, &member(0, id), soon()).unwrap();
        let error = Store::join("127.0.0.1", port, &member(1, &format!("{id}1")), soon()).err().unwrap();
        assert!(matches!(&error, Error::Refused { refusal: Refusal::Job { .. }, .. }), "{error}");
        Store::join("127.0.0.1", port, &member(1, id), soon()).unwrap();
    }
}
