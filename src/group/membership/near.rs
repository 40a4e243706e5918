//! Finds out which ranks share memory. Ranks that say that they are on one host try to connect, because machines that were restored from
//! one snapshot say the same. Rank 0 names the first of these ranks; a rank that does not reach it tries the first of those that did not
//! reach it either.

use std::{
    collections::{BTreeMap, HashSet},
    time::Instant,
};

use serde::{Deserialize, Serialize};
use unisono_schedule::Rank;
use unisono_transport::{
    Address,
    mux::fabric_of,
    shm::{self, PROVIDER as SHM},
};

use super::{
    alike::{PROVIDER, PROVIDER_ADVICE, alike, cannot_reach},
    cards::{decide, decode_all},
};
use crate::{
    error::{Error, Failure, Result, clean, rank_list},
    rendezvous::Store,
    runtime::host::Host,
};

/// The data that every rank publishes before it opens libfabric.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Reach {
    pub(super) host: Host,
    /// The provider that the rank asks for.
    pub(super) provider: Option<String>,
    /// The reason why the rank cannot share memory, although its provider would allow it.
    pub(super) refused: Option<String>,
    /// The address of its shared memory; empty if it has none.
    pub(super) address: Vec<u8>,
}

/// How all ranks reach each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Ways {
    /// By memory that all ranks share.
    Memory,
    /// By libfabric, since not all ranks share memory; `shared` is true if some do.
    Fabric { shared: bool, why: String },
}

/// The index among the named ranks of the first whose shared memory this rank reaches, or the reason why it could not try.
pub(super) type Tried = std::result::Result<Option<usize>, String>;

/// The most characters of a reason.
const SHOWN: usize = 200;

/// The reason of ranks for which rank 0 names no rank to try.
const SAME_NAME: &str =
    "ranks have drawn the same random name, as on machines that were restored from one snapshot";

/// The store's key of the exchange.
const KEY: &str = "reach";

/// Finds out how all ranks reach each other, and the scope of the ranks that share memory with this one; `None` if this rank has no
/// shared memory.
pub(super) fn find(
    store: Option<&Store>,
    (rank, ranks): (Rank, usize),
    mine: &Reach,
    deadline: Instant,
) -> Result<(Ways, Option<u128>)> {
    let mut camps = Camps::default();
    let mut ways = decide(store, KEY, (rank, ranks), mine, deadline, |all| camps.begin(&all))?;
    let (mut able, mut first) = (mine.refused.is_none(), None::<Vec<u8>>);
    for round in 0.. {
        let store = match (ways, store) {
            (Some(ways), _) => {
                let first = first.as_ref().unwrap_or(&mine.address);
                return Ok((ways, able.then(|| mine.host.id.scope(first))));
            }
            (None, Some(store)) => store,
            (None, None) => break,
        };
        if rank == 0 {
            camps.name(store, round)?;
        }
        let mut tried = Ok(None);
        if able && first.is_none() {
            let mut named = named(store, round, mine, deadline)?;
            tried = try_them(&mine.address, &named);
            able = tried.is_ok();
            first = tried.as_ref().ok().copied().flatten().map(|at| named.swap_remove(at));
        }
        ways =
            decide(Some(store), &key(round), (rank, ranks), &tried, deadline, |all| camps.hear(&all, round))?;
    }
    Err(Error::Failed(Failure::Closed))
}

/// The store's key of a round in which ranks try to connect.
fn key(round: u32) -> String {
    format!("{KEY}/{round}")
}

/// The store's key at which rank 0 names the ranks that the ranks of a scope try.
fn place(round: u32, scope: u128) -> String {
    format!("{}/{scope:032x}", key(round))
}

/// The addresses that this rank tries in a round.
fn named(store: &Store, round: u32, mine: &Reach, deadline: Instant) -> Result<Vec<Vec<u8>>> {
    let broken = |problem: String| Error::Rendezvous { store: store.name().to_owned(), problem };
    let bytes = store.get(&place(round, mine.host.id.scope(&[])), deadline)?;
    let bytes = bytes.ok_or_else(|| broken("rank 0 has not named a rank to try in time".to_owned()))?;
    postcard::from_bytes(&bytes).map_err(|error| broken(format!("what rank 0 names cannot be read: {error}")))
}

/// Tries these addresses; this rank's address may be among them.
fn try_them(own: &[u8], named: &[Vec<u8>]) -> Tried {
    if named.is_empty() {
        return Err(SAME_NAME.to_owned());
    }
    for (at, address) in named.iter().enumerate() {
        let reached = address == own
            || shm::Endpoint::is_near(&Address(address.clone())).map_err(|it| it.to_string())?;
        if reached {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

/// The knowledge of rank 0 about which ranks share memory.
#[derive(Default)]
pub(super) struct Camps {
    all: Vec<Reach>,
    /// For every rank, the first rank that it reaches; `None` while this is not known.
    firsts: Vec<Option<Rank>>,
    /// By scope, the ranks that this round tries: ranks of the scope that have not reached a rank yet connect to them.
    named: BTreeMap<u128, Vec<Rank>>,
}

impl Camps {
    /// Takes the encoded values of all ranks. Returns how they reach each other, or `None` if they must try.
    pub(super) fn begin(&mut self, all: &[Vec<u8>]) -> std::result::Result<Option<Ways>, Failure> {
        self.all = decode_all(all)?;
        self.firsts = vec![None; all.len()];
        let asking = |reach: &Reach| reach.provider.clone().unwrap_or_else(|| "auto".to_owned());
        alike(PROVIDER, &self.all.iter().map(asking).collect::<Vec<_>>(), PROVIDER_ADVICE)?;
        if let Some(asked) = self.asked().filter(|&asked| asked != SHM && fabric_of(asked).is_none()) {
            let why = format!("the provider is {}", clean(asked, SHOWN));
            return Ok(Some(Ways::Fabric { shared: false, why }));
        }
        self.go_on(0)
    }

    /// Takes the results of ranks in the round; a rank that was named always reaches itself. Returns the same as [`begin`](Self::begin).
    pub(super) fn hear(&mut self, all: &[Vec<u8>], round: u32) -> std::result::Result<Option<Ways>, Failure> {
        let named = std::mem::take(&mut self.named);
        for (rank, tried) in decode_all::<Tried>(all)?.into_iter().enumerate() {
            let Some(named) = self.seeks(rank).and_then(|scope| named.get(&scope)) else { continue };
            match tried {
                _ if named.is_empty() => self.all[rank].refused = Some(SAME_NAME.to_owned()),
                Err(why) => self.all[rank].refused = Some(clean(&why, SHOWN)),
                Ok(None) => self.firsts[rank] = named.contains(&rank).then_some(rank),
                Ok(Some(at)) => {
                    let why = || format!("it says that it reaches number {at} of {} ranks", named.len());
                    let first = named.get(at).ok_or_else(|| Failure::Joining { rank, why: why() })?;
                    self.firsts[rank] = Some(*first);
                }
            }
        }
        self.go_on(round + 1)
    }

    /// Publishes the ranks that a round tries.
    fn name(&self, store: &Store, round: u32) -> Result<()> {
        self.named.iter().try_for_each(|(scope, named)| {
            let named: Vec<&[u8]> = named.iter().map(|&rank| &self.all[rank].address[..]).collect();
            store.set(&place(round, *scope), &postcard::to_allocvec(&named).unwrap_or_default())
        })
    }

    fn asked(&self) -> Option<&str> {
        self.all.first()?.provider.as_deref()
    }

    /// The scope that this rank has published, if it has not reached a rank there yet.
    fn seeks(&self, rank: Rank) -> Option<u128> {
        let seeks = self.all[rank].refused.is_none() && self.firsts[rank].is_none();
        seeks.then(|| self.all[rank].host.id.scope(&[]))
    }

    /// Names the ranks that this round tries, or concludes if no rank has another one to try.
    fn go_on(&mut self, round: u32) -> std::result::Result<Option<Ways>, Failure> {
        let mut seeking: BTreeMap<u128, Vec<Rank>> = BTreeMap::new();
        for rank in 0..self.all.len() {
            if let Some(scope) = self.seeks(rank) {
                seeking.entry(scope).or_default().push(rank);
            }
        }
        if seeking.values().any(|ranks| ranks.len() > 1) {
            for ranks in seeking.values_mut() {
                let mut names = HashSet::new();
                let differ = ranks.iter().all(|&rank| names.insert(&self.all[rank].address));
                // A few rounds find all groups among a hundred machines that were restored from one snapshot.
                ranks.truncate(if differ { 4_usize.saturating_pow(round) } else { 0 });
            }
            self.named = seeking;
            return Ok(None);
        }
        seeking.into_values().flatten().for_each(|rank| self.firsts[rank] = Some(rank));
        self.conclude().map(Some)
    }

    fn conclude(&self) -> std::result::Result<Ways, Failure> {
        let Some(why) = self.apart() else { return Ok(Ways::Memory) };
        if self.asked() == Some(SHM) {
            return Err(cannot_reach(SHM, &why));
        }
        let mut seen = HashSet::new();
        let alone = self.firsts.iter().flatten().all(|first| seen.insert(first));
        Ok(Ways::Fabric { shared: !alone, why: clean(&why, SHOWN) })
    }

    /// The reason why these ranks cannot share memory, if there is one.
    fn apart(&self) -> Option<String> {
        let refused = |(rank, reach): (Rank, &Reach)| {
            let why = reach.refused.as_ref()?;
            Some(format!("rank {rank} on {} has no shared memory: {why}", reach.host.name))
        };
        let hosts: Vec<_> = self.all.iter().map(|reach| (reach.host.name.as_str(), reach.host.id)).collect();
        let message = self.all.iter().enumerate().find_map(refused).or_else(|| Host::apart(&hosts));
        message.or_else(|| self.unreached())
    }

    /// The error if ranks say that they are on one host and are not.
    fn unreached(&self) -> Option<String> {
        let mut camps: BTreeMap<Rank, Vec<Rank>> = BTreeMap::new();
        for (rank, first) in self.firsts.iter().enumerate() {
            camps.entry((*first)?).or_default().push(rank);
        }
        let camp = |(first, ranks): (&Rank, &Vec<Rank>)| {
            format!("{} on {}", rank_list(ranks), self.all[*first].host.name)
        };
        (camps.len() > 1).then(|| {
            format!(
                "boot_id says that all ranks are on one host, but they cannot connect there, as on machines that were restored from one \
                 snapshot: {}",
                camps.iter().map(camp).collect::<Vec<_>>().join(", ")
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use unisono_transport::Transport as _;

    use super::*;

    /// Ranks of one host, as they say, with their own endpoints.
    fn ranks(count: usize) -> (Vec<shm::Endpoint>, Vec<Reach>) {
        let open = |_| shm::Endpoint::open().unwrap();
        let endpoints: Vec<_> = (0..count).map(open).collect();
        let reach = |endpoint: &shm::Endpoint| Reach {
            host: Host { name: "alpha".into(), ..Host::here() },
            provider: None,
            refused: None,
            address: endpoint.address().0.clone(),
        };
        let all = endpoints.iter().map(reach).collect();
        (endpoints, all)
    }

    fn encoded<T: Serialize>(all: &[T]) -> Vec<Vec<u8>> {
        all.iter().map(|value| postcard::to_allocvec(value).unwrap()).collect()
    }

    /// The final state of rank 0, its conclusion and the number of rounds, if ranks try as `tries` says.
    fn found(
        all: &[Reach],
        tries: impl Fn(Rank, &[Vec<u8>]) -> Tried,
    ) -> (Camps, std::result::Result<Ways, Failure>, u32) {
        let mut camps = Camps::default();
        let mut said = camps.begin(&encoded(all));
        for round in 0.. {
            match said {
                Ok(None) => {}
                Ok(Some(ways)) => return (camps, Ok(ways), round),
                Err(failure) => return (camps, Err(failure), round),
            }
            let tried = |rank: Rank| {
                let Some(named) = camps.seeks(rank).map(|scope| &camps.named[&scope]) else {
                    return Ok(None);
                };
                let named: Vec<_> = named.iter().map(|&rank| all[rank].address.clone()).collect();
                tries(rank, &named)
            };
            let tried: Vec<Tried> = (0..all.len()).map(tried).collect();
            said = camps.hear(&encoded(&tried), round);
        }
        unreachable!()
    }

    /// Ranks that really try.
    fn tried(all: &[Reach]) -> (Camps, Ways) {
        let (camps, ways, _) = found(all, |rank, named| try_them(&all[rank].address, named));
        (camps, ways.unwrap())
    }

    /// Ranks of machines of this many ranks each, which all say that they are on one host.
    fn cloned(all: &[Reach], each: usize) -> (Camps, std::result::Result<Ways, Failure>, u32) {
        let machine = |address: &Vec<u8>| all.iter().position(|it| it.address == *address).unwrap() / each;
        found(all, |rank, named| Ok(named.iter().position(|address| machine(address) == rank / each)))
    }

    fn why(ways: &Ways) -> &str {
        match ways {
            Ways::Fabric { why, .. } => why,
            Ways::Memory => "",
        }
    }

    #[test]
    fn ranks_of_one_host_reach_the_first_of_them_that_has_shared_memory() {
        let (_endpoints, mut all) = ranks(4);
        let (camps, ways) = tried(&all);
        assert_eq!((&camps.firsts[..], ways), (&[0, 0, 0, 0].map(Some)[..], Ways::Memory));
        all[0].refused = Some("there is none".into());
        let (camps, ways) = tried(&all);
        assert_eq!(camps.firsts, [None, Some(1), Some(1), Some(1)]);
        let why = "rank 0 on alpha has no shared memory: there is none".to_owned();
        assert_eq!(ways, Ways::Fabric { shared: true, why });
    }

    /// No rank reaches a closed endpoint, just as no rank reaches one of another machine.
    #[test]
    fn ranks_that_only_say_they_are_on_one_host_share_no_memory() {
        let (mut endpoints, mut all) = ranks(4);
        endpoints.drain(..2);
        let (camps, ways) = tried(&all);
        assert_eq!(camps.firsts, [0, 1, 2, 2].map(Some));
        assert!(matches!(ways, Ways::Fabric { shared: true, .. }), "{ways:?}");

        let (camps, ways, _) = cloned(&all, 2);
        assert_eq!(camps.firsts, [0, 0, 2, 2].map(Some));
        let ways = ways.unwrap();
        assert!(why(&ways).starts_with("boot_id says that all ranks are on one host"), "{ways:?}");
        all.iter_mut().for_each(|reach| reach.provider = Some(SHM.into()));
        let message = cloned(&all, 2).1.unwrap_err().to_string();
        assert!(message.contains("snapshot: ranks 0, 1 on alpha, ranks 2, 3 on alpha;"), "{message}");
    }

    #[test]
    fn many_machines_of_one_snapshot_are_found_in_few_rounds() {
        let (_endpoints, few) = ranks(1);
        let address = |number: u64| number.to_le_bytes().to_vec();
        for (ranks, each) in [(2_u64, 1), (300, 1), (300, 3), (300, 299)] {
            let all: Vec<_> =
                (0..ranks).map(|rank| Reach { address: address(rank), ..few[0].clone() }).collect();
            let (camps, ways, rounds) = cloned(&all, each);
            assert!((0..all.len()).all(|rank| camps.firsts[rank] == Some(rank / each * each)));
            assert!(matches!(ways, Ok(Ways::Fabric { shared, .. }) if shared == (each > 1)), "{ways:?}");
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
        let (camps, ways, _) = found(&all, tries);
        assert_eq!(camps.firsts, [Some(0), None, Some(0)]);
        let why = "rank 1 on alpha has no shared memory: it may not connect".to_owned();
        assert_eq!(ways, Ok(Ways::Fabric { shared: true, why }));
        let (_, message, _) = found(&all, |_, _| Ok(Some(1)));
        let message = message.unwrap_err().to_string();
        assert_eq!(message, "rank 0 could not join: it says that it reaches number 1 of 1 ranks");
    }

    #[test]
    fn ranks_that_drew_the_same_name_share_no_memory() {
        let (_endpoints, mut all) = ranks(3);
        all[2].address = all[0].address.clone();
        let (camps, ways) = tried(&all);
        assert_eq!(camps.firsts, [None; 3]);
        assert!(why(&ways).contains("the same random name"), "{ways:?}");
        assert!(matches!(ways, Ways::Fabric { shared: false, .. }), "{ways:?}");
        all[2].host.id.network += 1;
        assert_eq!(tried(&all).0.firsts, [0, 0, 2].map(Some), "they do not say they are on one host");
    }

    #[test]
    fn ranks_that_ask_for_a_fabric_try_nothing() {
        let (_endpoints, mut all) = ranks(2);
        all.iter_mut().for_each(|reach| reach.provider = Some("tcp".into()));
        let (_, ways, rounds) = found(&all, |_, _| unreachable!());
        let why = "the provider is tcp".to_owned();
        assert_eq!((ways, rounds), (Ok(Ways::Fabric { shared: false, why }), 0));
        all[1].provider = None;
        assert!(found(&all, |_, _| unreachable!()).1.is_err());
    }
}
