//! Collectives in two levels, in which ranks of a host read each other's scratch, by engines that one thread steps in random orders: ranks
//! that are late anywhere, one that stops for ever, and one that cannot map the scratch of the others, so that its host sends messages.

use super::{
    one_shot::{FlowWay, Planned, Player, assert_waits, players, step_in_any_order},
    *,
};
use crate::random::Random;

/// Ranks that are consecutive on hosts, in turn, and on hosts of different sizes.
const HOSTS: [&[u32]; 6] = [
    &[0, 0, 1, 1],
    &[0, 1, 0, 1],
    &[0, 0, 0, 1, 1],
    &[0, 1, 1, 2, 2, 2],
    &[0, 0, 1, 1, 2, 2],
    &[0, 0, 0, 0, 1, 1, 1, 1],
];

/// The operations of a program.
pub(super) const LEN: usize = 5;

fn program(random: &mut Random, hosts: &'static [u32]) -> Vec<Planned> {
    let collectives = [Collective::AllGather, Collective::ReduceScatter, Collective::AllToAll];
    let one = |_| {
        let way = FlowWay::Inside(["leader", "lanes"][random.below(2)], hosts);
        (collectives[random.below(3)], [1, 2, 9, 64, 333][random.below(5)], 0, way)
    };
    (0..LEN).map(one).collect()
}

/// Steps the ranks in an order of this seed. The rank that stops does so after a number of steps. One may be blind.
fn play(hosts: &'static [u32], seed: u64, stops: bool, blind: bool) {
    let (mut random, ranks) = (Random(seed), hosts.len());
    let program = program(&mut random, hosts);
    let mut players = players(ranks, blind.then(|| random.below(ranks)));
    let (stopped, steps) = (random.below(ranks), random.below(300));
    step_in_any_order(&mut players, &program, &mut random, stops.then_some((stopped, steps)));
    for player in &players {
        assert!(stops || player.has_ended(&program), "seed {seed}: rank {} has not ended", player.rank);
    }
    if stops && !players[stopped].has_ended(&program) {
        assert_waits(&players, stopped, ranks, seed);
    }
    players.into_iter().for_each(|player: Player| drop(player.engine.abandon()));
}

#[test]
fn hosts_read_in_place_in_every_order_of_steps() {
    for (at, hosts) in HOSTS.into_iter().enumerate() {
        for blind in [false, true] {
            (0..40).for_each(|seed| play(hosts, seed << 8 | at as u64, false, blind));
        }
    }
}

#[test]
fn a_rank_of_a_host_that_stops_is_waited_for() {
    for (at, hosts) in HOSTS.into_iter().enumerate() {
        for blind in [false, true] {
            (0..30).for_each(|seed| play(hosts, seed << 8 | at as u64, true, blind));
        }
    }
}
