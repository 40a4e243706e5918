//! Checks the table of docs/algorithms.md: its rows stand here with the formulas as functions, which are compared with the
//! schedules.

use unisono_checker::{Policy, Report, Setup};
use unisono_schedule::{
    Collective::{
        self, AllGather, AllReduce, AllToAll, Barrier, Broadcast, Gather, Reduce, ReduceScatter, Scatter,
    },
    Job, Step,
    algorithm::{Algorithm, find},
};

use crate::{Case, job, plans};

/// A quantity of n ranks, c elements, k chunks and l lanes, which are [`LANES`] or fewer, one for each chunk, as the paper writes it and as it is computed. Where it says
/// "for k = 1" everything a rank has fits into a message.
struct Formula(&'static str, fn(usize, usize, usize) -> usize);

const LANES: usize = 2;

/// A row of the table.
struct Row {
    algorithm: &'static str,
    collective: Collective,
    hops: Formula,
    messages: Formula,
    elements: Formula,
    most: Formula,
    sources: Formula,
    depth: usize,
}

/// ⌊log2 n⌋.
pub(crate) fn floor(n: usize) -> usize {
    n.ilog2() as usize
}

/// ⌈log2 n⌉.
pub(crate) fn ceil(n: usize) -> usize {
    n.next_power_of_two().ilog2() as usize
}

/// Ranks beyond the greatest power of two.
pub(crate) fn beyond(n: usize) -> usize {
    n - (1 << floor(n))
}

/// The number of ones in the binary numbers below n together.
fn ones(n: usize) -> usize {
    (0..n).map(|number| number.count_ones() as usize).sum()
}

const NONE: Formula = Formula("0", |_, _, _| 0);
const ONE: Formula = Formula("1", |_, _, _| 1);
const COUNT: Formula = Formula("c", |_, c, _| c);
const OTHERS: Formula = Formula("n-1", |n, _, _| n - 1);
const ALL_TO_ALL: Formula = Formula("n(n-1)k", |n, _, k| n * (n - 1) * k);
const ALL_TO_ALL_ELEMENTS: Formula = Formula("n(n-1)c", |n, c, _| n * (n - 1) * c);
const TO_ALL: Formula = Formula("(n-1)k", |n, _, k| (n - 1) * k);
const TO_ALL_ELEMENTS: Formula = Formula("(n-1)c", |n, c, _| (n - 1) * c);

const COMES_BACK: Formula = Formula("2(n-1)c", |n, c, _| 2 * (n - 1) * c);
const HUB_BLOCKS: Formula =
    Formula("(n²-1)k; 2(n-1) for k = 1", |n, _, k| if k == 1 { 2 * (n - 1) } else { (n * n - 1) * k });
const HUB_ELEMENTS: Formula = Formula("(n²-1)c", |n, c, _| (n * n - 1) * c);
const WHOLE: Formula = Formula("nc", |n, c, _| n * c);
const WHOLE_TO_ALL: Formula = Formula("n(n-1)c", |n, c, _| n * (n - 1) * c);

const DEEP: Formula = Formula("⌊log2 n⌋", |n, _, _| floor(n));
const BINE_DEEP: Formula = Formula("⌊log2 n⌋ + 0 or 1", |n, _, _| {
    // The inner node that is reached by a step of every length: 1, 2, 5, 6, 21, 22, ...
    let deepest = [0, 1, 2, 5, 6, 21][floor(n)];
    floor(n) + usize::from(beyond(n) > deepest)
});
const BUNDLES: Formula = Formula("bk; n-1 for k = 1", |n, _, k| if k == 1 { n - 1 } else { ones(n) * k });
const BUNDLES_ELEMENTS: Formula = Formula("bc", |n, c, _| ones(n) * c);

const fn row(algorithm: &'static str, collective: Collective, depth: usize, columns: [Formula; 5]) -> Row {
    let [hops, messages, elements, most, sources] = columns;
    Row { algorithm, collective, hops, messages, elements, most, sources, depth }
}

fn rows() -> Vec<Row> {
    let everyone = || [ONE, ALL_TO_ALL, ALL_TO_ALL_ELEMENTS, TO_ALL_ELEMENTS, OTHERS];
    let around = || [OTHERS, ALL_TO_ALL, ALL_TO_ALL_ELEMENTS, TO_ALL_ELEMENTS, ONE];
    let two_trees = || {
        [
            Formula("⌈log2 n⌉", |n, _, _| ceil(n)),
            Formula("2(n-1)k", |n, _, k| 2 * (n - 1) * k),
            TO_ALL_ELEMENTS,
            COUNT,
            Formula("n-1, at most 2", |n, _, _| (n - 1).min(2)),
        ]
    };
    vec![
        row("direct", AllReduce, 1, everyone()),
        row("direct", ReduceScatter, 1, everyone()),
        row("direct", AllGather, 1, everyone()),
        row("direct", Broadcast, 1, [ONE, TO_ALL, TO_ALL_ELEMENTS, TO_ALL_ELEMENTS, ONE]),
        row("direct", Barrier, 1, [ONE, ALL_TO_ALL, NONE, NONE, OTHERS]),
        row("direct", Reduce, 1, [ONE, TO_ALL, TO_ALL_ELEMENTS, COUNT, OTHERS]),
        row("direct", Gather, 1, [ONE, TO_ALL, TO_ALL_ELEMENTS, COUNT, OTHERS]),
        row("direct", Scatter, 1, [ONE, TO_ALL, TO_ALL_ELEMENTS, TO_ALL_ELEMENTS, ONE]),
        row("direct", AllToAll, 1, everyone()),
        row(
            "ring",
            AllReduce,
            2,
            [
                Formula("2(n-1)", |n, _, _| 2 * (n - 1)),
                Formula("2n(n-1)k", |n, _, k| 2 * n * (n - 1) * k),
                Formula("2(n-1)c", |n, c, _| 2 * (n - 1) * c),
                Formula("2(n-1)c/n", |n, c, _| 2 * (n - 1) * c / n),
                ONE,
            ],
        ),
        row("ring", ReduceScatter, 2, around()),
        row("ring", AllGather, 2, around()),
        row("ring", Broadcast, 1, [OTHERS, TO_ALL, TO_ALL_ELEMENTS, COUNT, ONE]),
        row(
            "recursive_doubling",
            AllReduce,
            1,
            [
                Formula("⌊log2 n⌋ + 0, 1 or 2", |n, _, _| {
                    floor(n) + usize::from(beyond(n) > 0) + usize::from(2 * beyond(n) > 1 << floor(n))
                }),
                Formula("(p⌊log2 n⌋ + 2(n-p))k", |n, _, k| {
                    ((1 << floor(n)) * floor(n) + 2 * beyond(n)) * k
                }),
                Formula("(p⌊log2 n⌋ + 2(n-p))c", |n, c, _| {
                    ((1 << floor(n)) * floor(n) + 2 * beyond(n)) * c
                }),
                Formula("⌈log2 n⌉c", |n, c, _| ceil(n) * c),
                Formula("⌈log2 n⌉", |n, _, _| ceil(n)),
            ],
        ),
        row("binomial", Broadcast, 1, by_a_tree(DEEP)),
        row("binomial", Reduce, 1, to_a_root(DEEP)),
        row(
            "binomial",
            Gather,
            1,
            [
                DEEP,
                BUNDLES,
                BUNDLES_ELEMENTS,
                Formula("max(p/2, n-p)c", |n, c, _| beyond(n).max((1 << floor(n)) / 2) * c),
                Formula("⌈log2 n⌉", |n, _, _| ceil(n)),
            ],
        ),
        row("binomial", Scatter, 1, [DEEP, BUNDLES, BUNDLES_ELEMENTS, TO_ALL_ELEMENTS, ONE]),
        row(
            "dissemination",
            Barrier,
            1,
            [
                Formula("⌈log2 n⌉", |n, _, _| ceil(n)),
                Formula("n⌈log2 n⌉", |n, _, _| n * ceil(n)),
                NONE,
                NONE,
                Formula("⌈log2 n⌉", |n, _, _| ceil(n)),
            ],
        ),
        row(
            "two_shot",
            AllReduce,
            1,
            [
                Formula("2", |_, _, _| 2),
                Formula("2n(n-1)k", |n, _, k| 2 * n * (n - 1) * k),
                Formula("2(n-1)c", |n, c, _| 2 * (n - 1) * c),
                Formula("2(n-1)c/n", |n, c, _| 2 * (n - 1) * c / n),
                OTHERS,
            ],
        ),
        row(
            "tree",
            AllReduce,
            1,
            [
                Formula("2⌈log2 n⌉", |n, _, _| 2 * ceil(n)),
                Formula("4(n-1)k", |n, _, k| 4 * (n - 1) * k),
                Formula("2(n-1)c", |n, c, _| 2 * (n - 1) * c),
                Formula("min(n, 4)c/2", |n, c, _| n.min(4) * c / 2),
                Formula("n-1, at most 4; 3 if n = 5", |n, _, _| if n == 5 { 3 } else { (n - 1).min(4) }),
            ],
        ),
        row("tree", Broadcast, 1, two_trees()),
        row("tree", Reduce, 1, two_trees()),
        row("rabenseifner", AllReduce, 1, halved_and_doubled()),
        row("rabenseifner", ReduceScatter, 2, by_halves()),
        row("rabenseifner", AllGather, 2, by_halves()),
        row(
            "bruck",
            AllGather,
            2,
            [
                Formula("⌈log2 n⌉", |n, _, _| ceil(n)),
                Formula("n(n-1)k; (n-1)(⌈log2 n⌉+1) for k = 1", |n, _, k| {
                    if k == 1 { (n - 1) * (ceil(n) + 1) } else { n * (n - 1) * k }
                }),
                ALL_TO_ALL_ELEMENTS,
                TO_ALL_ELEMENTS,
                Formula("⌈log2 n⌉", |n, _, _| ceil(n)),
            ],
        ),
        row(
            "bruck",
            AllToAll,
            1,
            [
                Formula("⌈log2 n⌉", |n, _, _| ceil(n)),
                Formula("n⌈log2 n⌉k", |n, _, k| n * ceil(n) * k),
                Formula("nbc", |n, c, _| n * ones(n) * c),
                Formula("bc", |n, c, _| ones(n) * c),
                Formula("⌈log2 n⌉", |n, _, _| ceil(n)),
            ],
        ),
        row(
            "star",
            AllReduce,
            1,
            to_the_hub("2(n-1)k", |n, _, k| 2 * (n - 1) * k, COMES_BACK, TO_ALL_ELEMENTS),
        ),
        row("star", ReduceScatter, 1, to_the_hub(HUB_BLOCKS.0, HUB_BLOCKS.1, HUB_ELEMENTS, WHOLE)),
        row("star", AllGather, 1, to_the_hub(HUB_BLOCKS.0, HUB_BLOCKS.1, HUB_ELEMENTS, WHOLE_TO_ALL)),
        row("star", Barrier, 1, to_the_hub("2(n-1)k", |n, _, k| 2 * (n - 1) * k, NONE, NONE)),
        row(
            "star",
            AllToAll,
            1,
            to_the_hub(
                "2n(n-1)k; 2(n-1) for k = 1",
                |n, _, k| if k == 1 { 2 * (n - 1) } else { 2 * n * (n - 1) * k },
                Formula("2n(n-1)c", |n, c, _| 2 * n * (n - 1) * c),
                WHOLE_TO_ALL,
            ),
        ),
        row("bine", Broadcast, 1, by_a_tree(BINE_DEEP)),
        row("bine", Reduce, 1, to_a_root(BINE_DEEP)),
        row("bine", AllReduce, 1, halved_and_doubled()),
        row("bine", ReduceScatter, 2, by_growing_runs()),
        row("bine", AllGather, 2, by_growing_runs()),
        row("pat", AllGather, 1, far_first()),
        row("pat", ReduceScatter, 1, far_first()),
    ]
}

/// All send to one rank and back. If all blocks do not fit in a message, every block is one.
fn to_the_hub(
    words: &'static str,
    messages: fn(usize, usize, usize) -> usize,
    elements: Formula,
    most: Formula,
) -> [Formula; 5] {
    [Formula("2", |_, _, _| 2), Formula(words, messages), elements, most, OTHERS]
}

/// The messages of a halving, or of a doubling, if no message is cut.
fn halving_messages(n: usize) -> usize {
    let twos = n & n.wrapping_neg();
    n * ceil(n) + n - twos * ceil(2 * n / twos)
}

/// A whole vector from the root of a tree so deep.
fn by_a_tree(deep: Formula) -> [Formula; 5] {
    [deep, TO_ALL, TO_ALL_ELEMENTS, Formula("⌈log2 n⌉c", |n, c, _| ceil(n) * c), ONE]
}

/// A whole vector to the root of a tree so deep.
fn to_a_root(deep: Formula) -> [Formula; 5] {
    [deep, TO_ALL, TO_ALL_ELEMENTS, COUNT, Formula("⌈log2 n⌉", |n, _, _| ceil(n))]
}

/// A halving and a doubling of a vector.
fn halved_and_doubled() -> [Formula; 5] {
    [
        Formula("2⌈log2 n⌉", |n, _, _| 2 * ceil(n)),
        Formula("2(n⌈log2 n⌉ + n - t⌈log2 2n/t⌉)k", |n, _, k| 2 * halving_messages(n) * k),
        Formula("2(n-1)c", |n, c, _| 2 * (n - 1) * c),
        Formula("2(n-1)c/n", |n, c, _| 2 * (n - 1) * c / n),
        Formula("⌈log2 n⌉", |n, _, _| ceil(n)),
    ]
}

/// How often runs that grow by turns after and before a rank go around the end. The runs that are sent begin at every second rank,
/// once from even ranks and once, mirrored, from odd ones.
fn around_the_end(n: usize) -> usize {
    if n % 2 == 1 {
        return halving_messages(n) - n * ceil(n);
    }
    let (mut len, mut before, mut around) = (1, 0, 0);
    for step in (0..ceil(n)).rev() {
        let longer = n.div_ceil(1 << step);
        let (more, after) = (longer - len, (ceil(n) - step) % 2 == 1);
        let first = if after { len - more } else { 0 };
        around += match more % 2 {
            1 => more - 1,
            _ if (first + before).is_multiple_of(2) => more - 2,
            _ => more,
        };
        before += if after { 0 } else { more };
        len = longer;
    }
    around
}

/// As [`by_halves`], but of runs around each rank.
fn by_growing_runs() -> [Formula; 5] {
    let messages = Formula("n⌈log2 n⌉ + w, or n(n-1)k", |n, _, k| {
        if k == 1 { n * ceil(n) + around_the_end(n) } else { n * (n - 1) * k }
    });
    let [hops, _, elements, most, sources] = by_halves();
    [hops, messages, elements, most, sources]
}

/// As [`by_halves`], but a hop is always one message.
fn far_first() -> [Formula; 5] {
    let messages =
        Formula("n(n-1)k; n⌈log2 n⌉ for k = 1", |n, _, k| if k == 1 { n * ceil(n) } else { n * (n - 1) * k });
    let [hops, _, elements, most, sources] = by_halves();
    [hops, messages, elements, most, sources]
}

/// A halving or a doubling of blocks. If all blocks do not fit in a message, every block is one.
fn by_halves() -> [Formula; 5] {
    [
        Formula("⌈log2 n⌉", |n, _, _| ceil(n)),
        Formula("n⌈log2 n⌉ + n - t⌈log2 2n/t⌉, or n(n-1)k", |n, _, k| {
            if k == 1 { halving_messages(n) } else { n * (n - 1) * k }
        }),
        ALL_TO_ALL_ELEMENTS,
        TO_ALL_ELEMENTS,
        Formula("⌈log2 n⌉", |n, _, _| ceil(n)),
    ]
}

/// The elements that all ranks together send.
pub(crate) fn elements(algorithm: &Algorithm, collective: Collective, n: usize, c: usize) -> usize {
    let rows = rows();
    let row = rows.iter().find(|it| it.algorithm == algorithm.name && it.collective == collective);
    row.map_or(0, |row| row.elements.1(n, c, 1))
}

/// The most elements of scratch that any rank needs, for any root.
fn scratch(row: &Row) -> Formula {
    match (row.algorithm, row.collective) {
        ("binomial", Gather) => Formula("max(p/2, n-p)c for k = 1, if n > 3", |n, c, k| {
            if k == 1 && n > 3 { beyond(n).max((1 << floor(n)) / 2) * c } else { 0 }
        }),
        ("binomial", Scatter) => Formula("max(p/2, n-p)c for k = 1, if the root is not 0", |n, c, k| {
            if k == 1 { beyond(n).max((1 << floor(n)) / 2) * c } else { 0 }
        }),
        ("rabenseifner" | "bine", ReduceScatter) => Formula("l⌈n/2⌉⌈c/k⌉, if n > 2", |n, c, k| {
            if n > 2 { LANES.min(k) * n.div_ceil(2) * c.div_ceil(k) } else { 0 }
        }),
        ("pat", AllGather) => {
            Formula(
                "⌈n/2⌉c for k = 1, if n > 3",
                |n, c, k| {
                    if n > 3 && k == 1 { n.div_ceil(2) * c } else { 0 }
                },
            )
        }
        ("pat", ReduceScatter) => {
            Formula("l⌈n/2⌉⌈c/k⌉, if n > 2; nc for k = 1, if n > 3", |n, c, k| match (n, k) {
                (..=2, _) => 0,
                (4.., 1) => n * c,
                _ => LANES.min(k) * n.div_ceil(2) * c.div_ceil(k),
            })
        }
        ("bruck", AllToAll) => Formula("lb⌈c/k⌉", |n, c, k| LANES.min(k) * ones(n) * c.div_ceil(k)),
        ("star", ReduceScatter) => WHOLE,
        ("star", AllToAll) => Formula("n²c", |n, c, _| n * n * c),
        _ => NONE,
    }
}

/// The table as it must stand in the paper.
fn table(rows: &[Row]) -> String {
    let mut table =
        "| algorithm | collective | hops | messages, all ranks | elements, all ranks | elements, the \
                     busiest rank | sources | slots | scratch |\n|---|---|---|---|---|---|---|---|---|\n"
            .to_owned();
    for row in rows {
        let collective = row.collective.name();
        let formulas =
            [&row.hops, &row.messages, &row.elements, &row.most, &row.sources].map(|formula| formula.0);
        let formulas = formulas.join(" | ");
        let scratch = scratch(row).0;
        table += &format!("| {} | {collective} | {formulas} | {} | {scratch} |\n", row.algorithm, row.depth);
    }
    table
}

#[test]
fn the_paper_has_this_table() {
    let paper = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/algorithms.md");
    let paper = std::fs::read_to_string(paper).unwrap();
    let table = table(&rows());
    assert!(paper.contains(&table), "docs/algorithms.md should have this table:\n{table}");
    for (algorithm, _) in plans() {
        assert!(paper.contains(&format!("## {}", algorithm.name)), "a section on {}", algorithm.name);
    }
}

#[test]
fn every_plan_has_a_row() {
    let rows = rows();
    for (algorithm, plan) in plans() {
        let row = rows.iter().find(|it| it.algorithm == algorithm.name && it.collective == plan.collective);
        let row = row.unwrap_or_else(|| panic!("a row for {} {:?}", algorithm.name, plan.collective));
        assert_eq!(row.depth, plan.depth);
    }
    assert_eq!(rows.len(), plans().count());
}

fn report(row: &Row, job: Job<'static>) -> (Report, Case) {
    let algorithm = find(row.algorithm).unwrap();
    let plan = algorithm.plan(row.collective).unwrap();
    let setup = Setup {
        job,
        uneven: None,
        depth: row.depth,
        in_place: false,
        writable: u64::MAX,
        policy: Policy::Random,
        seed: 1,
    };
    let case = Case { algorithm, plan, setup };
    (case.run().unwrap(), case)
}

#[test]
fn the_formulas_hold() {
    for row in &rows() {
        for n in 2usize..=33 {
            // Counts that ranks and chunks divide, so that the busiest rank's share is a whole number.
            let c = if row.collective == Barrier { 0 } else { 4 * n };
            // The longest message of a chunk that is all there is; of half as many elements there are two chunks.
            let longest = match (row.algorithm, row.collective) {
                ("ring" | "two_shot", AllReduce) => c / n,
                ("rabenseifner" | "bine", AllReduce) => n / 2 * c / n,
                ("tree", _) => c / 2,
                _ => c,
            };
            let half = (longest / 2).max(1);
            // A slice of as many blocks as a hop moves is a message.
            let in_slices = (row.algorithm, row.collective) == ("bruck", AllToAll);
            let slices = if in_slices { c.div_ceil(half / (n / 2)) } else { 2 };
            for (chunk, k) in [((n * c).max(1), 1), (half, if c > 0 { slices } else { 1 })] {
                let job = job(row.collective, n, c, chunk, LANES);
                // If `direct` writes into outputs, it has heads in addition.
                let (report, case) = report(row, Job { direct: row.algorithm != "direct", ..job });
                let of = |formula: &Formula| formula.1(n, c, k);
                let messages: usize = report.traffic.iter().map(|sent| sent.messages).sum();
                let elements: usize = report.traffic.iter().map(|sent| sent.elements).sum();
                let most = report.traffic.iter().map(|sent| sent.elements).max().unwrap();
                assert_eq!(messages, of(&row.messages), "messages: {case}");
                assert_eq!(elements, of(&row.elements), "elements: {case}");
                assert_eq!(most, of(&row.most), "busiest: {case}");
                let sources = case.schedules().into_iter().map(|schedule| {
                    let mut count = 0;
                    schedule.sources(&mut |_| count += 1);
                    count
                });
                assert_eq!(sources.max().unwrap(), of(&row.sources), "sources: {case}");
                if k == 1 {
                    assert_eq!(report.hops, of(&row.hops), "hops: {case}");
                }
                assert_eq!(most_scratch(row, case.setup.job), of(&scratch(row)), "scratch: {case}");
            }
        }
    }
}

/// Roots other than 0 need as much or more.
fn most_scratch(row: &Row, job: Job<'static>) -> usize {
    let plan = find(row.algorithm).unwrap().plan(row.collective).unwrap();
    let root = usize::from(row.collective.has_root());
    (0..job.ranks).map(|rank| plan.make(&Job { rank, root, ..job }).scratch()).max().unwrap()
}

#[test]
fn the_formulas_of_scratch_hold_where_a_message_has_one_element() {
    for row in rows().iter().filter(|row| row.collective != Barrier) {
        for n in 2usize..=33 {
            for c in [2, n + 1] {
                let found = most_scratch(row, job(row.collective, n, c, 1, LANES));
                assert_eq!(found, scratch(row).1(n, c, c), "{} of {n} ranks and {c} elements", row.algorithm);
            }
        }
    }
}

#[test]
fn a_ring_reduces_one_chunk_while_another_is_on_the_wire() {
    let algorithm = find("ring").unwrap();
    let mut schedule = algorithm.make(&Job { lanes: 2, ..job(AllReduce, 4, 64, 8, 2) }).unwrap();
    assert_eq!(schedule.lanes(), 2);
    // The first step of either lane is a put that waits for nothing, and no step of one lane needs the other.
    for lane in 0..2 {
        assert!(matches!(schedule.next(lane), Some(Step::Put { to: 1, from }) if from.len == 8));
        assert!(matches!(schedule.next(lane), Some(Step::Take { from: 3, len: 8 })));
        assert!(matches!(schedule.next(lane), Some(Step::Reduce { last: false, .. })));
    }
}
