//! What algorithms for near ranks are for: elements that go a shorter way, and fewer between hosts, than by their like.

use unisono_schedule::{
    Collective::{self, AllGather, AllReduce, Broadcast, Reduce, ReduceScatter},
    Job, Step,
    algorithm::find,
};

use crate::papers::floor;

/// The sum over all elements that are sent of what `weight` gives for sender and receiver.
fn weighed(
    name: &str,
    collective: Collective,
    ranks: usize,
    weight: &dyn Fn(usize, usize) -> usize,
) -> usize {
    let algorithm = find(name).unwrap();
    let of = |rank| {
        let count = if collective.has_blocks() { 1 } else { ranks };
        let mut schedule = algorithm.make(&Job::new(collective, rank, ranks, count)).unwrap();
        let steps = std::iter::from_fn(move || schedule.next(0));
        steps.map(move |step| match step {
            Step::Put { to, from } => from.len * weight(rank, to),
            _ => 0,
        })
    };
    (0..ranks).flat_map(of).sum()
}

/// How many ranks away, around the end if that is shorter.
fn away(ranks: usize) -> impl Fn(usize, usize) -> usize {
    move |one, other| one.abs_diff(other).min(ranks - one.abs_diff(other))
}

/// Counts 1 for two ranks that are on different hosts of `each` consecutive ranks.
fn between(each: usize) -> impl Fn(usize, usize) -> usize {
    move |one, other| usize::from(one / each != other / each)
}

/// Collectives of bine, each with the algorithm that sends as much in as many hops.
const LIKE: [(Collective, &str); 5] = [
    (Broadcast, "binomial"),
    (Reduce, "binomial"),
    (AllReduce, "rabenseifner"),
    (ReduceScatter, "rabenseifner"),
    (AllGather, "rabenseifner"),
];

#[test]
fn by_bine_elements_go_three_quarters_of_the_way_or_less() {
    for (collective, like) in LIKE {
        for ranks in [8, 16, 32, 64] {
            let [bine, like] = ["bine", like].map(|name| weighed(name, collective, ranks, &away(ranks)));
            assert!(4 * bine <= 3 * like, "{collective:?} among {ranks}: {bine}, {like}");
        }
    }
}

#[test]
fn by_bine_less_goes_between_hosts_if_binary_trees_do_not_fit_them() {
    for (collective, like) in LIKE {
        let of = |each| ["bine", like].map(|name| weighed(name, collective, 32, &between(each)));
        let [bine, other] = of(5);
        assert!(bine < other, "{collective:?}: {bine}, {other}");
        // The far hops of a binary tree begin at the border of a host with a power of two of ranks.
        let [bine, other] = of(8);
        assert_eq!(bine < other, collective.has_blocks(), "{collective:?}: {bine}, {other}");
    }
}

#[test]
fn by_pat_a_rank_sends_few_blocks_to_other_hosts() {
    for collective in [AllGather, ReduceScatter] {
        for (hosts, each) in [(2, 4), (4, 4), (4, 8), (8, 4), (8, 2)] {
            let sent = weighed("pat", collective, hosts * each, &between(each));
            let of_each = 2 * (hosts - 1) + hosts * floor(each);
            assert_eq!(2 * sent, hosts * each * of_each, "{collective:?} on {hosts} hosts of {each}");
        }
    }
}
