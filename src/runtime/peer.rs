//! Where each rank runs, and what follows from it for all: how many ranks share a host, and how many run at once.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use unisono_schedule::Topology;

use super::{affinity::processors, host::Host};

/// Where a rank runs.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub(crate) struct PeerInfo {
    pub host: Host,
    /// The processors on which it may run.
    processors: Vec<u32>,
    /// How many it may use at once: fewer, where a control group limits its time.
    share: u32,
}

impl PeerInfo {
    /// Of this process.
    pub(crate) fn here() -> Self {
        let share = std::thread::available_parallelism().map_or(1, usize::from);
        // Of more processors than such a set has room for.
        let processors = processors().unwrap_or_else(|_| (0..share).collect());
        let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        Self {
            host: Host::here(),
            processors: processors.into_iter().map(number).collect(),
            share: number(share),
        }
    }

    /// How many of all ranks run on this host, and how many at once.
    pub(crate) fn shared_by<'p>(&self, all: impl Iterator<Item = &'p Self>) -> (usize, usize) {
        let here: Vec<_> = all.filter(|other| other.host.same_machine(&self.host)).collect();
        let mut containers: BTreeMap<u64, (BTreeSet<u32>, usize)> = BTreeMap::new();
        for peer in &here {
            let (processors, most) = containers.entry(peer.host.processes).or_default();
            processors.extend(&peer.processors);
            // Where the time of one is limited, all of its container are taken to share that limit.
            let limited = (peer.share as usize) < peer.processors.len();
            *most = (*most).max(if limited { peer.share as usize } else { 0 });
        }
        let processors: BTreeSet<u32> =
            containers.values().flat_map(|(processors, _)| processors).copied().collect();
        let at_once = containers.values().map(|(processors, most)| match most {
            0 => processors.len(),
            most => processors.len().min(*most),
        });
        (here.len(), at_once.sum::<usize>().min(processors.len()).max(1))
    }
}

/// How these ranks are spread over hosts and cores.
pub(crate) fn topology(peers: &[PeerInfo]) -> Topology {
    let hosts: BTreeMap<&str, &PeerInfo> = peers.iter().map(|peer| (peer.host.boot.as_str(), peer)).collect();
    let at_once = hosts.values().map(|peer| {
        let (ranks, cores) = peer.shared_by(peers.iter());
        ranks.min(cores)
    });
    Topology { ranks: peers.len(), cores: at_once.sum(), hosts: hosts.len() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(boot: &str, processors: &[u32], share: u32) -> PeerInfo {
        // All machines have one name, as many do.
        let host = Host { name: "localhost".to_owned(), boot: boot.to_owned(), processes: 1, ..Host::here() };
        PeerInfo { host, processors: processors.to_vec(), share }
    }

    #[test]
    fn this_process_runs_somewhere() {
        let here = PeerInfo::here();
        assert!(!here.processors.is_empty() && here.share > 0);
        assert_eq!(topology(std::slice::from_ref(&here)), Topology::new(1));
    }

    #[test]
    fn ranks_that_may_run_anywhere_share_all_processors() {
        let all = vec![peer("a", &[0, 1], 2); 8];
        assert_eq!(topology(&all), Topology { ranks: 8, cores: 2, hosts: 1 });
        assert_eq!(all[0].shared_by(all.iter()), (8, 2));
    }

    #[test]
    fn ranks_bound_to_a_processor_each_have_it() {
        let all: Vec<_> = (0..8).map(|rank| peer("a", &[rank], 1)).collect();
        assert_eq!(topology(&all), Topology { hosts: 1, ..Topology::new(8) });
    }

    #[test]
    fn a_limit_on_time_counts_for_the_host() {
        let all = vec![peer("a", &[0, 1, 2, 3], 2); 4];
        assert_eq!(topology(&all), Topology { ranks: 4, cores: 2, hosts: 1 });
    }

    #[test]
    fn containers_of_one_machine_share_its_cores_and_have_limits_of_their_own() {
        let mut all = vec![peer("a", &[0, 1, 2, 3], 1); 4];
        for (peer, container) in all.iter_mut().zip([1, 1, 2, 2]) {
            peer.host.processes = container;
            peer.host.name = format!("container{container}");
        }
        assert_eq!(topology(&all), Topology { ranks: 4, cores: 2, hosts: 1 });
        all.iter_mut().for_each(|peer| peer.share = 4);
        all.truncate(3);
        assert_eq!(topology(&all), Topology { ranks: 3, cores: 3, hosts: 1 });
        assert_eq!(all[0].shared_by(all.iter()), (3, 4));
    }

    #[test]
    fn hosts_of_one_name_count_each_by_itself() {
        let all = [peer("a", &[0, 1], 2), peer("b", &[0], 1), peer("b", &[0], 1), peer("b", &[0], 1)];
        assert_eq!(topology(&all), Topology { ranks: 4, cores: 2, hosts: 2 });
        assert_eq!(all[0].shared_by(all.iter()), (1, 2));
        assert_eq!(all[3].shared_by(all.iter()), (3, 1));
    }
}
