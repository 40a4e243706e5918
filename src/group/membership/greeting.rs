//! The connection check: each rank greets some others by a put, and if a greeting does not arrive, finds out between which
//! addresses nothing passes.

use std::{
    collections::BTreeSet,
    fs, io,
    net::{IpAddr, SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use unisono_schedule::Rank;
use unisono_transport::{Limits, ofi};

use crate::{
    engine::{Awaited, Contact, Engine, Patience, StalledOperation, Stop},
    error::{Error, Failure, Result, list},
    rendezvous::{Store, exchange},
    runtime::{host::Host, monitor::Monitor},
};

/// How long nothing may come before it is looked why. With what follows it makes less than 15 s.
const PATIENCE: Duration = Duration::from_secs(8);
/// How long a connection may take that is made to see whether it can be made.
const CONNECTING: Duration = Duration::from_secs(2);
/// How long a rank that looks why waits for what the other has found.
const HEARING: Duration = Duration::from_millis(2500);
/// The most ranks of other hosts that one greets by its own choice; as many may choose it.
const MOST: usize = 4;

/// How a rank is reached, for those whom it does not reach.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub(crate) struct Way {
    device: String,
    /// The largest packet of that device; 0 where unknown.
    mtu: u32,
    /// Where its endpoint is, if it has an IP address.
    at: Option<SocketAddr>,
    /// Whether a TCP connection there says anything about its endpoint.
    by_tcp: bool,
    /// From where it reached the store.
    store: Option<IpAddr>,
    host: String,
}

impl Way {
    /// This rank's.
    pub(crate) fn here(limits: &Limits, contact: &Contact, store: Option<&dyn Store>, host: &Host) -> Self {
        let device = limits.device.clone();
        // A device of an odd name has none.
        let mtu = fs::read_to_string(format!("/sys/class/net/{device}/mtu"));
        Self {
            mtu: mtu.ok().and_then(|mtu| mtu.trim().parse().ok()).unwrap_or(0),
            at: ofi::socket_address(&contact.address),
            by_tcp: limits.sockets,
            store: store.and_then(Store::reached).map(|(own, _)| own),
            host: host.name.clone(),
            device,
        }
    }

    fn is_at(&self, address: IpAddr) -> bool {
        self.at.is_some_and(|at| at.ip() == address)
    }

    /// `10.77.0.2 (eth0 of node2)`.
    fn words(&self) -> String {
        let at = self.at.map_or_else(|| "an address that is none of IP".to_owned(), |at| at.ip().to_string());
        format!("{at} ({} of {})", self.device, self.host)
    }
}

/// What a rank has found of those whose greetings it waits for, or nothing where all have come.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
struct Findings(Vec<Finding>);

#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
struct Finding {
    rank: Rank,
    /// Whether the small greeting has come, and the large one is missing.
    heard: bool,
    /// Why no TCP connection to it could be made, if so; `None` where that says nothing.
    connects: Option<std::result::Result<(), String>>,
}

/// Greets the ranks that this one is to know first, both ways; then waits until all ranks have done so. If anything does not
/// pass, all ranks return between whom and why.
pub(crate) fn meet(
    engine: &mut Engine,
    monitor: &Monitor,
    store: Option<&dyn Store>,
    (hosts, ways): (&[Host], &[Way]),
    (contacts, chunk_bytes, patience): (Vec<Contact>, usize, Patience),
    deadline: Instant,
) -> Result<()> {
    let rank = monitor.rank;
    let neighbours = neighbours(rank, hosts, engine.limits().connect_all);
    let far: Vec<Rank> =
        neighbours.iter().copied().filter(|&other| elsewhere(&hosts[rank], &hosts[other])).collect();
    let begun = Instant::now();
    let call = format!("greeting ranks {} over {}", list(&neighbours), engine.limits().provider);
    let explain = |stop| {
        let stalled = StalledOperation {
            number: Some(0),
            call: call.clone(),
            waited: begun.elapsed(),
            ..StalledOperation::default()
        };
        Error::Failed(monitor.tell(monitor.explain(stop, stalled)))
    };
    let met = engine.meet(contacts, chunk_bytes, patience);
    let mut greeted = met.and_then(|()| engine.greet(&neighbours, &far));
    while greeted.is_ok() {
        greeted = match engine.greeted(monitor, PATIENCE, deadline) {
            Ok(()) => break,
            Err(Stop::Deadline) if Instant::now() < deadline => {
                doubt(engine, rank, store, ways).map_or(Ok(()), |failure| Err(failure.into()))
            }
            // A dead peer breaks the wire too, and then the store says who it was.
            Err(Stop::Transport(error)) => match monitor.dead() {
                None => Err(doubt(engine, rank, store, ways).map_or(Stop::Transport(error), Stop::from)),
                Some(_) => Err(Stop::Failed),
            },
            Err(stop) => Err(stop),
        };
    }
    greeted.map_err(explain)?;
    let Some(store) = store.filter(|_| hosts.len() > 1) else { return Ok(()) };
    store.set(&found(rank), &postcard::to_allocvec(&Findings::default()).unwrap_or_default())?;
    all_have(engine, monitor, store, hosts.len(), deadline, &explain)
}

/// Waits until all ranks have met theirs, and serves those meanwhile that have not.
fn all_have(
    engine: &mut Engine,
    monitor: &Monitor,
    store: &dyn Store,
    ranks: usize,
    deadline: Instant,
    explain: &dyn Fn(Stop) -> Error,
) -> Result<()> {
    // Later than those who still wait for greetings give up, so that these say why.
    let deadline = deadline + CONNECTING + HEARING;
    let meet = || exchange(store, "met", monitor.rank, ranks, &[], deadline).map(drop);
    let waker = engine.waker();
    thread::scope(|scope| {
        let met = thread::Builder::new().name("unisono-meet".to_owned()).spawn_scoped(scope, || {
            let met = meet();
            waker.wake();
            met
        });
        // Without threads nobody is served meanwhile; mostly nobody needs it.
        let Ok(met) = met else { return meet() };
        let attended = engine.attend_until(&|| met.is_finished(), monitor).map_err(explain);
        // After a failure, which has been told, the store makes nobody wait.
        let met = met.join().unwrap_or_else(|_| {
            Err(Error::Rendezvous { store: store.name().to_owned(), problem: "its thread panicked".into() })
        });
        attended.and(met)
    })
}

/// The key of what a rank has found.
fn found(rank: Rank) -> String {
    format!("greetings/{rank}")
}

/// Looks why greetings do not come. `None` if nothing speaks for the network: then a rank is late, or stands still.
fn doubt(engine: &mut Engine, rank: Rank, store: Option<&dyn Store>, ways: &[Way]) -> Option<Failure> {
    let mine = Findings(thread::scope(|scope| {
        let threads: Vec<_> = engine
            .awaited()
            .into_iter()
            .map(|awaited| {
                let way = &ways[awaited.rank];
                let at = way.at.filter(|_| way.by_tcp);
                // An endpoint listens also while its process does something else.
                let connect = move || at.map(|at| TcpStream::connect_timeout(&at, CONNECTING).map(drop));
                (awaited, thread::Builder::new().spawn_scoped(scope, connect))
            })
            .collect();
        let finding = |(awaited, thread): (Awaited, io::Result<thread::ScopedJoinHandle<'_, _>>)| {
            let connected: Option<io::Result<()>> =
                thread.ok().and_then(|thread| thread.join().ok()).flatten();
            let connects = connected.map(|connected| connected.map_err(|error| said(&error)));
            Finding { rank: awaited.rank, heard: awaited.heard, connects }
        };
        threads.into_iter().map(finding).collect()
    }));
    let store = store?;
    // If the store is gone, the watch says so.
    let _ = store.set(&found(rank), &postcard::to_allocvec(&mine).ok()?);
    let until = Instant::now() + HEARING;
    mine.0.iter().find_map(|finding| {
        let theirs = store.get(&found(finding.rank), until).ok().flatten();
        let theirs: Option<Findings> = theirs.and_then(|bytes| postcard::from_bytes(&bytes).ok());
        verdict(rank, finding, theirs.as_ref(), ways)
    })
}

/// What the system says of a connection that could not be made.
fn said(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::TimedOut => format!("nothing answered within {CONNECTING:.0?}"),
        io::ErrorKind::ConnectionRefused => "it was refused".to_owned(),
        _ => error.to_string(),
    }
}

/// What is wrong between this rank and one whose greeting is missing, by what both have found.
fn verdict(me: Rank, finding: &Finding, theirs: Option<&Findings>, ways: &[Way]) -> Option<Failure> {
    let peer = finding.rank;
    let (my, its) = (&ways[me], &ways[peer]);
    let back = theirs.and_then(|theirs| theirs.0.iter().find(|finding| finding.rank == me));
    let back = back.and_then(|back| back.connects.as_ref());
    let by_store = match (my.store, its.store) {
        (Some(mine), Some(theirs)) if !(my.is_at(mine) && its.is_at(theirs)) => {
            let (mine, theirs) = (from_where(mine), from_where(theirs));
            format!("; the store was reached from {mine} by rank {me} and from {theirs} by rank {peer}")
        }
        _ => String::new(),
    };
    let advice = "let UNISONO_INTERFACE name the interfaces or the network that lead from one to the other, and let firewalls pass \
                  TCP at all ports between these addresses";
    let fails = |from: Rank, to: Rank, why: &str, other: Option<&std::result::Result<(), String>>| {
        let (source, target) = (&ways[from], &ways[to]);
        let port = target.at.map_or(0, |at| at.port());
        let other = match other {
            Some(Err(why)) => format!("; nor the other way: {why}"),
            Some(Ok(())) => "; the other way there is one".to_owned(),
            None => String::new(),
        };
        let how = format!(
            "no TCP connection from {} to {}, port {port}: {why}{other}{by_store}; {advice}",
            source.words(),
            target.words()
        );
        Some(Failure::NoWay { from, to, how })
    };
    let lost = |what: &str, advice: &str| {
        let how = format!("from {} to {} {what}{by_store}; {advice}", its.words(), my.words());
        Some(Failure::NoWay { from: peer, to: me, how })
    };
    match (&finding.connects, back, theirs) {
        (Some(Err(why)), back, _) => fails(me, peer, why, back),
        (there, Some(Err(why)), _) => fails(peer, me, why, there.as_ref()),
        // It is there, and has sent both.
        (_, _, Some(_)) if finding.heard => lost(
            &format!(
                "small messages pass, but none as large as a chunk: the network loses large packets (their mtu is {} and {})",
                its.mtu, my.mtu
            ),
            "give these interfaces an mtu that all between them carries, for instance `ip link set DEVICE mtu 1500`, or raise \
             the network's",
        ),
        // A TCP connection can be made, so that something else is amiss; but where none was to be tried, nothing passes.
        (None, _, Some(_)) => lost(&format!("nothing came within {PATIENCE:.0?}"), advice),
        _ => None,
    }
}

/// From where somebody reached the store, for people.
fn from_where(address: IpAddr) -> String {
    if address.is_loopback() { "its own host".to_owned() } else { address.to_string() }
}

/// Whether two ranks have different networks, which a cable or a bridge connects.
fn elsewhere(one: &Host, other: &Host) -> bool {
    (&one.boot, one.network) != (&other.boot, other.network)
}

/// Whom a rank greets: its neighbours on the ring, and of other hosts one of each, as far as the ranks of a host together can
/// do that with [`MOST`] each. Every rank greets one of another host at least: addresses of its own host it reaches by
/// whatever interface. Who greets is greeted. Or all, where all are to be connected before one may go.
fn neighbours(rank: Rank, hosts: &[Host], all: bool) -> Vec<Rank> {
    let ranks = hosts.len();
    let mut greeted = BTreeSet::from([(rank + 1) % ranks, (rank + ranks - 1) % ranks]);
    if all {
        greeted.extend(0..ranks);
    }
    let mut groups: Vec<Vec<Rank>> = Vec::new();
    for (rank, host) in hosts.iter().enumerate() {
        match groups.iter_mut().find(|group| !elsewhere(&hosts[group[0]], host)) {
            Some(group) => group.push(rank),
            None => groups.push(vec![rank]),
        }
    }
    let others = groups.len() - 1;
    for (at, group) in groups.iter().enumerate() {
        for (local, &from) in group.iter().enumerate() {
            // The ranks of a host share the other hosts among them.
            let shares = others.div_ceil(group.len()).min(MOST);
            for distance in (0..shares).map(|share| 1 + (local + share * group.len()) % others) {
                let there = &groups[(at + distance) % groups.len()];
                let to = there[local % there.len()];
                if from == rank {
                    greeted.insert(to);
                } else if to == rank {
                    greeted.insert(from);
                }
            }
        }
    }
    greeted.remove(&rank);
    greeted.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(ranks: &[usize]) -> Vec<Host> {
        let host =
            |(number, &ranks): (usize, &usize)| vec![Host { network: number as u64, ..Host::here() }; ranks];
        ranks.iter().enumerate().flat_map(host).collect()
    }

    #[test]
    fn who_greets_is_greeted_and_few_are() {
        for ranks in [&[1][..], &[4], &[1, 1], &[2, 2], &[1, 5, 2], &[3; 7], &[1; 40], &[8; 30]] {
            let hosts = hosts(ranks);
            let all: Vec<Vec<Rank>> = (0..hosts.len()).map(|rank| neighbours(rank, &hosts, false)).collect();
            for (rank, greeted) in all.iter().enumerate() {
                assert!(!greeted.contains(&rank));
                assert!(greeted.iter().all(|&other| all[other].contains(&rank)), "{ranks:?}: {all:?}");
                let far = greeted.iter().any(|&other| elsewhere(&hosts[rank], &hosts[other]));
                assert_eq!(far, ranks.len() > 1, "{ranks:?}: rank {rank} greets {greeted:?}");
            }
            let most = all.iter().map(Vec::len).max().unwrap_or(0);
            // Of a host with fewer ranks each is chosen by several.
            let crowd = ranks.iter().max().unwrap_or(&1).div_ceil(*ranks.iter().min().unwrap_or(&1));
            assert!(most <= 2 + MOST * (1 + crowd), "{ranks:?}: {most}");
        }
    }

    #[test]
    fn of_few_hosts_each_is_greeted_by_each() {
        for ranks in [&[1, 1, 1, 1, 1][..], &[2; 9], &[4; 17]] {
            let hosts = hosts(ranks);
            for one in 0..ranks.len() as u64 {
                let reached: BTreeSet<u64> = (0..hosts.len())
                    .filter(|&rank| hosts[rank].network == one)
                    .flat_map(|rank| neighbours(rank, &hosts, false))
                    .map(|rank| hosts[rank].network)
                    .collect();
                assert!(
                    (0..ranks.len() as u64).all(|host| host == one || reached.contains(&host)),
                    "{ranks:?}: {reached:?}"
                );
            }
        }
    }

    #[test]
    fn one_rank_greets_nobody_and_where_all_are_to_be_connected_all_are_greeted() {
        assert!(neighbours(0, &hosts(&[1]), false).is_empty());
        assert_eq!(neighbours(1, &hosts(&[5]), true), [0, 2, 3, 4]);
    }

    fn ways() -> Vec<Way> {
        let way = |at: &str, device: &str, host: &str, store: &str| Way {
            device: device.into(),
            mtu: 9000,
            at: at.parse().ok(),
            by_tcp: true,
            store: store.parse().ok(),
            host: host.into(),
        };
        vec![
            way("10.88.0.1:4001", "eth0", "alpha", "10.77.0.1"),
            way("10.77.0.2:4002", "eth1", "beta", "10.77.0.2"),
        ]
    }

    fn words(finding: &Finding, theirs: Option<&Findings>) -> String {
        verdict(0, finding, theirs, &ways()).map(|failure| failure.to_string()).unwrap_or_default()
    }

    #[test]
    fn a_connection_that_cannot_be_made_is_told_with_both_ends_and_directions() {
        let blocked = Finding { rank: 1, heard: false, connects: Some(Err("nothing answered".into())) };
        let back = |connects| Findings(vec![Finding { rank: 0, heard: false, connects }]);
        let said = words(&blocked, None);
        for word in [
            "rank 0 does not reach rank 1: ",
            "from 10.88.0.1 (eth0 of alpha) to 10.77.0.2 (eth1 of beta), port 4002: nothing answered;",
            "from 10.77.0.1 by rank 0 and from 10.77.0.2 by rank 1",
            "UNISONO_INTERFACE",
            "firewalls",
        ] {
            assert!(said.contains(word), "{word}: {said}");
        }
        assert!(!said.contains("other way"), "{said}");
        let said = words(&blocked, Some(&back(Some(Err("unreachable".into())))));
        assert!(said.contains("nothing answered; nor the other way: unreachable;"), "{said}");
        let open = Finding { connects: Some(Ok(())), ..blocked.clone() };
        let said = words(&open, Some(&back(Some(Err("unreachable".into())))));
        assert!(said.starts_with("rank 1 does not reach rank 0: "), "{said}");
        assert!(said.contains("port 4001: unreachable; the other way there is one"), "{said}");
    }

    #[test]
    fn large_packets_that_are_lost_are_told_and_a_rank_that_is_late_is_not_blamed() {
        let quiet = Finding { rank: 1, heard: false, connects: Some(Ok(())) };
        assert_eq!(words(&quiet, None), "", "it may be stopped");
        assert_eq!(words(&quiet, Some(&Findings::default())), "", "it may be late");
        let half = Finding { heard: true, ..quiet };
        assert_eq!(words(&half, None), "", "it may have stopped in between");
        let said = words(&half, Some(&Findings::default()));
        for word in
            ["rank 1 does not reach rank 0", "small messages pass", "mtu is 9000 and 9000", "ip link set"]
        {
            assert!(said.contains(word), "{word}: {said}");
        }
        let card = Finding { rank: 1, heard: false, connects: None };
        assert_eq!(words(&card, None), "");
        assert!(words(&card, Some(&Findings::default())).contains("nothing came within 8s"));
    }
}
