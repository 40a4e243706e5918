//! The output of `unisono bench`: the blocks and columns of its table, its lines of JSON, and sweeps over types, reductions and roots.

use std::{
    collections::BTreeSet,
    io::Read,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_unisono"));
    command
        .arg("bench")
        .args(arguments)
        .args(["--ranks", "2"])
        .env("UNISONO_TIMEOUT", "60")
        .stdin(Stdio::null());
    command
}

/// Runs a bench that must succeed, without a word on standard error.
fn bench(arguments: &[&str]) -> String {
    let output = command(arguments).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The lines of JSON on standard output, with nothing else.
fn records(arguments: &[&str]) -> Vec<Value> {
    bench(&[arguments, &["--json", "-"]].concat())
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn rows(table: &str) -> Vec<Vec<&str>> {
    table
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split_whitespace().collect())
        .collect()
}

const FEW: [&str; 8] = ["-b", "64", "-e", "4K", "-f", "64", "-n", "3"];

#[test]
fn a_collective_has_the_columns_of_nccl_tests_and_says_who_is_where() {
    let table = bench(&[&["all_reduce"], &FEW[..]].concat());
    assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
    let head: Vec<_> = table.lines().take_while(|line| line.starts_with('#')).collect();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    assert!(head[0].contains(env!("CARGO_PKG_VERSION")) && head[0].contains(&host), "{table}");
    for (rank, line) in head[2..4].iter().enumerate() {
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!([words[1], words[2]], [rank.to_string().as_str(), &host], "{table}");
        assert!(words[3].parse::<u32>().is_ok(), "{table}");
        assert_eq!(words[5], if rank == 0 { "-" } else { "shm" }, "{table}");
    }
    assert!(head.iter().any(|line| line.starts_with("# all_reduce on 2 ranks over shm (")), "{table}");
    let [over, names, units] = head[head.len() - 3..] else { panic!("{table}") };
    assert!(over.find("out of place").unwrap() < over.rfind("in place").unwrap(), "{table}");
    let words: Vec<_> = names.split_whitespace().collect();
    let form = ["time", "algbw", "busbw", "#wrong"];
    assert_eq!(words, [&["#", "size", "count", "type", "redop", "root"], &form[..], &form].concat());
    assert_eq!(units.split_whitespace().collect::<Vec<_>>()[1..3], ["(B)", "(elements)"]);
    assert_eq!((units.matches("(us)").count(), units.matches("(GB/s)").count()), (2, 4), "{table}");
    let rows = rows(&table);
    assert_eq!(
        rows.iter().map(|row| row[..5].to_vec()).collect::<Vec<_>>(),
        [["64", "16", "f32", "sum", "-1"], ["4096", "1024", "f32", "sum", "-1"]]
    );
    for row in &rows {
        let [out, inside] = [5, 9].map(|at| row[at].parse::<f64>().unwrap());
        assert!(row.len() == 13 && out > 0.0 && inside > 0.0 && row[8] == "0" && row[12] == "0", "{table}");
    }
    let end: Vec<_> = table.lines().rev().take(4).collect();
    assert!(end.iter().any(|line| line.starts_with("# Wrong values") && line.ends_with(": 0 OK")), "{table}");
    let average = end.iter().find(|line| line.starts_with("# Average bus bandwidth")).unwrap();
    assert!(average.ends_with(" GB/s"), "{table}");
}

#[test]
fn other_tables_are_no_wider() {
    for arguments in [
        &["reduce_scatter", "--detail"][..],
        &["all_gather", "--overlap"],
        &["send_recv", "-W", "1,8"],
        &["put", "-W", "1,8"],
        &["broadcast"],
        &["all_reduce", "--provider", "tcp", "--registered", "-o", "premulsum:0.123456789"],
    ] {
        let table = bench(&[arguments, &FEW[..]].concat());
        let most = if arguments.contains(&"-o") { 120 } else { 100 };
        assert!(table.lines().all(|line| line.chars().count() <= most), "{table}");
        assert!(rows(&table).iter().all(|row| row[0] == "64" || row[0] == "4096"), "{table}");
    }
    let table = bench(&[&["send_recv", "-W", "1,8"], &FEW[..]].concat());
    assert_eq!(rows(&table).iter().map(|row| row[3]).collect::<Vec<_>>(), ["1", "8", "1", "8"], "{table}");
    let table = bench(&[&["put", "-W", "2"], &FEW[..]].concat());
    assert!(rows(&table).iter().all(|row| row[1] == "2"), "{table}");
}

#[test]
fn all_lines_of_json_have_one_shape() {
    let kinds = [
        &["all_reduce"][..],
        &["barrier"],
        &["broadcast", "--overlap"],
        &["send_recv"],
        &["put"],
        &["gather", "--in-place"],
    ];
    let mut shapes = BTreeSet::new();
    for kind in kinds {
        for record in records(&[kind, &FEW[..]].concat()) {
            shapes.insert(record.as_object().unwrap().keys().cloned().collect::<Vec<_>>());
            assert_eq!(record["bench"], kind[0]);
            let text = |key: &str| record[key].as_str().unwrap().to_owned();
            assert!(
                text("date").len() == 20 && text("date").ends_with('Z') && text("date").starts_with("20"),
                "{record}"
            );
            assert_eq!(text("unisono"), env!("CARGO_PKG_VERSION"));
            assert!(!text("host").is_empty() && !text("processor").is_empty() && !text("library").is_empty());
            assert!(record["processors"].as_u64().unwrap() >= 1 && record["hosts"] == 1, "{record}");
            assert_eq!((&record["iterations"], &record["warmup"]), (&3.into(), &5.into()), "{record}");
            assert!(
                record["time_us"]["p50"].as_f64().unwrap() > 0.0 && record["busbw"].is_number(),
                "{record}"
            );
        }
    }
    assert_eq!(shapes.len(), 1, "{shapes:?}");
}

/// The values under a key, each once.
fn values(records: &[Value], key: &str) -> BTreeSet<String> {
    records.iter().map(|record| record[key].to_string().replace('"', "")).collect()
}

#[test]
fn all_types_reductions_roots_and_several_collectives() {
    let one = ["-b", "64", "-e", "64", "-n", "1", "-w", "0", "--no-raw", "--out-of-place"];
    let found = records(&[&["all_reduce", "-d", "all", "-o", "all"], &one[..]].concat());
    assert_eq!(
        (values(&found, "dtype").len(), values(&found, "op").len()),
        (12, 8),
        "{:?}",
        values(&found, "op")
    );
    // Floats have no bits.
    assert_eq!(found.len(), 12 * 8 - 4 * 3);
    assert_eq!(values(&found, "wrong"), ["0".to_owned()].into());
    let found = records(
        &[&["all_gather", "reduce,barrier", "broadcast", "-r", "all", "-o", "max", "-d", "i32"], &one[..]]
            .concat(),
    );
    let kinds: Vec<_> = found
        .iter()
        .map(|it| format!("{} {} {}", it["bench"], it["root"], it["op"]).replace('"', ""))
        .collect();
    assert_eq!(
        kinds,
        [
            "all_gather null null",
            "reduce 0 max",
            "reduce 1 max",
            "barrier null null",
            "broadcast 0 null",
            "broadcast 1 null"
        ]
    );
    assert_eq!(values(&found, "dtype"), ["i32".to_owned()].into());
    let found = records(
        &[&["send_recv", "put", "-d", "u8"], &one[..9]]
            .concat()
            .into_iter()
            .filter(|it| *it != "--no-raw")
            .collect::<Vec<_>>(),
    );
    assert_eq!(values(&found, "bench"), ["put".to_owned(), "send_recv".to_owned()].into());
    let found = records(&["reduce_scatter", "-b", "1K", "-i", "1K", "-e", "4K", "-n", "1", "--out-of-place"]);
    assert_eq!(
        found.iter().map(|it| it["bytes"].as_u64().unwrap()).collect::<Vec<_>>(),
        [1024, 2048, 3072, 4096]
    );
    for (wrong, word) in [
        (&["all_reduce", "-i", "8", "-f", "2"][..], "--factor"),
        (&["all_reduce", "-i", "0"], "1 byte"),
        (&["barrier", "all_gather", "-o", "max"], "-o:"),
        (&["all_reduce", "-r", "all"], "-r:"),
    ] {
        let output = command(wrong).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(word), "{wrong:?}: {said}");
    }
}

#[test]
fn a_reader_that_stops_ends_it_in_silence() {
    for more in [&[][..], &["--json", "-"]] {
        let mut command =
            command(&[&["all_reduce", "-b", "8", "-e", "1G", "-n", "2", "--no-raw"], more].concat());
        let mut started = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut output = started.stdout.take().unwrap();
        output.read_exact(&mut [0]).unwrap();
        drop(output);
        let begun = Instant::now();
        let ended: Output = started.wait_with_output().unwrap();
        assert_eq!((ended.status.code(), String::from_utf8(ended.stderr).unwrap().as_str()), (Some(141), ""));
        assert!(begun.elapsed() < Duration::from_secs(20), "it measured on");
    }
}

#[test]
fn a_narrow_terminal_has_fewer_columns_and_no_colours() {
    let bench = format!(
        "stty cols 60; exec {} bench all_reduce --ranks 2 -b 8 -e 64 -n 2 --no-raw",
        env!("CARGO_BIN_EXE_unisono")
    );
    let mut command = Command::new("script");
    let output =
        command.args(["-qec", &bench, "/dev/null"]).env("NO_COLOR", "1").stdin(Stdio::null()).output();
    let Ok(output) = output else { return println!("SKIPPED: a narrow terminal: there is no script(1)") };
    let table = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<_> = table
        .lines()
        .map(|line| line.trim_end_matches('\r'))
        .filter(|line| !line.contains('\u{1b}'))
        .collect();
    assert!(lines.len() > 8 && lines.iter().all(|line| line.chars().count() <= 60), "{table}");
    assert!(lines.iter().any(|line| line.contains("busbw")) && !table.contains("\u{1b}[3"), "{table}");
}
