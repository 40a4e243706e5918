//! Chooses the algorithm, the messages and the lanes of a call: by the tables of the fabric and hosts, or by the cost model where no
//! table applies.
//!
//! The choice depends only on data that is the same on all ranks, so that they choose the same.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use super::{
    built_in::{
        BuiltIn, INFINIBAND, ONE_HOST, OWN_CORES, SHARED_CORES, SHM_OWN_CORES, SHM_SLOTS, SHM_SLOTS_OWN_CORES,
    },
    choice::{Choice, FEW},
    model,
    shown::PlainMemory,
};
use crate::{
    Collective, Kind, Spread, Topology,
    algorithm::{ALGORITHMS, Algorithm},
    cost::Fabric,
};

/// A source of choices.
#[derive(Clone, Copy)]
enum Source {
    Table(&'static BuiltIn),
    Model,
    /// The cost model of fewer ranks, if an algorithm of two levels is the fastest among these.
    Levels,
}

static CROWDED_HOST: &[Source] =
    &[Source::Table(&SHARED_CORES), Source::Table(&ONE_HOST), Source::Table(&INFINIBAND)];
static CROWDED_SHM_HOST: &[Source] = &[
    Source::Table(&SHM_SLOTS),
    Source::Table(&SHARED_CORES),
    Source::Table(&ONE_HOST),
    Source::Table(&INFINIBAND),
];
static SHM_HOST: &[Source] = &[
    Source::Table(&SHM_SLOTS_OWN_CORES),
    Source::Table(&SHM_SLOTS),
    Source::Table(&SHM_OWN_CORES),
    Source::Table(&OWN_CORES),
    Source::Table(&ONE_HOST),
    Source::Table(&INFINIBAND),
];
static HOST: &[Source] = &[Source::Table(&OWN_CORES), Source::Table(&ONE_HOST), Source::Table(&INFINIBAND)];
static PORT_EACH: &[Source] = &[Source::Table(&INFINIBAND)];
static HOSTS: &[Source] = &[Source::Model, Source::Table(&INFINIBAND)];
static MANY_HOSTS: &[Source] = &[Source::Levels, Source::Table(&INFINIBAND)];

/// Algorithms with their prices (s), the fastest first.
type Order = Arc<[(&'static Algorithm, f64)]>;

/// Chooses for the ranks of one group. The cost model's order of algorithms for a collective and a class of sizes is computed when it
/// is first needed, in some milliseconds, and kept.
pub struct Chooser {
    topology: Topology,
    fabric: Fabric,
    hosts: Box<[u32]>,
    priced: Mutex<HashMap<(Collective, u32), Order>>,
}

impl Chooser {
    /// Chooses for ranks at these places. `hosts` has the number of each rank's host, counted from 0. Both must be the same on all
    /// ranks.
    #[must_use]
    pub fn new(topology: Topology, hosts: &[u32]) -> Self {
        let mut here = HashMap::new();
        hosts.iter().for_each(|host| *here.entry(host).or_insert(0) += 1);
        let most = here.values().copied().max().unwrap_or(topology.ranks);
        Self::with(topology, Fabric::of(&topology, most), hosts.into())
    }

    /// Chooses for `ranks` ranks on a fabric, with consecutive ranks on a host.
    #[must_use]
    pub fn on(fabric: &Fabric, ranks: usize) -> Self {
        let per_host = fabric.ranks_per_host.max(1);
        let host = |rank| u32::try_from(rank / per_host).unwrap_or(u32::MAX);
        Self::with(fabric.topology(ranks), *fabric, (0..ranks.min(model::MOST_RANKS)).map(host).collect())
    }

    fn with(topology: Topology, fabric: Fabric, hosts: Box<[u32]>) -> Self {
        Self { topology, fabric, hosts, priced: Mutex::default() }
    }

    /// The places of the ranks.
    #[must_use]
    pub const fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The fabric that the cost model simulates.
    #[must_use]
    pub const fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// The hosts of the ranks ([`Job::spread`](crate::Job::spread)).
    #[must_use]
    pub fn spread(&self) -> Spread<'_> {
        if self.hosts.len() == self.topology.ranks {
            Spread::Of(&self.hosts)
        } else {
            Spread::Even(self.fabric.ranks_per_host)
        }
    }

    /// The sources that are asked in turn. Measurements inside one host do not hold between hosts.
    fn sources(&self) -> &'static [Source] {
        let Topology { ranks, hosts, .. } = self.topology;
        // This looks at the hosts of all ranks, so that a call asks it only if it must.
        let levels = || self.spread().has_levels(ranks);
        let port_each = self.fabric.kind == Kind::Rdma && self.fabric.has_port_each(ranks);
        let shares = self.topology.network.kind == Kind::SharedMemory;
        match () {
            () if hosts <= 1 && shares && self.topology.crowded() => CROWDED_SHM_HOST,
            () if hosts <= 1 && shares => SHM_HOST,
            () if hosts <= 1 && self.topology.crowded() => CROWDED_HOST,
            () if hosts <= 1 => HOST,
            () if port_each && ranks > FEW && !levels() => PORT_EACH,
            () if ranks <= model::MOST_RANKS => HOSTS,
            () if levels() => MANY_HOSTS,
            () => PORT_EACH,
        }
    }

    /// The choice for a collective of `bytes` bytes (the whole vector of an all_reduce, a reduce or a broadcast, one
    /// rank's block otherwise) among the algorithms that are `allowed`; `None` if none of these can do it.
    #[must_use]
    pub fn choose(
        &self,
        collective: Collective,
        bytes: usize,
        allowed: impl Fn(&Algorithm) -> bool,
    ) -> Option<Choice> {
        let ranks = self.topology.ranks;
        let chosen = self.sources().iter().find_map(|source| match source {
            Source::Table(built_in) => built_in.table().choose(collective, ranks, bytes, &allowed),
            Source::Model => {
                let algorithm = self.fastest(collective, bytes, &allowed)?;
                Some(model::shape(algorithm, collective, ranks, bytes))
            }
            Source::Levels => {
                let algorithm = self.levels(collective, bytes, &allowed)?;
                Some(model::shape(algorithm, collective, ranks, bytes))
            }
        });
        chosen.or_else(|| {
            // An algorithm that no source chooses gets the largest chunks and the most lanes.
            let algorithm = ALGORITHMS.iter().find(|it| it.supports(collective) && allowed(it))?;
            Some(Choice { algorithm, chunk_bytes: usize::MAX, lanes: usize::MAX, shown: None })
        })
    }

    /// The rows about plain memory of ranks that share slots, for a call in which a rank gives `bytes` bytes to all others together.
    pub fn shown(&self, collective: Collective, bytes: usize) -> impl Iterator<Item = PlainMemory> {
        let own_cores = (!self.topology.crowded()).then_some(&SHM_SLOTS_OWN_CORES);
        let (tables, ranks) = (own_cores.into_iter().chain([&SHM_SLOTS]), self.topology.ranks);
        tables.flat_map(move |it| it.table().shown(collective, ranks, bytes))
    }

    /// The source of the choice, if all algorithms are allowed.
    fn decides(&self, collective: Collective, bytes: usize) -> Option<Source> {
        let has = |source: &&Source| match source {
            Source::Table(built_in) => {
                built_in.table().find(collective, self.topology.ranks, bytes, |_| true).is_some()
            }
            Source::Model => true,
            Source::Levels => self.levels(collective, bytes, |_| true).is_some(),
        };
        self.sources().iter().find(has).copied()
    }

    /// The reason for the choice if all algorithms are allowed, in words: the row of a table, or the cost model.
    #[must_use]
    pub fn reason(&self, collective: Collective, bytes: usize) -> Option<String> {
        let (size, name) = (1_u64 << model::class(bytes), self.fabric.name);
        Some(match self.decides(collective, bytes)? {
            Source::Table(built_in) => {
                let row = built_in.table().find(collective, self.topology.ranks, bytes, |_| true)?;
                format!("the row of {}: {row}", built_in.name)
            }
            Source::Model => {
                let hosts = self.topology.hosts;
                format!("the cost model: the fastest at {size} B between {hosts} hosts of {name}")
            }
            Source::Levels => {
                let (Topology { ranks, hosts, .. }, ..) = self.fewer();
                format!(
                    "the cost model: the fastest at {size} B among {ranks} ranks on {hosts} hosts of {name}"
                )
            }
        })
    }

    /// Half a sentence that says why this algorithm is not the choice if all are allowed, although a prediction says that it is faster.
    /// `None` if it is the choice, or cannot do the collective.
    #[must_use]
    pub fn why_not(&self, collective: Collective, bytes: usize, other: &Algorithm) -> Option<String> {
        let choice = self.choose(collective, bytes, |_| true)?.algorithm;
        let plan = other.plan(collective)?;
        if choice.code == other.code {
            return None;
        }
        let (ranks, name) = (self.topology.ranks, other.name);
        Some(match self.decides(collective, bytes) {
            Some(Source::Table(built_in)) if !std::ptr::eq(built_in, &INFINIBAND) => {
                "the table was measured, and that counts for more than a prediction".to_owned()
            }
            _ if ranks > FEW && plan.from_all => format!(
                "with {name} a rank receives from all others at once, and among more than {FEW} ranks the memory for that is saved"
            ),
            Some(Source::Levels) => {
                let (topology, ..) = self.fewer();
                format!(
                    "among more than {} ranks it is chosen as among {}",
                    model::MOST_RANKS,
                    topology.ranks
                )
            }
            _ if plan.flat.is_some() || plan.near => {
                format!("{name} is taken where it saves {:.0} % or more", 100.0 * model::GAIN)
            }
            Some(Source::Model) => {
                "in a call, sizes up to the same power of two are priced as one, and in part".to_owned()
            }
            _ => "the table has rows for any number of ranks, by what the cost model says of 16 to 1024"
                .to_owned(),
        })
    }

    /// The order of algorithms for a size's class, which `price` makes if it was not asked for before.
    fn order(
        &self,
        collective: Collective,
        bytes: usize,
        price: impl FnOnce(u32) -> Vec<(&'static Algorithm, f64)>,
    ) -> Order {
        let class = if collective == Collective::Barrier { 0 } else { model::class(bytes) };
        let mut priced = self.priced.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(priced.entry((collective, class)).or_insert_with(|| price(class).into()))
    }

    /// The algorithm of two levels that the cost model chooses among so few ranks that a call can wait for it.
    fn levels(
        &self,
        collective: Collective,
        bytes: usize,
        allowed: impl Fn(&Algorithm) -> bool,
    ) -> Option<&'static Algorithm> {
        let order = self.order(collective, bytes, |class| {
            let (topology, fabric, hosts) = self.fewer();
            model::order(collective, &topology, &fabric, &hosts, class)
        });
        let (fastest, _) = order.iter().find(|(algorithm, _)| allowed(algorithm))?;
        fastest.plan(collective).is_some_and(|plan| plan.flat.is_some()).then_some(*fastest)
    }

    /// As many hosts, and as many ranks on each, as the cost model simulates for a call. Consecutive ranks are on a host, because
    /// algorithms of two levels gain the least there.
    fn fewer(&self) -> (Topology, Fabric, Vec<u32>) {
        let each = self.fabric.ranks_per_host.clamp(1, FEW);
        let hosts = self.topology.hosts.min(model::MOST_RANKS / each);
        // As many ranks share each core and port as in the whole group.
        let part = |of: usize| (of.saturating_mul(each) / self.fabric.ranks_per_host.max(1)).max(1);
        let (cores, ports) = (part(self.fabric.cores), part(self.fabric.ports));
        let fabric = Fabric { ranks_per_host: each, cores, ports, ..self.fabric };
        let host = |rank| u32::try_from(rank / each).unwrap_or(u32::MAX);
        (fabric.topology(each * hosts), fabric, (0..each * hosts).map(host).collect())
    }

    /// The fastest allowed algorithm by the cost model.
    fn fastest(
        &self,
        collective: Collective,
        bytes: usize,
        allowed: impl Fn(&Algorithm) -> bool,
    ) -> Option<&'static Algorithm> {
        let mut able = ALGORITHMS.iter().filter(|it| it.supports(collective) && allowed(it));
        let first = able.next()?;
        if able.next().is_none() {
            return Some(first);
        }
        let order = self.order(collective, bytes, |class| {
            model::order(collective, &self.topology, &self.fabric, &self.hosts, class)
        });
        // If there is one level, the user may allow only algorithms of two levels, which the order leaves out.
        order.iter().map(|(algorithm, _)| *algorithm).find(|algorithm| allowed(algorithm)).or(Some(first))
    }

    /// The sizes at which another row is taken, in ascending order.
    #[cfg(test)]
    pub(crate) fn borders(&self, collective: Collective) -> Vec<usize> {
        let ranks = self.topology.ranks;
        let tables = || {
            self.sources().iter().filter_map(|source| match source {
                Source::Table(built_in) => Some(built_in.table()),
                Source::Model | Source::Levels => None,
            })
        };
        let row = |bytes| {
            let mut rows = tables().filter_map(|table| table.find(collective, ranks, bytes, |_| true));
            rows.next().map(std::ptr::from_ref)
        };
        let mut borders: Vec<_> = tables().flat_map(|table| table.limits(collective, ranks)).collect();
        borders.retain(|&most| row(most) != row(most + 1));
        borders.sort_unstable();
        borders.dedup();
        borders
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Collective::{AllReduce, Barrier, Broadcast},
        Job, Network,
        select::{
            choice::{direct, neighbours},
            table::Row,
        },
    };

    const KIB: usize = 1 << 10;
    const MIB: usize = 1 << 20;

    fn chooser(topology: Topology) -> Chooser {
        let per_host = topology.ranks.div_ceil(topology.hosts);
        let hosts: Vec<_> =
            (0..topology.ranks.min(100)).map(|rank| u32::try_from(rank / per_host).unwrap()).collect();
        Chooser::new(topology, &hosts)
    }

    #[test]
    fn there_is_always_a_choice_that_can_do_it() {
        for collective in Collective::ALL {
            for ranks in [1, 2, 3, 4, 5, 8, 9, 1000, usize::MAX] {
                for cores in [1, ranks] {
                    let chooser = chooser(Topology { cores, ..Topology::one_host(ranks) });
                    for bytes in [0, 1, 8, 4096, 1 << 20, 1 << 40, usize::MAX] {
                        let choice = chooser.choose(collective, bytes, |_| true).unwrap();
                        assert!(choice.algorithm.supports(collective), "{collective:?} {choice:?}");
                        assert!(
                            choice.lanes > 0
                                && choice.chunk_bytes > 0
                                && choice.chunk_bytes.is_multiple_of(64)
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_choice_has_a_reason() {
        let reason = |topology, collective, bytes| chooser(topology).reason(collective, bytes).unwrap();
        assert_eq!(
            reason(Topology::one_host(4), AllReduce, 64 * KIB),
            "the row of tcp-own-cores.tuning: all_reduce ranks 4 bytes 256K rabenseifner chunk 128K..256K lanes 2"
        );
        assert_eq!(
            reason(Topology::one_host(2), AllReduce, MIB),
            "the row of one-host.tuning: all_reduce ranks ..4 bytes any two_shot chunk 128K..256K lanes 3"
        );
        let shm = Topology { network: Network::new(Kind::SharedMemory), ..Topology::one_host(2) };
        assert_eq!(
            reason(shm, AllReduce, MIB),
            "the row of shm-slots-own-cores.tuning: all_reduce ranks ..2 bytes any recursive_doubling chunk 128K lanes 2"
        );
        let few = Topology { cores: 2, ..Topology::one_host(8) };
        assert!(
            reason(few, Barrier, 0).starts_with("the row of tcp-shared-cores.tuning: barrier ranks ..64")
        );
        let many = Topology { ranks: 1000, cores: 1000, hosts: 1000, network: Network::new(Kind::Rdma) };
        assert_eq!(
            reason(many, Broadcast, MIB),
            "the row of infiniband.tuning: broadcast ranks any bytes 128K/rank tree chunk 128K..256K lanes 4"
        );
        let hosts = Topology { hosts: 2, ..Topology::new(4) };
        assert_eq!(
            reason(hosts, AllReduce, MIB),
            "the cost model: the fastest at 1048576 B between 2 hosts of tcp-10g"
        );
    }

    /// The number of sources that rank 0 has by a row, with default windows; and true if they are for small messages.
    fn sources(row: &Row, ranks: usize, bytes: usize) -> (usize, bool) {
        let choice = row.choice(ranks, usize::MAX).within(256 * KIB, 32 * KIB, 2);
        let job = Job {
            chunk: choice.chunk_bytes,
            lanes: choice.lanes,
            direct: direct(row.collective, ranks, bytes, 256 * KIB, true),
            ..Job::new(row.collective, 0, ranks, if row.collective == Barrier { 0 } else { bytes })
        };
        let schedule = row.algorithm.make(&job).unwrap();
        let mut sources = 0;
        schedule.sources(&mut |_| sources += 1);
        (sources, schedule.is_small(1, 32 * KIB))
    }

    #[test]
    fn neighbours_are_all_that_rows_come_to_but_for_those_who_take_from_everybody() {
        for ranks in [2, 3, 8, 9, 16, 100, 257, 1000] {
            let (small, chunks) = neighbours(ranks);
            let rows = [&OWN_CORES, &SHM_SLOTS_OWN_CORES, &SHM_OWN_CORES, &ONE_HOST, &INFINIBAND];
            for row in
                rows.into_iter().flat_map(|it| it.table().rows().iter()).filter(|row| row.is_for(ranks))
            {
                for bytes in [8, 20 * KIB, 8 * MIB] {
                    let (sources, is_small) = sources(row, ranks, bytes);
                    let most = if is_small { small } else { chunks };
                    let from_all = row.algorithm.plan(row.collective).unwrap().from_all;
                    assert!(sources <= most || from_all, "{row} among {ranks}: {sources} sources, {most}");
                }
            }
        }
    }

    #[test]
    fn between_hosts_the_model_decides_and_all_ranks_alike() {
        // 16 MiB among 2 hosts of 4 ranks: each pair's bytes through one port would take three times as long.
        let topology = Topology { hosts: 2, cores: 8, ..Topology::new(8) };
        let slow = Topology { network: Network { megabits: 1000, ..topology.network }, ..topology };
        let taken = |topology, hosts: &[u32], bytes| {
            Chooser::new(topology, hosts).choose(AllReduce, bytes, |_| true).unwrap().algorithm.name
        };
        let blocks = [0, 0, 0, 0, 1, 1, 1, 1];
        assert_eq!(taken(slow, &blocks, 16 * MIB), "rabenseifner");
        // Halves of a vector go between hosts, where neighbours are on different ones; but not if all hosts have a part of it.
        let order = |hosts: &[u32]| {
            let fabric = Fabric::of(&slow, 4);
            model::order(AllReduce, &slow, &fabric, hosts, model::class(16 * MIB))
        };
        let in_turn = [0, 1, 0, 1, 0, 1, 0, 1];
        assert!(["leader", "lanes"].contains(&taken(slow, &in_turn, 16 * MIB)));
        let flat = |hosts| {
            let order: Vec<(&Algorithm, f64)> = order(hosts);
            let fastest = order.iter().find(|(it, _)| it.plan(AllReduce).unwrap().flat.is_none());
            fastest.map(|it| it.1).unwrap()
        };
        assert!(flat(&in_turn) > 2.0 * flat(&blocks));
        assert!(order(&in_turn)[0].1 < 1.05 * flat(&blocks));
        assert_eq!(taken(slow, &in_turn, 4 * KIB), "leader");
        let four = Topology::new(4);
        assert_eq!(taken(Topology { network: slow.network, ..four }, &[0, 1, 2, 3], 8), "direct");
        // If no host has two ranks, there is one level.
        let alone = model::order(AllReduce, &four, &Fabric::of(&four, 1), &[0, 1, 2, 3], 3);
        assert!(alone.iter().all(|(it, _)| it.plan(AllReduce).unwrap().flat.is_none()));
    }

    #[test]
    fn many_ranks_on_hosts_take_two_levels_where_fewer_would() {
        let many = Chooser::on(&Fabric { ranks_per_host: 64, cores: 64, ..Fabric::TCP_1G }, 128 * 64);
        let taken = |collective, bytes| many.choose(collective, bytes, |_| true).unwrap().algorithm.name;
        assert_eq!(taken(Broadcast, 64 * KIB), "lanes");
        assert_eq!(
            many.reason(Broadcast, 64 * KIB).unwrap(),
            "the cost model: the fastest at 65536 B among 32 ranks on 4 hosts of tcp-1g"
        );
        assert_eq!(taken(AllReduce, 8), "recursive_doubling");
        for collective in Collective::ALL {
            assert!(many.choose(collective, usize::MAX, |_| true).unwrap().algorithm.supports(collective));
        }
        assert!(many.reason(AllReduce, 8).unwrap().starts_with("the row of infiniband.tuning"));
        let not = many.choose(Broadcast, 64 * KIB, |it| it.name != "lanes");
        assert!(not.is_some_and(|it| it.algorithm.plan(Broadcast).unwrap().flat.is_none()));
        // A rank on each host.
        for fabric in [Fabric::TCP_1G, Fabric::NDR400] {
            let chooser = Chooser::on(&Fabric { ranks_per_host: 1, ..fabric }, 128);
            assert!(chooser.reason(Broadcast, 64 * KIB).unwrap().starts_with("the row of infiniband.tuning"));
        }
    }

    #[test]
    fn what_is_not_allowed_is_not_taken() {
        let chooser = chooser(Topology { hosts: 2, ..Topology::new(4) });
        let only = |name: &'static str| chooser.choose(AllReduce, MIB, move |it| it.name == name);
        for name in ["ring", "tree", "star"] {
            assert_eq!(only(name).unwrap().algorithm.name, name);
        }
        assert!(only("bruck").is_none());
        let not = chooser.choose(AllReduce, MIB, |it| it.name != "rabenseifner" && it.name != "ring");
        assert!(not.is_some_and(|choice| !["rabenseifner", "ring"].contains(&choice.algorithm.name)));
    }
}
