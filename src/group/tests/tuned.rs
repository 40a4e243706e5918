//! How plain memory of ranks that share slots moves: as a tuning file says, and as a handle does.

use std::io::Write;

use unisono_schedule::{Collective, select::shown::PlainMemory};

use super::{one_shot::in_one_shot, world};
use crate::{Error, Failure, Pipeline, ProcessGroup, ReduceOp};

/// Elements, of 8 bytes, that do not fit slots in one round.
const LEN: usize = 32 << 10;

/// True if an all_reduce goes through slots; its choice says the same.
fn by_slots(group: &ProcessGroup) -> bool {
    let mut data: Vec<u64> = (0..LEN as u64).map(|at| at + group.rank() as u64).collect();
    let (by_slots, ()) = in_one_shot(group, || group.all_reduce(&mut data, ReduceOp::Sum).unwrap());
    let ranks = group.size() as u64;
    assert!((0..LEN as u64).zip(&data).all(|(at, sum)| *sum == ranks * at + ranks * (ranks - 1) / 2));
    let choice = group.choice(Collective::AllReduce, LEN, crate::dtype::Dtype::U64).unwrap();
    assert_eq!(matches!(choice.shown, Some(PlainMemory::Copied(_))), by_slots, "{choice:?}");
    by_slots
}

#[test]
fn a_tuning_file_and_a_handle_say_what_goes_through_slots() {
    for ranks in [2, 3] {
        for (row, wanted) in [
            ("", true),
            ("all_reduce ranks any bytes 100K shown 0\n", true),
            ("all_reduce ranks any bytes any shown 64K\n", true),
            ("all_reduce ranks any bytes any shown 0\n", false),
            ("all_reduce ranks 9 bytes any shown 0\nall_reduce ranks ..3 bytes 256K shown 1M\n", true),
        ] {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            write!(file, "unisono tuning 1\n{row}").unwrap();
            let path = file.path().to_owned();
            world(
                ranks,
                |config| config.tuning = Some(path.clone()),
                |group| {
                    assert_eq!(by_slots(&group), wanted, "{row:?} among {ranks}");
                    for bytes in [0, 8, 64 << 10, 1 << 20] {
                        let handle = group.with_pipeline(Pipeline::Slots { bytes }).unwrap();
                        assert_eq!(by_slots(&handle), bytes > 0, "{bytes}");
                    }
                    let messages = Pipeline::Messages { chunk_bytes: 64 << 10, lanes: 2 };
                    let (shown, ()) = in_one_shot(&group, || {
                        group
                            .with_pipeline(messages)
                            .unwrap()
                            .all_reduce(&mut vec![1_u8; LEN], ReduceOp::Sum)
                            .unwrap();
                    });
                    assert!(!shown);
                },
            );
        }
    }
}

#[test]
fn copies_of_different_lengths_are_a_mismatch_and_impossible_ones_an_error() {
    for (bytes, words) in
        [(3, "a rank copies 3 bytes"), (2 << 20, "wanted 0 or a power of two up to 1048576")]
    {
        world(
            1,
            |_| {},
            |group| {
                let error = group.with_pipeline(Pipeline::Slots { bytes }).unwrap_err().to_string();
                assert!(error.contains(words), "{error}");
            },
        );
    }
    for (one, other) in [(0, 4096), (64 << 10, 4096)] {
        world(
            3,
            |_| {},
            |group| {
                let bytes = if group.rank() == 1 { one } else { other };
                let group = group.with_pipeline(Pipeline::Slots { bytes }).unwrap();
                let error = group.all_reduce(&mut vec![1_u8; LEN], ReduceOp::Sum).unwrap_err();
                assert!(matches!(error, Error::Failed(Failure::Mismatch { .. })), "{error:?}");
                assert!(error.to_string().contains("in place with copies of 4096 bytes"), "{error}");
            },
        );
    }
}
