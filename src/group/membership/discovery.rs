//! Discovery: which ranks share the memory of a host, and which network interface reaches the others.
//!
//! Ranks that report the same host try to connect there, because machines that were restored from one snapshot report the same. Rank 0
//! proposes the first of these ranks; a rank that does not reach it tries the first of those that did not reach it either.

use std::{
    collections::{BTreeMap, HashSet},
    net::IpAddr,
    time::Instant,
};

use serde::{Deserialize, Serialize};
use unisono_schedule::Rank;
use unisono_transport::{
    Address,
    mux::fabric_of,
    shm::{self, PROVIDER as SHM},
};

use super::exchange::{
    PROVIDER, PROVIDER_ADVICE, cannot_reach, check_agreement, decide, decode_all, unusable,
};
use crate::{
    config::Config,
    error::{Error, Failure, Result, clean, rank_list},
    rendezvous::Store,
    runtime::host::Host,
};

/// The data that every rank publishes before it opens libfabric.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct SharedMemoryInfo {
    pub(super) host: Host,
    /// The provider that the rank asks for.
    pub(super) provider: Option<String>,
    /// The reason why the rank cannot share memory, although its provider would allow it.
    pub(super) refused: Option<String>,
    /// The address of its shared memory; empty if it has none.
    pub(super) address: Vec<u8>,
}

/// How all ranks are connected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Connectivity {
    /// By memory that all ranks share.
    SharedMemory,
    /// By libfabric, since not all ranks share memory; `shared` is true if some do.
    Fabric { shared: bool, why: String },
}

/// The index among the proposed ranks of the first whose shared memory this rank reaches, or the reason why it could not try.
pub(super) type ProbeResult = std::result::Result<Option<usize>, String>;

/// The most characters of a reason.
const SHOWN: usize = 200;

/// The reason of ranks for which rank 0 proposes no rank to try.
const DUPLICATE_NAME: &str =
    "ranks have drawn the same random name, as on machines that were restored from one snapshot";

/// The store's key of the exchange.
const KEY: &str = "reach";

/// Finds out how all ranks reach each other, and the scope of the ranks that share memory with this one; `None` if this rank has no
/// shared memory.
pub(super) fn discover(
    store: Option<&Store>,
    (rank, ranks): (Rank, usize),
    mine: &SharedMemoryInfo,
    deadline: Instant,
) -> Result<(Connectivity, Option<u128>)> {
    let mut groups = HostGroups::default();
    let mut connectivity = decide(store, KEY, (rank, ranks), mine, deadline, |all| groups.begin(&all))?;
    let (mut able, mut leader) = (mine.refused.is_none(), None::<Vec<u8>>);
    for round in 0.. {
        let store = match (connectivity, store) {
            (Some(connectivity), _) => {
                let leader = leader.as_ref().unwrap_or(&mine.address);
                return Ok((connectivity, able.then(|| mine.host.id.scope(leader))));
            }
            (None, Some(store)) => store,
            (None, None) => break,
        };
        if rank == 0 {
            groups.propose(store, round)?;
        }
        let mut probed = Ok(None);
        if able && leader.is_none() {
            let mut proposed = candidates(store, round, mine, deadline)?;
            probed = probe(&mine.address, &proposed);
            able = probed.is_ok();
            leader = probed.as_ref().ok().copied().flatten().map(|at| proposed.swap_remove(at));
        }
        connectivity = decide(Some(store), &key(round), (rank, ranks), &probed, deadline, |all| {
            groups.take_results(&all, round)
        })?;
    }
    Err(Error::Failed(Failure::Closed))
}

/// The store's key of a round in which ranks try to connect.
fn key(round: u32) -> String {
    format!("{KEY}/{round}")
}

/// The store's key at which rank 0 proposes the ranks that the ranks of a scope try.
fn candidates_key(round: u32, scope: u128) -> String {
    format!("{}/{scope:032x}", key(round))
}

/// The addresses that this rank tries in a round.
fn candidates(store: &Store, round: u32, mine: &SharedMemoryInfo, deadline: Instant) -> Result<Vec<Vec<u8>>> {
    let bytes = store.get(&candidates_key(round, mine.host.id.scope(&[])), deadline)?;
    let bytes = bytes.ok_or_else(|| unusable(store, "rank 0 has not proposed a rank to try in time"))?;
    let broken = |error| unusable(store, format!("what rank 0 proposes cannot be read: {error}"));
    postcard::from_bytes(&bytes).map_err(broken)
}

/// Tries these addresses; this rank's address may be among them.
fn probe(own: &[u8], candidates: &[Vec<u8>]) -> ProbeResult {
    if candidates.is_empty() {
        return Err(DUPLICATE_NAME.to_owned());
    }
    for (at, address) in candidates.iter().enumerate() {
        let reached = address == own
            || shm::Endpoint::is_near(&Address(address.clone())).map_err(|it| it.to_string())?;
        if reached {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

/// What rank 0 knows about which ranks share memory.
#[derive(Default)]
pub(super) struct HostGroups {
    all: Vec<SharedMemoryInfo>,
    /// For every rank, the leader of its group: the first rank that it reaches; `None` while this is not known.
    leaders: Vec<Option<Rank>>,
    /// By scope, the ranks that this round tries: ranks of the scope that have no leader yet connect to them.
    candidates: BTreeMap<u128, Vec<Rank>>,
}

impl HostGroups {
    /// Takes the encoded values of all ranks. Returns how they reach each other, or `None` if they must try.
    pub(super) fn begin(&mut self, all: &[Vec<u8>]) -> std::result::Result<Option<Connectivity>, Failure> {
        self.all = decode_all(all)?;
        self.leaders = vec![None; all.len()];
        let asking = |info: &SharedMemoryInfo| info.provider.clone().unwrap_or_else(|| "auto".to_owned());
        check_agreement(PROVIDER, &self.all.iter().map(asking).collect::<Vec<_>>(), PROVIDER_ADVICE)?;
        if let Some(asked) = self.asked().filter(|&asked| asked != SHM && fabric_of(asked).is_none()) {
            let why = format!("the provider is {}", clean(asked, SHOWN));
            return Ok(Some(Connectivity::Fabric { shared: false, why }));
        }
        self.next_round(0)
    }

    /// Takes the results of ranks in the round; a rank that was proposed always reaches itself. Returns the same as [`begin`](Self::begin).
    pub(super) fn take_results(
        &mut self,
        all: &[Vec<u8>],
        round: u32,
    ) -> std::result::Result<Option<Connectivity>, Failure> {
        let candidates = std::mem::take(&mut self.candidates);
        for (rank, probed) in decode_all::<ProbeResult>(all)?.into_iter().enumerate() {
            let Some(candidates) = self.unresolved_scope(rank).and_then(|scope| candidates.get(&scope))
            else {
                continue;
            };
            match probed {
                _ if candidates.is_empty() => self.all[rank].refused = Some(DUPLICATE_NAME.to_owned()),
                Err(why) => self.all[rank].refused = Some(clean(&why, SHOWN)),
                Ok(None) => self.leaders[rank] = candidates.contains(&rank).then_some(rank),
                Ok(Some(at)) => {
                    let why = || format!("it says that it reaches number {at} of {} ranks", candidates.len());
                    let leader = candidates.get(at).ok_or_else(|| Failure::Joining { rank, why: why() })?;
                    self.leaders[rank] = Some(*leader);
                }
            }
        }
        self.next_round(round + 1)
    }

    /// Publishes the ranks that a round tries.
    fn propose(&self, store: &Store, round: u32) -> Result<()> {
        self.candidates.iter().try_for_each(|(scope, candidates)| {
            let addresses: Vec<&[u8]> = candidates.iter().map(|&rank| &self.all[rank].address[..]).collect();
            store.set(&candidates_key(round, *scope), &postcard::to_allocvec(&addresses).unwrap_or_default())
        })
    }

    fn asked(&self) -> Option<&str> {
        self.all.first()?.provider.as_deref()
    }

    /// The scope that this rank has published, if it has no leader there yet.
    fn unresolved_scope(&self, rank: Rank) -> Option<u128> {
        let unresolved = self.all[rank].refused.is_none() && self.leaders[rank].is_none();
        unresolved.then(|| self.all[rank].host.id.scope(&[]))
    }

    /// Chooses the ranks that this round tries, or concludes if no rank has another one to try.
    fn next_round(&mut self, round: u32) -> std::result::Result<Option<Connectivity>, Failure> {
        let mut unresolved: BTreeMap<u128, Vec<Rank>> = BTreeMap::new();
        for rank in 0..self.all.len() {
            if let Some(scope) = self.unresolved_scope(rank) {
                unresolved.entry(scope).or_default().push(rank);
            }
        }
        if unresolved.values().any(|ranks| ranks.len() > 1) {
            for ranks in unresolved.values_mut() {
                let mut addresses = HashSet::new();
                let differ = ranks.iter().all(|&rank| addresses.insert(&self.all[rank].address));
                // A few rounds find all groups among a hundred machines that were restored from one snapshot.
                ranks.truncate(if differ { 4_usize.saturating_pow(round) } else { 0 });
            }
            self.candidates = unresolved;
            return Ok(None);
        }
        unresolved.into_values().flatten().for_each(|rank| self.leaders[rank] = Some(rank));
        self.conclude().map(Some)
    }

    fn conclude(&self) -> std::result::Result<Connectivity, Failure> {
        let Some(why) = self.obstacle() else { return Ok(Connectivity::SharedMemory) };
        if self.asked() == Some(SHM) {
            return Err(cannot_reach(SHM, &why));
        }
        let mut seen = HashSet::new();
        let alone = self.leaders.iter().flatten().all(|leader| seen.insert(leader));
        Ok(Connectivity::Fabric { shared: !alone, why: clean(&why, SHOWN) })
    }

    /// The reason why these ranks cannot share memory, if there is one.
    fn obstacle(&self) -> Option<String> {
        let refused = |(rank, info): (Rank, &SharedMemoryInfo)| {
            let why = info.refused.as_ref()?;
            Some(format!("rank {rank} on {} has no shared memory: {why}", info.host.name))
        };
        let hosts: Vec<_> = self.all.iter().map(|info| (info.host.name.as_str(), info.host.id)).collect();
        let message =
            self.all.iter().enumerate().find_map(refused).or_else(|| Host::cannot_share_memory(&hosts));
        message.or_else(|| self.unreached())
    }

    /// The error if ranks report one host and are not on one.
    fn unreached(&self) -> Option<String> {
        let mut groups: BTreeMap<Rank, Vec<Rank>> = BTreeMap::new();
        for (rank, leader) in self.leaders.iter().enumerate() {
            groups.entry((*leader)?).or_default().push(rank);
        }
        let group = |(leader, ranks): (&Rank, &Vec<Rank>)| {
            format!("{} on {}", rank_list(ranks), self.all[*leader].host.name)
        };
        (groups.len() > 1).then(|| {
            format!(
                "boot_id says that all ranks are on one host, but they cannot connect there, as on machines that were restored from one \
                 snapshot: {}",
                groups.iter().map(group).collect::<Vec<_>>().join(", ")
            )
        })
    }
}

/// Key of the address at which a rank of another host reaches the store; empty if all ranks are on the store's host.
const REACHED_AT: &str = "reached/at";
/// Key of the number of ranks that have arrived.
const ARRIVED: &str = "reached/ranks";

/// The host that this rank's interface must lead to: `towards`, or, if the store's host knows itself by a loopback address, the address at
/// which ranks of other hosts reach the store. In that case this waits until one of them has reached it.
pub(super) fn interface_towards(
    config: &Config,
    store: &Store,
    towards: Option<IpAddr>,
    deadline: Instant,
) -> Result<Option<IpAddr>> {
    let here = config.local_ranks == Some(config.ranks);
    if here {
        return Ok(towards);
    }
    let at = store.reached().1.ip();
    let reachable = match at {
        IpAddr::V4(at) => !at.is_loopback() && !at.is_link_local(),
        IpAddr::V6(at) => !at.is_loopback() && !at.is_unicast_link_local(),
    };
    if reachable {
        store.set(REACHED_AT, at.to_string().as_bytes())?;
    }
    let all = usize::try_from(store.add(ARRIVED, 1)?) == Ok(config.ranks);
    if all && store.get(REACHED_AT, Instant::now())?.is_none() {
        store.set(REACHED_AT, b"")?;
    }
    if towards.is_some() {
        return Ok(towards);
    }
    // If no rank sets it in time, the exchange that follows names the ranks that have not come.
    let Some(address) = store.get(REACHED_AT, deadline)? else { return Ok(None) };
    Ok(String::from_utf8_lossy(&address).parse().ok())
}

#[cfg(test)]
mod tests {
    use unisono_transport::Transport as _;

    use super::*;

    /// Ranks that report one host, with their own endpoints.
    fn ranks(count: usize) -> (Vec<shm::Endpoint>, Vec<SharedMemoryInfo>) {
        let open = |_| shm::Endpoint::open().unwrap();
        let endpoints: Vec<_> = (0..count).map(open).collect();
        let info = |endpoint: &shm::Endpoint| SharedMemoryInfo {
            host: Host { name: "alpha".into(), ..Host::here() },
            provider: None,
            refused: None,
            address: endpoint.address().0.clone(),
        };
        let all = endpoints.iter().map(info).collect();
        (endpoints, all)
    }

    fn encoded<T: Serialize>(all: &[T]) -> Vec<Vec<u8>> {
        all.iter().map(|value| postcard::to_allocvec(value).unwrap()).collect()
    }

    /// The final state of rank 0, its conclusion and the number of rounds, if ranks try as `probe` says.
    fn found(
        all: &[SharedMemoryInfo],
        tries: impl Fn(Rank, &[Vec<u8>]) -> ProbeResult,
    ) -> (HostGroups, std::result::Result<Connectivity, Failure>, u32) {
        let mut groups = HostGroups::default();
        let mut said = groups.begin(&encoded(all));
        for round in 0.. {
            match said {
                Ok(None) => {}
                Ok(Some(connectivity)) => return (groups, Ok(connectivity), round),
                Err(failure) => return (groups, Err(failure), round),
            }
            let result = |rank: Rank| {
                let Some(candidates) = groups.unresolved_scope(rank).map(|scope| &groups.candidates[&scope])
                else {
                    return Ok(None);
                };
                let addresses: Vec<_> = candidates.iter().map(|&rank| all[rank].address.clone()).collect();
                tries(rank, &addresses)
            };
            let results: Vec<ProbeResult> = (0..all.len()).map(result).collect();
            said = groups.take_results(&encoded(&results), round);
        }
        unreachable!()
    }

    /// Ranks that really try.
    fn discovered(all: &[SharedMemoryInfo]) -> (HostGroups, Connectivity) {
        let (groups, connectivity, _) = found(all, |rank, addresses| probe(&all[rank].address, addresses));
        (groups, connectivity.unwrap())
    }

    /// Ranks of machines of this many ranks each, which all report one host.
    fn cloned(
        all: &[SharedMemoryInfo],
        each: usize,
    ) -> (HostGroups, std::result::Result<Connectivity, Failure>, u32) {
        let machine = |address: &Vec<u8>| all.iter().position(|it| it.address == *address).unwrap() / each;
        found(all, |rank, addresses| Ok(addresses.iter().position(|address| machine(address) == rank / each)))
    }

    fn why(connectivity: &Connectivity) -> &str {
        match connectivity {
            Connectivity::Fabric { why, .. } => why,
            Connectivity::SharedMemory => "",
        }
    }

    #[test]
    fn ranks_of_one_host_reach_the_first_of_them_that_has_shared_memory() {
        let (_endpoints, mut all) = ranks(4);
        let (groups, connectivity) = discovered(&all);
        assert_eq!(
            (&groups.leaders[..], connectivity),
            (&[0, 0, 0, 0].map(Some)[..], Connectivity::SharedMemory)
        );
        all[0].refused = Some("there is none".into());
        let (groups, connectivity) = discovered(&all);
        assert_eq!(groups.leaders, [None, Some(1), Some(1), Some(1)]);
        let why = "rank 0 on alpha has no shared memory: there is none".to_owned();
        assert_eq!(connectivity, Connectivity::Fabric { shared: true, why });
    }

    /// No rank reaches a closed endpoint, just as no rank reaches one of another machine.
    #[test]
    fn ranks_that_only_report_one_host_share_no_memory() {
        let (mut endpoints, mut all) = ranks(4);
        endpoints.drain(..2);
        let (groups, connectivity) = discovered(&all);
        assert_eq!(groups.leaders, [0, 1, 2, 2].map(Some));
        assert!(matches!(connectivity, Connectivity::Fabric { shared: true, .. }), "{connectivity:?}");

        let (groups, connectivity, _) = cloned(&all, 2);
        assert_eq!(groups.leaders, [0, 0, 2, 2].map(Some));
        let connectivity = connectivity.unwrap();
        assert!(
            why(&connectivity).starts_with("boot_id says that all ranks are on one host"),
            "{connectivity:?}"
        );
        all.iter_mut().for_each(|info| info.provider = Some(SHM.into()));
        let message = cloned(&all, 2).1.unwrap_err().to_string();
        assert!(message.contains("snapshot: ranks 0, 1 on alpha, ranks 2, 3 on alpha;"), "{message}");
    }

    #[test]
    fn many_machines_of_one_snapshot_are_found_in_few_rounds() {
        let (_endpoints, few) = ranks(1);
        let address = |number: u64| number.to_le_bytes().to_vec();
        for (ranks, each) in [(2_u64, 1), (300, 1), (300, 3), (300, 299)] {
            let all: Vec<_> = (0..ranks)
                .map(|rank| SharedMemoryInfo { address: address(rank), ..few[0].clone() })
                .collect();
            let (groups, connectivity, rounds) = cloned(&all, each);
            assert!((0..all.len()).all(|rank| groups.leaders[rank] == Some(rank / each * each)));
            assert!(
                matches!(connectivity, Ok(Connectivity::Fabric { shared, .. }) if shared == (each > 1)),
                "{connectivity:?}"
            );
            assert!(rounds <= 5, "{rounds} rounds");
        }
    }

    #[test]
    fn a_rank_that_may_not_try_shares_no_memory() {
        let (_endpoints, all) = ranks(3);
        let tries = |rank, _: &[Vec<u8>]| match rank {
            1 => Err("it may not connect".to_owned()),
            _ => Ok(Some(0)),
        };
        let (groups, connectivity, _) = found(&all, tries);
        assert_eq!(groups.leaders, [Some(0), None, Some(0)]);
        let why = "rank 1 on alpha has no shared memory: it may not connect".to_owned();
        assert_eq!(connectivity, Ok(Connectivity::Fabric { shared: true, why }));
        let (_, message, _) = found(&all, |_, _| Ok(Some(1)));
        let message = message.unwrap_err().to_string();
        assert_eq!(message, "rank 0 could not join: it says that it reaches number 1 of 1 ranks");
    }

    #[test]
    fn ranks_that_drew_the_same_name_share_no_memory() {
        let (_endpoints, mut all) = ranks(3);
        all[2].address = all[0].address.clone();
        let (groups, connectivity) = discovered(&all);
        assert_eq!(groups.leaders, [None; 3]);
        assert!(why(&connectivity).contains("the same random name"), "{connectivity:?}");
        assert!(matches!(connectivity, Connectivity::Fabric { shared: false, .. }), "{connectivity:?}");
        all[2].host.id.network += 1;
        assert_eq!(discovered(&all).0.leaders, [0, 0, 2].map(Some), "they do not say they are on one host");
    }

    #[test]
    fn ranks_that_ask_for_a_fabric_try_nothing() {
        let (_endpoints, mut all) = ranks(2);
        all.iter_mut().for_each(|info| info.provider = Some("tcp".into()));
        let (_, connectivity, rounds) = found(&all, |_, _| unreachable!());
        let why = "the provider is tcp".to_owned();
        assert_eq!((connectivity, rounds), (Ok(Connectivity::Fabric { shared: false, why }), 0));
        all[1].provider = None;
        assert!(found(&all, |_, _| unreachable!()).1.is_err());
    }
}
