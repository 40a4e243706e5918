//! Reads as much of the environment as possible although some of it is wrong: enough to tell the other ranks, which otherwise wait for this
//! one.

use super::{
    detect::job,
    families::{FAMILIES, Family},
    nearest::family,
    rendezvous::{RendezvousPoint, rendezvous_point},
    secret::token,
    variables::{Lookup, number},
};
use crate::config::Config;

/// The store at which this process can report that it cannot join.
pub(crate) struct Partial {
    /// Rank, world size, store and token; the rank is `usize::MAX` and the world size 0 if they are not known.
    pub(crate) config: Config,
    /// The job has one of these ids.
    pub(crate) jobs: Vec<String>,
}

/// Reads as much as possible; `None` if the store is not known.
pub(super) fn partial(variable: Lookup<'_>) -> Option<Partial> {
    let known = family(variable).ok().flatten().map(|(found, _)| found.family);
    let jobs: Vec<String> = match known {
        Some(family) => vec![job(variable, family)],
        None => FAMILIES.iter().map(|family| job(variable, family)).collect(),
    };
    let places = known.into_iter().chain(&FAMILIES);
    // With `usize::MAX` ranks, missing variables do not count as a world of one rank.
    let place = places.map(|family| {
        rendezvous_point(variable, family, usize::MAX, false, jobs.first().map_or("", String::as_str))
    });
    let store = place.filter_map(Result::ok).find_map(|point| match point {
        RendezvousPoint::Store(address) => Some(address),
        RendezvousPoint::ThisHost | RendezvousPoint::None => None,
    })?;
    let (rank, ranks) = who(variable, known).unwrap_or((usize::MAX, 0));
    let text = || variable("UNISONO_TOKEN").unwrap_or_default().into();
    let token = token(variable).unwrap_or_else(|_| text());
    let job = jobs.first().cloned().unwrap_or_default();
    let config = Config { rank, ranks, store: Some(store), token, job, ..Config::default() };
    Some(Partial { config, jobs })
}

/// The rank and the world size, if they are valid and no launcher contradicts them.
fn who(variable: Lookup<'_>, known: Option<&Family>) -> Option<(usize, usize)> {
    let of = |family: &Family| {
        let of = |name| number(variable, name).ok().flatten();
        of(family.rank).zip(of(family.ranks)).filter(|(rank, ranks)| rank < ranks)
    };
    if let Some(family) = known {
        return of(family);
    }
    let mut all = FAMILIES.iter().filter_map(of);
    let first = all.next()?;
    all.all(|other| other == first).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(set: &[(&str, &str)]) -> Option<(String, usize, usize, Vec<String>)> {
        let variable =
            |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        let Partial { config, jobs } = partial(&variable)?;
        Some((config.store?.to_string(), config.rank, config.ranks, jobs))
    }

    #[test]
    fn a_rank_with_a_wrong_variable_knows_where_to_tell() {
        let store = ("UNISONO_STORE", "tcp://10.0.0.1:4000");
        let at = |rank, ranks| Some(("tcp://10.0.0.1:4000".to_owned(), rank, ranks));
        let unknown = at(usize::MAX, 0);
        let launch_of = |set: &[(&str, &str)]| {
            of(&[set, &[store]].concat()).map(|(store, rank, ranks, _)| (store, rank, ranks))
        };
        let (one, three) = (("UNISONO_RANK", "1"), ("UNISONO_WORLD_SIZE", "3"));
        assert_eq!(
            launch_of(&[one, three, ("UNISONO_LOCAL_RANK", "9"), ("UNISONO_LOCAL_WORLD_SIZE", "3")]),
            at(1, 3)
        );
        assert_eq!(launch_of(&[one, three, ("UNISONO_LOCAL_RANK", "x")]), at(1, 3));
        assert_eq!(launch_of(&[("UNISONO_RANK", "x"), three]), unknown);
        assert_eq!(launch_of(&[("UNISONO_RANK", "3"), three]), unknown);
        assert_eq!(launch_of(&[three]), unknown);
        assert_eq!(launch_of(&[]), unknown);
        // Without a place to meet there is no store to report to.
        assert_eq!(of(&[one, three]), None);
    }

    #[test]
    fn the_place_and_the_job_of_other_launchers() {
        let torch = [("MASTER_ADDR", "10.0.0.1"), ("MASTER_PORT", "4000"), ("TORCHELASTIC_RUN_ID", "run")];
        let set = [&torch[..], &[("RANK", "1"), ("WORLD_SIZE", "x")]].concat();
        let (store, rank, ranks, jobs) = of(&set).unwrap();
        assert_eq!((store.as_str(), rank, ranks), ("tcp://10.0.0.1:4000", usize::MAX, 0));
        assert!(jobs.contains(&"run".to_owned()), "{jobs:?}");
    }
}
