//! Compares the cost model with another simulator: SimGrid replays the schedules of all algorithms (`judges/replay.cpp`), and computes how
//! long each takes and which is the fastest.
//!
//! SKIPPED where SimGrid is not installed. `make test-judges` installs it and prints a table; with `UNISONO_TEST_SOAK` set, that of
//! docs/cost.md, of all sizes and ranks (half an hour). Before it there is a line for each cell.

use std::{
    collections::BTreeMap,
    env,
    fmt::Write,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The fabric `ndr400`, as `replay` takes it: latency, bandwidth, overheads of sending and receiving, both times for a byte, and the time
/// for a slice of 64 KiB of a reduction.
const FABRIC: [&str; 7] = ["0.6e-6", "50e9", "0.15e-6", "0.15e-6", "0", "0", "4.854e-6"];
const COLLECTIVES: [&str; 5] = ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all"];
const RANKS: [usize; 6] = [2, 4, 8, 16, 32, 64];
const SIZES: [&str; 9] = ["8", "256", "2K", "16K", "64K", "256K", "1M", "4M", "16M"];
/// The sizes of these that are always tried, among the first three numbers of ranks.
const SOME: [&str; 4] = ["8", "16K", "256K", "4M"];
/// The largest schedule that is replayed, in bytes of its text.
const LARGEST: u64 = 40_000_000;

/// A prediction is right within this factor, and a choice within the other one of the fastest.
const RIGHT: f64 = 1.15;
const CLOSE: f64 = 1.05;
/// Among at most this many ranks, the routes through all networks are similar. Among more, the routes of a fat tree and a dragonfly are
/// longer, and shared: there the choice must not cost more than the other factor, in the geometric mean.
const FEW: usize = 8;
const COST: f64 = 1.15;

#[derive(Default)]
struct Score {
    cells: usize,
    winners: usize,
    /// The sum of the logarithms of the times of choices, divided by the fastest.
    cost: f64,
    predictions: usize,
    right: usize,
    /// The wrong predictions, by algorithm: their number, and the worst.
    wrong: BTreeMap<String, (usize, f64)>,
}

impl Score {
    /// Adds the times of a cell's algorithms: predicted and replayed.
    fn add(&mut self, times: &BTreeMap<String, (f64, f64)>) {
        let best =
            |of: fn(&(f64, f64)) -> f64| times.values().min_by(|a, b| of(a).total_cmp(&of(b))).unwrap();
        let (choice, fastest) = (best(|it| it.0), best(|it| it.1));
        self.cells += 1;
        self.winners += usize::from(choice.1 <= CLOSE * fastest.1);
        self.cost += (choice.1 / fastest.1).ln();
        for (name, (predicted, replayed)) in times {
            let factor = replayed / predicted;
            self.predictions += 1;
            if (1.0 / RIGHT..=RIGHT).contains(&factor) {
                self.right += 1;
            } else {
                let (count, farthest) = self.wrong.entry(name.clone()).or_insert((0, 1.0));
                *count += 1;
                if factor.ln().abs() > farthest.ln().abs() {
                    *farthest = factor;
                }
            }
        }
    }

    /// The times of the choices divided by the fastest, in the geometric mean.
    fn cost(&self) -> f64 {
        (self.cost / self.cells.max(1) as f64).exp()
    }

    fn shown(&self, network: &str) -> String {
        let percent = |part: usize, of: usize| 100 * part / of.max(1);
        let mut text = format!(
            "| {network} | {} of {} ({} %) | {:.3} | {} of {} ({} %) |",
            self.winners,
            self.cells,
            percent(self.winners, self.cells),
            self.cost(),
            self.right,
            self.predictions,
            percent(self.right, self.predictions)
        );
        for (name, (count, farthest)) in &self.wrong {
            write!(text, " {name} {count} (× {farthest:.2})").unwrap();
        }
        text
    }
}

/// The program that replays, or the reason why there is none.
fn replay(folder: &Path) -> Result<PathBuf, String> {
    let program = folder.join("replay");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/command_line/judges/replay.cpp");
    let mut compile = Command::new("c++");
    compile.args(["-O1", "-std=c++17", "-o"]).arg(&program).args([source, "-lsimgrid"]);
    let output = compile.output().map_err(|error| format!("no C++ compiler: {error}"))?;
    let message = String::from_utf8_lossy(&output.stderr);
    match output.status.success() {
        true => Ok(program),
        false if message.contains("simgrid/s4u.hpp") => Err("SimGrid is not installed".to_owned()),
        false => panic!("{source}: {message}"),
    }
}

/// `901 ns` or `~1.2 ms` in seconds.
fn seconds(number: &str, unit: &str) -> f64 {
    let scale = match unit {
        "ns" => 1e-9,
        "µs" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        other => panic!("no unit of time: {other}"),
    };
    number.trim_start_matches('~').parse::<f64>().unwrap() * scale
}

/// The predicted times of all algorithms, whose schedules are written to the folder.
fn predicted(collective: &str, ranks: usize, bytes: &str, folder: &Path) -> BTreeMap<String, f64> {
    let ranks = ranks.to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_unisono"));
    command.args(["simulate", collective, "--ranks", &ranks, "--ranks-per-host", "1"]);
    let output =
        command.args(["--fabric", "ndr400", "--bytes", bytes, "--goal"]).arg(folder).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let message = String::from_utf8(output.stdout).unwrap();
    let rows = message.lines().skip_while(|line| !line.starts_with("  algorithm")).skip(1);
    let row = |line: &str| {
        let words: Vec<_> = line.trim_start_matches('*').split_whitespace().collect();
        // The chunk is a number and a unit.
        let [name, _, _, _, time, unit, ..] = words[..] else { panic!("{line}") };
        (name.to_owned(), seconds(time, unit))
    };
    rows.take_while(|line| !line.is_empty()).map(row).collect()
}

/// The times of a cell's algorithms in microseconds, predicted and replayed, the fastest prediction first.
fn cell(times: &BTreeMap<String, (f64, f64)>) -> String {
    let mut times: Vec<_> = times.iter().collect();
    times.sort_by(|a, b| a.1.0.total_cmp(&b.1.0));
    let shown = |(name, (predicted, replayed)): &(&String, &(f64, f64))| {
        format!("{name} {:.2} {:.2}", predicted * 1e6, replayed * 1e6)
    };
    times.iter().map(shown).collect::<Vec<_>>().join(", ")
}

#[test]
fn simgrid_agrees() {
    let folder = tempfile::tempdir().unwrap();
    let program = match replay(folder.path()) {
        Ok(program) => program,
        Err(reason) if env::var_os("UNISONO_TEST_JUDGES").is_none() => {
            println!("SKIPPED: SimGrid's judgement: {reason}; `make test-judges` runs it");
            return;
        }
        Err(reason) => panic!("{reason}"),
    };
    let soak = env::var_os("UNISONO_TEST_SOAK").is_some();
    let (ranks, sizes) = if soak { (&RANKS[..], &SIZES[..]) } else { (&RANKS[..3], &SOME[..]) };
    let networks = ["flat", "fat-tree", "dragonfly"];
    // One score of few ranks, and one of many.
    let mut scores = networks.map(|_| [Score::default(), Score::default()]);
    for (ranks, bytes, collective) in ranks.iter().flat_map(|ranks| {
        sizes
            .iter()
            .flat_map(move |bytes| COLLECTIVES.iter().map(move |collective| (*ranks, bytes, collective)))
    }) {
        let goals = folder.path().join("goals");
        let mut times = predicted(collective, ranks, bytes, &goals);
        let file = |name: &str| goals.join(name).with_extension("goal");
        times.retain(|name, _| fs::metadata(file(name)).unwrap().len() < LARGEST);
        for (network, scores) in networks.iter().zip(&mut scores) {
            let mut command = Command::new(&program);
            let output =
                command.arg(network).args(FABRIC).args(times.keys().map(|name| file(name))).output().unwrap();
            let message = String::from_utf8(output.stdout).unwrap();
            let replayed = message
                .lines()
                .map(|line| line.parse::<f64>().unwrap_or_else(|_| panic!("{output:?}", output = message)));
            let both: BTreeMap<_, _> = times
                .iter()
                .zip(replayed)
                .map(|((name, time), replayed)| (name.clone(), (*time, replayed)))
                .collect();
            assert_eq!(both.len(), times.len(), "{message}");
            scores[usize::from(ranks > FEW)].add(&both);
            println!("{network} {collective} among {ranks}, {bytes}: {}", cell(&both));
        }
        fs::remove_dir_all(&goals).unwrap();
    }
    println!("| network | same winner | the choice / the fastest | within 15 % | others |");
    for (network, scores) in networks.iter().zip(&scores) {
        for (score, ranks) in scores.iter().zip(["few", "many"]).filter(|(score, _)| score.cells > 0) {
            println!("{}", score.shown(&format!("{network}, {ranks} ranks")));
        }
    }
    let [flat, fat_tree, dragonfly] = &scores;
    for score in flat.iter().chain([&fat_tree[0], &dragonfly[0]]) {
        assert!(score.winners * 100 >= score.cells * 95, "another winner in more than 5 % of the cells");
    }
    for score in flat {
        assert!(
            score.right * 100 >= score.predictions * 95,
            "more than 5 % are off by more than 15 % on a flat network"
        );
    }
    for score in [&fat_tree[1], &dragonfly[1]] {
        let cost = score.cost();
        assert!(cost <= COST, "the choices take {cost:.3} of the time of the fastest, in the mean");
    }
}
