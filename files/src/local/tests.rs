//! One rank's part of a transfer: what a partial file keeps, foreign files under its name, and how a changed source is reported.

use std::{fs, os::unix::fs::PermissionsExt, sync::atomic::AtomicBool};

use super::{SentFile, Target};
use crate::{
    checksum::{BLOCK, digest},
    error::Problem,
    plan::{FilePlan, PieceSet},
};

static GO: AtomicBool = AtomicBool::new(false);

fn plan(name: &str, len: u64, piece: u64) -> FilePlan {
    FilePlan::new(name.into(), len, piece).unwrap()
}

/// Bytes that differ from piece to piece.
fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from((at / 7 + at % 251) % 256).unwrap()).collect()
}

/// The names of the files in a directory.
fn names(directory: &std::path::Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_partial_file_keeps_what_came() {
    let directory = tempfile::tempdir().unwrap();
    let (plan, data) = (plan("model", 25, 10), bytes(25));
    let piece = |piece: u64| {
        let (start, len) = plan.range(piece);
        &data[usize::try_from(start).unwrap()..][..len]
    };
    let (target, sums) = Target::open(directory.path(), &plan).unwrap();
    assert_eq!(sums, [0; 3]);
    for it in [0, 2] {
        target.write(it, piece(it), digest(piece(it))).unwrap();
    }
    assert!(matches!(Target::open(directory.path(), &plan), Err(Problem::Busy)));
    drop(target);
    let hidden = [".model.unisono-journal", ".model.unisono-part"];
    assert_eq!(names(directory.path()), hidden);

    let (target, noted) = Target::open(directory.path(), &plan).unwrap();
    assert_eq!(noted, [digest(piece(0)), 0, digest(piece(2))]);
    assert_eq!(super::sums(&target.partial, &plan, Some(&noted), &GO), noted);
    let stopped = super::sums(&target.partial, &plan, Some(&noted), &AtomicBool::new(true));
    assert_eq!(stopped, [0; 3]);
    drop(target);
    // A piece that the disk has lost or changed is found.
    let mut spoilt = fs::read(directory.path().join(hidden[1])).unwrap();
    spoilt[24] ^= 1;
    fs::write(directory.path().join(hidden[1]), spoilt).unwrap();
    let (mut target, noted) = Target::open(directory.path(), &plan).unwrap();
    let found = super::sums(&target.partial, &plan, Some(&noted), &GO);
    assert_eq!(found, [digest(piece(0)), 0, 0]);
    for it in [1, 2] {
        target.write(it, piece(it), digest(piece(it))).unwrap();
    }
    target.sync().unwrap();
    assert!(!directory.path().join("model").exists());
    target.rename().unwrap();
    drop(target);
    assert_eq!(names(directory.path()), ["model"]);
    assert_eq!(fs::read(directory.path().join("model")).unwrap(), data);
}

#[test]
fn the_longest_names_arrive() {
    for (len, short) in [(1, false), (238, false), (239, true), (255, true)] {
        let directory = tempfile::tempdir().unwrap();
        let (name, data) = ("x".repeat(len), bytes(20));
        let plan = plan(&name, 20, 10);
        let (mut target, _) = Target::open(directory.path(), &plan).unwrap();
        let hidden = if short { format!("{:032x}", digest(name.as_bytes())) } else { name.clone() };
        let wanted = ["journal", "part"].map(|what| format!(".{hidden}.unisono-{what}"));
        assert_eq!(names(directory.path()), wanted);
        for (piece, data) in (0..).zip(data.chunks(10)) {
            target.write(piece, data, digest(data)).unwrap();
        }
        target.sync().unwrap();
        target.rename().unwrap();
        drop(target);
        assert_eq!(names(directory.path()), [name]);
    }
}

#[test]
fn permissions_are_those_of_the_source() {
    let directory = tempfile::tempdir().unwrap();
    let mut plan = plan("model", 20, 10);
    plan.mode = 0o4755;
    plan = plan.check().unwrap();
    assert_eq!(plan.mode, 0o755, "permissions alone");
    let mode = |name: &str| fs::metadata(directory.path().join(name)).unwrap().permissions().mode() & 0o777;
    let (target, _) = Target::open(directory.path(), &plan).unwrap();
    target.write(0, &bytes(10), 1).unwrap();
    drop(target);
    // The umask of this process does not matter.
    let partial = directory.path().join(".model.unisono-part");
    fs::set_permissions(&partial, fs::Permissions::from_mode(0o640)).unwrap();
    // Meanwhile the source has been closed to others, and protected.
    for (now, resumed, finished) in [(0o664, 0o640, None), (0o400, 0o600, Some(0o400))] {
        plan.mode = now;
        let (mut target, _) = Target::open(directory.path(), &plan).unwrap();
        assert_eq!(mode(".model.unisono-part"), resumed, "{now:o}");
        target.write(1, &bytes(10), 1).unwrap();
        if let Some(finished) = finished {
            target.sync().unwrap();
            assert_eq!(mode(".model.unisono-part"), resumed, "another attempt could open it");
            target.rename().unwrap();
            assert_eq!(mode("model"), finished, "{now:o}");
        }
    }
}

#[test]
fn what_arrives_damaged_does_not_count() {
    let directory = tempfile::tempdir().unwrap();
    // A piece of several blocks.
    let len = BLOCK + 300;
    let plan = plan("a", 3 * len as u64, len as u64);
    let good = bytes(len);
    let sum = digest(&good);
    let (target, _) = Target::open(directory.path(), &plan).unwrap();
    for piece in [0, 1] {
        target.receive(piece, &good, sum).unwrap();
    }
    // Its first blocks replace those that the journal lists, before its sum is known.
    let mut bad = good;
    bad[70] ^= 1;
    let got = digest(&bad);
    for piece in [1, 2] {
        let damaged = Err(Problem::Damaged { piece, wanted: sum, got });
        assert_eq!(target.receive(piece, &bad, sum), damaged);
    }
    drop(target);
    let (target, noted) = Target::open(directory.path(), &plan).unwrap();
    assert_eq!(noted, [sum, sum, 0]);
    assert_eq!(super::sums(&target.partial, &plan, Some(&noted), &GO), [sum, 0, 0]);
}

#[test]
fn a_journal_of_another_file_does_not_count() {
    let directory = tempfile::tempdir().unwrap();
    let first = plan("model", 20, 10);
    let (target, _) = Target::open(directory.path(), &first).unwrap();
    target.write(0, &bytes(10), 1).unwrap();
    drop(target);
    for other in [plan("model", 21, 10), plan("model", 20, 5)] {
        let (target, noted) = Target::open(directory.path(), &other).unwrap();
        assert!(noted.iter().all(|&sum| sum == 0));
        assert_eq!(target.partial.metadata().unwrap().len(), other.len);
    }
    // The latter wrote nothing, and nothing stays.
    assert_eq!(names(directory.path()), [""; 0]);
    fs::write(directory.path().join(".model.unisono-journal"), "rubbish").unwrap();
    assert_eq!(Target::open(directory.path(), &first).unwrap().1, [0; 2]);
}

/// Puts something that belongs to another user under a name, beside a file that must not change.
type Lay = fn(&std::path::Path, &std::path::Path);
const LAID: [(&str, Lay); 4] = [
    ("a symbolic link", |other, at| std::os::unix::fs::symlink(other, at).unwrap()),
    ("a second name", |other, at| fs::hard_link(other, at).unwrap()),
    ("a directory", |_, at| fs::create_dir(at).unwrap()),
    ("a FIFO", |_, at| {
        rustix::fs::mknodat(rustix::fs::CWD, at, rustix::fs::FileType::Fifo, 0o666.into(), 0).unwrap();
    }),
];

#[test]
fn what_lies_in_the_way_is_left_alone() {
    let user = rustix::process::geteuid().as_raw();
    for (what, lay) in LAID {
        for hidden in [".model.unisono-part", ".model.unisono-journal"] {
            let directory = tempfile::tempdir().unwrap();
            let other = directory.path().join("other");
            fs::write(&other, "precious").unwrap();
            lay(&other, &directory.path().join(hidden));
            // Another attempt continues under its own names.
            for (piece, noted) in [(0, [0; 2]), (1, [7, 0])] {
                let (target, sums) = Target::open(directory.path(), &plan("model", 20, 10)).unwrap();
                assert_eq!(sums, noted, "{what} {hidden}");
                target.write(piece, &bytes(10), 7).unwrap();
            }
            let own = ["journal", "part"].map(|what| format!(".model.unisono-{what}-{user}"));
            assert!(own.iter().all(|own| names(directory.path()).contains(own)), "{what} {hidden}");
            assert_eq!(names(directory.path()).len(), 4, "an empty partial file stays behind");
            assert_eq!(fs::read(&other).unwrap(), b"precious", "{what}");
            // If these names are taken too, the error says by what.
            own.iter().for_each(|own| fs::remove_file(directory.path().join(own)).unwrap());
            lay(&other, &directory.path().join(&own[1]));
            let refused = Target::open(directory.path(), &plan("model", 20, 10)).map(drop).unwrap_err();
            let words = refused.to_string();
            assert!(
                words.contains(hidden) && words.contains(&own[1]) && words.contains("in the way"),
                "{words}"
            );
            assert_eq!(names(directory.path()).len(), 3, "an empty partial file stays behind");
        }
    }
}

#[test]
fn what_takes_a_name_meanwhile_is_not_taken_for_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let (mut target, _) = Target::open(directory.path(), &plan("model", 20, 10)).unwrap();
    for piece in [0, 1] {
        target.write(piece, &bytes(10), 7).unwrap();
    }
    let partial = directory.path().join(".model.unisono-part");
    fs::rename(&partial, directory.path().join("aside")).unwrap();
    fs::write(&partial, "another").unwrap();
    let refused = target.rename();
    assert!(
        matches!(&refused, Err(Problem::Io { reason, .. }) if reason.contains("another file now")),
        "{refused:?}"
    );
    assert!(!directory.path().join("model").exists());
}

#[test]
fn a_source_of_another_length_than_the_system_tells_is_refused() {
    // The system reports 0 bytes for all files in /proc, and 4096 for those in /sys.
    for (path, more) in [("/proc/self/status", true), ("/sys/kernel/uevent_seqnum", false)] {
        let Ok(about) = fs::metadata(path) else {
            println!("SKIPPED: a source at {path}: there is none here");
            continue;
        };
        let refused = SentFile::open(path.as_ref()).map(drop);
        assert_eq!(refused, Err(Problem::Length { promised: about.len(), more }), "{path}");
    }
}

/// A file of this many bytes with data only in these places, if the file system has holes.
fn sparse(path: &std::path::Path, len: u64, data: &[(u64, usize)]) -> bool {
    use std::os::unix::fs::{FileExt, MetadataExt};
    let file = fs::File::create(path).unwrap();
    file.set_len(len).unwrap();
    data.iter().for_each(|&(at, len)| file.write_all_at(&bytes(len + 1)[1..], at).unwrap());
    file.sync_all().unwrap();
    let has = file.metadata().unwrap().blocks() * 512 < len;
    if !has {
        println!("SKIPPED: files with holes: the file system of {} has none", path.display());
    }
    has
}

#[test]
fn holes_are_found_and_made() {
    const M: u64 = 1 << 20;
    use std::os::unix::fs::MetadataExt;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("source");
    if !sparse(&path, 8 * M + 5, &[(M + 4096, 100), (5 * M - 10, 20), (8 * M, 5)]) {
        return;
    }
    let data = fs::read(&path).unwrap();
    let source = SentFile::open(&path).unwrap();
    let plan = source.plan(M).unwrap();
    assert!(plan.is_sparse() && (125..1 << 18).contains(&plan.data), "{}", plan.data);
    let holes = source.holes(&plan);
    assert_eq!(holes.iter().collect::<Vec<_>>(), [0, 2, 3, 6, 7]);
    let all = PieceSet::of(plan.pieces(), |_| true);
    let piece = |piece| {
        let (start, len) = plan.range(piece);
        &data[usize::try_from(start).unwrap()..][..len]
    };
    let wanted: Vec<_> = (0..9).map(|it| digest(piece(it))).collect();
    assert_eq!(source.sums(&plan, &all, &GO).unwrap(), wanted);

    // The file is new, or an earlier attempt has filled it with something else.
    for before in [None, Some(vec![7; data.len()])] {
        let to = directory.path().join("to");
        fs::create_dir(&to).unwrap();
        let resumed = before.is_some();
        if let Some(before) = before {
            fs::write(to.join(".source.unisono-part"), before).unwrap();
        }
        let (mut target, mut sums) = Target::open(&to, &plan).unwrap();
        target.punch(&holes, &mut sums, &GO).unwrap();
        for it in holes.missing() {
            assert_eq!(sums[usize::try_from(it).unwrap()], 0);
            target.receive(it, piece(it), wanted[usize::try_from(it).unwrap()]).unwrap();
        }
        assert_eq!(super::sums(&target.partial, &plan, None, &GO), wanted);
        target.sync().unwrap();
        target.rename().unwrap();
        assert_eq!(fs::read(to.join("source")).unwrap(), data, "resumed: {resumed}");
        let room = fs::metadata(to.join("source")).unwrap().blocks() * 512;
        assert!(room < 1 << 18, "{room} bytes of room, resumed: {resumed}");
        fs::remove_dir_all(&to).unwrap();
    }
}

#[test]
fn no_room_is_known_before_the_first_byte() {
    let directory = tempfile::tempdir().unwrap();
    let refused = Target::open(directory.path(), &plan("model", 1 << 47, 256 << 20)).map(drop);
    assert!(matches!(refused, Err(Problem::NoSpace { wanted, .. }) if wanted == 1 << 47), "{refused:?}");
    assert_eq!(names(directory.path()), [""; 0]);
}

#[test]
fn a_directory_of_that_name_is_in_the_way() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("model")).unwrap();
    assert!(matches!(Target::whole(directory.path(), &plan("model", 1, 1)), Err(Problem::Io { .. })));
}

#[test]
fn a_source_that_changes_is_detected() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("source");
    fs::write(&path, bytes(100)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o751)).unwrap();
    let source = SentFile::open(&path).unwrap();
    let plan = source.plan(30).unwrap();
    assert_eq!((plan.len, plan.pieces(), plan.mode, plan.name()), (100, 4, 0o751, "source".into()));
    let mut last = [0; 10];
    source.read(90, &mut last).unwrap();
    assert_eq!(last, bytes(100)[90..]);
    source.unchanged().unwrap();
    assert!(source.is(&path) && !source.is(directory.path()));
    assert!(source.origin().is(&path) && !source.origin().is(directory.path()));
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    assert!(matches!(source.unchanged(), Err(Problem::Changed { .. })));
    assert!(source.is(&path) && !source.origin().is(&path));
    file.set_len(95).unwrap();
    let short = source.read(90, &mut last);
    assert!(matches!(short, Err(Problem::Changed { .. })), "{short:?}");
}

#[test]
fn what_is_no_file_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    for odd in [directory.path(), &pipe, "/dev/null".as_ref()] {
        assert_eq!(SentFile::open(odd).map(drop), Err(Problem::NotRegular), "{}", odd.display());
    }
    let missing = SentFile::open(&directory.path().join("none")).map(drop);
    let code = Some(rustix::io::Errno::NOENT.raw_os_error());
    assert!(matches!(missing, Err(Problem::Io { code: it, .. }) if it == code));
}

#[cfg(feature = "safetensors")]
mod tensors {
    use std::path::{Path, PathBuf};

    use proptest::prelude::*;
    use safetensors::{Dtype, SafeTensors, serialize, tensor::TensorView};

    use super::*;
    use crate::{error::FileResult, local::select::fits};

    /// A file of these tensors, each with this many separate bytes.
    fn file(directory: &Path, tensors: &[(&str, usize)]) -> PathBuf {
        let data: Vec<_> = (1..).zip(tensors).map(|(byte, &(name, len))| (name, vec![byte; len])).collect();
        let views = data
            .iter()
            .map(|(name, data)| (*name, TensorView::new(Dtype::U8, vec![data.len()], data).unwrap()));
        let about = [("made".to_owned(), "by \"hand\"".to_owned())].into();
        let path = directory.join("model.safetensors");
        fs::write(&path, serialize(views, Some(about)).unwrap()).unwrap();
        path
    }

    fn chosen(path: &Path, patterns: &[&str]) -> FileResult<Vec<u8>> {
        let patterns: Vec<_> = patterns.iter().map(|&pattern| pattern.to_owned()).collect();
        let source = SentFile::open(path)?.only(&patterns)?;
        let plan = source.plan(7)?;
        let mut all = Vec::new();
        for piece in 0..plan.pieces() {
            let (start, len) = plan.range(piece);
            let mut bytes = vec![0; len];
            source.read(start, &mut bytes)?;
            all.extend(bytes);
        }
        Ok(all)
    }

    #[test]
    fn some_tensors_are_a_file_again() {
        let directory = tempfile::tempdir().unwrap();
        let all = [("a.0", 5), ("a.1", 0), ("b.0", 17), ("b.1", 1), ("c", 30)];
        let path = file(directory.path(), &all);
        let whole = fs::read(&path).unwrap();
        let whole = SafeTensors::deserialize(&whole).unwrap();
        for (patterns, wanted) in [
            (&["*"][..], &[0, 1, 2, 3, 4][..]),
            (&["a.*", "c"], &[0, 1, 4]),
            (&["?.0"], &[0, 2]),
            (&["b.1", "*1"], &[1, 3]),
            (&["a.1"], &[1]),
        ] {
            let got = chosen(&path, patterns).unwrap();
            let read = SafeTensors::deserialize(&got).unwrap();
            let mut names: Vec<_> = read.names().iter().map(|name| (*name).to_owned()).collect();
            names.sort();
            assert_eq!(names, wanted.iter().map(|&it: &usize| all[it].0).collect::<Vec<_>>());
            for name in names {
                let (one, other) = (read.tensor(&name).unwrap(), whole.tensor(&name).unwrap());
                assert_eq!((one.data(), one.shape()), (other.data(), other.shape()), "{patterns:?} {name}");
            }
            let about: serde_json::Value =
                serde_json::from_slice(&got[8..][..usize::from(got[0]) | usize::from(got[1]) << 8]).unwrap();
            assert_eq!(about["__metadata__"]["made"], "by \"hand\"");
        }
        let error = chosen(&path, &["a.*", "d*"]).unwrap_err();
        assert!(matches!(&error, Problem::Tensors { problem } if problem.contains("\"d*\"")), "{error}");
    }

    #[test]
    fn what_is_chosen_twice_is_the_same() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("model.safetensors");
        // What lies at the same place, and keys: a hash map would have them in another order each time.
        let tensor =
            |name: usize| format!(r#""empty{name}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#);
        let about: Vec<_> = (0..8).map(|key| format!(r#""key{key}":"{key}""#)).collect();
        let tensors: Vec<_> = (0..8).map(tensor).collect();
        let json = format!(r#"{{"__metadata__":{{{}}},{}}}"#, about.join(","), tensors.join(","));
        fs::write(&path, [&(json.len() as u64).to_le_bytes()[..], json.as_bytes()].concat()).unwrap();
        let first = chosen(&path, &["*"]).unwrap();
        assert_eq!(SafeTensors::deserialize(&first).unwrap().names().len(), 8);
        for _ in 0..5 {
            assert_eq!(chosen(&path, &["*"]).unwrap(), first);
        }
    }

    #[test]
    fn hostile_headers_are_errors() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("model.safetensors");
        let with = |len: u64, json: &str, data: usize| {
            [&len.to_le_bytes()[..], json.as_bytes(), &vec![0; data]].concat()
        };
        let sized = |json: &str, data: usize| with(json.len() as u64, json, data);
        let tensor = |dtype: &str, shape: &str, from: u64, to: u64| {
            format!(r#"{{"a":{{"dtype":"{dtype}","shape":[{shape}],"data_offsets":[{from},{to}]}}}}"#)
        };
        let hostile = [
            vec![],
            vec![1; 7],
            with(u64::MAX, "", 0),
            with(u64::MAX - 7, "{}", 0),
            with(100_000_001, "{}", 0),
            with(3, "{}", 0),
            sized("", 0),
            sized("[]", 0),
            sized("\u{0}", 0),
            sized(&tensor("U8", "4", 0, 4), 3),
            sized(&tensor("U8", "4", 0, 4), 5),
            sized(&tensor("U8", "4", 4, 0), 4),
            sized(&tensor("U8", "4", 1, 5), 5),
            sized(&tensor("U8", "5", 0, 4), 4),
            sized(&tensor("U8", "18446744073709551615,2", 0, 4), 4),
            sized(&tensor("U8", "4", 0, u64::MAX), 4),
            sized(&tensor("X9", "4", 0, 4), 4),
            sized(&tensor(&"ä".repeat(100_000), "4", 0, 4), 4),
            sized(&"[".repeat(100_000), 0),
        ];
        for bytes in hostile {
            fs::write(&path, &bytes).unwrap();
            let refused = chosen(&path, &["*"]);
            let shown = &bytes[..bytes.len().min(80)];
            let Err(Problem::Tensors { problem }) = refused else { panic!("{refused:?} of {shown:?}") };
            assert!(problem.chars().count() <= 1003, "{problem} of {shown:?}");
        }
        fs::write(&path, sized(&tensor("U8", "4", 0, 4), 4)).unwrap();
        assert!(chosen(&path, &["a"]).is_ok());
    }

    #[test]
    fn long_names_are_shortened() {
        let directory = tempfile::tempdir().unwrap();
        let names = ["a", "b"].map(|name| name.repeat(50_000));
        let path = file(directory.path(), &[(names[0].as_str(), 1), (names[1].as_str(), 2)]);
        assert!(chosen(&path, &["a*"]).is_ok());
        let error = chosen(&path, &["c"]).unwrap_err().to_string();
        let (begins, rest) = error.split_at(43);
        assert_eq!(begins, "no tensor is called \"c\"; of 2 there are aaa");
        assert_eq!(rest.trim_start_matches('a'), "...");
        assert_eq!(error.len(), 1003);
    }

    /// The meaning of a pattern, computed in another way.
    fn oracle(pattern: &[char], name: &[char]) -> bool {
        match (pattern, name) {
            ([], name) => name.is_empty(),
            (['*', rest @ ..], name) => (0..=name.len()).any(|skip| oracle(rest, &name[skip..])),
            ([one, rest @ ..], [other, after @ ..]) => (*one == '?' || one == other) && oracle(rest, after),
            (_, []) => false,
        }
    }

    proptest! {
        #[test]
        fn patterns_mean_what_they_say(pattern in "[ab*?]{0,8}", name in "[abä]{0,10}") {
            let chars = |text: &str| text.chars().collect::<Vec<_>>();
            prop_assert_eq!(fits(&pattern, &name), oracle(&chars(&pattern), &chars(&name)));
        }
    }
}
