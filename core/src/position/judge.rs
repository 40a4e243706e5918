//! Finds the failure in the positions of all ranks: calls that differ, a wait for a rank that has left, or a deadlock.

use std::collections::{BTreeMap, btree_map::Entry};

use unisono_schedule::Rank;

use super::{CallRecord, Position, Stage, Wait};
use crate::error::Failure;

/// For how many milliseconds a rank must have been blocked. This is longer than it takes to ask all ranks, so that at one moment all of
/// them were at the positions that they report.
const QUIET: u64 = 700;

/// For how many milliseconds a rank that leaves must have been blocked before receives count that are under way at a rank that is not
/// blocked.
const LATE: u64 = 2000;

/// The most waits that a failure names.
const NAMED: usize = 8;

/// The reason why ranks cannot continue, if it is certain. A rank that computes, or does not answer, may still make any call.
#[doc(hidden)]
pub fn judge(positions: &[Option<Position>]) -> Option<Failure> {
    differ(positions).or_else(|| leaves(positions)).or_else(|| deadlock(positions))
}

fn known(positions: &[Option<Position>]) -> impl Iterator<Item = (Rank, &Position)> {
    positions.iter().enumerate().filter_map(|(rank, position)| Some((rank, position.as_ref()?)))
}

/// A group, an operation, and two ranks.
type At<'s> = (&'s str, u64, Rank, Rank);

/// Two ranks whose calls of one operation differ: the first such operation, and its lowest ranks.
fn differ(positions: &[Option<Position>]) -> Option<Failure> {
    let mut first: BTreeMap<(u64, u64), (Rank, &str, &CallRecord)> = BTreeMap::new();
    let mut found: Option<(At<'_>, Failure)> = None;
    for (rank, position) in known(positions) {
        for group in &position.groups {
            for (op, called) in (0..group.begun).rev().zip(&group.latest) {
                let (lowest, label, theirs) = match first.entry((group.id, op)) {
                    Entry::Vacant(place) => {
                        place.insert((rank, &group.label, called));
                        continue;
                    }
                    Entry::Occupied(place) => *place.get(),
                };
                let at = (label, op, lowest, rank);
                if theirs != called && found.as_ref().is_none_or(|(before, _)| at < *before) {
                    found =
                        Some((at, CallRecord::differ(label.into(), op, (lowest, theirs), (rank, called))));
                }
            }
        }
    }
    found.map(|(_, failure)| failure)
}

/// True if a rank has been blocked for as long as it took to ask all ranks.
fn is_stuck(position: &Position) -> bool {
    position.blocked.is_some_and(|blocked| blocked >= QUIET)
}

/// True if all puts of one rank to another have arrived.
fn settled(positions: &[Option<Position>], from: Rank, to: Rank) -> bool {
    let position = |rank: Rank| positions.get(rank).and_then(Option::as_ref);
    let sent = position(from).map(|position| position.traffic(to).map_or(0, |it| it.sent));
    sent.is_some() && sent == position(to).map(|position| position.traffic(from).map_or(0, |it| it.arrived))
}

/// A rank that waits for one that is leaving, and that will not enter the operation or send the message.
fn leaves(positions: &[Option<Position>]) -> Option<Failure> {
    let leaving = |rank: &&Rank| {
        let position = positions.get(**rank).and_then(Option::as_ref);
        position.filter(|position| matches!(position.stage, Stage::Leaves | Stage::Left))
    };
    known(positions).filter(|(_, position)| matches!(position.stage, Stage::Calls)).find_map(
        |(rank, position)| {
            position.waits().filter(|wait| wait.op.is_some() || wait.receives).find_map(|wait| {
                let mut without = wait.ranks.iter().filter(|other| {
                    let gone = leaving(other).is_some_and(|position| wait.is_without(position));
                    gone && **other != rank && settled(positions, **other, rank)
                });
                let left = *without.next()?;
                // A rank may leave with receives that it has begun: its program may still be going to leave.
                let stays = position.blocked.is_some()
                    || leaving(&&left).is_some_and(|it| it.stage == Stage::Left || it.blocked >= Some(LATE));
                // A message from any rank may still come from another rank, or from another thread of this one.
                let itself =
                    wait.ranks.contains(&rank) && is_stuck(position) && settled(positions, rank, rank);
                let all = wait.ranks.len() == 1 + without.count() + usize::from(itself);
                (wait.op.is_some() || stays && all)
                    .then(|| Failure::Left { rank: left, waits: (rank, wait.says()) })
            })
        },
    )
}

/// Ranks that wait for each other, so that none of them can continue before another one does.
fn deadlock(positions: &[Option<Position>]) -> Option<Failure> {
    let mut stuck: Vec<bool> = positions
        .iter()
        .map(|position| {
            position.as_ref().is_some_and(|position| is_stuck(position) && position.waits().next().is_some())
        })
        .collect();
    loop {
        let mut moves = Vec::new();
        for (rank, position) in known(positions).filter(|(rank, _)| stuck.get(*rank) == Some(&true)) {
            let on = |other: &Rank| stuck.get(*other) == Some(&true) && settled(positions, *other, rank);
            if !position.waits().all(|wait| !wait.ranks.is_empty() && wait.ranks.iter().all(on)) {
                moves.push(rank);
            }
        }
        if moves.is_empty() {
            break;
        }
        moves.into_iter().for_each(|rank| stuck[rank] = false);
    }
    let first = stuck.iter().position(|&stuck| stuck)?;
    Some(Failure::Deadlock { waits: cycle(positions, first) })
}

/// The cycle of waits that is reached from rank `first`: each rank, its call, and the rank that it waits for.
fn cycle(positions: &[Option<Position>], first: Rank) -> Vec<(Rank, String, Rank)> {
    let mut waits: Vec<(Rank, String, Rank)> = Vec::new();
    let mut at = first;
    while let Some(Some(position)) = positions.get(at) {
        if let Some(from) = waits.iter().position(|(rank, ..)| *rank == at) {
            waits.drain(..from);
            break;
        }
        // A rank outside the operation is preferred to one inside it.
        let others = |wait: Wait<'_>| {
            let says = wait.says();
            let ranks = wait.ranks.iter().map(move |&other| {
                let elsewhere =
                    positions.get(other).and_then(Option::as_ref).is_none_or(|it| wait.is_without(it));
                (!elsewhere, other)
            });
            ranks.min().map(|(here, other)| (here, other, says))
        };
        let Some((_, other, says)) = position.waits().filter_map(others).min() else { break };
        waits.push((at, says, other));
        at = other;
    }
    let lowest = waits.iter().enumerate().min_by_key(|(_, (rank, ..))| *rank).map_or(0, |(index, _)| index);
    waits.rotate_left(lowest);
    waits.truncate(NAMED);
    waits
}

#[cfg(test)]
mod tests {
    use super::{
        super::{GroupPosition, MessagePosition, Running, Traffic},
        *,
    };

    fn called(call: &str) -> CallRecord {
        CallRecord {
            call: call.into(),
            count: 1,
            algorithm: "ring".into(),
            contents: 0,
            uneven: false,
            chunk: 1,
            lanes: 1,
        }
    }

    /// A group of id `id` in whose operation `op` a rank is.
    fn inside(id: u64, op: u64, call: &str, waits: &[Rank]) -> GroupPosition {
        GroupPosition {
            id,
            label: if id == 0 { String::new() } else { format!("g{id}") },
            begun: op + 1,
            latest: vec![called(call)],
            running: Some(Running { steps: 0, waits: waits.to_vec() }),
            messages: Vec::new(),
        }
    }

    fn outside(id: u64, begun: u64) -> GroupPosition {
        GroupPosition { id, label: format!("g{id}"), begun, ..GroupPosition::default() }
    }

    fn receives(call: &str, waits: &[Rank]) -> GroupPosition {
        let message = MessagePosition { call: call.into(), receives: true, waits: waits.to_vec() };
        GroupPosition { messages: vec![message], ..GroupPosition::default() }
    }

    fn blocked(groups: Vec<GroupPosition>) -> Position {
        Position { stage: Stage::Calls, blocked: Some(QUIET), groups, traffic: Vec::new() }
    }

    fn words(positions: &[Position]) -> Option<String> {
        let positions: Vec<_> = positions.iter().cloned().map(Some).collect();
        judge(&positions).map(|failure| failure.to_string())
    }

    /// Two groups called in different order.
    fn crossed() -> [Position; 2] {
        [
            blocked(vec![inside(1, 3, "barrier()", &[1]), outside(2, 5)]),
            blocked(vec![inside(2, 5, "all_reduce(f32, sum)", &[0]), outside(1, 3)]),
        ]
    }

    #[test]
    fn groups_in_different_order_are_a_deadlock() {
        let wanted = "ranks wait for each other: rank 0 in op 3 barrier() of group g1 for rank 1, rank 1 in op 5 \
                      all_reduce(f32, sum) of group g2 for rank 0";
        assert_eq!(words(&crossed()).as_deref(), Some(wanted));
    }

    #[test]
    fn a_rank_that_may_move_is_no_deadlock() {
        let changes: [fn(&mut [Position; 2]); 6] = [
            // The rank or one of its threads computes; it has made progress just now; it does not answer.
            |positions| positions[0].blocked = None,
            |positions| positions[0].blocked = Some(QUIET - 1),
            |positions| positions[0] = Position::of(Stage::Busy),
            // A put is on its way.
            |positions| positions[0].traffic.push(Traffic { rank: 1, sent: 7, arrived: 0 }),
            // The rank waits for no rank.
            |positions| positions[1].groups[0].running = Some(Running { steps: 0, waits: Vec::new() }),
            |positions| positions[1].groups.push(inside(3, 0, "barrier()", &[])),
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let mut positions = crossed();
            change(&mut positions);
            assert_eq!(words(&positions), None, "change {number}");
        }
        let [one, two] = crossed();
        // A third rank, which computes, may be the rank that another thread's call waits for.
        let mut three = [one, two, Position { blocked: None, ..Position::of(Stage::Calls) }];
        three[0].groups.push(inside(3, 0, "barrier()", &[2]));
        assert_eq!(words(&three), None);
    }

    #[test]
    fn what_has_arrived_is_not_on_its_way() {
        let mut positions = crossed();
        positions[0].traffic = vec![Traffic { rank: 1, sent: 7, arrived: 5 }];
        positions[1].traffic = vec![Traffic { rank: 0, sent: 5, arrived: 7 }];
        assert!(words(&positions).is_some());
    }

    #[test]
    fn messages_that_nobody_sends_are_a_deadlock() {
        let positions = [
            blocked(vec![receives("recv(f32, from 1, tag 1)", &[1])]),
            blocked(vec![receives("recv(f32, from any, tag 2)", &[0, 1, 2])]),
            blocked(vec![inside(0, 2, "barrier()", &[0])]),
        ];
        let message = words(&positions).unwrap();
        assert!(
            message.contains("rank 0 in recv(f32, from 1, tag 1) for rank 1, rank 1 in recv(f32, from any"),
            "{message}"
        );
        let alone = [blocked(vec![receives("recv(f32, from 0, tag 1)", &[0])])];
        assert_eq!(
            words(&alone).as_deref(),
            Some("ranks wait for each other: rank 0 in recv(f32, from 0, tag 1) for rank 0")
        );
        // A receive from any rank: a rank that computes may yet send the message.
        let [one, two, _] = positions;
        assert_eq!(words(&[one, two, Position::of(Stage::Calls)]), None);
    }

    #[test]
    fn calls_that_differ_are_named_in_the_usual_sentence() {
        let scatter = |root| format!("scatter(f32, root {root})");
        let mut positions: Vec<Position> =
            (0..4).map(|rank| blocked(vec![inside(7, 2, &scatter(u8::from(rank > 1)), &[0])])).collect();
        // The result is the same if the rank's operation is no longer there.
        positions[2].groups[0].running = None;
        positions[2].blocked = None;
        let wanted = "group g7: op 2: rank 0 calls scatter(f32, root 0), rank 2 calls scatter(f32, root 1)";
        assert_eq!(words(&positions).as_deref(), Some(wanted));
        // A rank that has entered a later operation still reports this one.
        positions[2].groups[0].begun = 4;
        positions[2].groups[0].latest.insert(0, called("barrier()"));
        assert_eq!(words(&positions).as_deref(), Some(wanted));
        // The same operation numbers in different groups prove nothing.
        positions.iter_mut().zip([0, 1, 2, 3]).for_each(|(position, id)| {
            position.groups[0].id = id;
            position.blocked = None;
        });
        assert_eq!(words(&positions), None);
    }

    #[test]
    fn a_rank_that_leaves_is_not_waited_for() {
        let leaves =
            Position { stage: Stage::Leaves, ..blocked(vec![inside(0, 4, "leave()", &[1]), outside(1, 3)]) };
        let waits = Position { blocked: None, ..blocked(vec![inside(1, 3, "barrier()", &[0])]) };
        let wanted = "rank 0 has left, and rank 1 waits for it in op 3 barrier() of group g1";
        assert_eq!(words(&[leaves.clone(), waits.clone()]).as_deref(), Some(wanted));
        // This does not hold if the rank has done its part.
        let mut done = leaves.clone();
        done.groups[1].begun = 4;
        assert_eq!(words(&[done, waits]), None);
        let receive = blocked(vec![receives("recv(u8, from 0, tag 1)", &[0])]);
        let wanted = "rank 0 has left, and rank 1 waits for it in recv(u8, from 0, tag 1)";
        assert_eq!(words(&[leaves.clone(), receive.clone()]).as_deref(), Some(wanted));
        // A rank that is not blocked in it may be about to leave too, for a while.
        let begun = Position { blocked: None, ..receive.clone() };
        assert_eq!(words(&[leaves.clone(), begun.clone()]), None);
        let late = Position { blocked: Some(LATE), ..leaves.clone() };
        assert_eq!(words(&[late, begun]).as_deref(), Some(wanted));
        let mut sent = leaves.clone();
        sent.traffic.push(Traffic { rank: 1, sent: 1, arrived: 0 });
        assert_eq!(words(&[sent, receive]), None);
        // A receive from any rank: all other ranks must have left, and this rank must have no thread that may send the message.
        let any = blocked(vec![receives("recv(u8, from any, tag 1)", &[0, 1, 2])]);
        let computes = Position::of(Stage::Calls);
        assert_eq!(words(&[leaves.clone(), any.clone(), computes]), None);
        assert!(words(&[leaves.clone(), any.clone(), leaves.clone()]).is_some());
        let computes = Position { blocked: None, ..any };
        assert_eq!(words(&[leaves.clone(), computes, leaves]), None);
    }
}
