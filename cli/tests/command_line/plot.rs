//! `unisono bench --plot` draws the results of several runs, and the picture of the README; `unisono simulate --draw` draws schedules, and
//! the pictures of docs/collectives.md.

use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
};

use unisono_schedule::Collective;

/// Runs the bench with these arguments.
fn bench(arguments: &[&str]) -> Output {
    unisono(&[&["bench"], arguments].concat())
}

fn unisono(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_unisono"));
    command.args(arguments).stdin(Stdio::null()).env("UNISONO_TIMEOUT", "60");
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn results_are_drawn_beside_each_other() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (picture, before, after) = (at("picture.svg"), at("before.json"), at("after.json"));
    for (file, least) in [(&before, "8"), (&after, "16")] {
        let output = bench(&[
            "all_reduce",
            "--ranks",
            "2",
            "-n",
            "2",
            "-b",
            least,
            "-e",
            "4K",
            "--out-of-place",
            "--json",
            file,
        ]);
        assert!(output.status.success(), "{output:?}");
    }
    let drawn = |files: &[&str]| {
        let output = bench(&[&["--plot", &picture], files].concat());
        assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
        fs::read_to_string(&picture).unwrap()
    };
    let two = drawn(&[&before, &after]);
    assert!(two.starts_with("<svg") && two.trim_end().ends_with("</svg>"));
    for wanted in ["all_reduce, 2 ranks", "before", "after", "bus bandwidth", "GB/s", "time", "1 KiB"] {
        assert!(two.contains(wanted), "{wanted}");
    }
    // The colours of the first and of the second line.
    let coloured = |picture: &str| ["#0072B2", "#D55E00"].map(|colour| picture.contains(colour));
    assert_eq!([coloured(&drawn(&[&before])), coloured(&two)], [[true, false], [true, true]]);

    // The legend has the difference of each line.
    let output = bench(&["broadcast", "--ranks", "3", "-n", "2", "-b", "8", "-e", "4K", "--json", &after]);
    assert!(output.status.success(), "{output:?}");
    let both = drawn(&[&before, &after]);
    assert!(both.contains("before: all_reduce, 2 ranks") && both.contains("after: broadcast, 3 ranks"));

    let output =
        bench(&["all_reduce", "--ranks", "2", "-n", "2", "-e", "4K", "--in-place", "--json", &after]);
    assert!(output.status.success() && text(&output.stdout).contains("plain memory, in place"), "{output:?}");
    let both = drawn(&[&before, &after]);
    assert!(
        both.contains("before: all_reduce, 2 ranks") && both.contains("after: all_reduce in place, 2 ranks")
    );

    fs::write(&after, "{\"put\": true}\n").unwrap();
    for (files, wanted) in [
        ([&before, &at("nowhere.json")], "nowhere.json: No such file"),
        ([&before, &after], "after.json: line 1: no result of a collective"),
        ([&before, &picture], "picture.svg: line 1: no result"),
    ] {
        let output = bench(&["--plot", &picture, files[0], files[1]]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let said = text(&output.stderr);
        assert!(said.lines().count() == 1 && said.contains(wanted), "{said}");
    }
    for wrong in [&["--plot", "x.svg"][..], &["all_reduce", "--plot", "x.svg", "y.json"], &[]] {
        assert_eq!(bench(wrong).status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn every_kind_of_result_is_drawn() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (picture, results) = (at("picture.svg"), at("results.json"));
    let kinds = ["all_reduce", "barrier", "broadcast", "send_recv", "put", "-W", "2,4"];
    let sweep = ["--ranks", "2", "-n", "2", "-b", "64", "-e", "4K", "-f", "8", "--json", &results];
    let output = bench(&[&kinds[..], &sweep].concat());
    assert!(output.status.success(), "{output:?}");
    assert!(bench(&["--plot", &picture, &results]).status.success());
    let drawn = fs::read_to_string(&picture).unwrap();
    for wanted in [
        "results: all_reduce, 2 ranks",
        "results: all_reduce in place, 2 ranks",
        "results: broadcast, 2 ranks",
        "results: send_recv, 2 ranks, window 2",
        "results: send_recv, 2 ranks, window 4",
        "results: put, 2 ranks, window 4",
    ] {
        assert!(drawn.contains(wanted), "{wanted}");
    }
    let pixels = at("picture.PNG");
    assert!(bench(&["--plot", &pixels, &results]).status.success());
    assert!(fs::read(&pixels).unwrap().starts_with(b"\x89PNG\r\n\x1a\n"));
    // The program draws no picture of another kind, and writes no file.
    let other = at("picture.jpg");
    let output = bench(&["--plot", &other, &results]);
    assert!(output.status.code() == Some(1) && text(&output.stderr).contains(".svg or .png"), "{output:?}");
    assert!(!Path::new(&other).exists());
    // Three sizes of seven lines in two panels, and an entry of each in the legend; a barrier has no size.
    assert_eq!(drawn.matches("<polygon").count(), 3 * 7 * 2 + 7);
    let output = bench(&[
        "all_reduce",
        "--ranks",
        "2",
        "-n",
        "2",
        "-b",
        "4K",
        "-e",
        "4K",
        "--overlap",
        "--json",
        &results,
    ]);
    assert!(output.status.success() && bench(&["--plot", &picture, &results]).status.success());
}

#[test]
fn the_picture_of_the_readme_is_drawn_from_its_data() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("docs");
    let files = fs::read_dir(docs.join("picture")).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.map(|file| file.to_str().unwrap().to_owned()).collect();
    files.sort_by_key(|file| (!file.ends_with("/unisono.json"), file.clone()));
    let directory = tempfile::tempdir().unwrap();
    let picture = directory.path().join("picture.svg");
    let files = files.iter().map(String::as_str);
    let output = bench(&["--plot", picture.to_str().unwrap()].into_iter().chain(files).collect::<Vec<_>>());
    assert!(output.status.success(), "{output:?}");
    let [drawn, shown] = [picture, docs.join("picture.svg")].map(|file| fs::read_to_string(file).unwrap());
    assert!(drawn == shown, "docs/picture.svg is not what `make picture` draws");
}

/// `unisono simulate COLLECTIVE --draw FOLDER`, of one element for each rank or of each block.
fn draw(collective: &str, folder: &Path, more: &[&str]) -> Output {
    let fixed = ["--ranks-per-host", "1", "--bytes", "16", "--fabric", "tcp", "--draw"];
    unisono(&[&["simulate", collective], &fixed[..], &[folder.to_str().unwrap()], more].concat())
}

#[test]
fn the_pictures_of_collectives_are_drawn_from_their_schedules() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("docs");
    let page = fs::read_to_string(docs.join("collectives.md")).unwrap();
    let files = fs::read_dir(docs.join("collectives")).unwrap().map(|entry| entry.unwrap().file_name());
    let files: Vec<_> = files.map(|file| file.into_string().unwrap()).collect();
    assert_eq!(files.len(), Collective::ALL.len(), "{files:?}");
    let folder = tempfile::tempdir().unwrap();
    for collective in Collective::ALL.map(Collective::name) {
        let begin = format!("{collective}-");
        let file = files.iter().find(|file| file.starts_with(&begin)).expect(collective);
        assert!(page.contains(&format!("](collectives/{file})")), "docs/collectives.md does not show {file}");
        let algorithm = file[begin.len()..].strip_suffix(".svg").unwrap();
        let output = draw(collective, folder.path(), &["--ranks", "4", "--algorithm", algorithm]);
        assert!(output.status.success(), "{output:?}");
        let [drawn, shown] =
            [folder.path(), &docs.join("collectives")].map(|at| fs::read_to_string(at.join(file)).unwrap());
        assert!(drawn == shown, "docs/collectives/{file} is not what `make collectives` draws");
    }
}

#[test]
fn a_schedule_is_drawn_of_few_ranks_and_elements() {
    let folder = tempfile::tempdir().unwrap();
    let output = draw("all_gather", folder.path(), &["--ranks", "3"]);
    assert!(output.status.success(), "{output:?}");
    let files = || fs::read_dir(folder.path()).unwrap().count();
    let drawn = fs::read_to_string(folder.path().join("all_gather-ring.svg")).unwrap();
    assert!(files() > 3 && drawn.contains("all_gather by ring, 3 ranks"), "{drawn}");
    // Each of two hops has a message from each rank.
    assert_eq!(drawn.matches("<polygon").count(), 2 * 3);
    for more in [&["--ranks", "9"][..], &["--ranks", "2", "--bytes", "1K"]] {
        let other = folder.path().join("other");
        let arguments =
            [&["simulate", "all_reduce", "--fabric", "tcp", "--draw"][..], &[other.to_str().unwrap()], more];
        let output = unisono(&arguments.concat());
        let said = text(&output.stderr);
        assert!(
            output.status.code() == Some(1) && said.contains("at most 8 ranks and 16 elements"),
            "{output:?}"
        );
    }
}
