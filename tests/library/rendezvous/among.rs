//! Ranks look for a store among several hosts and ports.

use std::{
    io::Write,
    net::TcpListener,
    thread,
    time::{Duration, Instant},
};

use unisono::{
    Error,
    config::{JobIdentity, Member, StoreAddress},
    error::Refusal,
    rendezvous::{Store, exchange},
};

use super::world::{One, after, soon};

/// An address of a network for documentation (RFC 5737): no host has it.
const NOWHERE: &str = "203.0.113.1";

fn member(rank: usize, ranks: usize, id: &str) -> Member {
    Member { rank, ranks, job: JobIdentity { id: id.into(), ..JobIdentity::from("test") } }
}

/// Ports that are free now.
fn free(count: usize) -> Vec<u16> {
    let held: Vec<_> = (0..count).map(|_| TcpListener::bind("0.0.0.0:0").unwrap()).collect();
    held.iter().map(|listener| listener.local_addr().unwrap().port()).collect()
}

fn among(hosts: &[&str], ports: &[u16]) -> StoreAddress {
    StoreAddress::Among { hosts: hosts.iter().map(|&host| host.to_owned()).collect(), ports: ports.to_vec() }
}

/// All ranks of a job join there, the last first, and know each other.
fn meet(address: &StoreAddress, ranks: usize, id: &str) {
    thread::scope(|scope| {
        for rank in (0..ranks).rev() {
            let join = move || {
                let one = One::new(Store::open(address, &member(rank, ranks, id), soon()).unwrap());
                let said = u8::try_from(rank).unwrap();
                let table = exchange(&one.store, id, rank, ranks, &[said], soon()).unwrap();
                assert!(
                    table.iter().enumerate().all(|(other, said)| said == &[u8::try_from(other).unwrap()]),
                    "{table:?}"
                );
                one.leave();
            };
            scope.spawn(join);
            thread::sleep(Duration::from_millis(50));
        }
    });
}

#[test]
fn rank_0_may_be_on_any_host_of_the_list() {
    for hosts in [
        &["127.0.0.1"][..],
        &[NOWHERE, "127.0.0.1"],
        &[NOWHERE, "name.invalid", NOWHERE, "127.0.0.1", NOWHERE],
    ] {
        meet(&among(hosts, &free(3)), 3, "hosts");
    }
    // More addresses than one attempt tries.
    let mut many = vec![NOWHERE; 40];
    many.push("127.0.0.1");
    meet(&among(&many, &free(2)), 2, "many hosts");
}

#[test]
fn jobs_that_share_their_ports_do_not_meet() {
    let address = among(&["127.0.0.1"], &free(8));
    thread::scope(|scope| {
        for id in ["one", "two", "three", "four"] {
            let address = &address;
            scope.spawn(move || meet(address, 3, id));
        }
    });
}

#[test]
fn what_is_no_store_is_passed_by() {
    // A server that answers something else, answers nothing, or closes at once.
    for answer in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b""] {
        let other = TcpListener::bind("0.0.0.0:0").unwrap();
        let mut ports = vec![other.local_addr().unwrap().port()];
        ports.extend(free(3));
        thread::spawn(move || {
            for stream in other.incoming() {
                let _gone = stream.and_then(|mut stream| stream.write_all(answer));
            }
        });
        meet(&among(&["127.0.0.1"], &ports), 2, "beside others");
    }
}

#[test]
fn who_is_refused_is_told_soon() {
    let address = among(&["127.0.0.1"], &free(2));
    let zero = Store::open(&address, &member(0, 2, "refuses"), soon()).unwrap();
    let refusal = |member: Member| {
        let begun = Instant::now();
        let refused = Store::open(&address, &member, soon());
        assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
        match refused.err() {
            Some(Error::Refused { refusal, .. }) => refusal,
            other => panic!("{other:?}"),
        }
    };
    let mut other = member(1, 2, "refuses");
    other.job.token = "another".into();
    assert!(matches!(refusal(other), Refusal::Token));
    assert!(!matches!(refusal(member(1, 3, "refuses")), Refusal::Token | Refusal::Job { .. }));
    drop(zero);
}

#[test]
fn rank_0_on_none_of_the_hosts_or_without_a_port_says_so_at_once() {
    let problem = |address: &StoreAddress, rank, deadline| match Store::open(
        address,
        &member(rank, 2, "nobody's"),
        deadline,
    )
    .err()
    {
        Some(Error::Rendezvous { problem, .. }) => problem,
        other => panic!("{other:?}"),
    };
    let message = problem(&among(&[NOWHERE, "203.0.113.2"], &free(2)), 0, soon());
    assert!(message.contains("which none of them names") && message.contains("MASTER_ADDR"), "{message}");
    let held: Vec<_> = (0..2).map(|_| TcpListener::bind("0.0.0.0:0").unwrap()).collect();
    let ports: Vec<_> = held.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
    let message = problem(&among(&["127.0.0.1"], &ports), 0, soon());
    assert!(message.contains("none of these ports") && message.contains("MASTER_PORT"), "{message}");
    let message = problem(&among(&["127.0.0.1", NOWHERE], &free(2)), 1, after(300));
    assert!(message.contains("is rank 0 running on one of these hosts"), "{message}");
    assert!(problem(&among(&[], &[]), 1, after(10)).contains("no host is known"));
}
