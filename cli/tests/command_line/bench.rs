//! `unisono bench` from the command line: every collective, with and without computations, messages and raw puts, the lines of
//! JSON, and errors.

use std::{
    collections::BTreeSet,
    fs,
    io::Read,
    path::Path,
    process::{Command, Output, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

/// Runs the bench with these arguments. Checks that it leaves no process behind.
fn bench(arguments: &[&str]) -> Output {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    let mark = format!("BENCH_TEST={}-{call}", std::process::id());
    let (name, value) = mark.split_once('=').unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_unisono"));
    command.arg("bench").args(arguments).stdin(Stdio::null()).env(name, value).env("UNISONO_TIMEOUT", "60");
    let output = command.output().unwrap();
    let begun = Instant::now();
    while let Some(left) = marked(&mark) {
        assert!(begun.elapsed() < Duration::from_secs(2), "{arguments:?} left process {left}");
        std::thread::sleep(Duration::from_millis(5));
    }
    output
}

/// A running process that has this in its environment.
fn marked(mark: &str) -> Option<String> {
    fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path()).find_map(|path| {
        let environment = fs::read(path.join("environ")).ok()?;
        let has = environment.split(|&byte| byte == 0).any(|variable| variable == mark.as_bytes());
        has.then(|| path.display().to_string())
    })
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Runs a bench that must succeed, and returns its lines of JSON. Its standard error must be empty, and its standard output plain,
/// because both are pipes.
fn lines(arguments: &[&str]) -> Vec<Value> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("results.json");
    let json = ["--json", file.to_str().unwrap()];
    let form = if arguments.contains(&"--in-place") { &[][..] } else { &["--out-of-place"] };
    let output = bench(&[arguments, form, &json].concat());
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    assert_eq!(text(&output.stderr), "", "{arguments:?}");
    let table = text(&output.stdout);
    assert!(!table.contains(['\r', '\x1b']), "{arguments:?}: {table:?}");
    let lines: Vec<Value> =
        fs::read_to_string(&file).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let rows = table.lines().filter(|line| !line.starts_with('#')).count();
    assert_eq!(rows, lines.len(), "{arguments:?}: {table}");
    lines
}

/// The number under a path of keys.
fn number(line: &Value, keys: &[&str]) -> f64 {
    let found = keys.iter().try_fold(line, |value, key| value.get(key));
    let number = found.and_then(Value::as_f64);
    assert!(number.is_some_and(f64::is_finite), "{keys:?} in {line}");
    number.unwrap()
}

/// Checks the fields of a line of JSON that do not depend on the measurement.
fn judge(line: &Value, collective: &str, ranks: u64, provider: &str) {
    assert_eq!(line["collective"], collective, "{line}");
    assert_eq!(line["ranks"], ranks, "{line}");
    // `tcp` is what is asked for; libfabric 1.17 calls it `net`.
    let names: &[&str] = if provider == "tcp" { &["tcp", "net"] } else { &[provider] };
    assert!(names.iter().any(|name| line["provider"] == **name), "{line}");
    let library = if provider == "shm" { "unisono " } else { "libfabric " };
    assert!(line["library"].as_str().unwrap().starts_with(library), "{line}");
    assert!(!line["algorithm"].as_str().unwrap().is_empty(), "{line}");
    assert!(line["dtype"].is_string(), "{line}");
    assert_eq!(line["wrong"], 0, "{line}");
    let [min, p50, p99, mean] = ["min", "p50", "p99", "mean"].map(|which| number(line, &["time_us", which]));
    assert!(0.0 < min && min <= p50 && p50 <= p99 && mean > 0.0, "{line}");
    let bytes = number(line, &["bytes"]);
    let close = |got: f64, wanted: f64| (got - wanted).abs() <= 1e-9 * wanted.abs().max(1e-300);
    let algbw = number(line, &["algbw"]);
    assert!(close(algbw, bytes / p50 / 1e3), "{line}");
    let share = (ranks as f64 - 1.0) / ranks as f64;
    let factor = match collective {
        "all_reduce" => 2.0 * share,
        "reduce_scatter" | "all_gather" | "gather" | "scatter" | "all_to_all" => share,
        _ => 1.0,
    };
    assert!(close(number(line, &["busbw"]), algbw * factor), "{line}");
    assert!(number(line, &["pct_of_raw"]) >= 0.0, "{line}");
    assert!(number(line, &["cpu_s_per_GB"]) >= 0.0, "{line}");
}

/// These collectives have the right results with two and three ranks.
fn come_out_right(collectives: &[&str]) {
    for (ranks, provider) in [(2, "tcp"), (3, "tcp"), (2, "shm")] {
        let number = ranks.to_string();
        let sweep = ["-b", "24", "-e", "6K", "-f", "16", "-n", "3", "-w", "1", "--provider", provider];
        let found = lines(&[collectives, &["--ranks", &number], &sweep].concat());
        for line in &found {
            let collective = line["bench"].as_str().unwrap();
            judge(line, collective, ranks, provider);
            let reduces = ["all_reduce", "reduce_scatter", "reduce"].contains(&collective);
            let rooted = ["broadcast", "reduce", "gather", "scatter"].contains(&collective);
            assert_eq!(line["op"], if reduces { Value::from("sum") } else { Value::Null });
            assert_eq!(line["root"], if rooted { Value::from(0) } else { Value::Null });
        }
        let sizes = |collective: &str| if collective == "barrier" { vec![0] } else { vec![24, 384, 6144] };
        assert_eq!(measured(&found), of_each(collectives, sizes));
    }
}

/// The collectives and sizes of these lines.
fn measured(lines: &[Value]) -> Vec<(&str, u64)> {
    lines.iter().map(|line| (line["bench"].as_str().unwrap(), line["bytes"].as_u64().unwrap())).collect()
}

/// Every collective with each of its sizes.
fn of_each<'a>(collectives: &[&'a str], sizes: impl Fn(&str) -> Vec<u64>) -> Vec<(&'a str, u64)> {
    collectives.iter().flat_map(|&it| sizes(it).into_iter().map(move |bytes| (it, bytes))).collect()
}

#[test]
fn every_collective_among_equals_at_two_and_three_ranks() {
    come_out_right(&["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "barrier"]);
}

#[test]
fn every_collective_with_a_root_at_two_and_three_ranks() {
    come_out_right(&["broadcast", "reduce", "gather", "scatter"]);
}

#[test]
fn every_collective_with_two_forms_in_place() {
    let few = ["-b", "24", "-e", "96K", "-f", "4096", "-n", "3", "-w", "1", "--provider", "tcp"];
    let collectives =
        ["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "reduce", "gather", "scatter"];
    for (ranks, more) in [(2, &["--in-place"][..]), (3, &["--in-place", "--registered"])] {
        let number = ranks.to_string();
        let found = lines(&[&collectives, &["--ranks", &number][..], &few, more].concat());
        for line in &found {
            judge(line, line["bench"].as_str().unwrap(), ranks, "tcp");
            assert_eq!(line["in_place"], true, "{line}");
        }
        assert_eq!(measured(&found), of_each(&collectives, |_| vec![24, 98304]));
    }
    // A factor by which repeated sums would overflow, or vanish.
    for op in ["premulsum:0.3", "premulsum:1e30", "product"] {
        let found = lines(
            &[&["reduce", "--ranks", "2", "-n", "300", "-o", op, "--in-place"][..], &few[..4]].concat(),
        );
        assert!(found.iter().all(|line| line["wrong"] == 0), "{found:?}");
    }
    let one = |collective| lines(&[collective, "--ranks", "2", "-n", "2", "-b", "8", "-e", "8"]).remove(0);
    assert_eq!(["barrier", "broadcast"].map(|it| one(it)["in_place"].clone()), [Value::Null, Value::Null]);
    assert_eq!(one("all_reduce")["in_place"], false);
}

#[test]
fn options_apply_to_collectives() {
    let few = ["-n", "2", "-w", "0", "--provider", "tcp", "--ranks", "2"];
    let with = |more: &[&str]| lines(&[more, &few].concat());
    for (dtype, op, name) in [
        ("bf16", "avg", "avg"),
        ("u8", "bor", "bor"),
        ("i64", "max", "max"),
        ("half", "premulsum:0.5", "premulsum(0.5)"),
        // Twice as much wraps.
        ("i64", "premulsum:4e18", "premulsum(4e18)"),
    ] {
        let found = with(&["all_reduce", "-b", "4K", "-e", "4K", "-d", dtype, "-o", op]);
        let wanted = [if dtype == "half" { "f16" } else { dtype }, name, "fastest"];
        assert_eq!([&found[0]["dtype"], &found[0]["op"], &found[0]["reduction"]], wanted);
        judge(&found[0], "all_reduce", 2, "tcp");
    }
    let found =
        with(&["all_reduce", "-b", "8", "-e", "64K", "-f", "8192", "--algorithm", "ring", "--registered"]);
    assert!(found.iter().all(|line| line["algorithm"] == "ring" && line["registered"] == true), "{found:?}");
    let found = with(&["broadcast", "-b", "0", "-e", "8", "-r", "1"]);
    assert_eq!(found.iter().map(|line| &line["bytes"]).collect::<Vec<_>>(), [0, 4, 8]);
    assert!(found.iter().all(|line| line["root"] == 1 && line["reduction"].is_null()), "{found:?}");
    let found = with(&["reduce", "-b", "8", "-e", "8", "--reproducible"]);
    assert_eq!(found[0]["reduction"], "reproducible");
    assert!(found[0]["pct_of_raw"].is_number());
    let found = with(&["reduce", "-b", "8", "-e", "8", "--no-raw"]);
    assert_eq!(found[0]["pct_of_raw"], Value::Null);
}

#[test]
fn one_rank_is_a_world_too() {
    for collective in ["all_reduce", "barrier"] {
        let found = lines(&[collective, "--ranks", "1", "-b", "8", "-e", "8", "-n", "2"]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0]["wrong"], 0);
        assert_eq!(found[0]["pct_of_raw"], Value::Null);
    }
}

#[test]
fn puts_one_way_and_both_ways() {
    // Idle ranks do not disturb; the two active ranks are of different halves.
    for (ranks, second) in [("2", 1), ("3", 1), ("4", 2)] {
        let found = lines(&[
            "put",
            "--ranks",
            ranks,
            "--provider",
            "tcp",
            "-b",
            "8",
            "-e",
            "32K",
            "-f",
            "64",
            "-n",
            "40",
            "-w",
            "4",
        ]);
        let bytes: Vec<_> = found.iter().map(|line| line["bytes"].as_u64().unwrap()).collect();
        assert_eq!(bytes, [8, 512, 32768]);
        for line in found {
            assert_eq!(line["put"], true);
            assert_eq!(line["pair"], json!([0, second]), "{line}");
            let [min, p50, p99] = ["min", "p50", "p99"].map(|which| number(&line, &["latency_us", which]));
            assert!(0.0 < min && min <= p50 && p50 <= p99, "{line}");
            for key in ["one_way_GBps", "both_ways_GBps", "rate_Mps", "rate_both_Mps"] {
                assert!(number(&line, &[key]) > 0.0, "{line}");
            }
        }
    }
}

/// Checks the fields of a line of `--overlap` that do not depend on the measurement.
fn judge_overlap(line: &Value, collective: &str, ranks: u64) {
    assert_eq!([&line["collective"], &line["wrong"]], [&Value::from(collective), &Value::from(0)], "{line}");
    assert_eq!(line["ranks"], ranks, "{line}");
    assert!(line["busy"]["threads"].as_u64().unwrap() >= 1, "{line}");
    let communication = number(line, &["communication_us"]);
    for kind in ["idle", "busy"] {
        let [compute, total, percent] =
            ["compute_us", "total_us", "overlap_pct"].map(|which| number(line, &[kind, which]));
        assert!(communication > 0.0 && compute > 0.0 && total > 0.0, "{line}");
        let wanted = (100.0 - 100.0 * (total - compute) / communication).clamp(0.0, 100.0);
        assert!((percent - wanted).abs() < 1e-6, "{percent} for {wanted}: {line}");
    }
}

/// Measures the overlap of each of these collectives.
fn hides_between_none_and_all_of_itself(collectives: &[&str], more: &[&str]) {
    for collective in collectives {
        let few = ["--overlap", "-b", "24", "-e", "6K", "-f", "256", "-n", "3", "-w", "1"];
        let found = lines(&[&[*collective, "--ranks", "3", "--provider", "tcp"][..], more, &few].concat());
        found.iter().for_each(|line| judge_overlap(line, collective, 3));
        let bytes: Vec<_> = found.iter().map(|line| line["bytes"].as_u64().unwrap()).collect();
        assert_eq!(bytes, if *collective == "barrier" { vec![0] } else { vec![24, 6144] }, "{collective}");
    }
}

#[test]
fn what_overlaps_among_equals() {
    let collectives = ["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "barrier"];
    hides_between_none_and_all_of_itself(&collectives, &[]);
}

#[test]
fn what_overlaps_with_a_root() {
    hides_between_none_and_all_of_itself(&["broadcast", "reduce", "gather", "scatter"], &["-r", "1"]);
}

#[test]
fn options_apply_to_overlap() {
    let few = ["--overlap", "-n", "3", "-w", "0", "-b", "4K", "-e", "4K"];
    let with = |more: &[&str]| lines(&[more, &few].concat()).pop().unwrap();
    // In place, with this number of calls.
    let line =
        with(&["all_reduce", "--ranks", "2", "--provider", "shm", "-d", "bf16", "-o", "premulsum:0.5"]);
    judge_overlap(&line, "all_reduce", 2);
    assert_eq!([&line["dtype"], &line["op"]], ["bf16", "premulsum(0.5)"]);
    let line = with(&[
        "reduce",
        "--ranks",
        "3",
        "--provider",
        "tcp",
        "-r",
        "2",
        "--registered",
        "--algorithm",
        "tree",
    ]);
    judge_overlap(&line, "reduce", 3);
    assert_eq!([&line["root"], &line["registered"]], [&Value::from(2), &Value::from(true)]);
    assert_eq!(line["algorithm"], "tree");
    judge_overlap(&with(&["all_reduce", "--ranks", "1"]), "all_reduce", 1);
}

#[test]
fn both_computations_have_their_columns() {
    let output = bench(&["barrier", "--overlap", "--ranks", "2", "--provider", "tcp", "-n", "2", "-w", "0"]);
    assert!(output.status.success(), "{output:?}");
    let table = text(&output.stdout);
    let head = table.lines().find(|line| line.contains("algorithm")).unwrap();
    let row = table.lines().find(|line| !line.starts_with('#')).unwrap();
    let places = |line: &str| line.match_indices('|').map(|(at, _)| at).collect::<Vec<_>>();
    assert_eq!((places(head).len(), places(head)), (3, places(row)), "{table}");
    let words = |line: &str| line.trim_start_matches('#').split_whitespace().count();
    assert_eq!(words(head), words(row), "{table}");
    assert!(["sleep", "work", "%hidden"].iter().all(|word| head.contains(word)), "{table}");
}

#[test]
fn messages_between_pairs() {
    let few = ["send_recv", "--provider", "tcp", "-n", "70", "-w", "2", "-e", "64K", "-f", "256"];
    // A rank without a partner is idle.
    for (ranks, pairs, more) in [
        ("2", 1, &["-b", "0"][..]),
        ("3", 1, &["-b", "256", "-d", "f64"]),
        ("5", 2, &["-b", "256", "--registered"]),
    ] {
        let found = lines(&[&few, &["--ranks", ranks][..], more].concat());
        let bytes: Vec<_> = found.iter().map(|line| line["bytes"].as_u64().unwrap()).collect();
        // 1 byte is less than an element.
        assert_eq!(bytes, if more[1] == "0" { vec![0, 256, 65536] } else { vec![256, 65536] });
        for line in found {
            assert_eq!([&line["pairs"], &line["wrong"]], [pairs, 0], "{line}");
            assert_eq!(line["ranks"].to_string(), ranks, "{line}");
            assert_eq!(line["registered"], more.contains(&"--registered"), "{line}");
            assert_eq!(line["dtype"], if more.contains(&"f64") { "f64" } else { "f32" }, "{line}");
            let [min, p50, p99] = ["min", "p50", "p99"].map(|which| number(&line, &["latency_us", which]));
            assert!(0.0 < min && min <= p50 && p50 <= p99, "{line}");
            let size = number(&line, &["bytes"]);
            for (rate, bandwidth) in [("rate_Mps", "one_way_GBps"), ("rate_both_Mps", "both_ways_GBps")] {
                let (rate, bandwidth) = (number(&line, &[rate]), number(&line, &[bandwidth]));
                assert!(rate > 0.0 && (bandwidth - rate * size / 1e3).abs() <= 1e-9 * bandwidth, "{line}");
            }
        }
    }
}

/// Invalid arguments, the exit status, and words of the error.
const WRONG: &[(&[&str], i32, &[&str])] = &[
    (&["all_reduce", "--ranks", "2", "-d", "f99"], 2, &["f99", "--dtype", "bf16"]),
    (&["all_reduce", "--ranks", "2", "-o", "middle"], 2, &["middle", "--op", "avg"]),
    (&["all_scatter", "--ranks", "2"], 2, &["all_scatter", "reduce_scatter", "put"]),
    (&["all_reduce", "--ranks", "2", "-o", "bor"], 1, &["bor", "f32"]),
    (&["all_reduce", "--ranks", "2", "-o", "premulsum:nan"], 1, &["-o premulsum:NaN", "finite"]),
    (&["all_reduce", "--ranks", "2", "-o", "premulsum:-inf"], 1, &["-o premulsum:-inf", "finite"]),
    (&["all_reduce", "--ranks", "2", "--provider", "pigeon"], 1, &["pigeon"]),
    (&["all_reduce", "--ranks", "2", "--algorithm", "magic"], 1, &["magic", "ring"]),
    (&["barrier", "--ranks", "2", "--algorithm", "binomial"], 1, &["binomial", "dissemination"]),
    (&["all_reduce", "--ranks", "2", "-b", "1K", "-e", "8"], 1, &["-b 1024", "-e 8"]),
    (&["broadcast", "--ranks", "2", "-r", "2"], 1, &["-r 2", "0 to 1"]),
    (&["put", "--ranks", "1"], 1, &["two ranks"]),
    (&["put", "--ranks", "2", "-b", "0", "-e", "0"], 1, &["-e 0", "at least one byte"]),
    (&["send_recv", "--ranks", "1"], 1, &["send_recv", "two ranks"]),
    (&["send_recv", "--ranks", "2", "--overlap"], 1, &["--overlap", "collectives", "send_recv"]),
    (&["put", "--ranks", "2", "--overlap"], 1, &["--overlap", "collectives", "put"]),
    (&["send_recv", "--ranks", "2", "--algorithm", "ring"], 1, &["--algorithm ring", "send_recv"]),
    (&["put", "--ranks", "2", "--algorithm", "ring"], 1, &["--algorithm ring", "put"]),
    (&["put", "--ranks", "2", "-d", "f32"], 1, &["-d:", "put"]),
    (&["put", "--ranks", "2", "--registered"], 1, &["--registered:", "put"]),
    (&["put", "--ranks", "2", "-o", "sum"], 1, &["-o:", "put"]),
    (&["send_recv", "--ranks", "2", "-r", "1"], 1, &["-r:", "send_recv"]),
    (&["all_gather", "--ranks", "2", "-o", "max"], 1, &["-o:", "all_gather"]),
    (&["all_reduce", "--ranks", "2", "-r", "1"], 1, &["-r:", "all_reduce"]),
    (&["send_recv", "--ranks", "2", "--reproducible"], 1, &["--reproducible:", "send_recv"]),
    (&["all_gather", "--ranks", "2", "--reproducible"], 1, &["--reproducible:", "all_gather"]),
    (&["all_reduce", "--ranks", "2", "--provider", ""], 2, &["--provider"]),
    (&["all_reduce", "--ranks", "2", "--algorithm", ""], 2, &["--algorithm"]),
    (&["all_reduce", "--ranks", "2", "-b", "eight"], 2, &["eight", "4096"]),
    (&["all_reduce", "--ranks", "2", "-e", "99999999999999999999"], 2, &["too large"]),
    (&["all_reduce", "--ranks", "2", "-e", "99999999999G"], 2, &["too large"]),
    // A valid size that no machine has.
    (
        &["all_reduce", "--ranks", "2", "-b", "1000000000G", "-e", "1000000000G"],
        1,
        &["1073741824000000000 bytes"],
    ),
    (
        &["all_gather", "--ranks", "2", "-b", "1000000000G", "-e", "1000000000G", "--registered"],
        1,
        &["memory"],
    ),
    (&["put", "--ranks", "2", "-b", "1000000000G", "-e", "1000000000G"], 1, &["memory"]),
    (&["all_reduce", "--ranks", "2", "-f", "1"], 2, &["--factor"]),
    (&["all_reduce", "--ranks", "0"], 2, &["--ranks"]),
    (&["all_reduce", "--ranks", "2", "-n", "0"], 2, &["--iters"]),
    (&["broadcast", "--ranks", "2", "--in-place"], 1, &["--in-place: it has no meaning for broadcast"]),
    (&["put", "--ranks", "2", "--in-place"], 1, &["--in-place: it has no meaning for put"]),
    (
        &["gather", "--ranks", "2", "--in-place", "--overlap"],
        1,
        &["--in-place: --overlap begins gather out of place"],
    ),
    (&["all_reduce", "--ranks", "2", "--json", "/nowhere/results"], 1, &["/nowhere/results", "No such file"]),
    (&["all_reduce", "--ranks", "2", "--json", "/"], 1, &["/: ", "directory"]),
];

#[test]
fn what_is_wrong_is_told_in_one_line() {
    for (arguments, status, words) in WRONG {
        let output = bench(arguments);
        assert_eq!(output.status.code(), Some(*status), "{arguments:?}: {output:?}");
        // clap's errors end in a hint. Each rank may print its failure, and the launcher the rank that ended.
        let said: BTreeSet<_> = text(&output.stderr)
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with("For more information"))
            .filter(|line| !line.starts_with("unisono run: rank "))
            // A rank that got the failure from another rank first names that rank.
            .map(|line| {
                line.replace("rank 0 aborted the group: ", "").replace("rank 1 aborted the group: ", "")
            })
            .collect();
        assert_eq!(said.len(), 1, "{arguments:?}: {output:?}");
        let line = said.first().unwrap();
        assert!(words.iter().all(|word| line.contains(word)), "{arguments:?}: {line}");
        assert_eq!(text(&output.stdout), "", "{arguments:?}");
    }
}

#[test]
fn more_calls_than_memory_can_count_are_an_error() {
    for what in ["all_reduce", "all_reduce --overlap", "send_recv", "put"] {
        let bench = format!(
            "ulimit -v 16777216; exec {} bench {what} --ranks 2 --provider tcp -b 8 -e 8 -n {}",
            env!("CARGO_BIN_EXE_unisono"),
            u32::MAX
        );
        let output = Command::new("sh").args(["-c", &bench]).stdin(Stdio::null()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let said = text(&output.stderr);
        assert!(said.contains("-n 4294967295: a vector of ") && said.lines().count() <= 3, "{said}");
    }
}

#[test]
fn what_only_one_rank_met_all_tell() {
    let unisono = env!("CARGO_BIN_EXE_unisono");
    let output = Command::new(unisono)
        .args(["run", "-n", "3", "--provider", "tcp", "--", unisono, "bench", "barrier"])
        .args(["--json", "/nowhere/results"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = text(&output.stderr);
    // The ranks that printed something before they were ended.
    let messages: Vec<_> = said.lines().filter(|line| line.starts_with('[')).collect();
    assert!(!messages.is_empty() && messages.iter().all(|line| line.contains("/nowhere/results")), "{said}");
}

#[test]
fn a_terminal_gets_a_bar_even_within_one_size() {
    let mark = format!("BAR_TEST={}", std::process::id());
    let bench = format!(
        "exec timeout --foreground 30 env {mark} {} bench barrier --ranks 2 --provider tcp -n 100000000",
        env!("CARGO_BIN_EXE_unisono")
    );
    let mut command = Command::new("script");
    command.args(["-qec", &bench, "/dev/null"]).stdin(Stdio::null()).stdout(Stdio::piped());
    let Ok(mut terminal) = command.spawn() else {
        println!("SKIPPED: a terminal that is closed: there is no script(1), which makes a terminal");
        return;
    };
    // This many calls take minutes, so the lines are printed while they run.
    let mut seen = Vec::new();
    let mut output = terminal.stdout.take().unwrap();
    let begun = Instant::now();
    while !String::from_utf8_lossy(&seen).contains(" of 100000000") {
        let mut some = [0; 4096];
        let count = output.read(&mut some).unwrap();
        assert!(count > 0, "it ended without a bar: {}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&some[..count]);
    }
    assert!(begun.elapsed() >= Duration::from_secs(2), "a bar at once");
    terminal.kill().unwrap();
    terminal.wait().unwrap();
    // The end of the terminal ends all processes.
    let begun = Instant::now();
    while let Some(left) = marked(&mark) {
        assert!(begun.elapsed() < Duration::from_secs(5), "process {left} is left");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_full_disk_is_an_error() {
    if !Path::new("/dev/full").exists() {
        println!("SKIPPED: a full disk: there is no /dev/full");
        return;
    }
    let output = bench(&["barrier", "--ranks", "2", "-n", "2", "--json", "/dev/full"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains("No space left"), "{output:?}");
}

#[test]
fn it_is_a_program_that_any_launcher_can_start() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("results.json");
    let unisono = env!("CARGO_BIN_EXE_unisono");
    let output = Command::new(unisono)
        .args([
            "run",
            "-n",
            "3",
            "--provider",
            "tcp",
            "--",
            unisono,
            "bench",
            "all_gather",
            "-b",
            "12",
            "-e",
            "12",
        ])
        .args(["-n", "2", "--out-of-place", "--json"])
        .arg(&file)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    // Rank 0 alone reports.
    assert!(text(&output.stdout).lines().all(|line| line.starts_with("[0] ")), "{output:?}");
    let line = fs::read_to_string(&file).unwrap();
    judge(&serde_json::from_str(line.trim()).unwrap(), "all_gather", 3, "tcp");
}

/// valgrind hides the kernel's page of functions for the time, which the clock must do without.
#[test]
fn it_runs_under_valgrind() {
    let words = [
        "run",
        "-n",
        "2",
        "--",
        "valgrind",
        "-q",
        "--error-exitcode=9",
        env!("CARGO_BIN_EXE_unisono"),
        "bench",
    ];
    let sweep = ["all_reduce", "-b", "8", "-e", "8", "-n", "5", "--no-raw", "--provider", "shm"];
    if let Err(error) = Command::new("valgrind").arg("--version").output() {
        println!("SKIPPED: bench under valgrind: it cannot be run: {error}");
        return;
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_unisono"));
    let output = command.args(words).args(sweep).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}
