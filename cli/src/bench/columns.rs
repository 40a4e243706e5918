//! The columns of each kind of measurement. A collective's are those of nccl-tests, in the same places.

use super::{
    Bench, Benchmark,
    rows::{Flow, MeasuredCase, OverlapRow, Rates, TimeRow, micros},
    table::Column,
};

/// The meaning of the numbers.
pub(super) const fn meaning(bench: &Bench) -> &'static str {
    match bench.what {
        Benchmark::Collective(_) if bench.asked.overlap => {
            "of the collective alone, a computation alone, and both at once (p50, slowest rank); \
             hidden: 100 - 100 (both - alone) / collective, behind sleep and behind work on every core"
        }
        Benchmark::Collective(_) if bench.asked.detail => {
            "min, p50, p99 of single calls after a barrier (slowest rank), and the mean of calls back to back"
        }
        Benchmark::Collective(_) => {
            "time: median of single calls after a barrier, slowest rank; GB of 10^9 bytes; more: --detail"
        }
        Benchmark::SendRecv => {
            "latency one way; rates of all pairs together, one way and in each of both directions at once, with as many \
             messages under way as window says"
        }
        Benchmark::Put => {
            "latency one way; rates one way and in each of both directions at once, with as many puts outstanding as window says"
        }
    }
}

/// The first columns of a collective.
pub(super) fn of_case(case: &MeasuredCase) -> Vec<Column> {
    let op = case.op.map_or_else(|| "none".to_owned(), |op| op.to_string());
    let root = case.root.map_or_else(|| "-1".to_owned(), |root| root.to_string());
    vec![
        Column::new("size", "(B)", 11, 0, case.bytes),
        Column::new("count", "(elements)", 10, 3, case.count),
        Column::new("type", "", 4, 4, case.dtype.name()),
        Column::new("redop", "", 5, 4, op),
        Column::new("root", "", 4, 4, root),
    ]
}

/// The columns of one form of a collective; `second` if it stands behind another form.
pub(super) fn of_times(
    over: &'static str,
    second: bool,
    [time, algbw, busbw]: [f64; 3],
    wrong: u64,
) -> [Column; 4] {
    let least = u8::from(second);
    [
        Column::new("time", "(us)", 8, least, "").number(time, 2).over(over),
        Column::new("algbw", "(GB/s)", 6, 2, "").number(algbw, 3).over(over),
        Column::new("busbw", "(GB/s)", 6, least, "").number(busbw, 3).over(over),
        Column::new("#wrong", "", 6, least, wrong).over(over),
    ]
}

/// The columns of `--detail`.
pub(super) fn of_detail(row: &TimeRow, busbw: f64, of_raw: Option<f64>) -> Vec<Column> {
    let [min, p50, p99] = micros(&row.samples);
    let place = match row.case.in_place {
        Some(true) => "in",
        Some(false) => "out",
        None => "-",
    };
    let raw = Column::new("of raw", "(%)", 6, 4, "-");
    vec![
        Column::new("size", "(B)", 11, 0, row.case.bytes),
        Column::new("place", "", 5, 2, place),
        Column::new("algorithm", "", 18, 1, row.case.algorithm),
        Column::new("min", "(us)", 8, 3, "").number(min, 2),
        Column::new("p50", "(us)", 8, 0, "").number(p50, 2),
        Column::new("p99", "(us)", 8, 3, "").number(p99, 2),
        Column::new("mean", "(us)", 8, 3, "").number(row.mean * 1e6, 2),
        Column::new("busbw", "(GB/s)", 6, 0, "").number(busbw, 3),
        if let Some(percent) = of_raw { raw.number(percent, 1) } else { raw },
        Column::new("cpu", "(s/GB)", 6, 4, "").number(row.cpu_a_gigabyte(), 2),
        Column::new("#wrong", "", 6, 0, row.case.wrong),
    ]
}

/// The columns of `--overlap`.
pub(super) fn of_overlap(row: &OverlapRow) -> Vec<Column> {
    let time = |head, seconds: f64| Column::new(head, "(us)", 7, 1, "").number(seconds * 1e6, 2);
    let mut columns = vec![
        Column::new("size", "(B)", 10, 0, row.case.bytes),
        Column::new("algorithm", "", 18, 2, row.case.algorithm),
        Column::new("alone", "(us)", 8, 0, "").number(row.idle.communication * 1e6, 2),
    ];
    for (name, times) in [("sleep", &row.idle), ("work", &row.busy)] {
        columns.push(Column::new("|", "|", 1, 0, "|"));
        columns.extend([time(name, times.computation), time("both", times.both)]);
        columns.push(Column::new("%hidden", "", 7, 0, "").number(times.hidden(), 1));
    }
    columns.push(Column::new("|", "|", 1, 0, "|"));
    columns.push(Column::new("#wrong", "", 6, 0, row.case.wrong));
    columns
}

/// The columns of messages or puts.
pub(super) fn of_flow(flow: &Flow) -> Vec<Column> {
    let mut columns = match &flow.messages {
        Some(messages) => vec![
            Column::new("size", "(B)", 10, 0, flow.bytes),
            Column::new("count", "", 9, 4, messages.count),
            Column::new("type", "", 4, 4, messages.dtype.name()),
        ],
        None => vec![Column::new("size", "(B)", 11, 0, flow.bytes)],
    };
    let [min, p50, p99] = flow.latency_us;
    let latency = |head, least, time| Column::new(head, "(us)", 8, least, "").number(time, 2).over("latency");
    let bandwidth = |head, least, rates: Rates| {
        Column::new(head, "(GB/s)", 8, least, "").number(rates.gigabytes, 3).over("bandwidth")
    };
    let rate =
        |head, rates: Rates| Column::new(head, "(M/s)", 7, 2, "").number(rates.millions, 3).over("rate");
    columns.extend([
        Column::new("window", "", 6, 1, flow.window),
        latency("min", 3, min),
        latency("p50", 0, p50),
        latency("p99", 3, p99),
        bandwidth("one way", 0, flow.one_way),
        bandwidth("both", 1, flow.both_ways),
        rate("one way", flow.one_way),
        rate("both", flow.both_ways),
    ]);
    columns.extend(flow.messages.as_ref().map(|messages| Column::new("#wrong", "", 6, 0, messages.wrong)));
    columns
}
