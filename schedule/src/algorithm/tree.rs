//! Two trees: all_reduce, broadcast and reduce in ⌈log2 n⌉ hops up and down, with the full bandwidth of every rank. They suit large
//! messages among many ranks, and medium ones among very many.
//!
//! In a single binary tree, half of the ranks are leaves, which only send on the way up and only receive on the way down, so that
//! half of the bandwidth is unused. Here every rank but the root is a leaf in at least one of two trees and an inner node in the
//! other, and each tree carries one half of each round. Peter Sanders, Jochen Speck and Jesper Larsson Träff, "Two-tree algorithms
//! for full bandwidth broadcast, reduction and scan", Parallel Computing 35(12), 2009; NCCL's double binary trees are of this
//! kind. The paper sends chunks through the two trees alternately. Here each chunk is halved instead, because a lane's first
//! messages may not depend on the number of chunks.
//!
//! **The trees.** Places are counted from the root, which has place 0 and is above both trees; the other m = n-1 ranks have places
//! 1 to m. A tree over positions 1 to m is in-order: if the lowest set bit of a position is b, its children are at the distance b/2
//! on either side (on the right at a smaller distance if that position does not exist), so that odd positions are leaves. In the
//! first tree a rank's position is its place, in the second it is its place minus 1 (and m for place 1). So no rank is an inner
//! node twice; if m is odd, place 1 is a leaf twice.
//!
//! **Up and down.** On the way up, a rank reduces its children's contributions with its own, in the slot where the latest one
//! landed, and sends the result to its parent; the root writes it to its output. On the way down, a rank first forwards the message
//! from the slot where it landed, and then copies it. An all_reduce does both. Each element is reduced along one tree only, so that
//! all ranks get the same bits. A message on the way down proves that the rank's own contribution has reached the root, so that an
//! input that is also the output may be overwritten.
//!
//! **Order.** A round goes up in one event and down in another; each event has a part in both trees. On a lane, all ranks go
//! through the same events in the same order: first `delay` rounds go up, then going up and coming down alternate, and at last the
//! remaining rounds come down. So rounds go up while earlier ones travel to the root and back, which takes 2⌈log2 n⌉ hops; the delay
//! is this number of rounds on all lanes together. A longer delay would cost no bandwidth, because in each event an inner node with
//! two children sends two halves of a round and receives two; but the result that the root sends down would have left its caches.
//!
//! **No deadlock with one slot in each flow.** By induction: suppose that all earlier events end on all ranks. Then every slot is
//! free, because an event frees every message that it takes. In an event on the way up, a rank first sends as a leaf, which waits
//! for no rank, and then as an inner node, which waits for ranks below it in the same tree; no rank but the root is an inner node
//! twice. On the way down the order is reversed. So the parts of both trees end, and the event ends. (Only with two ranks do both
//! trees' messages of an event share a flow; both ranks handle them in the same order, and no step is between taking and freeing.)
//! The argument does not depend on which round an event handles, so any delay is correct if all ranks use the same.

use std::ops::Range;

use super::{
    Plan, Split,
    chunks::{Lanes, Pattern, PatternShape, Steps},
    doublings, wrapped,
};
use crate::{Collective, Job, Rank, Schedule, Span, Step, partition};

/// The plans of the two trees.
pub(super) const PLANS: &[Plan] = &[
    plan(Collective::AllReduce, |ranks| 2 * doublings(ranks)),
    plan(Collective::Broadcast, doublings),
    plan(Collective::Reduce, doublings),
];

const fn plan(collective: Collective, hops: fn(usize) -> usize) -> Plan {
    Plan { split: Split::Two, ..Plan::new(collective, TwoTrees::schedule, hops) }
}

/// The number of halves.
const HALVES: usize = 2;

/// This rank's neighbours in one tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seat {
    /// The half of each round that goes through this tree.
    half: usize,
    parent: Option<Rank>,
    /// The one with the smaller subtree first, which has gathered its contributions sooner. If there is only one, it is
    /// the first.
    children: [Option<Rank>; 2],
}

impl Seat {
    fn children(&self) -> usize {
        self.children.iter().flatten().count()
    }
}

/// The position above one of 1 to `last`.
const fn above(position: usize, last: usize) -> usize {
    let bit = 1 << position.trailing_zeros();
    let above = (position ^ bit) | (bit << 1);
    if above <= last { above } else { position ^ bit }
}

/// The positions below one of 0 to `last`, on the right and on the left. The right subtree is not larger than the left.
const fn below(position: usize, last: usize) -> (Option<usize>, Option<usize>) {
    if position == 0 {
        return (None, Some(1 << last.ilog2()));
    }
    let mut step = (1 << position.trailing_zeros()) / 2;
    let left = if step > 0 { Some(position - step) } else { None };
    while step > 0 && position + step > last {
        step /= 2;
    }
    (if step > 0 { Some(position + step) } else { None }, left)
}

/// One rank's part in the collective.
struct TwoTrees {
    count: usize,
    rounds: usize,
    /// The directions in which rounds go: up, and down.
    ways: (bool, bool),
    /// If rounds are written into outputs: those from this one on, which are not the first of their lanes.
    direct_from: Option<usize>,
    /// The number of rounds, on all lanes together, that go up before the first comes down.
    delay: usize,
    /// Its seats in both trees. In the first one it is a leaf or has one child.
    seats: [Seat; 2],
}

impl TwoTrees {
    fn schedule(job: &Job<'_>) -> Box<dyn Schedule> {
        let pattern = Self::new(job);
        // The number of lanes depends on the rounds alone, and not on the delay with which they come down.
        Lanes::schedule(&Job { lanes: job.lanes.min(pattern.rounds), ..*job }, pattern)
    }

    fn new(job: &Job<'_>) -> Self {
        let rounds = partition::rounds(job.count, HALVES, job.chunk);
        let lanes = job.lanes.min(rounds);
        let ways = (job.collective != Collective::Broadcast, job.collective != Collective::Reduce);
        let turns = (2 * doublings(job.ranks)).div_ceil(lanes).min((rounds - 1) / lanes);
        // A rank that sends up takes messages of ranks that never write to it. No half may be empty, because no write may be.
        let writes = job.direct && !ways.0 && rounds > lanes && job.count / rounds >= HALVES;
        Self {
            count: job.count,
            rounds,
            ways,
            direct_from: writes.then_some(lanes),
            delay: if ways == (true, true) { turns * lanes } else { 0 },
            seats: seats(job),
        }
    }

    fn range(&self, round: usize, seat: &Seat) -> Range<usize> {
        partition::piece(self.count, self.rounds, round, HALVES, seat.half)
    }

    /// Gathers the children's contributions to a half and sends the result up; of two children, only the first one's.
    fn up(&self, round: usize, seat: &Seat, steps: &mut Steps) {
        let range = self.range(round, seat);
        let mine = Span::input(range.start, range.len());
        match (seat.children[0], seat.parent) {
            (None, Some(parent)) => steps.put(parent, mine),
            (None, None) => {}
            (Some(child), parent) => {
                let landed = Span::landed(child, mine.len);
                let whole = Span::output(range.start, range.len());
                let (into, last) = if parent.is_some() { (landed, false) } else { (whole, true) };
                steps.take(child, mine.len);
                steps.push(Step::Reduce { a: landed, b: mine, into, last });
                if seat.children[1].is_some() {
                    return;
                }
                if let Some(parent) = parent {
                    steps.put(parent, landed);
                }
                steps.free(child);
            }
        }
    }

    /// Gathers the second child's contribution, if there is one, and sends the result up.
    fn rest_up(&self, round: usize, seat: &Seat, steps: &mut Steps) {
        let ([Some(first), Some(second)], Some(parent)) = (seat.children, seat.parent) else { return };
        let len = self.range(round, seat).len();
        let (sum, landed) = (Span::landed(first, len), Span::landed(second, len));
        steps.take(second, len);
        steps.push(Step::Reduce { a: sum, b: landed, into: landed, last: false });
        steps.free(first);
        steps.put(parent, landed);
        steps.free(second);
    }

    /// Hands a half down, and keeps it.
    fn down(&self, round: usize, seat: &Seat, steps: &mut Steps) {
        let range = self.range(round, seat);
        let place = Span::output(range.start, range.len());
        let direct = self.direct_from.is_some_and(|first| round >= first);
        match seat.parent {
            None => {
                for &child in seat.children.iter().flatten() {
                    steps.hand(direct, child, place, range.start);
                }
            }
            Some(parent) => steps.relay(direct, parent, place, seat.children.into_iter().flatten()),
        }
    }
}

impl Pattern for TwoTrees {
    /// A chunk is a round that goes up and the one that went up `delay` rounds before and comes down.
    fn shape(&self) -> PatternShape {
        PatternShape {
            chunks: self.rounds + self.delay,
            turns: 2 * (usize::from(self.ways.0) + usize::from(self.ways.1)),
            max_message: partition::longest(partition::longest(self.count, self.rounds), HALVES),
            direct: self.direct_from.is_some(),
            ..PatternShape::default()
        }
    }

    fn turn(&self, chunk: usize, turn: usize, steps: &mut Steps) {
        let [first, second] = &self.seats;
        if self.ways.0 && turn < 2 {
            if chunk >= self.rounds {
                return;
            }
            if turn == 0 {
                self.up(chunk, first, steps);
                self.up(chunk, second, steps);
            } else {
                self.rest_up(chunk, second, steps);
            }
        } else if let Some(round) = chunk.checked_sub(self.delay) {
            self.down(round, if turn.is_multiple_of(2) { second } else { first }, steps);
        }
    }

    fn sources(&self, visit: &mut dyn FnMut(Rank)) {
        let of = |seat: &Seat| {
            let [one, other] = seat.children.map(|child| child.filter(|_| self.ways.0));
            [one, other, seat.parent.filter(|_| self.ways.1)]
        };
        let [first, second] = self.seats.each_ref().map(of);
        first.iter().flatten().for_each(|&rank| visit(rank));
        second.iter().filter(|source| !first.contains(source)).flatten().for_each(|&rank| visit(rank));
    }
}

/// This rank's neighbours in both trees, first where it is a leaf.
fn seats(job: &Job<'_>) -> [Seat; 2] {
    let last = job.ranks - 1;
    let place = wrapped(job.rank + job.ranks - job.root, job.ranks);
    let rank = |place: usize| wrapped(place + job.root, job.ranks);
    // The place of a position in either tree.
    let place_of = |half: usize, position: usize| match (half, position) {
        (0, _) | (_, 0) => position,
        _ if position == last => 1,
        _ => position + 1,
    };
    let seat = |half: usize| {
        let position = match (half, place) {
            (0, _) | (_, 0) => place,
            (_, 1) => last,
            _ => place - 1,
        };
        let (right, left) = below(position, last);
        let neighbour = |position| rank(place_of(half, position));
        let children = if right.is_some() { [right, left] } else { [left, None] };
        Seat {
            half,
            parent: (place > 0).then(|| neighbour(above(position, last))),
            children: children.map(|child| child.map(neighbour)),
        }
    };
    let (first, second) = (seat(0), seat(1));
    // The root has one child in either.
    if place > 0 && first.children() > 0 { [second, first] } else { [first, second] }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seats of all ranks in the first and in the second tree.
    fn trees(ranks: usize, root: Rank) -> [Vec<Seat>; 2] {
        let job = |rank| Job { root, ..Job::new(Collective::AllReduce, rank, ranks, 1) };
        let seat_in = |half, rank| {
            let [first, second] = seats(&job(rank));
            assert!(first.children() < 2 && first.half + second.half == 1);
            if first.half == half { first } else { second }
        };
        [0, 1].map(|half| (0..ranks).map(|rank| seat_in(half, rank)).collect())
    }

    #[test]
    fn both_are_trees_below_the_root_and_none_is_inner_in_both() {
        for (ranks, root) in (2..=200).flat_map(|n| [0, 1, n / 2, n - 1].map(|root| (n, root))) {
            let trees = trees(ranks, root);
            for tree in &trees {
                let mut deepest = 0;
                for (rank, seat) in tree.iter().enumerate() {
                    for &child in seat.children.iter().flatten() {
                        assert_eq!(tree[child].parent, Some(rank), "{ranks} ranks, root {root}");
                    }
                    let (mut at, mut hops) = (rank, 0);
                    while let Some(parent) = tree[at].parent {
                        assert!(tree[parent].children.contains(&Some(at)), "{ranks} ranks, root {root}");
                        (at, hops) = (parent, hops + 1);
                        assert!(hops <= doublings(ranks), "{ranks} ranks, root {root}");
                    }
                    assert_eq!(at, root);
                    deepest = deepest.max(hops);
                }
                assert_eq!(deepest, doublings(ranks), "{ranks} ranks, root {root}");
                assert_eq!(tree[root].children(), 1);
            }
            let [first, second] = &trees;
            let inner = first.iter().zip(second).map(|(one, other)| [one, other].map(|it| it.children() > 0));
            let count = |wanted| inner.clone().filter(|&inner| inner == wanted).count();
            assert_eq!(count([true, true]), 1, "the root; {ranks} ranks, root {root}");
            assert_eq!(count([false, false]), 1 - ranks % 2, "{ranks} ranks, root {root}");
        }
    }

    /// What lane 0 does, as `u` for a round that goes up and `d` for one that comes down.
    fn events(job: &Job<'_>) -> String {
        let mut schedule = TwoTrees::schedule(job);
        let root_puts = |step| match step {
            Step::Reduce { last: true, .. } => Some('u'),
            Step::Put { .. } => Some('d'),
            _ => None,
        };
        let halves: Vec<char> = std::iter::from_fn(|| schedule.next(0)).filter_map(root_puts).collect();
        halves.chunks(HALVES).map(|event| event[0]).collect()
    }

    #[test]
    fn rounds_go_up_before_the_first_comes_down() {
        let job =
            |rounds, lanes| Job { chunk: 1, lanes, ..Job::new(Collective::AllReduce, 0, 4, rounds * HALVES) };
        assert_eq!(events(&job(1, 1)), "ud");
        assert_eq!(events(&job(3, 1)), "uuuddd");
        assert_eq!(events(&job(8, 1)), "uuuuududududdddd");
        assert_eq!(events(&job(16, 4)), "uudududd");
        assert_eq!(events(&job(3, 4)), "ud");
    }
}
