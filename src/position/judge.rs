//! Whether ranks can go on, from where all of them stand: calls that differ, waits for ranks that leave, and ranks that wait
//! for each other.

use std::collections::{BTreeMap, btree_map::Entry};

use unisono_schedule::Rank;

use super::{Called, Stage, Stand, Wait};
use crate::error::Failure;

/// For how long nothing of a rank must have moved, in milliseconds: longer than it takes to ask all ranks. So there was a
/// moment at which all of them stood as they say.
const QUIET: u64 = 700;

/// How many waits a failure names.
const NAMED: usize = 8;

/// Why ranks cannot go on, if that is certain. A rank that computes, or does not answer, may yet do anything.
pub(crate) fn judge(stands: &[Option<Stand>]) -> Option<Failure> {
    differ(stands).or_else(|| leaves(stands)).or_else(|| deadlock(stands))
}

fn known(stands: &[Option<Stand>]) -> impl Iterator<Item = (Rank, &Stand)> {
    stands.iter().enumerate().filter_map(|(rank, stand)| Some((rank, stand.as_ref()?)))
}

/// A group, an operation, and two ranks.
type At<'s> = (&'s str, u64, Rank, Rank);

/// Two ranks whose operations of one number in one group differ: the first such operation, and the lowest ranks.
fn differ(stands: &[Option<Stand>]) -> Option<Failure> {
    let mut first: BTreeMap<(u64, u64), (Rank, &str, &Called)> = BTreeMap::new();
    let mut found: Option<(At<'_>, Failure)> = None;
    for (rank, stand) in known(stands) {
        for group in &stand.groups {
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
                    found = Some((at, Called::differ(label.into(), op, (lowest, theirs), (rank, called))));
                }
            }
        }
    }
    found.map(|(_, failure)| failure)
}

/// Whether a rank can do nothing before another does, and could not while all were asked.
fn is_stuck(stand: &Stand) -> bool {
    stand.blocked.is_some_and(|blocked| blocked >= QUIET)
}

/// Whether all that one rank has sent another has arrived there.
fn settled(stands: &[Option<Stand>], from: Rank, to: Rank) -> bool {
    let stand = |rank: Rank| stands.get(rank).and_then(Option::as_ref);
    let sent = stand(from).map(|stand| stand.traffic(to).map_or(0, |it| it.sent));
    sent.is_some() && sent == stand(to).map(|stand| stand.traffic(from).map_or(0, |it| it.arrived))
}

/// A rank that waits for one that leaves, which has not entered that operation and never will, or sends it no message any
/// more.
fn leaves(stands: &[Option<Stand>]) -> Option<Failure> {
    let leaving = |rank: &&Rank| {
        let stand = stands.get(**rank).and_then(Option::as_ref);
        stand.filter(|stand| matches!(stand.stage, Stage::Leaves | Stage::Left))
    };
    known(stands).filter(|(_, stand)| matches!(stand.stage, Stage::Calls)).find_map(|(rank, stand)| {
        stand.waits().filter(|wait| wait.op.is_some() || wait.receives).find_map(|wait| {
            let mut without = wait.ranks.iter().filter(|other| {
                let gone = leaving(other).is_some_and(|stand| wait.is_without(stand));
                gone && **other != rank && settled(stands, **other, rank)
            });
            let left = *without.next()?;
            // What comes from any rank may yet come from another, or from another thread of this one.
            let itself = wait.ranks.contains(&rank) && is_stuck(stand) && settled(stands, rank, rank);
            (wait.op.is_some() || wait.ranks.len() == 1 + without.count() + usize::from(itself))
                .then(|| Failure::Left { rank: left, waits: (rank, wait.says()) })
        })
    })
}

/// Ranks none of which can go on before another of them does.
fn deadlock(stands: &[Option<Stand>]) -> Option<Failure> {
    let mut stuck: Vec<bool> = stands
        .iter()
        .map(|stand| stand.as_ref().is_some_and(|stand| is_stuck(stand) && stand.waits().next().is_some()))
        .collect();
    loop {
        let mut moves = Vec::new();
        for (rank, stand) in known(stands).filter(|(rank, _)| stuck.get(*rank) == Some(&true)) {
            let on = |other: &Rank| stuck.get(*other) == Some(&true) && settled(stands, *other, rank);
            if !stand.waits().all(|wait| !wait.ranks.is_empty() && wait.ranks.iter().all(on)) {
                moves.push(rank);
            }
        }
        if moves.is_empty() {
            break;
        }
        moves.into_iter().for_each(|rank| stuck[rank] = false);
    }
    let first = stuck.iter().position(|&stuck| stuck)?;
    Some(Failure::Deadlock { waits: circle(stands, first) })
}

/// Who waits for whom in what, from this rank on until it comes to one that was named: that one and those behind it.
fn circle(stands: &[Option<Stand>], first: Rank) -> Vec<(Rank, String, Rank)> {
    let mut waits: Vec<(Rank, String, Rank)> = Vec::new();
    let mut at = first;
    while let Some(Some(stand)) = stands.get(at) {
        if let Some(from) = waits.iter().position(|(rank, ..)| *rank == at) {
            waits.drain(..from);
            break;
        }
        // Rather for a rank that is elsewhere than for one in the same operation.
        let others = |wait: Wait<'_>| {
            let says = wait.says();
            let whom = wait.ranks.iter().map(move |&other| {
                let elsewhere =
                    stands.get(other).and_then(Option::as_ref).is_none_or(|it| wait.is_without(it));
                (!elsewhere, other)
            });
            whom.min().map(|(here, other)| (here, other, says))
        };
        let Some((_, other, says)) = stand.waits().filter_map(others).min() else { break };
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
        super::{GroupStand, MessageStand, Running, Traffic},
        *,
    };

    fn called(call: &str) -> Called {
        Called { call: call.into(), count: 1, algorithm: "ring".into(), root: 0, chunk: 1, lanes: 1 }
    }

    /// A group of id `id` in whose operation `op` a rank is.
    fn inside(id: u64, op: u64, call: &str, waits: &[Rank]) -> GroupStand {
        GroupStand {
            id,
            label: if id == 0 { String::new() } else { format!("g{id}") },
            begun: op + 1,
            latest: vec![called(call)],
            running: Some(Running { steps: 0, waits: waits.to_vec() }),
            messages: Vec::new(),
        }
    }

    fn outside(id: u64, begun: u64) -> GroupStand {
        GroupStand { id, label: format!("g{id}"), begun, ..GroupStand::default() }
    }

    fn receives(call: &str, waits: &[Rank]) -> GroupStand {
        let message = MessageStand { call: call.into(), receives: true, waits: waits.to_vec() };
        GroupStand { messages: vec![message], ..GroupStand::default() }
    }

    fn blocked(groups: Vec<GroupStand>) -> Stand {
        Stand { stage: Stage::Calls, blocked: Some(QUIET), groups, traffic: Vec::new() }
    }

    fn words(stands: &[Stand]) -> Option<String> {
        let stands: Vec<_> = stands.iter().cloned().map(Some).collect();
        judge(&stands).map(|failure| failure.to_string())
    }

    /// Two groups called in different order.
    fn crossed() -> [Stand; 2] {
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
    fn whoever_may_move_is_no_deadlock() {
        let changes: [fn(&mut [Stand; 2]); 6] = [
            // It computes, or a thread of it does; it has moved just now; it does not answer.
            |stands| stands[0].blocked = None,
            |stands| stands[0].blocked = Some(QUIET - 1),
            |stands| stands[0] = Stand::of(Stage::Busy),
            // Something is on its way.
            |stands| stands[0].traffic.push(Traffic { rank: 1, sent: 7, arrived: 0 }),
            // It goes on by itself.
            |stands| stands[1].groups[0].running = Some(Running { steps: 0, waits: Vec::new() }),
            |stands| stands[1].groups.push(inside(3, 0, "barrier()", &[])),
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let mut stands = crossed();
            change(&mut stands);
            assert_eq!(words(&stands), None, "change {number}");
        }
        let [one, two] = crossed();
        // A third rank, which computes, may be what another thread's call waits for.
        let mut three = [one, two, Stand { blocked: None, ..Stand::of(Stage::Calls) }];
        three[0].groups.push(inside(3, 0, "barrier()", &[2]));
        assert_eq!(words(&three), None);
    }

    #[test]
    fn what_has_arrived_is_not_on_its_way() {
        let mut stands = crossed();
        stands[0].traffic = vec![Traffic { rank: 1, sent: 7, arrived: 5 }];
        stands[1].traffic = vec![Traffic { rank: 0, sent: 5, arrived: 7 }];
        assert!(words(&stands).is_some());
    }

    #[test]
    fn messages_that_nobody_sends_are_a_deadlock() {
        let stands = [
            blocked(vec![receives("recv(f32, from 1, tag 1)", &[1])]),
            blocked(vec![receives("recv(f32, from any, tag 2)", &[0, 1, 2])]),
            blocked(vec![inside(0, 2, "barrier()", &[0])]),
        ];
        let told = words(&stands).unwrap();
        assert!(
            told.contains("rank 0 in recv(f32, from 1, tag 1) for rank 1, rank 1 in recv(f32, from any"),
            "{told}"
        );
        let alone = [blocked(vec![receives("recv(f32, from 0, tag 1)", &[0])])];
        assert_eq!(
            words(&alone).as_deref(),
            Some("ranks wait for each other: rank 0 in recv(f32, from 0, tag 1) for rank 0")
        );
        // Of any rank, one that computes may yet send it.
        let [one, two, _] = stands;
        assert_eq!(words(&[one, two, Stand::of(Stage::Calls)]), None);
    }

    #[test]
    fn calls_that_differ_are_named_in_the_usual_sentence() {
        let scatter = |root| format!("scatter(f32, root {root})");
        let mut stands: Vec<Stand> =
            (0..4).map(|rank| blocked(vec![inside(7, 2, &scatter(u8::from(rank > 1)), &[0])])).collect();
        // Whether it is there still or not.
        stands[2].groups[0].running = None;
        stands[2].blocked = None;
        let wanted = "group g7: op 2: rank 0 calls scatter(f32, root 0), rank 2 calls scatter(f32, root 1)";
        assert_eq!(words(&stands).as_deref(), Some(wanted));
        // One that has gone on remembers.
        stands[2].groups[0].begun = 4;
        stands[2].groups[0].latest.insert(0, called("barrier()"));
        assert_eq!(words(&stands).as_deref(), Some(wanted));
        // The same numbers of different groups say nothing.
        stands.iter_mut().zip([0, 1, 2, 3]).for_each(|(stand, id)| {
            stand.groups[0].id = id;
            stand.blocked = None;
        });
        assert_eq!(words(&stands), None);
    }

    #[test]
    fn whoever_leaves_is_not_waited_for() {
        let leaves =
            Stand { stage: Stage::Leaves, ..blocked(vec![inside(0, 4, "leave()", &[1]), outside(1, 3)]) };
        let waits = Stand { blocked: None, ..blocked(vec![inside(1, 3, "barrier()", &[0])]) };
        let wanted = "rank 0 has left, and rank 1 waits for it in op 3 barrier() of group g1";
        assert_eq!(words(&[leaves.clone(), waits.clone()]).as_deref(), Some(wanted));
        // Unless it has done its part.
        let mut done = leaves.clone();
        done.groups[1].begun = 4;
        assert_eq!(words(&[done, waits]), None);
        let receive = Stand { blocked: None, ..blocked(vec![receives("recv(u8, from 0, tag 1)", &[0])]) };
        let wanted = "rank 0 has left, and rank 1 waits for it in recv(u8, from 0, tag 1)";
        assert_eq!(words(&[leaves.clone(), receive.clone()]).as_deref(), Some(wanted));
        let mut sent = leaves.clone();
        sent.traffic.push(Traffic { rank: 1, sent: 1, arrived: 0 });
        assert_eq!(words(&[sent, receive]), None);
        // From any: all others must have, and it must have no thread that may send it.
        let any = blocked(vec![receives("recv(u8, from any, tag 1)", &[0, 1, 2])]);
        let computes = Stand::of(Stage::Calls);
        assert_eq!(words(&[leaves.clone(), any.clone(), computes]), None);
        assert!(words(&[leaves.clone(), any.clone(), leaves.clone()]).is_some());
        let computes = Stand { blocked: None, ..any };
        assert_eq!(words(&[leaves.clone(), computes, leaves]), None);
    }
}
