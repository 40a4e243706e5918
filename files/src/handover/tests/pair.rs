//! Files between two ranks, while the others do something else.

use super::*;
use crate::{recv, send};

/// Sends to rank `to` and receives there; nothing elsewhere.
fn hand_over(
    group: &ProcessGroup,
    path: &Path,
    directory: &Path,
    (from, to): (Rank, Rank),
    options: Options<'_>,
) -> Option<Result<Delivered>> {
    match group.rank() {
        rank if rank == from => Some(send(group, path, to, 7, options)),
        rank if rank == to => Some(recv(group, directory, from, 7, options).map(|(delivered, sender)| {
            assert_eq!(sender, from);
            delivered
        })),
        _ => None,
    }
}

#[test]
fn a_file_goes_to_one_rank_alone() {
    for len in [0, 1, 100, 101, 5077] {
        let (directory, path, bytes) = source(len);
        let to = directory.path().join("to");
        let delivered = world(5, small, |group| {
            // The ranks of a group have other numbers in it.
            let part = group.new_group(&[4, 2, 1]).unwrap()?;
            let mut messages = Vec::new();
            let mut tell = |it: Progress| messages.push(it.done);
            let options = Options { progress: Some(&mut tell), ..pieces(100) };
            let delivered = hand_over(&part, &path, &to, (1, 2), options);
            assert_eq!(messages.len(), if delivered.is_some() { len.div_ceil(100) } else { 0 });
            assert_eq!(part.usage().operations, 0);
            delivered.map(|it| (group.rank(), it.unwrap()))
        });
        let delivered: Vec<_> = delivered.into_iter().flatten().collect();
        let about = |(rank, it): &(Rank, Delivered)| (*rank, it.file.clone(), it.wrote);
        let wanted = [(1, to.join("model"), true), (2, path.clone(), false)];
        assert_eq!(delivered.iter().map(about).collect::<Vec<_>>(), wanted);
        assert!(delivered.iter().all(|(_, it)| (it.bytes, it.sent, it.writers) == (len as u64, it.bytes, 1)));
        assert_eq!(fs::read(to.join("model")).unwrap(), bytes);
        assert_eq!(fs::metadata(to.join("model")).unwrap().mtime(), 1_700_000_000);
        assert_eq!(
            (names(&to), names(directory.path())),
            (vec!["model".to_owned()], vec!["model".to_owned(), "to".to_owned()])
        );
    }
}

#[test]
fn all_send_each_other_files_at_once() {
    let (directory, path, bytes) = source(1234);
    world(3, small, |group| {
        let twin = group.new_group(&[2, 1, 0]).unwrap().unwrap();
        // Few channels are left, so that all look for the same ones.
        let _taken: Vec<_> = (0..220).map(|_| group.new_group(&[0, 1, 2]).unwrap().unwrap()).collect();
        let others = (0..3).filter(|&it| it != group.rank());
        std::thread::scope(|scope| {
            for other in others {
                let (group, twin, path, bytes) = (&group, &twin, &path, &bytes);
                let to = directory.path().join(format!("{other}-{}", group.rank()));
                // The transfers have the same tag in both directions, and in two groups.
                scope.spawn(move || {
                    for _ in 0..8 {
                        send(group, path, other, 1, pieces(100)).unwrap();
                        send(twin, path, 2 - other, 1, pieces(100)).unwrap();
                    }
                });
                scope.spawn(move || {
                    for turn in 0..8 {
                        for (here, from) in [(group, other), (twin, 2 - other)] {
                            let (got, sender) = recv(here, &to, from, 1, pieces(100)).unwrap();
                            assert_eq!((got.bytes, sender), (1234, from), "turn {turn}");
                            assert_eq!(fs::read(&got.file).unwrap(), *bytes);
                            fs::remove_file(got.file).unwrap();
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
fn a_rank_that_sends_first_is_told() {
    let (directory, path, bytes) = source(300);
    world(4, small, |group| {
        if group.rank() > 0 {
            // Options of a handle apply only to its collectives.
            let with_ring = group.with_algorithms("ring").unwrap();
            send(&with_ring, &path, 0, 3, pieces(100)).unwrap();
            return;
        }
        let mut senders: Vec<Rank> = (1..4)
            .map(|_| {
                let (_, from) = recv(&group, directory.path(), unisono::Source::Any, 3, pieces(1)).unwrap();
                assert_eq!(fs::read(&path).unwrap(), bytes);
                from
            })
            .collect();
        senders.sort_unstable();
        assert_eq!(senders, [1, 2, 3]);
    });
    assert_eq!(names(directory.path()), ["model"]);
}

#[test]
fn a_file_goes_to_another_rank_that_there_is() {
    let (directory, path, _) = source(10);
    world(2, small, |group| {
        for (peer, wanted) in [(2, "there is no rank 2"), (group.rank(), "is this rank")] {
            let sent = send(&group, &path, peer, 0, pieces(1)).map(drop);
            let received = recv(&group, directory.path(), peer, 0, pieces(1)).map(drop);
            for refused in [sent, received] {
                let Err(Error::Group(unisono::Error::Argument { problem, .. })) = refused else {
                    panic!("{refused:?}")
                };
                assert!(problem.contains(wanted), "{problem}");
            }
        }
    });
}

#[test]
fn ranks_notice_one_that_does_not_take_the_file_or_sends_none() {
    type Does = fn(&ProcessGroup, &Path) -> Result<()>;
    let sends: Does = |group, path| send(group, path, 1, 5, pieces(1)).map(drop);
    let receives: Does = |group, path| recv(group, path.parent().unwrap(), 0, 5, pieces(1)).map(drop);
    let hears: Does = |group, _| loop {
        match group.failure() {
            Some(failure) => return Err(unisono::Error::Failed(failure).into()),
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let elements: Does = |group, _| Ok(group.recv(&mut [0_u64; 5], (0, 5)).map(drop)?);
    let cases: [(Does, Does, &str); 3] = [
        (sends, hears, "waits for rank 1; rank 1 called nothing yet"),
        (hears, receives, "recv(u8, from 0, tag 5)"),
        (
            sends,
            elements,
            "message 0 from rank 0 to rank 1, tag 5: rank 0 sends an object, rank 1 receives 5 u64 elements",
        ),
    ];
    let (_directory, path, _) = source(10);
    for (zero, one, wanted) in cases {
        let soon = |config: &mut unisono::Config| {
            small(config);
            config.timeout = Duration::from_millis(300);
        };
        let errors = world(2, soon, |group| {
            let does = if group.rank() == 0 { zero } else { one };
            does(&group, &path).unwrap_err().to_string()
        });
        assert!(errors[0] == errors[1] && errors[0].contains(wanted), "{errors:?}");
    }
}

#[test]
fn a_file_for_one_is_resumed() {
    let (directory, path, bytes) = source(5077);
    let to = directory.path().join("to");
    world(3, small, |group| {
        let mut tell = |it: Progress| {
            if it.done >= 3000 {
                group.abort("enough");
            }
        };
        let options = Options { progress: Some(&mut tell), ..pieces(100) };
        if let Some(result) = hand_over(&group, &path, &to, (0, 2), options) {
            assert!(
                matches!(result, Err(Error::Group(unisono::Error::Failed(Failure::Aborted { .. })))),
                "{result:?}"
            );
        }
    });
    assert_eq!(names(&to), [".model.unisono-journal", ".model.unisono-part"]);
    for resumed in [true, false] {
        let sent = world(3, small, |group| {
            let result = hand_over(&group, &path, &to, (0, 2), pieces(100));
            result.map(|it| it.unwrap().sent)
        });
        let [Some(sent), None, Some(received)] = sent[..] else { panic!("{sent:?}") };
        assert_eq!(sent, received);
        let wanted = if resumed { 300..=5077 - 1200 } else { 0..=0 };
        assert!(wanted.contains(&sent), "{sent}");
        assert_eq!(fs::read(to.join("model")).unwrap(), bytes);
    }
}

#[test]
fn both_ranks_get_the_error_of_one() {
    type Spoil = fn(&Path);
    let cases: [(Spoil, Rank); 3] = [
        (|it| fs::remove_file(it.join("model")).unwrap(), 1),
        (|it| fs::write(it.join("to"), "").unwrap(), 2),
        (|it| fs::create_dir_all(it.join("to/model")).unwrap(), 2),
    ];
    for (spoil, teller) in cases {
        let (directory, path, _) = source(1000);
        spoil(directory.path());
        let messages = world(3, small, |group| {
            let to = directory.path().join("to");
            let result = hand_over(&group, &path, &to, (1, 2), pieces(100))?;
            let Err(Error::File { rank, .. }) = &result else { panic!("{result:?}") };
            assert_eq!(*rank, teller);
            // The two groups still work.
            let mut data = [0];
            let peer = 3 - group.rank();
            group.send_recv((&[7_u32], &mut data), (peer, 1), (peer, 1)).unwrap();
            assert_eq!(data, [7]);
            result.err().map(|error| error.to_string())
        });
        alike(messages.into_iter().flatten().collect());
    }
}

#[test]
fn files_come_and_go_and_leave_nothing_behind() {
    let (directory, path, _) = source(250);
    world(2, small, |group| {
        let to = directory.path().join("to");
        let mut memory = Vec::new();
        for round in 0..300 {
            hand_over(&group, &path, &to, (round % 2, (round + 1) % 2), pieces(100)).unwrap().unwrap();
            // Every second one is sent, and the others are there.
            if round % 4 == 3 && group.rank() == 0 {
                fs::remove_file(to.join("model")).unwrap();
            }
            if round % 50 == 49 {
                group.barrier().unwrap();
                memory.push(group.usage().memory);
            }
        }
        // The latest round's group of two may end after a barrier that takes no messages.
        for _ in 0..100 {
            group.barrier().unwrap();
        }
        memory.push(group.usage().memory);
        let least = memory.iter().min().unwrap();
        assert!(memory[6] <= *least, "{memory:?}");
    });
}
