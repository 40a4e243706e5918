//! Verifies connections: each rank exchanges handshakes with some other ranks by puts. If one does not arrive, the rank finds out between
//! which addresses messages are lost.

use std::{
    collections::{BTreeSet, HashMap},
    io,
    net::{IpAddr, TcpStream},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use unisono_engine::{Contacts, Engine, Patience, PendingHandshake, StalledOperation, Stop};
use unisono_schedule::Rank;
use unisono_transport::{Limits, shm::PROVIDER as SHM};

use super::exchange;
use crate::{
    error::{Error, Failure, Result, rank_list},
    rendezvous::Store,
    runtime::{
        host::HostId,
        monitor::Monitor,
        roster::{Entry, Nic, Roster},
    },
};

/// How long to wait without a handshake before looking for the cause. The whole verification takes less than 15 s.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(8);
/// The timeout of a TCP connection that is made only as a test.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a rank waits for the findings of the other rank.
const FINDINGS_TIMEOUT: Duration = Duration::from_millis(2500);
/// The most ranks of other hosts that a rank chooses for handshakes; the same number may choose it.
const MOST_REMOTE: usize = 4;

/// A rank's endpoint as an error describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct EndpointInfo {
    nic: Nic,
    host: String,
    /// True if the endpoint accepts TCP connections at its address.
    by_tcp: bool,
    /// True if this rank shares memory with it.
    memory: bool,
}

impl EndpointInfo {
    /// The endpoint of a rank that has published this information; `limits` are this rank's.
    pub(super) fn of(entry: Option<Entry>, limits: &Limits) -> Self {
        entry.map_or_else(Self::default, |Entry { nic, host, shares, .. }| {
            let memory = limits.provider == SHM || shares.is_some() && shares == limits.shares;
            Self { nic, host: host.name, by_tcp: limits.sockets && !memory, memory }
        })
    }

    fn is_at(&self, address: IpAddr) -> bool {
        self.nic.at.is_some_and(|at| at.ip() == address)
    }

    /// `10.77.0.2 (eth0 of node2)`.
    fn words(&self) -> String {
        let Nic { at, device, .. } = &self.nic;
        let at =
            at.map_or_else(|| "an address that is not an IP address".to_owned(), |at| at.ip().to_string());
        format!("{at} ({device} of {})", self.host)
    }
}

/// What is known about a rank whose handshake is missing. A rank publishes a list of these, which is empty if all have arrived.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
struct Finding {
    rank: Rank,
    /// True if the small message has arrived and only the large one is missing.
    small_arrived: bool,
    /// `Ok` if a TCP connection to that rank succeeded, otherwise why not; `None` if none was tried.
    connects: Option<std::result::Result<(), String>>,
}

/// Verifies the connections of a rank.
pub(super) struct Verification<'a> {
    pub monitor: &'a Monitor,
    pub store: Option<&'a Store>,
    pub ranks: usize,
    pub deadline: Instant,
}

impl Verification<'_> {
    /// Exchanges handshakes with this rank's neighbours, then waits until all ranks have done so. If one is lost, all ranks return the
    /// same failure, which names the two ranks and the cause. `verified` are the neighbours that were verified before, if the roster was
    /// propagated.
    pub(super) fn complete(
        &self,
        engine: &mut Engine,
        roster: &Arc<Roster>,
        verified: Option<&[Rank]>,
        (chunk_bytes, patience): (usize, Patience),
    ) -> Result<()> {
        let (rank, hosts) = (self.monitor.rank, roster.hosts());
        let mut neighbours = neighbours(rank, &hosts, engine.limits().connect_all);
        neighbours.retain(|other| !verified.is_some_and(|verified| verified.contains(other)));
        let remote: Vec<Rank> =
            neighbours.iter().copied().filter(|&other| hosts[rank].is_remote(&hosts[other])).collect();
        let contacts = Arc::clone(roster) as Arc<dyn Contacts>;
        let set = match verified {
            None => engine.set_contacts(contacts, chunk_bytes, patience),
            Some(_) => engine.update_contacts(contacts, patience),
        };
        set.map_err(|stop| self.failed(stop, StalledOperation::default()))?;
        let limits = engine.limits().clone();
        self.handshake(engine, &|rank| EndpointInfo::of(roster.entry(rank), &limits), &neighbours, &remote)?;
        let Some(store) = self.store.filter(|_| self.ranks > 1) else { return Ok(()) };
        let none = postcard::to_allocvec(&Vec::<Finding>::new()).unwrap_or_default();
        store.set(&findings_key(rank), &none)?;
        self.wait_for_all(engine, store, &neighbours)
    }

    /// Exchanges handshakes with these ranks, some of which are on other hosts.
    pub(super) fn handshake(
        &self,
        engine: &mut Engine,
        endpoints: &dyn Fn(Rank) -> EndpointInfo,
        neighbours: &[Rank],
        remote: &[Rank],
    ) -> Result<()> {
        let Self { monitor, store, deadline, .. } = *self;
        let rank = monitor.rank;
        let begun = Instant::now();
        let mut done = engine.begin_handshakes(neighbours, remote);
        while done.is_ok() {
            done = match engine.driven_by(monitor).finish_handshakes(HANDSHAKE_TIMEOUT, deadline) {
                Ok(()) => break,
                Err(Stop::Deadline) if Instant::now() < deadline => {
                    diagnose(engine, rank, store, endpoints, true)
                        .map_or(Ok(()), |failure| Err(failure.into()))
                }
                Err(Stop::Transport(error)) if error.error.is_own() => Err(Stop::Transport(error)),
                // The death of a peer breaks the transport too; then the store names the dead rank.
                Err(Stop::Transport(error)) => match monitor.dead() {
                    // Missing handshakes prove nothing yet, because no rank has waited for them.
                    None => Err(diagnose(engine, rank, store, endpoints, false)
                        .map_or(Stop::Transport(error), Stop::from)),
                    Some(_) => Err(Stop::Failed),
                },
                Err(stop) => Err(stop),
            };
        }
        done.map_err(|stop| self.lost(stop, neighbours, &engine.limits().provider, begun))
    }

    /// Waits until all ranks have verified their connections, and meanwhile sends what others wait for.
    fn wait_for_all(&self, engine: &mut Engine, store: &Store, neighbours: &[Rank]) -> Result<()> {
        let monitor = self.monitor;
        // This deadline is later than that of ranks that still wait for handshakes, so that their failures, which name the cause, come
        // first.
        let deadline = self.deadline + CONNECT_TIMEOUT + FINDINGS_TIMEOUT;
        let barrier =
            || exchange::decide(Some(store), "met", (monitor.rank, self.ranks), &(), deadline, |_| Ok(()));
        let (begun, provider, waker) = (Instant::now(), engine.limits().provider.clone(), engine.waker());
        thread::scope(|scope| {
            let waiter = thread::Builder::new().name("unisono-join".to_owned()).spawn_scoped(scope, || {
                let ended = barrier();
                waker.wake();
                ended
            });
            // If no thread can be started, this rank sends nothing meanwhile; usually no rank waits for it.
            let Ok(waiter) = waiter else { return barrier() };
            let driven = engine.driven_by(monitor).progress_until(&|| waiter.is_finished());
            let driven = driven.map_err(|stop| self.lost(stop, neighbours, &provider, begun));
            // After a failure, which has been reported, the store ends every wait.
            let panicked = |_| Err(exchange::unusable(store, "its thread panicked"));
            let ended = waiter.join().unwrap_or_else(panicked);
            driven.and(ended)
        })
    }

    /// The error of an engine that has stopped during the exchange of handshakes that began at `begun`.
    fn lost(&self, stop: Stop, neighbours: &[Rank], provider: &str, begun: Instant) -> Error {
        let call = format!("handshakes with {} over {provider}", rank_list(neighbours));
        self.failed(stop, StalledOperation { call, waited: begun.elapsed(), ..StalledOperation::default() })
    }

    /// The error of an engine that has stopped. The other ranks learn it first.
    pub(super) fn failed(&self, stop: Stop, stalled: StalledOperation) -> Error {
        let stalled = StalledOperation { number: Some(0), ..stalled };
        Error::Failed(self.monitor.tell(self.monitor.explain(stop, stalled)))
    }
}

/// The store's key of a rank's findings.
fn findings_key(rank: Rank) -> String {
    format!("greetings/{rank}")
}

/// Finds the reason why handshakes are missing. `waited`: true if this rank has waited for them. `None` if the network is not the cause:
/// then a rank is late or stopped.
fn diagnose(
    engine: &mut Engine,
    rank: Rank,
    store: Option<&Store>,
    endpoints: &dyn Fn(Rank) -> EndpointInfo,
    waited: bool,
) -> Option<Failure> {
    let mine: Vec<Finding> = thread::scope(|scope| {
        let threads: Vec<_> = engine
            .pending_handshakes()
            .map(|pending| {
                let endpoint = endpoints(pending.rank);
                let at = endpoint.nic.at.filter(|_| endpoint.by_tcp);
                // The kernel accepts connections to an endpoint even while its process is busy.
                let connect = move || at.map(|at| TcpStream::connect_timeout(&at, CONNECT_TIMEOUT).map(drop));
                (pending, thread::Builder::new().spawn_scoped(scope, connect))
            })
            .collect();
        let finding = |(pending, thread): (PendingHandshake, io::Result<thread::ScopedJoinHandle<'_, _>>)| {
            let connected: Option<io::Result<()>> =
                thread.ok().and_then(|thread| thread.join().ok()).flatten();
            let connects = connected.map(|connected| connected.map_err(|error| reason(&error)));
            Finding { rank: pending.rank, small_arrived: pending.small_arrived, connects }
        };
        threads.into_iter().map(finding).collect()
    });
    let store = store?;
    // If the store is gone, its watch reports that.
    let _ = store.set(&findings_key(rank), &postcard::to_allocvec(&mine).ok()?);
    let until = Instant::now() + FINDINGS_TIMEOUT;
    mine.iter().find_map(|finding| {
        let theirs = store.get(&findings_key(finding.rank), until).ok().flatten();
        let theirs: Option<Vec<Finding>> = theirs.and_then(|bytes| postcard::from_bytes(&bytes).ok());
        verdict(rank, finding, theirs.as_deref(), [rank, finding.rank].map(endpoints), waited)
    })
}

/// Why a connection could not be made, in words.
fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::TimedOut => format!("nothing answered within {CONNECT_TIMEOUT:.0?}"),
        io::ErrorKind::ConnectionRefused => "it was refused".to_owned(),
        _ => error.to_string(),
    }
}

/// The failure of the connection to a rank whose handshake is missing, from the findings and endpoints of both ranks.
fn verdict(
    me: Rank,
    finding: &Finding,
    theirs: Option<&[Finding]>,
    [my, its]: [EndpointInfo; 2],
    waited: bool,
) -> Option<Failure> {
    let peer = finding.rank;
    let back = theirs.and_then(|theirs| theirs.iter().find(|finding| finding.rank == me));
    let back = back.and_then(|back| back.connects.as_ref());
    let by_store = match (my.nic.store, its.nic.store) {
        (Some(mine), Some(theirs)) if !(my.is_at(mine) && its.is_at(theirs)) => {
            let (mine, theirs) = (from_where(mine), from_where(theirs));
            format!("; the store was reached from {mine} by rank {me} and from {theirs} by rank {peer}")
        }
        _ => String::new(),
    };
    let advice = "set UNISONO_INTERFACE to the interfaces or the network that connect the two hosts, and let firewalls pass TCP \
                  at all ports between these addresses";
    let by_fabric = if my.nic.at.is_some() && its.nic.at.is_some() {
        advice
    } else {
        "set UNISONO_INTERFACE to NICs of one fabric, and let its partition (P_Key), VLAN, VNI or security group hold both hosts"
    };
    let fails = |from: Rank, to: Rank, why: &str, other: Option<&std::result::Result<(), String>>| {
        let (source, target) = if from == me { (&my, &its) } else { (&its, &my) };
        let port = target.nic.at.map_or(0, |at| at.port());
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
    if its.memory && waited && finding.connects.is_none() && theirs.is_some() {
        let how = format!(
            "nothing arrived within {HANDSHAKE_TIMEOUT:.0?} in the memory that they share on {}; look at what rank {peer} says, and whether its \
             process runs and may open files and lock memory (ulimit -n, ulimit -l)",
            its.host
        );
        return Some(Failure::NoPath { from: peer, to: me, how });
    }
    let lost = |what: &str, advice: &str| {
        let how = format!("from {} to {} {what}{by_store}; {advice}", its.words(), my.words());
        Some(Failure::NoPath { from: peer, to: me, how })
    };
    match (&finding.connects, back, theirs) {
        (Some(Err(why)), back, _) => fails(me, peer, why, back),
        (there, Some(Err(why)), _) => fails(peer, me, why, there.as_ref()),
        // The peer lives, and has sent both messages.
        (_, _, Some(_)) if finding.small_arrived && waited => lost(
            &format!(
                "small messages arrive, but none as large as a chunk: the network loses large packets (the MTU is {} and {})",
                its.nic.mtu, my.nic.mtu
            ),
            "give these interfaces an MTU that every switch and router between them supports, for instance `ip link set DEVICE \
             mtu 1500`, or raise the MTU of the network",
        ),
        // If a TCP connection succeeded, the network is not the cause; if none could be tried, it is.
        (None, _, Some(_)) if waited => {
            lost(&format!("nothing arrived within {HANDSHAKE_TIMEOUT:.0?}"), by_fabric)
        }
        _ => None,
    }
}

/// An address from which a rank reached the store, in words.
fn from_where(address: IpAddr) -> String {
    if address.is_loopback() { "its own host".to_owned() } else { address.to_string() }
}

/// The ranks that a rank exchanges handshakes with: its neighbours on the ring, and ranks of other hosts. The ranks of a host divide the
/// other hosts among them, but each chooses at most [`MOST_REMOTE`] ranks, and at least one, because its host's addresses are reachable through
/// any interface. The relation is symmetric. With `all`, for transports that must connect all ranks before one leaves, every rank chooses
/// all others.
fn neighbours(rank: Rank, hosts: &[HostId], all: bool) -> Vec<Rank> {
    let ranks = hosts.len();
    let mut chosen = BTreeSet::from([(rank + 1) % ranks, (rank + ranks - 1) % ranks]);
    if all {
        chosen.extend(0..ranks);
    }
    let (mut groups, mut numbers): (Vec<Vec<Rank>>, _) = (Vec::new(), HashMap::new());
    for (rank, host) in hosts.iter().enumerate() {
        let group = *numbers.entry((host.boot, host.network)).or_insert(groups.len());
        groups.resize_with(groups.len().max(group + 1), Vec::new);
        groups[group].push(rank);
    }
    let others = groups.len() - 1;
    for (at, group) in groups.iter().enumerate() {
        for (local, &from) in group.iter().enumerate() {
            // The number of hosts that each rank of this host chooses.
            let shares = others.div_ceil(group.len()).min(MOST_REMOTE);
            for distance in (0..shares).map(|share| 1 + (local + share * group.len()) % others) {
                let there = &groups[(at + distance) % groups.len()];
                let to = there[local % there.len()];
                if from == rank {
                    chosen.insert(to);
                } else if to == rank {
                    chosen.insert(from);
                }
            }
        }
    }
    chosen.remove(&rank);
    chosen.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::host::Host;

    fn hosts(ranks: &[usize]) -> Vec<HostId> {
        let host = |(number, &ranks): (usize, &usize)| {
            vec![HostId { network: number as u64, ..Host::here().id }; ranks]
        };
        ranks.iter().enumerate().flat_map(host).collect()
    }

    #[test]
    fn handshakes_are_mutual_and_few() {
        for ranks in [&[1][..], &[4], &[1, 1], &[2, 2], &[1, 5, 2], &[3; 7], &[1; 40], &[8; 30]] {
            let hosts = hosts(ranks);
            let all: Vec<Vec<Rank>> = (0..hosts.len()).map(|rank| neighbours(rank, &hosts, false)).collect();
            for (rank, chosen) in all.iter().enumerate() {
                assert!(!chosen.contains(&rank));
                assert!(chosen.iter().all(|&other| all[other].contains(&rank)), "{ranks:?}: {all:?}");
                let remote = chosen.iter().any(|&other| hosts[rank].is_remote(&hosts[other]));
                assert_eq!(remote, ranks.len() > 1, "{ranks:?}: rank {rank} chooses {chosen:?}");
            }
            let most = all.iter().map(Vec::len).max().unwrap_or(0);
            // If a host has fewer ranks, several ranks choose the same one.
            let crowd = ranks.iter().max().unwrap_or(&1).div_ceil(*ranks.iter().min().unwrap_or(&1));
            assert!(most <= 2 + MOST_REMOTE * (1 + crowd), "{ranks:?}: {most}");
        }
    }

    #[test]
    fn all_pairs_of_few_hosts_exchange_handshakes() {
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
    fn one_rank_has_no_neighbours_and_with_all_every_rank_is_one() {
        assert!(neighbours(0, &hosts(&[1]), false).is_empty());
        assert_eq!(neighbours(1, &hosts(&[5]), true), [0, 2, 3, 4]);
    }

    fn endpoints() -> [EndpointInfo; 2] {
        let endpoint = |at: &str, device: &str, host: &str, store: &str| {
            let (at, store) = (at.parse().ok(), store.parse().ok());
            let nic = Nic { device: device.into(), megabits: 0, mtu: 9000, at, store };
            EndpointInfo { nic, host: host.into(), by_tcp: true, memory: false }
        };
        [
            endpoint("10.88.0.1:4001", "eth0", "alpha", "10.77.0.1"),
            endpoint("10.77.0.2:4002", "eth1", "beta", "10.77.0.2"),
        ]
    }

    fn words(finding: &Finding, theirs: Option<&[Finding]>) -> String {
        verdict(0, finding, theirs, endpoints(), true).map(|failure| failure.to_string()).unwrap_or_default()
    }

    #[test]
    fn a_failed_connection_is_described_by_both_ends_and_directions() {
        let blocked =
            Finding { rank: 1, small_arrived: false, connects: Some(Err("nothing answered".into())) };
        let back = |connects| [Finding { rank: 0, small_arrived: false, connects }];
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
        let quiet = Finding { rank: 1, small_arrived: false, connects: Some(Ok(())) };
        assert_eq!(words(&quiet, None), "", "it may be stopped");
        assert_eq!(words(&quiet, Some(&[])), "", "it may be late");
        let half = Finding { small_arrived: true, ..quiet };
        assert_eq!(words(&half, None), "", "it may have stopped in between");
        let said = words(&half, Some(&[]));
        for word in
            ["rank 1 does not reach rank 0", "small messages arrive", "MTU is 9000 and 9000", "ip link set"]
        {
            assert!(said.contains(word), "{word}: {said}");
        }
        let nic = Finding { rank: 1, small_arrived: false, connects: None };
        assert_eq!(words(&nic, None), "");
        assert!(words(&nic, Some(&[])).contains("nothing arrived within 8s"));
    }

    #[test]
    fn the_advice_fits_what_connects_the_ranks() {
        let nothing = Finding { rank: 1, small_arrived: false, connects: None };
        let theirs: [Finding; 0] = [];
        let failure_of = |change: fn(&mut EndpointInfo)| {
            let mut endpoints = endpoints();
            endpoints.iter_mut().for_each(change);
            verdict(0, &nothing, Some(&theirs), endpoints, true).unwrap().to_string()
        };
        let by_memory = failure_of(|it| (it.memory, it.nic.at) = (true, None));
        assert!(by_memory.contains("in the memory that they share on beta"), "{by_memory}");
        let by_nic = failure_of(|it| it.nic.at = None);
        assert!(by_nic.contains("P_Key"), "{by_nic}");
        for message in [by_memory, by_nic] {
            assert!(!message.contains("TCP") && !message.contains("firewall"), "{message}");
        }
        assert!(failure_of(|_| ()).contains("firewalls"));
    }

    #[test]
    fn a_handshake_that_no_rank_has_waited_for_is_not_lost() {
        let theirs: [Finding; 0] = [];
        for small_arrived in [false, true] {
            let finding = Finding { rank: 1, small_arrived, connects: None };
            assert_eq!(verdict(0, &finding, Some(&theirs), endpoints(), false), None);
        }
        let blocked = Finding { rank: 1, small_arrived: false, connects: Some(Err("it was refused".into())) };
        assert!(verdict(0, &blocked, Some(&theirs), endpoints(), false).is_some(), "that was seen");
    }
}
