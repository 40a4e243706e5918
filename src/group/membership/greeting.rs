//! The connection check: each rank sends a greeting to some other ranks by a put. If a greeting does not arrive, the rank finds
//! out between which addresses messages are lost.

use std::{
    collections::BTreeSet,
    fs, io,
    net::{IpAddr, SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use unisono_schedule::Rank;
use unisono_transport::Limits;

use crate::{
    engine::{Awaited, Contact, Engine, Patience, StalledOperation, Stop},
    error::{Error, Failure, Result, list},
    rendezvous::{Store, exchange},
    runtime::{host::Host, monitor::Monitor},
};

/// How long to wait without a greeting before looking for the cause. The whole check takes less than 15 s.
const PATIENCE: Duration = Duration::from_secs(8);
/// The timeout of a TCP connection that is made only as a test.
const CONNECTING: Duration = Duration::from_secs(2);
/// How long a rank waits for the findings of the other one.
const HEARING: Duration = Duration::from_millis(2500);
/// The most ranks of other hosts that a rank chooses to greet; as many may choose it.
const MOST: usize = 4;

/// A rank's endpoint as an error describes it.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub(crate) struct EndpointInfo {
    device: String,
    /// The MTU of that device; 0 if unknown.
    mtu: u32,
    /// The endpoint's address, if it is an IP address.
    at: Option<SocketAddr>,
    /// Whether the endpoint accepts TCP connections at that address.
    by_tcp: bool,
    /// The address from which the rank reached the store.
    store: Option<IpAddr>,
    host: String,
}

impl EndpointInfo {
    /// This rank's endpoint.
    pub(crate) fn here(limits: &Limits, store: Option<&Store>, host: &Host) -> Self {
        let device = limits.device.clone();
        // Devices that are no network interfaces have no such file.
        let mtu = fs::read_to_string(format!("/sys/class/net/{device}/mtu"));
        Self {
            mtu: mtu.ok().and_then(|mtu| mtu.trim().parse().ok()).unwrap_or(0),
            at: limits.listens.parse().ok(),
            by_tcp: limits.sockets,
            store: store.map(|store| store.reached().0.ip()),
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

/// A finding for each rank whose greeting is missing; empty if all have arrived.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
struct Findings(Vec<Finding>);

#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
struct Finding {
    rank: Rank,
    /// Whether the small greeting has arrived and only the large one is missing.
    heard: bool,
    /// Whether a TCP connection to that rank succeeded, or why not; `None` if none was tried.
    connects: Option<std::result::Result<(), String>>,
}

/// Exchanges greetings with this rank's neighbours, then waits until all ranks have done so. If a greeting is lost, all ranks
/// return the same failure, which names the two ranks and the cause.
pub(crate) fn meet(
    engine: &mut Engine,
    monitor: &Monitor,
    store: Option<&Store>,
    (hosts, endpoints): (&[Host], &[EndpointInfo]),
    (contacts, chunk_bytes, patience): (Vec<Contact>, usize, Patience),
    deadline: Instant,
) -> Result<()> {
    let rank = monitor.rank;
    let neighbours = neighbours(rank, hosts, engine.limits().connect_all);
    let far: Vec<Rank> =
        neighbours.iter().copied().filter(|&other| on_other_host(&hosts[rank], &hosts[other])).collect();
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
                diagnose(engine, rank, store, endpoints).map_or(Ok(()), |failure| Err(failure.into()))
            }
            Err(Stop::Transport(error)) if error.error.is_own() => Err(Stop::Transport(error)),
            // The death of a peer breaks the transport too; then the store names the dead rank.
            Err(Stop::Transport(error)) => match monitor.dead() {
                None => {
                    Err(diagnose(engine, rank, store, endpoints).map_or(Stop::Transport(error), Stop::from))
                }
                Some(_) => Err(Stop::Failed),
            },
            Err(stop) => Err(stop),
        };
    }
    greeted.map_err(explain)?;
    let Some(store) = store.filter(|_| hosts.len() > 1) else { return Ok(()) };
    store.set(&findings_key(rank), &postcard::to_allocvec(&Findings::default()).unwrap_or_default())?;
    all_have(engine, monitor, store, hosts.len(), deadline, &explain)
}

/// Waits until all ranks have checked their connections, and meanwhile answers the greetings of the others.
fn all_have(
    engine: &mut Engine,
    monitor: &Monitor,
    store: &Store,
    ranks: usize,
    deadline: Instant,
    explain: &dyn Fn(Stop) -> Error,
) -> Result<()> {
    // After the ranks that still wait for greetings have given up, so that their failures, which name the cause, come first.
    let deadline = deadline + CONNECTING + HEARING;
    let meet = || exchange(store, "met", monitor.rank, ranks, &[], deadline).map(drop);
    let waker = engine.waker();
    thread::scope(|scope| {
        let met = thread::Builder::new().name("unisono-meet".to_owned()).spawn_scoped(scope, || {
            let met = meet();
            waker.wake();
            met
        });
        // If no thread can be started, greetings are not answered meanwhile; mostly none needs an answer.
        let Ok(met) = met else { return meet() };
        let attended = engine.attend_until(&|| met.is_finished(), monitor).map_err(explain);
        // After a failure, which has been reported, the store ends every wait.
        let met = met.join().unwrap_or_else(|_| {
            Err(Error::Rendezvous { store: store.name().to_owned(), problem: "its thread panicked".into() })
        });
        attended.and(met)
    })
}

/// The store's key of a rank's findings.
fn findings_key(rank: Rank) -> String {
    format!("greetings/{rank}")
}

/// Finds out why greetings are missing. `None` if the network is not the cause: then a rank is late or stopped.
fn diagnose(
    engine: &mut Engine,
    rank: Rank,
    store: Option<&Store>,
    endpoints: &[EndpointInfo],
) -> Option<Failure> {
    let mine = Findings(thread::scope(|scope| {
        let threads: Vec<_> = engine
            .awaited()
            .map(|awaited| {
                let endpoint = &endpoints[awaited.rank];
                let at = endpoint.at.filter(|_| endpoint.by_tcp);
                // The kernel accepts connections to an endpoint also while its process is busy.
                let connect = move || at.map(|at| TcpStream::connect_timeout(&at, CONNECTING).map(drop));
                (awaited, thread::Builder::new().spawn_scoped(scope, connect))
            })
            .collect();
        let finding = |(awaited, thread): (Awaited, io::Result<thread::ScopedJoinHandle<'_, _>>)| {
            let connected: Option<io::Result<()>> =
                thread.ok().and_then(|thread| thread.join().ok()).flatten();
            let connects = connected.map(|connected| connected.map_err(|error| reason(&error)));
            Finding { rank: awaited.rank, heard: awaited.heard, connects }
        };
        threads.into_iter().map(finding).collect()
    }));
    let store = store?;
    // If the store is gone, the store's watch reports it.
    let _ = store.set(&findings_key(rank), &postcard::to_allocvec(&mine).ok()?);
    let until = Instant::now() + HEARING;
    mine.0.iter().find_map(|finding| {
        let theirs = store.get(&findings_key(finding.rank), until).ok().flatten();
        let theirs: Option<Findings> = theirs.and_then(|bytes| postcard::from_bytes(&bytes).ok());
        verdict(rank, finding, theirs.as_ref(), endpoints)
    })
}

/// Why a connection could not be made, in words.
fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::TimedOut => format!("nothing answered within {CONNECTING:.0?}"),
        io::ErrorKind::ConnectionRefused => "it was refused".to_owned(),
        _ => error.to_string(),
    }
}

/// The failure of the connection to a rank whose greeting is missing, from the findings of both ranks.
fn verdict(
    me: Rank,
    finding: &Finding,
    theirs: Option<&Findings>,
    endpoints: &[EndpointInfo],
) -> Option<Failure> {
    let peer = finding.rank;
    let (my, its) = (&endpoints[me], &endpoints[peer]);
    let back = theirs.and_then(|theirs| theirs.0.iter().find(|finding| finding.rank == me));
    let back = back.and_then(|back| back.connects.as_ref());
    let by_store = match (my.store, its.store) {
        (Some(mine), Some(theirs)) if !(my.is_at(mine) && its.is_at(theirs)) => {
            let (mine, theirs) = (from_where(mine), from_where(theirs));
            format!("; the store was reached from {mine} by rank {me} and from {theirs} by rank {peer}")
        }
        _ => String::new(),
    };
    let advice = "set UNISONO_INTERFACE to the interfaces or the network that connect the two hosts, and let firewalls pass TCP \
                  at all ports between these addresses";
    let fails = |from: Rank, to: Rank, why: &str, other: Option<&std::result::Result<(), String>>| {
        let (source, target) = (&endpoints[from], &endpoints[to]);
        let port = target.at.map_or(0, |at| at.port());
        let other = match other {
            Some(Err(why)) => format!("; the opposite direction fails too: {why}"),
            Some(Ok(())) => "; the opposite direction works".to_owned(),
            None => String::new(),
        };
        let how = format!(
            "no TCP connection from {} to {}, port {port}: {why}{other}{by_store}; {advice}",
            source.words(),
            target.words()
        );
        Some(Failure::NoPath { from, to, how })
    };
    let lost = |what: &str, advice: &str| {
        let how = format!("from {} to {} {what}{by_store}; {advice}", its.words(), my.words());
        Some(Failure::NoPath { from: peer, to: me, how })
    };
    match (&finding.connects, back, theirs) {
        (Some(Err(why)), back, _) => fails(me, peer, why, back),
        (there, Some(Err(why)), _) => fails(peer, me, why, there.as_ref()),
        // The peer lives, and has sent both greetings.
        (_, _, Some(_)) if finding.heard => lost(
            &format!(
                "small messages arrive, but none as large as a chunk: the network loses large packets (the MTU is {} and {})",
                its.mtu, my.mtu
            ),
            "give these interfaces an MTU that every switch and router between them supports, for instance `ip link set DEVICE \
             mtu 1500`, or raise the MTU of the network",
        ),
        // If a TCP connection succeeded, the network is not the cause; if none could be tried, it is.
        (None, _, Some(_)) => lost(&format!("nothing arrived within {PATIENCE:.0?}"), advice),
        _ => None,
    }
}

/// An address from which a rank reached the store, in words.
fn from_where(address: IpAddr) -> String {
    if address.is_loopback() { "its own host".to_owned() } else { address.to_string() }
}

/// Whether two ranks are on different hosts or in different network namespaces.
fn on_other_host(one: &Host, other: &Host) -> bool {
    (&one.boot, one.network) != (&other.boot, other.network)
}

/// The ranks that a rank exchanges greetings with: its neighbours on the ring, and ranks of other hosts. The ranks of a host divide
/// the other hosts among them, but each chooses at most [`MOST`] ranks, and at least one, because the addresses of its own host
/// are reachable through any interface. The relation is symmetric. With `all`, for transports that must connect all ranks before
/// one leaves, every rank greets all others.
fn neighbours(rank: Rank, hosts: &[Host], all: bool) -> Vec<Rank> {
    let ranks = hosts.len();
    let mut greeted = BTreeSet::from([(rank + 1) % ranks, (rank + ranks - 1) % ranks]);
    if all {
        greeted.extend(0..ranks);
    }
    let mut groups: Vec<Vec<Rank>> = Vec::new();
    for (rank, host) in hosts.iter().enumerate() {
        match groups.iter_mut().find(|group| !on_other_host(&hosts[group[0]], host)) {
            Some(group) => group.push(rank),
            None => groups.push(vec![rank]),
        }
    }
    let others = groups.len() - 1;
    for (at, group) in groups.iter().enumerate() {
        for (local, &from) in group.iter().enumerate() {
            // How many hosts each rank of this host chooses.
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
    fn greetings_are_mutual_and_few() {
        for ranks in [&[1][..], &[4], &[1, 1], &[2, 2], &[1, 5, 2], &[3; 7], &[1; 40], &[8; 30]] {
            let hosts = hosts(ranks);
            let all: Vec<Vec<Rank>> = (0..hosts.len()).map(|rank| neighbours(rank, &hosts, false)).collect();
            for (rank, greeted) in all.iter().enumerate() {
                assert!(!greeted.contains(&rank));
                assert!(greeted.iter().all(|&other| all[other].contains(&rank)), "{ranks:?}: {all:?}");
                let far = greeted.iter().any(|&other| on_other_host(&hosts[rank], &hosts[other]));
                assert_eq!(far, ranks.len() > 1, "{ranks:?}: rank {rank} greets {greeted:?}");
            }
            let most = all.iter().map(Vec::len).max().unwrap_or(0);
            // Of a host with fewer ranks each is chosen by several.
            let crowd = ranks.iter().max().unwrap_or(&1).div_ceil(*ranks.iter().min().unwrap_or(&1));
            assert!(most <= 2 + MOST * (1 + crowd), "{ranks:?}: {most}");
        }
    }

    #[test]
    fn all_pairs_of_few_hosts_exchange_greetings() {
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
    fn one_rank_greets_nobody_and_with_all_every_rank_is_greeted() {
        assert!(neighbours(0, &hosts(&[1]), false).is_empty());
        assert_eq!(neighbours(1, &hosts(&[5]), true), [0, 2, 3, 4]);
    }

    fn endpoints() -> Vec<EndpointInfo> {
        let endpoint = |at: &str, device: &str, host: &str, store: &str| EndpointInfo {
            device: device.into(),
            mtu: 9000,
            at: at.parse().ok(),
            by_tcp: true,
            store: store.parse().ok(),
            host: host.into(),
        };
        vec![
            endpoint("10.88.0.1:4001", "eth0", "alpha", "10.77.0.1"),
            endpoint("10.77.0.2:4002", "eth1", "beta", "10.77.0.2"),
        ]
    }

    fn words(finding: &Finding, theirs: Option<&Findings>) -> String {
        verdict(0, finding, theirs, &endpoints()).map(|failure| failure.to_string()).unwrap_or_default()
    }

    #[test]
    fn a_failed_connection_is_described_by_both_ends_and_directions() {
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
        assert!(!said.contains("opposite"), "{said}");
        let said = words(&blocked, Some(&back(Some(Err("unreachable".into())))));
        assert!(said.contains("nothing answered; the opposite direction fails too: unreachable;"), "{said}");
        let open = Finding { connects: Some(Ok(())), ..blocked.clone() };
        let said = words(&open, Some(&back(Some(Err("unreachable".into())))));
        assert!(said.starts_with("rank 1 does not reach rank 0: "), "{said}");
        assert!(said.contains("port 4001: unreachable; the opposite direction works"), "{said}");
    }

    #[test]
    fn lost_large_packets_are_a_failure_and_a_late_rank_is_not() {
        let quiet = Finding { rank: 1, heard: false, connects: Some(Ok(())) };
        assert_eq!(words(&quiet, None), "", "it may be stopped");
        assert_eq!(words(&quiet, Some(&Findings::default())), "", "it may be late");
        let half = Finding { heard: true, ..quiet };
        assert_eq!(words(&half, None), "", "it may have stopped in between");
        let said = words(&half, Some(&Findings::default()));
        for word in
            ["rank 1 does not reach rank 0", "small messages arrive", "MTU is 9000 and 9000", "ip link set"]
        {
            assert!(said.contains(word), "{word}: {said}");
        }
        let nic = Finding { rank: 1, heard: false, connects: None };
        assert_eq!(words(&nic, None), "");
        assert!(words(&nic, Some(&Findings::default())).contains("nothing arrived within 8s"));
    }
}
