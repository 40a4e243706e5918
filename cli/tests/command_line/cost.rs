//! `unisono simulate` and `unisono explain` from the command line.

use std::{
    fs,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use unisono_schedule::Collective;

/// A prediction that takes longer prints its progress, also if stderr is no terminal.
const LONG: Duration = Duration::from_secs(5);

fn unisono(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_unisono"));
    command.args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The output of a command that must succeed and print nothing else. Only if it takes longer than [`LONG`] it may print its progress once.
fn said(line: &str) -> String {
    let arguments: Vec<_> = line.split_whitespace().collect();
    let begun = Instant::now();
    let output = unisono(&arguments);
    assert!(output.status.success(), "{line}: {output:?}");
    let message = text(&output.stderr);
    if begun.elapsed() < LONG {
        assert_eq!(message, "", "{line}");
    } else if !message.is_empty() {
        let progress = message
            .strip_suffix(" are done\n")
            .and_then(|message| message.strip_prefix("unisono simulate: "));
        assert!(progress.is_some_and(|progress| !progress.contains('\n')), "{line}: {message}");
    }
    text(&output.stdout).to_owned()
}

/// The rows of the table of `simulate`: true if marked, name, time in seconds, ratio, messages.
fn rows(said: &str) -> Vec<(bool, String, f64, f64, u64)> {
    let table = said.split("\n\n").nth(1).unwrap();
    // An algorithm that would take too long to simulate has no price.
    let priced = table.lines().skip(1).filter(|line| !line.contains("to simulate"));
    let rows = priced.map(|line| {
        let words: Vec<_> = line[2..].split_whitespace().collect();
        // Sizes and times are two words: a number and a unit.
        let [name, _, _, _, time, unit, ratio, messages, ..] = words[..] else { panic!("{line}") };
        let factor = match unit {
            "s" => 1.0,
            "ms" => 1e-3,
            "µs" => 1e-6,
            "ns" => 1e-9,
            unit => panic!("{unit}: {line}"),
        };
        let time = time.trim_start_matches('~').parse::<f64>().unwrap() * factor;
        let ratio = ratio.parse().unwrap_or(f64::NAN);
        (line.starts_with('*'), name.to_owned(), time, ratio, messages.parse().unwrap())
    });
    rows.collect()
}

#[test]
fn every_algorithm_that_can_do_it_has_a_row() {
    let wanted = [
        (
            "all_reduce",
            vec!["direct", "ring", "recursive_doubling", "two_shot", "tree", "rabenseifner", "star", "bine"],
        ),
        ("reduce_scatter", vec!["direct", "ring", "rabenseifner", "star", "bine", "pat"]),
        ("all_gather", vec!["direct", "ring", "rabenseifner", "bruck", "star", "bine", "pat"]),
        ("broadcast", vec!["direct", "ring", "binomial", "tree", "bine"]),
        ("barrier", vec!["direct", "dissemination", "star"]),
        ("reduce", vec!["direct", "binomial", "tree", "bine"]),
        ("gather", vec!["direct", "binomial"]),
        ("scatter", vec!["direct", "binomial"]),
        ("all_to_all", vec!["direct", "bruck", "star"]),
    ];
    for (collective, algorithms) in wanted {
        for fabric in ["ndr400", "hdr", "efa", "tcp", "tcp-1g", "tcp-100g"] {
            let said = said(&format!("simulate {collective} --ranks 6 --bytes 1M --fabric {fabric}"));
            let rows = rows(&said);
            for algorithm in &algorithms {
                assert!(rows.iter().any(|row| row.1 == *algorithm), "{algorithm}: {said}");
            }
            assert!(rows.iter().all(|row| row.3 >= 0.99), "above the bound: {said}");
            let least = rows.iter().map(|row| row.2).fold(f64::INFINITY, f64::min);
            let marked: Vec<_> = rows.iter().filter(|row| row.0).collect();
            assert!(marked.len() == 1 && marked[0].2 <= least * 1.01, "{said}");
        }
    }
}

#[test]
fn options_take_effect() {
    let alone = said("simulate all_reduce --ranks 8 --bytes 1M --fabric tcp --ranks-per-host 1");
    let crowded = said("simulate all_reduce --ranks 8 --bytes 1M --fabric tcp --ranks-per-host 8 --cores 1");
    for (alone, crowded) in rows(&alone).iter().zip(rows(&crowded)) {
        // In a star, only the hub has much to do.
        let times = if alone.1 == "star" { 1.5 } else { 3.0 };
        assert!(crowded.2 > times * alone.2, "{alone:?} {crowded:?}");
    }
    let said =
        said("simulate broadcast --ranks 8 --bytes 1M --fabric hdr --algorithm ring --chunk 64K --lanes 3");
    let rows = rows(&said);
    assert!(rows.len() == 1 && rows[0].1 == "ring" && rows[0].4 == 16, "{said}");
    assert!(said.contains("64 KiB     3 "), "{said}");
}

#[test]
fn the_hint_explains_the_choice_of_the_same_hosts() {
    for (cores, wanted) in [("", "recursive_doubling"), (" --cores 2", "star")] {
        let message = said(&format!("simulate all_reduce --ranks 8 --bytes 64K --fabric ndr400{cores}"));
        let (_, hint) = message.split_once("The library takes ").unwrap();
        let taken = hint.split([',', ':']).next().unwrap();
        let (_, call) = hint.rsplit_once(": unisono ").unwrap();
        assert_eq!(taken, wanted, "{message}");
        assert!(said(call).contains(&format!("  takes {taken}: ")), "{hint}");
    }
}

#[test]
fn why_the_fastest_is_not_taken_is_said() {
    let cases = [
        ("broadcast --ranks 4 --bytes 64M --fabric shm", "the table was measured", false),
        ("all_to_all --ranks 16 --hosts 2 --bytes 4M --fabric tcp", "a rank receives from all others", true),
        ("all_gather --ranks 64 --hosts 8 --bytes 4M --fabric tcp", "a rank receives from all others", false),
    ];
    for (case, why, far) in cases {
        let explained = said(&format!("explain {case}"));
        let marked = |mark: &str| {
            let line =
                explained.lines().find(|line| line.ends_with(mark)).unwrap_or_else(|| panic!("{explained}"));
            line.split_whitespace().next().unwrap()
        };
        let (chosen, fastest) = (marked("  chosen"), marked("  fastest"));
        let (words, reason) =
            (format!("takes {chosen}, which is predicted to take "), format!(" of {fastest}'s time: "));
        let simulated = said(&format!("simulate {case}"));
        for message in [&explained, &simulated] {
            assert!(
                message.contains(&words) && message.contains(&reason) && message.contains(why),
                "{message}"
            );
            assert_eq!(message.contains("unisono tune"), far, "{message}");
        }
    }
    // There is no remark if both are the same.
    let message = said("explain all_reduce --ranks 8 --bytes 64 --fabric ndr400");
    assert!(message.contains("chosen  fastest") && !message.contains("which is predicted"), "{message}");
    // Nor if the prediction is for another setting than the choice.
    let message = said("simulate broadcast --ranks 4 --bytes 64M --fabric shm --lanes 1");
    assert!(message.contains("The library takes direct: "), "{message}");
}

#[test]
fn schedules_are_written_as_goal() {
    let folder = tempfile::tempdir().unwrap();
    let case = "simulate all_gather --ranks 4 --bytes 64K --fabric ndr400 --algorithm ring --goal";
    said(&format!("{case} {}", folder.path().to_str().unwrap()));
    let message = fs::read_to_string(folder.path().join("ring.goal")).unwrap();
    assert!(message.contains("num_ranks 4\n") && message.contains("\nrank 3 {\nl1: send "), "{message}");
    let refused = unisono(&[case, "/dev/null/it"].join(" ").split(' ').collect::<Vec<_>>());
    let message = text(&refused.stderr);
    assert!(
        refused.status.code() == Some(1) && message.contains("--goal /dev/null/it: Not a directory"),
        "{message}"
    );
}

#[test]
fn ranks_of_a_host_share_its_port() {
    let message = said("simulate all_reduce --hosts 2 --ranks-per-host 4 --bytes 16M --fabric tcp-1g");
    assert!(message.contains("here 2 hosts with 4 ranks, a core for each"), "{message}");
    assert!(message.contains("The library takes rabenseifner: "), "{message}");
    let time = |name: &str| rows(&message).into_iter().find(|row| row.1 == name).unwrap().2;
    assert!(time("two_shot") > 2.5 * time("rabenseifner"), "{message}");
    let why = said("explain all_reduce --hosts 2 --ranks-per-host 4 --bytes 16M --fabric tcp-1g");
    assert!(why.contains("by the cost model: the fastest at 16777216 B between 2 hosts of tcp-1g"), "{why}");
    // Without a number of ranks on a host, each host has the same number.
    assert_eq!(
        rows(&said("simulate all_reduce --ranks 8 --hosts 2 --bytes 16M --fabric tcp-1g")),
        rows(&message)
    );
}

#[test]
fn memory_is_what_is_registered() {
    let message = said("simulate all_reduce --ranks 10000 --bytes 16M --fabric ndr400 --algorithm ring");
    // A window of chunks, and 880 bytes for each rank.
    assert!(
        message.lines().any(|line| line.starts_with("* ring") && line.ends_with(" 9.40 MiB")),
        "{message}"
    );
}

#[test]
fn a_thousand_ranks_and_great_sizes_end() {
    let said = said("simulate all_reduce --ranks 1000 --bytes 1000G --fabric ndr400");
    let rows = rows(&said);
    assert!(rows.iter().any(|row| row.1 == "ring" && row.3 < 1.4), "{said}");
    assert!(said.contains("~ extrapolated"), "{said}");
}

#[test]
fn a_plot_is_a_picture() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("plot.svg");
    let name = file.to_str().unwrap();
    said(&format!("simulate all_reduce --ranks 5 --bytes 1M --fabric efa --plot {name}"));
    let picture = fs::read_to_string(&file).unwrap();
    assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"));
    for wanted in ["all_reduce among 5 ranks, efa", "ring", "two_shot", "lower bound", "bytes", "polyline"] {
        assert!(picture.contains(wanted), "{wanted}");
    }
    let nowhere =
        unisono(&["simulate", "all_reduce", "--ranks", "2", "--fabric", "tcp", "--plot", "/no/such/place"]);
    assert_eq!(nowhere.status.code(), Some(1));
    assert!(text(&nowhere.stderr).contains("--plot /no/such/place"), "{nowhere:?}");
}

/// The header and the rows of a table of several sizes: names, and time and marks for each size.
fn several(messages: &str) -> (Vec<String>, Vec<(String, Vec<String>)>) {
    let (mut sizes, mut rows) = (Vec::new(), Vec::<(String, Vec<String>)>::new());
    for line in
        messages.lines().skip(2).take_while(|line| !line.starts_with('*')).filter(|line| !line.is_empty())
    {
        let (name, cells) = line.split_at(18);
        let cells: Vec<_> = cells.split_whitespace().collect();
        let cells = cells.chunks(2).map(|cell| cell.join(" "));
        match name.trim() {
            "algorithm" => sizes.extend(cells),
            name => match rows.iter_mut().find(|row| row.0 == name) {
                Some(row) => row.1.extend(cells),
                None => rows.push((name.to_owned(), cells.collect())),
            },
        }
    }
    (sizes, rows)
}

#[test]
fn several_sizes_are_a_table() {
    let asked = "simulate all_reduce --ranks 8 --ranks-per-host 1 --fabric ndr400";
    let message = said(&format!("{asked} -b 8 -e 16M -f 8"));
    let (sizes, rows_of_sizes) = several(&message);
    assert_eq!(sizes, ["8 B", "64 B", "512 B", "4 KiB", "32 KiB", "256 KiB", "2 MiB", "16 MiB"]);
    assert!(message.lines().skip(2).all(|line| line.chars().count() <= 100), "{message}");
    // Each column has the same values as the table of its size alone.
    for (column, size) in ["8", "64", "512", "4K", "32K", "256K", "2M", "16M"].iter().enumerate() {
        let alone = said(&format!("{asked} --bytes {size}"));
        let taken = alone.split("The library takes ").nth(1).unwrap().split([',', ':']).next().unwrap();
        let fastest = alone.lines().find_map(|line| line.strip_prefix("* ")).unwrap();
        let fastest = fastest.split_whitespace().next().unwrap();
        let algorithms = rows(&alone);
        assert_eq!(rows_of_sizes.len(), algorithms.len() + 1, "and the lower bound: {message}");
        for ((name, cells), (_, other, ..)) in rows_of_sizes.iter().zip(&algorithms) {
            assert_eq!(name, other);
            let cell = &cells[column];
            assert_eq!(cell.contains('*'), name == fastest, "{size} {name}: {message}\n{alone}");
            assert_eq!(cell.contains('+'), name == taken, "{size} {name}: {message}\n{alone}");
            let time = cell.trim_end_matches(['*', '+']);
            assert!(alone.lines().any(|line| line.contains(name) && line.contains(&format!(" {time} "))));
        }
    }
    // One bound alone is enough.
    assert_eq!(several(&said(&format!("{asked} -e 64"))).0, ["8 B", "64 B"]);
    assert_eq!(several(&said(&format!("{asked} -b 64M"))).0, ["64 MiB"]);
}

#[test]
fn a_plot_of_several_sizes_has_these() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("plot.svg");
    said(&format!(
        "simulate broadcast --ranks 5 -b 1K -e 64K --fabric efa --plot {}",
        file.to_str().unwrap()
    ));
    let picture = fs::read_to_string(&file).unwrap();
    assert!(picture.contains("64 KiB") && !picture.contains("1 MiB"), "{picture}");
}

#[test]
fn explain_says_what_why_and_how() {
    let message = said("explain all_reduce --ranks 4 --bytes 8 --rank 2 --fabric hdr");
    for wanted in [
        "all_reduce of 8 B (2 f32) among 4 ranks",
        "takes recursive_doubling: ",
        "by the row of tcp-own-cores.tuning: all_reduce ranks 4 bytes 32K recursive_doubling",
        "Predicted on hdr",
        "chosen",
        "Steps of rank 2",
        "put input[0..2] to rank 3",
        "take a message from rank 3",
        "settle",
        "into output[0..2], the last",
    ] {
        assert!(message.contains(wanted), "{wanted}: {message}");
    }
    assert!(!message.contains("others"), "{message}");
}

/// The tour through the code follows the call that its command explains.
#[test]
fn the_tour_follows_what_is_explained() {
    let tour = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/tour.md")).unwrap();
    let between = |before: &str| tour.split_once(before).unwrap().1.split_once('`').unwrap().0;
    let (command, algorithm) = (between("`unisono explain "), between("Here it picks `"));
    let message = said(&format!("explain {command}"));
    assert!(message.contains(&format!("takes {algorithm}: ")), "{algorithm}: {message}");
    assert!(tour.contains(&format!("schedule/src/algorithm/{algorithm}.rs")), "{algorithm}");
    assert!(
        message.contains("take a message") && !message.contains("await rank"),
        "not through slots: {message}"
    );
}

#[test]
fn long_schedules_are_cut() {
    let cut = said("explain all_gather --ranks 64 --bytes 64M --fabric tcp");
    let lines = cut.lines().count();
    assert!((100..130).contains(&lines), "{lines} lines");
    let last = cut.lines().last().unwrap();
    let left_out: usize = last.strip_prefix("... and ").unwrap().split(' ').next().unwrap().parse().unwrap();
    let all = said("explain all_gather --ranks 64 --bytes 64M --fabric tcp --all");
    assert_eq!(all.lines().count(), lines - 1 + left_out);
    // Every lane is shown.
    assert!(cut.lines().any(|line| line.starts_with("   1         1  put")), "{cut}");
}

#[test]
fn explain_shows_how_ranks_read_each_others_memory() {
    let small = said("explain all_reduce --ranks 4 --bytes 8");
    for wanted in ["copied to slots", "show input[0..2]", "view rank 1's input[0..2]", "reduce everyone's"] {
        assert!(small.contains(wanted), "{wanted}: {small}");
    }
    assert!(!small.contains("put ") && !small.contains("settle"), "{small}");
    let large = said("explain all_reduce --ranks 4 --bytes 4M");
    let shows = large.lines().filter(|line| line.contains("  show ")).count();
    // Chunks of 1 MiB, with two rounds each.
    assert_eq!(shows, 8, "{large}");
    for wanted in ["plain memory, copied to slots", "registered buffers, read where they lie", "settle"] {
        assert!(large.contains(wanted), "{wanted}: {large}");
    }
    // Two ranks that all copy need one round for each 512 KiB.
    let both = said("explain all_reduce --ranks 2 --bytes 4M");
    assert_eq!(both.lines().filter(|line| line.contains("  show ")).count(), 8, "{both}");
    let exchanged = said("explain all_to_all --ranks 2 --bytes 4K");
    assert!(exchanged.contains("without the 512 from number 0 on, its own"), "{exchanged}");
    let sent = said("explain broadcast --ranks 2 --bytes 4M");
    assert!(sent.contains("plain memory is sent in messages") && sent.contains("  write "), "{sent}");
    for fabric in ["tcp", "hdr"] {
        let other = said(&format!("explain all_reduce --ranks 4 --bytes 8 --fabric {fabric}"));
        assert!(!other.contains("show "), "{other}");
    }
}

#[test]
fn explain_says_by_what_ranks_reach_each_other() {
    for (hosts, wanted) in [
        ("--ranks 4", "all ranks share memory; libfabric is not opened"),
        ("--ranks 4 --fabric tcp", "libfabric's tcp reaches all ranks"),
        ("--ranks 16", "ranks of one host share memory; libfabric's tcp reaches the others"),
        (
            "--ranks 16 --fabric ndr400",
            "ranks of one host share memory; libfabric's verbs reaches the others",
        ),
        ("--hosts 4 --ranks-per-host 1 --fabric efa", "libfabric's efa reaches all ranks"),
    ] {
        let message = said(&format!("explain all_reduce {hosts} --bytes 64K"));
        assert_eq!(message.lines().nth(1).unwrap().trim(), wanted, "{hosts}");
    }
    // Each has its table.
    for (fabric, table) in [("", "shm-slots-own-cores.tuning"), ("--fabric tcp", "tcp-own-cores.tuning")] {
        let message = said(format!("explain all_reduce --ranks 2 --cores 2 --bytes 64K {fabric}").trim());
        assert!(message.contains(&format!("by the row of {table}: ")), "{message}");
    }
}

#[test]
fn any_world_and_any_size_end_well() {
    for collective in Collective::ALL.map(Collective::name) {
        for (ranks, bytes) in [("1", "17179869183G"), ("100", "1")] {
            said(&format!("simulate {collective} --ranks {ranks} --bytes {bytes} --fabric ndr400"));
        }
        said(&format!("explain {collective} --ranks 12 --bytes 17179869183G --dtype u8"));
    }
    // These take seconds each.
    for collective in ["all_reduce", "all_to_all", "scatter"] {
        said(&format!("simulate {collective} --ranks 12 --bytes 17179869183G --fabric ndr400"));
    }
    said("explain all_reduce --ranks 1000 --bytes 17179869183G --dtype u8");
}

#[test]
fn this_machine_may_be_the_fabric() {
    let message = said("simulate all_reduce --ranks 3 --bytes 64K --measure --provider tcp");
    for wanted in
        ["measured here", "latency ", "bandwidth of a port ", "switch ", "this machine: as it was measured"]
    {
        assert!(message.contains(wanted), "{wanted}: {message}");
    }
    let (fitted, table) = message.split_once("\n\n").unwrap();
    assert!(!fitted.contains("NaN") && !fitted.contains('-'), "{message}");
    assert!(rows(table).iter().all(|row| row.2 > 0.0), "{message}");
}

#[test]
fn the_file_of_the_program_may_be_gone() {
    let directory = tempfile::tempdir().unwrap();
    for line in
        ["compare all_gather --ranks 2 -b 1K -e 1K --fabric tcp", "bench barrier --ranks 2 --provider tcp"]
    {
        // The program runs from a file that has no name any more, as after an update.
        let script = format!("cp \"$0\" it && exec 9<it && rm it && exec /proc/self/fd/9 {line}");
        let mut command = Command::new("sh");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_unisono")]).current_dir(directory.path());
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{line}: {output:?}");
    }
}

#[test]
fn the_model_is_compared_with_what_is() {
    let message = said("compare all_gather --ranks 2,3 -b 1K -e 8K -f 8 --fabric tcp");
    for ranks in [2, 3] {
        assert!(message.contains(&format!("all_gather among {ranks} ranks over ")), "{message}");
    }
    // The explanation of the figures comes before the first measurement.
    let (head, rows) = message.split_once("\n\n").unwrap();
    for wanted in ["all_gather of f32 over tcp", "the fabric tcp\n", "bytes of", "measured / predicted"] {
        assert!(head.contains(wanted), "{wanted}: {message}");
    }
    let within = |line: &str| line.chars().count() <= 100 || line.starts_with("predicted on ");
    assert!(message.lines().all(within), "{message}");
    for name in [" ring ", " direct "] {
        assert_eq!(rows.lines().filter(|line| line.contains(name)).count(), 4, "{message}");
    }
    assert_eq!(rows.lines().filter(|line| line.contains("  right ") || line.contains("  WRONG ")).count(), 4);
    for row in rows.lines().filter(|line| line.contains(" ring ")) {
        let [.., measured, _, predicted, unit, ratio] = row.split_whitespace().collect::<Vec<_>>()[..] else {
            panic!("{row}")
        };
        let [measured, predicted, ratio] = [measured, predicted, ratio].map(|it| it.parse::<f64>().unwrap());
        assert!(measured > 0.0 && predicted > 0.0 && ratio > 0.0 && unit.ends_with('s'), "{row}");
    }
    assert!(message.contains(" of 4 (") && message.ends_with("in the right order\n"), "{message}");
}

#[test]
fn what_has_no_sense_is_refused() {
    let usage = [
        ("simulate sort --ranks 2 --fabric tcp", "there are all_reduce, "),
        ("simulate all_reduce --ranks 2 --fabric carrier-pigeon", "there are shm, ndr400, hdr, efa, tcp"),
        ("simulate all_reduce --ranks 2 --fabric tcp --algorithm best", "there are direct, ring, "),
        ("simulate all_reduce --ranks 0 --fabric tcp", "0 is not in 1..="),
        ("simulate all_reduce --ranks 99999999999999999999 --fabric tcp", "--ranks"),
        ("simulate all_reduce --ranks 2 --fabric tcp --bytes 99999999999999999999", "too large"),
        ("simulate all_reduce --ranks 2 --fabric tcp --chunk 0", "at least one byte"),
        ("simulate all_reduce --ranks 2 --fabric tcp --lanes 0", "--lanes"),
        ("simulate all_reduce --ranks 2 --fabric tcp --cores 0", "--cores"),
        ("simulate all_reduce --ranks 2", "--fabric"),
        ("simulate all_reduce --ranks 2 --measure --fabric tcp", "cannot be used with"),
        ("simulate all_reduce --ranks 2 --fabric tcp --provider tcp", "cannot be used with"),
        ("simulate all_reduce --ranks 2 --fabric tcp --bytes 1K -e 2K", "cannot be used with"),
        ("simulate all_reduce --ranks 2 --fabric tcp -b 1K --goal x", "cannot be used with"),
        ("simulate all_reduce --ranks 2 --fabric tcp -b 8 --draw x", "cannot be used with"),
        ("simulate all_reduce --ranks 2 --fabric tcp -f 1", "1 is not in 2.."),
        ("compare all_reduce --ranks 1", "--ranks"),
        ("compare barrier --ranks 2", "a barrier has no size"),
        ("explain all_reduce --ranks 0", "--ranks"),
        ("explain all_reduce --ranks 2 --dtype text", "there are f16, bf16, "),
    ];
    for (line, wanted) in usage {
        let output = unisono(&line.split(' ').collect::<Vec<_>>());
        assert_eq!(output.status.code(), Some(2), "{line}: {output:?}");
        assert!(text(&output.stderr).contains(wanted), "{line}: {output:?}");
    }
    let later = [
        (
            "simulate barrier --ranks 2 --fabric tcp --algorithm ring",
            "barrier can be done by direct, dissemination",
        ),
        ("simulate barrier --ranks 2 --fabric tcp --plot x.svg", "a barrier has no size"),
        ("simulate barrier --ranks 2 --fabric tcp -e 1K", "a barrier has no size"),
        ("simulate all_reduce --ranks 2 --fabric tcp -b 4K -e 8", "-b 4096 is more than -e 8"),
        ("compare all_reduce -b 4K -e 8", "-b 4096 is more than -e 8"),
        ("explain all_reduce --ranks 2 --rank 2", "there are ranks 0 to 1"),
        (
            "simulate all_reduce --ranks 8 --hosts 3 --ranks-per-host 4 --fabric tcp-1g",
            "--hosts 3: 8 ranks, 4 on a host, are on 2",
        ),
    ];
    for (line, wanted) in later {
        let output = unisono(&line.split(' ').collect::<Vec<_>>());
        assert_eq!(output.status.code(), Some(1), "{line}: {output:?}");
        assert!(text(&output.stderr).contains(wanted), "{line}: {output:?}");
    }
}
