//! Files among ranks that are threads: every length, shared directories, resumed transfers, and errors that reach all ranks.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    sync::{Mutex, mpsc},
    time::{Duration, SystemTime},
};

use tempfile::TempDir;

use unisono::Failure;

use self::world::{small, world};
use super::*;
use crate::{broadcast, checksum::digest, error::Error, options::Progress};

mod pair;
#[cfg(feature = "safetensors")]
mod tensors;
mod world;

/// A directory with a source of this many bytes.
fn source(len: usize) -> (TempDir, PathBuf, Vec<u8>) {
    let directory = tempfile::tempdir().unwrap();
    let bytes: Vec<u8> = (0..len).map(|at| u8::try_from((at / 3 + at % 127) % 256).unwrap()).collect();
    let path = directory.path().join("model");
    fs::write(&path, &bytes).unwrap();
    // A modification time that is not now.
    let old = SystemTime::UNIX_EPOCH + Duration::new(1_700_000_000, 123_456_789);
    fs::File::options().write(true).open(&path).unwrap().set_modified(old).unwrap();
    (directory, path, bytes)
}

fn pieces(piece: u64) -> Options<'static> {
    Options { piece, ..Options::default() }
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries.map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The problem that all ranks return, in the same words; the group still works.
fn problem(group: &ProcessGroup, result: Result<Delivered>) -> (Rank, Problem, String) {
    let words = result.as_ref().map(drop).map_err(ToString::to_string);
    let Err(Error::File { rank, problem, .. }) = result else { panic!("rank {}: {result:?}", group.rank()) };
    let mut ranks = [1_u32];
    group.all_reduce(&mut ranks, ReduceOp::Sum).unwrap();
    assert_eq!(ranks[0] as usize, group.size());
    (rank, problem, words.unwrap_err())
}

fn alike<T: PartialEq + std::fmt::Debug>(mut all: Vec<T>) -> T {
    assert!(all.iter().all(|one| *one == all[0]), "{all:?}");
    all.remove(0)
}

#[test]
fn every_length_comes_everywhere() {
    for len in [0, 1, 99, 100, 101, 2000, 5077] {
        for (ranks, root) in [(1, 0), (2, 1), (3, 0), (5, 2)] {
            let (directory, path, bytes) = source(len);
            let delivered = world(ranks, small, |group| {
                let to = directory.path().join(format!("to/{}", group.rank()));
                let mut messages = Vec::new();
                let mut tell = |it: Progress| messages.push(it);
                let options = Options { progress: Some(&mut tell), ..pieces(100) };
                let delivered = broadcast(&group, &path, &to, root, options).unwrap();
                assert_eq!(messages.len(), len.div_ceil(100));
                assert!(
                    messages.iter().all(|it| it.whole == len as u64)
                        && messages.is_sorted_by_key(|it| it.done)
                );
                assert!(messages.last().is_none_or(|it| it.done == it.whole));
                assert_eq!(names(&to), ["model"]);
                assert_eq!(fs::read(to.join("model")).unwrap(), bytes);
                let about = [fs::metadata(&path).unwrap(), fs::metadata(to.join("model")).unwrap()];
                let about = about.map(|it| (it.mtime(), it.mtime_nsec(), it.mode()));
                assert_eq!(about[0], about[1]);
                delivered
            });
            for it in delivered {
                let wanted = (len as u64, len as u64, true, ranks);
                assert_eq!((it.bytes, it.sent, it.wrote, it.writers), wanted);
            }
        }
    }
}

#[test]
fn pieces_of_several_blocks_arrive() {
    let (directory, path, bytes) = source(1_700_003);
    world(
        3,
        |_| {},
        |group| {
            let to = directory.path().join(group.rank().to_string());
            broadcast(&group, &path, &to, 0, pieces(600_000)).unwrap();
            assert!(fs::read(to.join("model")).unwrap() == bytes);
        },
    );
}

#[test]
fn one_rank_of_a_directory_writes() {
    let (directory, path, bytes) = source(1234);
    // The root's directory holds the file itself, and another rank uses it too; two ranks share a directory, one has its own.
    let places = ["shared", ".", "shared", ".", "own"];
    let delivered = world(5, small, |group| {
        let to = directory.path().join(places[group.rank()]);
        let delivered = broadcast(&group, &path, &to, 3, pieces(100)).unwrap();
        assert_eq!(fs::read(to.join("model")).unwrap(), bytes);
        delivered
    });
    let wrote: Vec<bool> = delivered.iter().map(|it| it.wrote).collect();
    assert_eq!(wrote, [true, false, false, false, true]);
    assert!(delivered.iter().all(|it| it.writers == 2 && it.sent == 1234));
    assert_eq!(names(directory.path()), ["model", "own", "shared"]);
    assert_eq!(names(&directory.path().join("shared")), ["model"]);
}

#[test]
fn what_is_there_is_not_sent_again() {
    let (directory, path, mut bytes) = source(950);
    let call = |wanted: &[u8]| {
        let delivered = world(3, small, |group| {
            let to = directory.path().join(group.rank().to_string());
            let delivered = broadcast(&group, &path, &to, 0, pieces(100)).unwrap();
            assert_eq!(fs::read(to.join("model")).unwrap(), wanted);
            assert_eq!(names(&to), ["model"]);
            (delivered.sent, delivered.writers)
        });
        alike(delivered)
    };
    assert_eq!(call(&bytes), (950, 3));
    assert_eq!(call(&bytes), (0, 0));
    fs::remove_file(directory.path().join("2/model")).unwrap();
    assert_eq!(call(&bytes), (950, 1), "to the one that lacks it");
    // The contents differ; length and modification time do not.
    bytes[500] ^= 1;
    let age = fs::metadata(&path).unwrap().modified().unwrap();
    fs::write(&path, &bytes).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_modified(age).unwrap();
    assert_eq!(call(&bytes), (950, 3));
}

/// Ends a transfer to 3 ranks on its way; returns how much of what was sent is there.
fn cut(directory: &Path, path: &Path, after: u64) {
    let failed = world(3, small, |group| {
        let to = directory.join(group.rank().to_string());
        let mut tell = |it: Progress| {
            if group.rank() == 0 && it.done >= after {
                group.abort("enough");
            }
        };
        let options = Options { progress: Some(&mut tell), ..pieces(100) };
        let error = broadcast(&group, path, &to, 0, options).unwrap_err();
        assert!(
            matches!(&error, Error::Group(unisono::Error::Failed(Failure::Aborted { rank: 0, .. }))),
            "{error}"
        );
        assert_eq!(names(&to), [".model.unisono-journal", ".model.unisono-part"]);
    });
    assert_eq!(failed.len(), 3);
}

#[test]
fn a_call_that_was_cut_short_is_resumed() {
    let (directory, path, mut bytes) = source(5077);
    cut(directory.path(), &path, 3000);
    // Meanwhile a piece of the source has changed, one of a partial file was lost, and a journal holds rubbish.
    bytes[150] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let spoil = |file: &str, at: usize| {
        let file = directory.path().join(file);
        let mut bytes = fs::read(&file).unwrap();
        bytes[at] ^= 1;
        fs::write(file, bytes).unwrap();
    };
    spoil("1/.model.unisono-part", 350);
    spoil("2/.model.unisono-journal", 32 + 5 * 16);
    let delivered = world(3, small, |group| {
        let to = directory.path().join(group.rank().to_string());
        let mut least = u64::MAX;
        let mut tell = |it: Progress| least = least.min(it.done);
        let options = Options { progress: Some(&mut tell), ..pieces(100) };
        let delivered = broadcast(&group, &path, &to, 0, options).unwrap();
        assert_eq!(fs::read(to.join("model")).unwrap(), bytes);
        assert_eq!(names(&to), ["model"]);
        (delivered.sent, least)
    });
    let (sent, least) = alike(delivered);
    // At the end of the first round of 16 all had written all but the pieces in their four buffers.
    assert!((300..=5077 - 1200 + 300).contains(&sent), "{sent}");
    assert_eq!(least, 5077 - sent + 100, "progress counts what was there");
}

#[test]
fn all_pieces_may_be_there_before_the_name() {
    let (directory, path, bytes) = source(1000);
    let plan = SentFile::open(&path).unwrap().plan(100).unwrap();
    let to = directory.path().join("1");
    fs::create_dir(&to).unwrap();
    let (target, _) = Target::open(&to, &plan).unwrap();
    for (piece, bytes) in (0..).zip(bytes.chunks(100)) {
        target.write(piece, bytes, digest(bytes)).unwrap();
    }
    drop(target);
    let sent = world(2, small, |group| {
        // The root's copy is the file itself.
        let to = if group.rank() == 0 { directory.path() } else { &to };
        broadcast(&group, &path, to, 0, pieces(100)).unwrap().sent
    });
    assert_eq!((sent, names(&to)), (vec![0; 2], vec!["model".to_owned()]));
    assert_eq!(fs::read(to.join("model")).unwrap(), bytes);
}

#[test]
fn all_ranks_get_the_error_of_one() {
    type Spoil = fn(&Path);
    /// What is done beforehand, the rank with the problem, and a check of the problem.
    type Case = (&'static str, Spoil, Rank, fn(&Problem) -> bool);
    let cases: [Case; 5] = [
        (
            "there is no file",
            |it| fs::remove_file(it.join("model")).unwrap(),
            1,
            |problem| matches!(problem, Problem::Io { code: Some(2), .. }),
        ),
        (
            "a directory is sent",
            |it| {
                fs::remove_file(it.join("model")).unwrap();
                fs::create_dir(it.join("model")).unwrap();
            },
            1,
            |problem| *problem == Problem::NotRegular,
        ),
        (
            "a file for a directory",
            |it| fs::write(it.join("2"), "").unwrap(),
            2,
            |problem| matches!(problem, Problem::Io { .. }),
        ),
        (
            "a directory for a file",
            |it| fs::create_dir_all(it.join("2/model")).unwrap(),
            2,
            |problem| matches!(problem, Problem::Io { code: None, .. }),
        ),
        (
            "a directory that nobody can write to",
            |it| std::os::unix::fs::symlink("/proc/self", it.join("2")).unwrap(),
            2,
            |problem| matches!(problem, Problem::Io { code: Some(_), .. }),
        ),
    ];
    for (what, spoil, teller, fits) in cases {
        let (directory, path, _) = source(1000);
        spoil(directory.path());
        let message = world(4, small, |group| {
            let to = directory.path().join(group.rank().to_string());
            let message = problem(&group, broadcast(&group, &path, &to, 1, pieces(1 << 20)));
            if to.is_dir() && !to.join("uid_map").exists() {
                assert!(names(&to).iter().all(|name| name == "model"), "{what}: {:?}", names(&to));
            }
            message
        });
        let (rank, problem, words) = alike(message);
        assert!(rank == teller && fits(&problem), "{what}: {words}");
    }
    let (_directory, path, _) = source(10);
    world(2, small, |group| {
        let error = broadcast(&group, &path, Path::new("/"), 2, pieces(1)).unwrap_err();
        assert!(matches!(error, Error::Group(unisono::Error::Argument { .. })), "{error}");
        let (_, wrong, _) = problem(&group, broadcast(&group, &path, Path::new("/"), 0, pieces(0)));
        assert!(matches!(wrong, Problem::Piece { given: 0, .. }));
    });
}

#[test]
fn a_file_that_changes_on_the_way_is_not_delivered() {
    type Change = fn(&fs::File);
    let changes: [Change; 3] = [
        |file| file.set_len(700).unwrap(),
        |file| file.set_len(6000).unwrap(),
        |file| file.set_modified(SystemTime::now()).unwrap(),
    ];
    for change in changes {
        let (directory, path, _) = source(5077);
        let message = world(3, small, |group| {
            let to = directory.path().join(group.rank().to_string());
            let mut tell = |it: Progress| {
                if group.rank() == 0 && it.done == 100 {
                    change(&fs::File::options().write(true).open(&path).unwrap());
                }
            };
            let options = Options { progress: Some(&mut tell), ..pieces(100) };
            let message = problem(&group, broadcast(&group, &path, &to, 0, options));
            assert!(!to.join("model").exists());
            message
        });
        let (rank, problem, words) = alike(message);
        assert!(rank == 0 && matches!(problem, Problem::Changed { .. }), "{words}");
    }
}

#[test]
fn holes_arrive_as_holes() {
    use std::os::unix::fs::FileExt;
    const K: u64 = 1 << 10;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model");
    let file = fs::File::create(&path).unwrap();
    file.set_len(4096 * K + 3).unwrap();
    [3, 700 * K, 4096 * K].iter().for_each(|&at| file.write_all_at(b"abc", at).unwrap());
    file.sync_all().unwrap();
    if file.metadata().unwrap().blocks() * 512 >= 4096 * K {
        println!("SKIPPED: a resumed file with holes: the file system of {} has none", path.display());
        return;
    }
    let bytes = fs::read(&path).unwrap();
    // A rank has received another file of that length, without holes, to the end.
    let to = |rank: usize| directory.path().join(rank.to_string());
    let plan = SentFile::open(&path).unwrap().plan(64 * K).unwrap();
    fs::create_dir(to(2)).unwrap();
    let (target, _) = Target::open(&to(2), &plan).unwrap();
    let old = vec![7; 64 << 10];
    (0..64).for_each(|piece| target.write(piece, &old, digest(&old)).unwrap());
    drop(target);
    let call = |wrote: usize| {
        let sent = world(3, small, |group| {
            let to = to(group.rank());
            let delivered = broadcast(&group, &path, &to, 0, pieces(64 * K)).unwrap();
            assert_eq!(delivered.writers, wrote);
            assert_eq!(
                (names(&to), fs::read(to.join("model")).unwrap() == bytes),
                (vec!["model".to_owned()], true)
            );
            let room = fs::metadata(to.join("model")).unwrap().blocks() * 512;
            assert!(room <= 128 * K, "{room} bytes of room on rank {}", group.rank());
            delivered.sent
        });
        alike(sent)
    };
    // Three pieces with something in them, of which the last is short.
    assert_eq!(call(3), 2 * 64 * K + 3);
    assert_eq!(call(0), 0);
    // The file is one hole.
    let age = file.metadata().unwrap().modified().unwrap();
    file.set_len(0).unwrap();
    file.set_len(1024 * K).unwrap();
    file.set_modified(age).unwrap();
    let sent = world(2, small, |group| {
        let to = to(group.rank() + 5);
        let sent = broadcast(&group, &path, &to, 0, pieces(64 * K)).unwrap().sent;
        let about = fs::metadata(to.join("model")).unwrap();
        assert_eq!((about.len(), about.blocks()), (1024 * K, 0));
        sent
    });
    assert_eq!(alike(sent), 0);
}

#[test]
fn a_root_that_names_a_way_out_is_refused() {
    for name in ["../model", "/model", "..", ""] {
        let directory = tempfile::tempdir().unwrap();
        let to = directory.path().join("to");
        world(2, small, |group| {
            if group.rank() == 0 {
                // The plan as it is encoded in an `Opening`, which cannot be made with such a name.
                let plan = (name.as_bytes().to_vec(), 0_u64, 100_u64, 0o644_u32, (0_i64, 0_i64), 0_u64);
                let mut bytes = postcard::to_allocvec(&Ok::<_, ()>((plan, 7_u64, None::<()>))).unwrap();
                group.broadcast(&mut [bytes.len() as u64], 0).unwrap();
                group.broadcast(&mut bytes, 0).unwrap();
                return;
            }
            let error = broadcast(&group, Path::new("x"), &to, 0, pieces(100)).unwrap_err();
            let refused = matches!(&error, Error::File { problem: Problem::Name { .. }, .. });
            assert!(refused, "{error}");
            assert!(names(directory.path()).is_empty());
        });
    }
}

#[test]
fn a_piece_that_is_not_what_was_sent_is_not_noted() {
    let (directory, path, bytes) = source(250);
    let group = world::alone();
    let plan = SentFile::open(&path).unwrap().plan(100).unwrap();
    let to = directory.path().join("to");
    fs::create_dir(&to).unwrap();
    let (target, _) = Target::open(&to, &plan).unwrap();
    let none = PieceSet::of(3, |_| false);
    let own = PieceSet::of(3, |piece| piece == 2);
    let handover = Handover {
        ranks: TransferRanks { group: &group, root: 0 },
        file: &path,
        directory: Some(&to),
        path: to.join("model"),
        plan,
        source: None,
    };
    let stream =
        PieceStream { handover: &handover, members: None, all: &none, own: &own, target: Some(&target) };
    let first =
        stream.written((0..3).zip(bytes.chunks(100)), |piece, sum| if piece == 1 { !sum } else { sum });
    let trouble = format!("{first:?}");
    assert!(trouble.contains("Damaged { piece: 1,") && trouble.contains("to/model"), "{trouble}");
    drop(target);
    let (_target, noted) = Target::open(&to, &handover.plan).unwrap();
    assert_eq!(noted, [digest(&bytes[..100]), 0, 0]);
}

#[test]
fn long_work_is_waited_for() {
    let (sender, receiver) = mpsc::channel();
    let sender = Mutex::new(sender);
    world(
        3,
        |config| config.timeout = Duration::from_millis(400),
        |group| {
            let ranks = TransferRanks { group: &group, root: 0 };
            let rank = group.rank();
            let work = |_: &std::sync::atomic::AtomicBool| {
                if rank == 1 {
                    std::thread::sleep(Duration::from_millis(1000));
                }
                sender.lock().unwrap().send(rank).unwrap();
                rank
            };
            assert_eq!(ranks.meanwhile(work).unwrap(), rank);
        },
    );
    assert_eq!(receiver.try_iter().count(), 3);
}
