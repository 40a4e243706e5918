//! `unisono simulate`, `explain` and `compare`: the cost model's predictions for collectives, alone and beside measured times.

pub(crate) mod compare;
pub(crate) mod explain;
mod fit;
mod goal;
pub(crate) mod measure_rank;
pub(crate) mod simulate;
mod sizes;

use unisono::{Config, dtype::Dtype};
use unisono_schedule::{
    Collective, Job, Spread,
    algorithm::{ALGORITHMS, Algorithm, Plan, find},
    cost::{Cost, Fabric, Unpriced, lower_bound},
    price::{Effort, price},
    select::{self, Choice, Chooser},
    windows,
};

use crate::{Result, words};

/// The most ranks that are simulated.
const MOST_RANKS: i64 = 100_000;

pub(crate) fn parse_collective(text: &str) -> std::result::Result<Collective, String> {
    words::known(text, Collective::parse(text), "collective", Collective::ALL.map(Collective::name))
}

fn parse_algorithm(text: &str) -> std::result::Result<&'static Algorithm, String> {
    words::known(text, find(text), "algorithm", ALGORITHMS.iter().map(|algorithm| algorithm.name))
}

fn parse_fabric(text: &str) -> std::result::Result<Fabric, String> {
    words::known(text, Fabric::parse(text), "fabric", Fabric::ALL.map(|fabric| fabric.name))
}

/// Parses a size of at least one byte.
fn parse_chunk(text: &str) -> std::result::Result<usize, String> {
    let bytes = unisono::config::parse_size(text)?;
    (bytes > 0).then_some(bytes).ok_or_else(|| "a chunk has at least one byte".to_owned())
}

/// The collective and the hosts of a prediction.
#[derive(clap::Args)]
pub(crate) struct About {
    /// all_reduce, reduce_scatter, all_gather, broadcast, barrier, reduce, gather, scatter or all_to_all
    #[arg(value_parser = parse_collective)]
    collective: Collective,
    /// The number of ranks [default: those of --hosts]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MOST_RANKS), required_unless_present = "hosts")]
    ranks: Option<u32>,
    /// The number of hosts [default: as many as the ranks need]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MOST_RANKS))]
    hosts: Option<u32>,
    /// The number of ranks on a host [default: ranks / hosts, or the fabric's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MOST_RANKS))]
    ranks_per_host: Option<u32>,
    /// The number of cores for the ranks of a host [default: the fabric's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    cores: Option<u32>,
    /// The size of the whole vector in bytes, as in `unisono bench`: for instance 8, 4K, 1M
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = unisono::config::parse_size)]
    bytes: usize,
}

impl About {
    /// The number of ranks, and the fabric with hosts as the options say.
    fn hosts(&self, fabric: &Fabric) -> Result<(usize, Fabric)> {
        let count = |count: Option<u32>| count.map(|count| count as usize);
        let (ranks, hosts, each) = (count(self.ranks), count(self.hosts), count(self.ranks_per_host));
        let per_host = match (ranks, hosts, each) {
            (Some(ranks), Some(hosts), None) => ranks.div_ceil(hosts),
            (.., each) => each.unwrap_or(fabric.ranks_per_host),
        };
        let ranks = ranks.or_else(|| hosts?.checked_mul(per_host)).unwrap_or(1);
        let fabric = Fabric {
            ranks_per_host: per_host,
            cores: count(self.cores).unwrap_or(fabric.cores),
            // If the fabric has a port for every rank, it still does.
            ports: fabric.ports.max(if fabric.ports >= fabric.ranks_per_host { per_host } else { 0 }),
            ..*fabric
        };
        if i64::try_from(ranks).is_ok_and(|ranks| ranks > MOST_RANKS) {
            return Err(format!("{ranks} ranks; at most {MOST_RANKS} are simulated").into());
        }
        let taken = fabric.hosts(ranks);
        match hosts.filter(|&hosts| taken != hosts) {
            Some(hosts) => {
                Err(format!("--hosts {hosts}: {ranks} ranks, {per_host} on a host, are on {taken}").into())
            }
            None => Ok((ranks, fabric)),
        }
    }
}

/// A collective, its size and the number of ranks.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) collective: Collective,
    pub(crate) ranks: usize,
    /// The fabric and how ranks are placed on hosts.
    pub(crate) fabric: Fabric,
    pub(crate) dtype: Dtype,
    /// Elements, as [`Collective`] counts them.
    pub(crate) count: usize,
    /// The most bytes of a message that the group's configuration allows.
    pub(crate) chunk: usize,
}

impl Case {
    /// A case of `bytes` bytes in the whole vector, as `unisono bench` counts them, rounded down to whole elements (of every block, if
    /// there are blocks), but not to 0. All ranks are on one host, each with a core, and have the default configuration.
    pub(crate) fn new(collective: Collective, ranks: usize, bytes: usize, dtype: Dtype) -> Self {
        let blocks = if collective.has_blocks() { ranks } else { 1 };
        let count = (bytes / dtype.size() / blocks.max(1)).max(usize::from(bytes > 0));
        let count = if collective == Collective::Barrier { 0 } else { count };
        let fabric = Fabric { ranks_per_host: ranks, cores: ranks, cheap_registration: false, ..Fabric::TCP };
        Self { collective, ranks, fabric, dtype, count, chunk: windows::CHUNK_BYTES }
    }

    /// The same case on another fabric.
    pub(crate) fn on(self, fabric: &Fabric) -> Self {
        Self { fabric: *fabric, ..self }
    }

    /// The chooser of its algorithm.
    pub(crate) fn chooser(&self) -> Chooser {
        Chooser::on(&self.fabric, self.ranks)
    }

    /// The choice of a group.
    fn chosen(&self) -> Option<Choice> {
        self.chooser().choose(self.collective, self.bytes(), |_| true)
    }

    /// Bytes as the table of algorithms counts them.
    pub(crate) fn bytes(&self) -> usize {
        self.count.saturating_mul(self.dtype.size())
    }

    /// Bytes that a rank gives to all others together.
    pub(crate) fn given(&self) -> usize {
        let job = Job::new(self.collective, 0, self.ranks, self.count);
        select::shown::given(&job, self.dtype.size())
    }

    /// Bytes of the whole vector.
    pub(crate) fn whole(&self) -> usize {
        let lengths = Job::new(self.collective, 0, self.ranks, self.count).lengths();
        lengths.map_or(usize::MAX, |(input, output)| input.max(output)).saturating_mul(self.dtype.size())
    }

    /// The seconds that every algorithm takes at least.
    fn bound(&self) -> f64 {
        lower_bound(self.collective, self.ranks, self.bytes(), &self.fabric)
    }

    /// The algorithms that can do it; those of two levels only where there are two.
    pub(crate) fn plans(&self) -> impl Iterator<Item = (&'static Algorithm, &'static Plan)> {
        let (collective, levels) = (self.collective, self.spread().has_levels(self.ranks));
        ALGORITHMS
            .iter()
            .filter_map(move |algorithm| algorithm.plan(collective).map(|plan| (algorithm, plan)))
            .filter(move |(_, plan)| levels || plan.flat.is_none())
    }

    /// Consecutive ranks share the hosts of the fabric.
    fn spread(&self) -> Spread<'static> {
        Spread::Even(self.fabric.ranks_per_host)
    }

    /// The choice of a group whose `UNISONO_ALGORITHM` allows only this algorithm.
    pub(crate) fn choice(&self, algorithm: &'static Algorithm) -> Choice {
        let config = Config::default();
        let only = |it: &Algorithm| it.code == algorithm.code;
        // If it cannot do it, it has no price either.
        let none = Choice { algorithm, chunk_bytes: self.chunk, lanes: config.lanes, shown: None };
        let choice = self.chooser().choose(self.collective, self.bytes(), only).unwrap_or(none);
        choice.within(self.chunk, config.eager(), config.lanes)
    }

    /// The job of rank 0 in the messages and lanes of a choice.
    pub(crate) fn job(&self, plan: &Plan, choice: &Choice) -> Job<'static> {
        let cheap = self.fabric.cheap_registration;
        let (direct, long) = select::writes(plan, self.ranks, self.bytes(), self.chunk, cheap);
        let chunk = (choice.chunk_bytes / self.dtype.size()).max(1);
        let job = Job::new(self.collective, 0, self.ranks, self.count);
        Job { chunk, lanes: choice.lanes, direct, long, spread: self.spread(), ..job }
    }

    /// `all_reduce of 4 MiB (1048576 f32) among 8 ranks`.
    fn describe(&self) -> String {
        let of = match self.count {
            0 if self.collective == Collective::Barrier => String::new(),
            _ => {
                let size = words::size(self.whole());
                format!(" of {size} ({} {})", self.whole() / self.dtype.size(), self.dtype.name())
            }
        };
        format!("{}{of} among {}", self.collective.name(), words::some(self.ranks, "rank"))
    }
}

/// The cases of these sizes, in ascending order, without those of as many elements as the one before.
pub(crate) fn distinct(sizes: Vec<usize>, case: impl Fn(usize) -> Case) -> Vec<Case> {
    let mut cases: Vec<_> = sizes.into_iter().map(case).collect();
    cases.dedup_by_key(|case| case.count);
    cases
}

/// A choice with its price or why it has none.
struct Priced {
    choice: Choice,
    plan: &'static Plan,
    cost: std::result::Result<Cost, Unpriced>,
}

impl Priced {
    fn of(case: &Case, plan: &'static Plan, choice: Choice, effort: Effort) -> Self {
        let cost = price(plan, &case.job(plan, &choice), case.dtype.size(), &case.fabric, effort);
        Self { choice, plan, cost }
    }

    fn name(&self) -> &'static str {
        self.choice.algorithm.name
    }

    fn seconds(&self) -> Option<f64> {
        self.cost.as_ref().ok().map(|cost| cost.seconds)
    }

    /// The time as text, with `~` if it is extrapolated.
    fn time(&self) -> String {
        match &self.cost {
            Ok(cost) => format!("{}{}", if cost.extrapolated { "~" } else { "" }, words::time(cost.seconds)),
            Err(_) => "-".to_owned(),
        }
    }
}

/// From this ratio on, a prediction and the choice differ so much that a measurement is worth its time.
const FAR: f64 = 2.0;

/// Why the library does not choose the algorithm that is predicted to be the fastest, in lines; empty if it does.
fn why_not_the_fastest(case: &Case, choice: &Algorithm, priced: &[Priced]) -> Option<String> {
    let fastest = &priced[fastest(priced)?];
    let chosen = priced.iter().find(|it| it.name() == choice.name)?;
    let why = case.chooser().why_not(case.collective, case.bytes(), fastest.choice.algorithm)?;
    let times = chosen.seconds()? / fastest.seconds()?;
    let (name, other) = (choice.name, fastest.name());
    let mut text = format!("{name}, which is predicted to take {times:.2} of {other}'s time: {why}");
    if times >= FAR {
        text += "\nSuch a difference is worth measuring: unisono tune, on these hosts, writes a table for UNISONO_TUNING";
    }
    Some(text)
}

/// The index of the fastest.
fn fastest(priced: &[Priced]) -> Option<usize> {
    let with_price = priced.iter().enumerate().filter_map(|(index, it)| Some((index, it.seconds()?)));
    with_price.min_by(|one, other| one.1.total_cmp(&other.1)).map(|(index, _)| index)
}

/// `InfiniBand NDR ...; here 2 hosts with 8 ranks, a core for each`.
fn describe(fabric: &Fabric, ranks: usize) -> String {
    let per_host = fabric.ranks_per_host.min(ranks);
    let cores = match fabric.crowd(ranks) > 1.0 {
        true => format!("which share {}", words::some(fabric.cores, "core")),
        false => "a core for each".to_owned(),
    };
    let (hosts, per_host) = (words::some(fabric.hosts(ranks), "host"), words::some(per_host, "rank"));
    format!("{}: {}; here {hosts} with {per_host}, {cores}", fabric.name, fabric.summary)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_algorithm_that_is_not_the_first_choice_takes_the_row_that_a_group_takes() {
        let case = Case::new(Collective::AllReduce, 4, 8 << 10, Dtype::F32);
        let cut = case.choice(find("two_shot").unwrap());
        let only = |it: &Algorithm| it.name == "two_shot";
        let choice = case.chooser().choose(Collective::AllReduce, 8 << 10, only).unwrap();
        assert!(choice.chunk_bytes < 256 << 10, "not what the configuration says anyway");
        assert_eq!(cut.chunk_bytes, choice.chunk_bytes);
    }

    #[test]
    fn sizes_that_come_to_the_same_are_one() {
        let case = |bytes| Case::new(Collective::AllGather, 100, bytes, Dtype::F32);
        let cases = distinct(vec![8, 64, 512, 1000, 4096], case);
        let all: Vec<_> = cases.iter().map(|case| (case.count, case.whole())).collect();
        assert_eq!(all, [(1, 400), (2, 800), (10, 4000)]);
    }
}
