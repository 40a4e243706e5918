//! Calls on a separate thread: their results, and the end of those that no thread waits for.

use super::{messages::worlds, *};

const EVERY: Duration = Duration::from_millis(5);

#[test]
fn a_call_elsewhere_returns_what_it_returns() {
    world(3, small, |group| {
        let color = u64::from(group.rank() != 1);
        let part =
            group.erased().elsewhere_while("split", move |group| group.split(Some(color), 0), EVERY, || true);
        let part = part.unwrap().unwrap().unwrap().unwrap();
        assert_eq!(part.size(), if color == 0 { 1 } else { 2 });
        part.barrier().unwrap();
        let panics = || group.erased().elsewhere_while("nothing", |_| panic!("as it must"), EVERY, || true);
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
        group.barrier().unwrap();
    });
}

/// The thread that waits has called the library before, so it would keep its rank from counting as blocked.
#[test]
fn ranks_that_wait_for_each_other_elsewhere_are_told() {
    let messages = world(2, small, |group| {
        group.barrier().unwrap();
        let other = 1 - group.rank();
        let receive = move |group: &ProcessGroup| group.recv_object::<u32>((other, 7)).map(drop);
        group
            .erased()
            .elsewhere_while("recv_object", receive, EVERY, || true)
            .unwrap()
            .unwrap()
            .unwrap_err()
            .to_string()
    });
    assert!(
        messages[0] == messages[1] && messages[0].starts_with("ranks wait for each other"),
        "{messages:?}"
    );
}

#[test]
fn a_call_that_nobody_waits_for_goes_on() {
    world(2, small, |group| {
        if group.rank() == 0 {
            assert!(
                group
                    .erased()
                    .elsewhere_while("split", |group| group.split(None, 0), EVERY, || false)
                    .unwrap()
                    .is_none()
            );
            group.send(&[1_u8], (1, 7)).unwrap();
        } else {
            group.recv(&mut [0_u8], (0, 7)).unwrap();
            assert!(group.split(Some(0), 0).unwrap().unwrap().size() == 1);
        }
        group.barrier().unwrap();
    });
}

/// The other rank leaves once this one no longer waits: before, it would get the failure that this one waits for it.
#[test]
fn a_rank_leaves_although_a_call_that_nobody_waits_for_never_ends() {
    worlds(2, |group| {
        if group.rank() == 0 {
            let make = |group: &ProcessGroup| group.create_group(&[0, 1], 7).map(drop);
            assert!(group.erased().elsewhere_while("create_group", make, EVERY, || false).unwrap().is_none());
            group.send(&[0_u8], (1, 8)).unwrap();
        } else {
            group.recv(&mut [0_u8], (0, 8)).unwrap();
            // Until rank 0 leaves, its position says that it waits for this rank.
            let monitor = &group.handle.shared.runtime.monitor;
            let begun = Instant::now();
            while !monitor.whereabouts().contains("leave()") && begun.elapsed() < Duration::from_secs(20) {
                std::thread::sleep(EVERY);
            }
        }
        group.leave().unwrap();
    });
}
