//! Ranks that die, stop or leave: real processes, real signals.

use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, ChildStdin, ChildStdout, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use unisono::{
    Error, Failure,
    config::StoreAddress,
    rendezvous::{LINGER, Store, exchange, report},
};

use super::world::{
    KINDS, Kind, One, Place, SOON, itself, log_to_stderr, member, part, server, soon, together, world,
};

/// A rank in a separate process, which ends with this one at the latest.
struct Process {
    child: Child,
    /// The process ends when this is closed.
    _stdin: ChildStdin,
    _stdout: BufReader<ChildStdout>,
    said: String,
}

impl Process {
    /// Starts it and waits until it has joined; `how` is `watch` or `join`.
    fn start(address: &StoreAddress, rank: usize, ranks: usize, how: &str) -> Self {
        let mut child = itself("death::a_separate_rank")
            .env("UNISONO_TEST_RANK", format!("{address} {rank} {ranks} {how}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        // The test harness prints a line first.
        let mut line = String::new();
        while !line.contains("joined ") {
            line.clear();
            assert!(stdout.read_line(&mut line).unwrap() > 0, "it ended before it had joined");
        }
        let said = line.trim().rsplit(' ').next().unwrap().to_owned();
        Self { _stdin: child.stdin.take().unwrap(), _stdout: stdout, child, said }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[test]
#[ignore = "what the other tests start as a separate process"]
fn a_separate_rank() {
    let Ok(message) = std::env::var("UNISONO_TEST_RANK") else { return };
    let [address, rank, ranks, how] = message.split(' ').collect::<Vec<_>>()[..] else { panic!("{message}") };
    let address = StoreAddress::parse(address).unwrap();
    let member = member(rank.parse().unwrap(), ranks.parse().unwrap());
    let (store, said): (Store, _) = match &address {
        StoreAddress::Tcp { port: 0, .. } => {
            let store = Store::host("127.0.0.1", 0, &member, soon()).unwrap();
            let said = store.reached().1.to_string();
            (store, said)
        }
        _ => (Store::open(&address, &member, soon()).unwrap(), String::new()),
    };
    let _watch = (how == "watch").then(|| store.watch(Arc::default(), Arc::default()).unwrap());
    println!("joined {said}");
    let _ = std::io::stdin().read(&mut [0]);
    std::process::exit(1);
}

/// The failure of all latches: it must be the same, and come within a second from `begun`.
fn same_failure(kind: Kind, all: &[One], begun: Instant) -> Failure {
    let failures: Vec<Failure> = all.iter().map(|one| one.latch.wait(SOON).unwrap()).collect();
    let took = begun.elapsed();
    println!("{kind:?}: all knew after {took:.1?}: {}", failures[0]);
    assert!(took < Duration::from_secs(1), "{kind:?}: {took:?}");
    assert!(failures.iter().all(|failure| *failure == failures[0]), "{kind:?}: {failures:?}");
    failures[0].clone()
}

#[test]
fn a_killed_process_is_named_by_all_the_others_within_a_second() {
    for kind in KINDS {
        for how in ["watch", "join"] {
            let mut place = Place::new(kind);
            let mut all: Vec<One> = (0..3).map(|rank| One::new(place.open(rank, 5))).collect();
            let process = Process::start(&place.address, 3, 5, how);
            all.push(One::new(place.open(4, 5)));
            let waiter = Arc::clone(&all[1].store);
            let waiter = thread::spawn(move || waiter.get("never", soon()));
            thread::sleep(Duration::from_millis(120));
            assert!(all.iter().all(|one| !one.latch.raised()), "{kind:?} {how}");
            let begun = Instant::now();
            process.signal(Signal::KILL);
            let failure = same_failure(kind, &all, begun);
            let pid = format!("pid {} ", process.child.id());
            assert!(
                matches!(&failure, Failure::Died { rank: 3, how } if how.contains(&pid)),
                "{kind:?}: {failure}"
            );
            assert!(
                matches!(waiter.join().unwrap(), Err(Error::Failed(same)) if same == failure),
                "{kind:?}"
            );
            part(all);
        }
    }
}

#[test]
fn the_death_of_the_one_that_serves_is_named_too() {
    for kind in KINDS {
        let place = Place::new(kind);
        let at = match kind {
            Kind::Tcp => StoreAddress::parse("tcp://127.0.0.1:0").unwrap(),
            Kind::File => place.address.clone(),
        };
        let process = Process::start(&at, 0, 3, "watch");
        let address = match kind {
            Kind::Tcp => StoreAddress::parse(&format!("tcp://{}", process.said)).unwrap(),
            Kind::File => at,
        };
        let all = [1, 2].map(|rank| One::at(&address, rank, 3));
        let begun = Instant::now();
        process.signal(Signal::KILL);
        let failure = same_failure(kind, &all, begun);
        assert!(matches!(failure, Failure::Died { rank: 0, .. }), "{kind:?}: {failure}");
        // The store answers a report of another failure with the first one.
        let other = Failure::Aborted { rank: 2, why: "late".into() };
        assert_eq!(all[1].watch.report(&other), failure, "{kind:?}");
        part(all.into());
    }
}

#[test]
fn a_stopped_process_is_alive_but_silent() {
    for kind in KINDS {
        let mut place = Place::new(kind);
        let all: Vec<One> = (0..2).map(|rank| One::new(place.open(rank, 3))).collect();
        let process = Process::start(&place.address, 2, 3, "watch");
        assert!(
            all[0].watch.positions(SOON).unwrap().iter().all(Option::is_some),
            "{kind:?}: all answer while they can"
        );
        process.signal(Signal::STOP);
        // The process stops some time after the signal was sent.
        waitpid(Some(Pid::from_child(&process.child)), WaitOptions::UNTRACED).unwrap();
        let begun = Instant::now();
        let stands = all[0].watch.positions(Duration::from_millis(400)).unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(400), "{kind:?}");
        assert!(stands[0].is_some() && stands[1].is_some() && stands[2].is_none(), "{kind:?}: {stands:?}");
        assert!(report(0, 0, &stands).contains("rank 2 gave no answer"), "{kind:?}");
        assert!(all.iter().all(|one| !one.latch.raised()), "{kind:?}: it may yet go on");
        process.signal(Signal::CONT);
        assert!(all[1].watch.positions(SOON).unwrap().iter().all(Option::is_some), "{kind:?}: it has");
        drop(process);
        part(all);
    }
}

#[test]
fn what_dead_processes_left_behind_confuses_no_later_job() {
    for kind in KINDS {
        let place = Place::new(kind);
        if kind == Kind::Tcp {
            continue; // Nothing outlives the process that serves.
        }
        for round in 0..2 {
            let processes: Vec<Process> =
                (0..2).map(|rank| Process::start(&place.address, rank, 2, "watch")).collect();
            let store =
                Store::open(&place.address, &member(1, 2), Instant::now() + Duration::from_millis(50))
                    .err()
                    .unwrap();
            assert!(matches!(store, Error::Refused { .. }), "{round}: {store}");
            drop(processes);
            // Both are dead, and no rank joins their round.
            let nobody =
                Store::open(&place.address, &member(1, 2), Instant::now() + Duration::from_millis(50))
                    .err()
                    .unwrap();
            assert!(nobody.to_string().contains("did not reach it"), "{round}: {nobody}");
        }
        let (address, ranks) = (&place.address, [0, 1]);
        let tables = together(&ranks, |rank, _| {
            let one = One::at(address, rank, 2);
            let table = exchange(&one.store, "x", rank, 2, &[7], soon()).unwrap();
            assert!(!one.latch.raised());
            one.leave();
            table
        });
        assert_eq!(tables, [[[7], [7]], [[7], [7]]]);
    }
}

#[test]
fn rank_0_may_leave_long_before_the_others() {
    let (_place, mut all) = world(Kind::Tcp, 3);
    let begun = Instant::now();
    let first = all.remove(0);
    thread::scope(|scope| {
        let leaves = scope.spawn(|| first.leave());
        // Meanwhile the store serves the others.
        assert_eq!(all[1].store.get("never", begun + LINGER + Duration::from_secs(1)).unwrap(), None);
        all[0].store.set("k", b"v").unwrap();
        assert_eq!(all[1].store.get("k", soon()).unwrap().as_deref(), Some(&b"v"[..]));
        assert!(all.iter().all(|one| !one.latch.raised()));
        assert!(!leaves.is_finished());
        let left = Instant::now();
        part(all);
        leaves.join().unwrap();
        assert!(left.elapsed() < Duration::from_secs(2), "{:?}", left.elapsed());
    });
}

#[test]
fn a_launcher_that_ends_before_its_ranks_is_reported() {
    let (server, address) = server(2);
    let all = [0, 1].map(|rank| One::at(&address, rank, 2));
    let begun = Instant::now();
    drop(server);
    assert!(begun.elapsed() >= LINGER, "{:?}", begun.elapsed());
    for one in &all {
        let failure = one.latch.wait(SOON).unwrap();
        assert!(matches!(&failure, Failure::StoreLost { how } if how.contains("launcher")), "{failure}");
    }
    part(all.into());
}

#[test]
fn a_launcher_may_serve_several_rounds_and_its_end_is_told() {
    let (server, address) = server(2);
    for round in 0_u8..3 {
        let tables = together(&[0, 1], |_, &rank| {
            let one = One::at(&address, rank, 2);
            let table = exchange(&one.store, "x", rank, 2, &[round], soon()).unwrap();
            one.leave();
            table
        });
        assert_eq!(tables, [[[round], [round]], [[round], [round]]], "no round sees the values of another");
    }
    let all = [0, 1].map(|rank| One::at(&address, rank, 2));
    let failure = Failure::Aborted { rank: 1, why: "enough".into() };
    assert_eq!(all[1].watch.report(&failure), failure);
    let begun = Instant::now();
    drop(server);
    assert!(begun.elapsed() < Duration::from_secs(2), "a failed group keeps nobody: {:?}", begun.elapsed());
    assert_eq!(all[0].latch.wait(SOON), Some(failure));
    part(all.into());
}

#[test]
#[ignore = "what the next test starts as a separate process"]
fn a_process_that_learns_of_a_death() {
    log_to_stderr();
    for kind in KINDS {
        let (_place, mut all) = world(kind, 2);
        drop(all.pop());
        all[0].latch.wait(SOON).unwrap();
    }
}

#[test]
fn a_death_is_an_error_in_the_log() {
    let output = itself("death::a_process_that_learns_of_a_death").env("RUST_LOG", "warn").output().unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    let lines = log.lines().filter(|line| line.contains("ERROR") && line.contains("rank 1 died"));
    assert_eq!(lines.count(), KINDS.len(), "{log}");
}
