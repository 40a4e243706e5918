//! Checks the table of docs/algorithms.md for two levels: its rows stand here with the formulas as functions, which are compared with
//! the schedules of consecutive ranks on equal hosts.

use unisono_checker::{Policy, Setup, check};
use unisono_schedule::{
    Collective::{
        self, AllGather, AllReduce, AllToAll, Barrier, Broadcast, Gather, Reduce, ReduceScatter, Scatter,
    },
    Job, Spread, Step,
    algorithm::{ALGORITHMS, find},
};

use crate::papers::{beyond, ceil, floor};

/// A quantity of h hosts with g ranks each and c elements, as the paper writes it and as it is computed.
struct Formula(&'static str, fn(usize, usize, usize) -> usize);

struct Row {
    algorithm: &'static str,
    collective: Collective,
    hops: Formula,
    /// Elements between hosts, of all ranks, and of the rank that sends most.
    across: Formula,
    busiest: Formula,
}

const NONE: Formula = Formula("0", |_, _, _| 0);
const ONCE: Formula = Formula("(h-1)c", |h, _, c| (h - 1) * c);
const PIECE: Formula = Formula("c/g", |_, g, c| c / g);
const BUNDLES: Formula = Formula("(h-1)gc", |h, g, c| (h - 1) * g * c);
const ALL_TO_ALL: Formula = Formula("h(h-1)gc", |h, g, c| h * (h - 1) * g * c);
const EXCHANGED: Formula = Formula("h(h-1)g²c", |h, g, c| h * (h - 1) * g * g * c);

/// The hops of recursive doubling.
fn doubled(h: usize) -> usize {
    floor(h) + usize::from(beyond(h) > 0) + usize::from(2 * beyond(h) > 1 << floor(h))
}

const fn row(algorithm: &'static str, collective: Collective, columns: [Formula; 3]) -> Row {
    let [hops, across, busiest] = columns;
    Row { algorithm, collective, hops, across, busiest }
}

fn rows() -> Vec<Row> {
    let to_leader = || Formula("⌊log2 g⌋ + 1", |_, g, _| floor(g) + 1);
    let by_leader = || Formula("2⌊log2 g⌋ + 1", |_, g, _| 2 * floor(g) + 1);
    let trees = || Formula("⌊log2 g⌋ + ⌊log2 h⌋", |h, g, _| floor(g) + floor(h));
    let two = || Formula("2", |_, _, _| 2);
    let by_tree = || Formula("2 + ⌈log2 h⌉", |h, _, _| 2 + ceil(h));
    vec![
        row(
            "leader",
            AllReduce,
            [
                Formula("2⌊log2 g⌋ + ⌊log2 h⌋ + 0, 1 or 2", |h, g, _| 2 * floor(g) + doubled(h)),
                Formula("(p⌊log2 h⌋ + 2(h-p))c", |h, _, c| {
                    ((1 << floor(h)) * floor(h) + 2 * beyond(h)) * c
                }),
                Formula("⌈log2 h⌉c", |h, _, c| ceil(h) * c),
            ],
        ),
        row("leader", ReduceScatter, [by_leader(), ALL_TO_ALL, BUNDLES]),
        row("leader", AllGather, [by_leader(), ALL_TO_ALL, BUNDLES]),
        row("leader", Broadcast, [trees(), ONCE, Formula("⌈log2 h⌉c", |h, _, c| ceil(h) * c)]),
        row(
            "leader",
            Barrier,
            [Formula("2⌊log2 g⌋ + ⌈log2 h⌉", |h, g, _| 2 * floor(g) + ceil(h)), NONE, NONE],
        ),
        row("leader", Reduce, [trees(), ONCE, Formula("c", |_, _, c| c)]),
        row("leader", Gather, [to_leader(), BUNDLES, Formula("gc", |_, g, c| g * c)]),
        row("leader", Scatter, [to_leader(), BUNDLES, BUNDLES]),
        row("leader", AllToAll, [by_leader(), EXCHANGED, Formula("(h-1)g²c", |h, g, c| (h - 1) * g * g * c)]),
        row(
            "lanes",
            AllReduce,
            [
                Formula("2 + 2⌈log2 h⌉", |h, _, _| 2 + 2 * ceil(h)),
                Formula("2(h-1)c", |h, _, c| 2 * (h - 1) * c),
                Formula("2(h-1)c/(gh)", |h, g, c| 2 * (h - 1) * c / g / h),
            ],
        ),
        row("lanes", ReduceScatter, [two(), ALL_TO_ALL, ONCE]),
        row("lanes", AllGather, [two(), ALL_TO_ALL, ONCE]),
        row("lanes", Broadcast, [by_tree(), ONCE, PIECE]),
        row("lanes", Reduce, [by_tree(), ONCE, PIECE]),
        row("lanes", AllToAll, [two(), EXCHANGED, BUNDLES]),
    ]
}

/// The table as it must stand in the paper.
fn table(rows: &[Row]) -> String {
    let mut table = "| algorithm | collective | hops | elements between hosts, all ranks | between hosts, the busiest rank |\n\
                     |---|---|---|---|---|\n"
        .to_owned();
    for Row { algorithm, collective, hops, across, busiest } in rows {
        let formulas = [hops, across, busiest].map(|formula| formula.0).join(" | ");
        table += &format!("| {algorithm} | {} | {formulas} |\n", collective.name());
    }
    table
}

#[test]
fn the_paper_has_this_table_of_two_levels() {
    let paper = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/algorithms.md");
    let paper = std::fs::read_to_string(paper).unwrap();
    let rows = rows();
    let table = table(&rows);
    assert!(paper.contains(&table), "docs/algorithms.md should have this table:\n{table}");
    let levels = ALGORITHMS.iter().flat_map(|it| it.plans.iter().map(move |plan| (it, plan)));
    for (algorithm, plan) in levels.filter(|(_, plan)| plan.flat.is_some()) {
        assert!(paper.contains(&format!("## {}", algorithm.name)), "a section on {}", algorithm.name);
        let here = |row: &&Row| row.algorithm == algorithm.name && row.collective == plan.collective;
        assert_eq!(rows.iter().filter(here).count(), 1, "a row for {} {:?}", algorithm.name, plan.collective);
    }
}

#[test]
fn the_formulas_of_two_levels_hold() {
    for row in rows() {
        let plan = find(row.algorithm).unwrap().plan(row.collective).unwrap();
        for (h, g) in (2..=7).flat_map(|h| (2..=8).map(move |g| (h, g))) {
            // Counts that hosts and ranks divide.
            let c = match row.collective {
                Barrier => 0,
                collective if collective.has_blocks() => 3,
                _ => 2 * h * g,
            };
            let job = Job { spread: Spread::Even(g), ..Job::new(row.collective, 0, h * g, c) };
            let setup = Setup {
                job,
                uneven: None,
                depth: plan.depth,
                in_place: false,
                writable: 0,
                policy: Policy::Random,
                seed: 1,
            };
            let schedules = || (0..h * g).map(|rank| plan.make(&Job { rank, ..job }));
            let message = format!("{} {:?}: {h} x {g}", row.algorithm, row.collective);
            let report = check(schedules().collect(), &setup).unwrap();
            assert_eq!(report.hops, row.hops.1(h, g, c), "hops: {message}");
            let across: Vec<usize> = (0..)
                .zip(schedules())
                .map(|(rank, mut schedule)| {
                    let steps = std::iter::from_fn(|| schedule.next(0));
                    let sent = steps.map(|step| match step {
                        Step::Put { to, from } if to / g != rank / g => from.len,
                        _ => 0,
                    });
                    sent.sum()
                })
                .collect();
            assert_eq!(across.iter().sum::<usize>(), row.across.1(h, g, c), "between hosts: {message}");
            assert_eq!(across.iter().max(), Some(&row.busiest.1(h, g, c)), "busiest: {message}");
        }
    }
}
