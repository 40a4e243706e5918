//! Groups of two ranks, made by these two alone.

use super::*;

#[test]
fn two_ranks_make_a_group_without_the_others() {
    world(5, small, |group| {
        // The ranks of a group have other numbers in it.
        let part = group.new_group(&[4, 2, 1]).unwrap();
        let Some(part) = part else { return };
        let pair = match part.rank() {
            0 => return,
            1 => part.open_pair(2, 7).unwrap(),
            _ => {
                let (pair, from) = part.join_pair(1, 7).unwrap();
                assert_eq!(from, 1);
                pair
            }
        };
        assert_eq!((pair.rank(), pair.members()), (part.rank() - 1, &[2, 1][..]));
        let mut data = [part.rank()].map(|rank| rank as u32);
        pair.all_reduce(&mut data, ReduceOp::Sum).unwrap();
        assert_eq!((data, part.operations()), ([3], 0));
    });
}

#[test]
fn all_make_pairs_with_each_other_at_once() {
    world(3, small, |group| {
        let twin = group.new_group(&[2, 1, 0]).unwrap().unwrap();
        // Most channels are taken, so that many look for the same ones.
        let _taken: Vec<_> = (0..220).map(|_| group.new_group(&[0, 1, 2]).unwrap().unwrap()).collect();
        let others = (0..3).filter(|&it| it != group.rank());
        std::thread::scope(|scope| {
            for other in others {
                let (group, twin) = (&group, &twin);
                // With the same tag in both directions, and in two groups.
                scope.spawn(move || {
                    for sequence in 0..8_u32 {
                        for (here, to) in [(group, other), (twin, 2 - other)] {
                            here.open_pair(to, 1).unwrap().broadcast(&mut [sequence; 100], 0).unwrap();
                        }
                    }
                });
                scope.spawn(move || {
                    for sequence in 0..8 {
                        for (here, from) in [(group, other), (twin, 2 - other)] {
                            let (pair, sender) = here.join_pair(from, 1).unwrap();
                            let mut data = [0_u32; 100];
                            pair.broadcast(&mut data, 0).unwrap();
                            assert_eq!((data, sender), ([sequence; 100], from));
                        }
                    }
                });
            }
            // Others make groups meanwhile.
            for _ in 0..20 {
                let part = group.split(Some(group.rank() as u64 / 2), 0).unwrap().unwrap();
                part.barrier().unwrap();
            }
        });
    });
}

#[test]
fn the_rank_that_invites_first_is_joined() {
    world(4, small, |group| {
        if group.rank() > 0 {
            // What a handle asks for is about its own collectives.
            group.with_algorithms("ring").unwrap().open_pair(0, 3).unwrap().barrier().unwrap();
            return;
        }
        let joined = |_| {
            let (pair, from) = group.join_pair(Source::Any, 3).unwrap();
            pair.barrier().unwrap();
            from
        };
        let mut from: Vec<Rank> = (1..4).map(joined).collect();
        from.sort_unstable();
        assert_eq!(from, [1, 2, 3]);
    });
}

#[test]
fn what_is_no_invitation_is_said() {
    type Does = fn(&ProcessGroup) -> Result<()>;
    let open: Does = |group| group.open_pair(1, 5).map(drop);
    let join: Does = |group| group.join_pair(0, 5).map(drop);
    let cases: [(Does, Does, &str); 4] = [
        (
            open,
            |group| group.recv(&mut [0_u64; 5], 0, 5).map(drop),
            "rank 0 sends an invitation to a pair, rank 1 receives 5 u64 elements",
        ),
        (
            open,
            |group| group.recv_object::<String>(0, 5).map(drop),
            "rank 0 sends an invitation to a pair, rank 1 receives an object",
        ),
        (
            |group| group.send(&[0_u64; 5], 1, 5).and_then(|()| group.barrier()),
            join,
            "rank 0 sends 5 u64 elements, rank 1 receives an invitation to a pair",
        ),
        (
            |group| group.send_object("x", 1, 5).and_then(|()| group.barrier()),
            join,
            "rank 0 sends an object, rank 1 receives an invitation to a pair",
        ),
    ];
    for (sender, receiver, wanted) in cases {
        let message = world(2, small, |group| {
            let done = if group.rank() == 0 { sender(&group) } else { receiver(&group) };
            done.unwrap_err().to_string()
        });
        let wanted = format!("message 0 from rank 0 to rank 1, tag 5: {wanted}");
        assert_eq!(message, [wanted.clone(), wanted]);
    }
}

#[test]
fn ranks_that_do_not_come_are_named() {
    let timeout = |config: &mut Config| config.timeout = Duration::from_millis(300);
    // Once the invitation has left, `open_pair` waits for an answer whose tag is another one, and does not name it.
    for (caller, wanted) in [(0, "open_pair(to 1"), (1, "join_pair(from 0, tag 5)")] {
        let messages = world(2, timeout, |group| {
            let failed = match group.rank() {
                // The failure comes from the other.
                rank if rank != caller => hear(&group),
                0 => group.open_pair(1, 5).map(drop),
                _ => group.join_pair(0, 5).map(drop),
            };
            failed.unwrap_err().to_string()
        });
        assert_eq!(messages[0], messages[1]);
        assert!(
            messages[0].starts_with(wanted) && messages[0].contains(" did not finish within "),
            "{messages:?}"
        );
    }
}

#[test]
fn a_pair_is_of_another_rank_that_there_is() {
    world(2, small, |group| {
        for (peer, problem) in [(2, "there is no rank 2"), (group.rank(), "is this rank")] {
            let refused = [group.open_pair(peer, 0).map(drop), group.join_pair(peer, 0).map(drop)];
            for (refused, name) in refused.into_iter().zip(["open_pair", "join_pair"]) {
                let Err(Error::Argument { call, problem: said }) = refused else { panic!("{refused:?}") };
                assert!(call == name && said.contains(problem), "{call}: {said}");
            }
        }
    });
}
