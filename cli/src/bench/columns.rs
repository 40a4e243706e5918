//! The columns of each kind of measurement. A collective's are those of nccl-tests, in the same places.

use super::{
    Bench, What,
    rows::{Case, Flow, OverlapRow, Row},
    table::{Column, fixed},
};

/// A kind of table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A collective out of place and in place, side by side.
    Both,
    /// A collective in one form.
    One,
    /// More figures of a collective, with a line for each form.
    Detail,
    Overlap,
    Messages,
    Puts,
}

impl Kind {
    pub(super) fn of(bench: &Bench) -> Self {
        match bench.what {
            What::SendRecv => Self::Messages,
            What::Put => Self::Puts,
            What::Collective(_) if bench.asked.overlap => Self::Overlap,
            What::Collective(_) if bench.asked.detail => Self::Detail,
            What::Collective(_) if bench.forms().len() == 2 => Self::Both,
            What::Collective(_) => Self::One,
        }
    }

    /// The meaning of its numbers.
    pub(super) const fn meaning(self) -> &'static str {
        match self {
            Self::Both | Self::One => {
                "time: median of single calls after a barrier, slowest rank; GB of 10^9 bytes; more: --detail"
            }
            Self::Detail => {
                "min, p50, p99 of single calls after a barrier (slowest rank), and the mean of calls back to back"
            }
            Self::Overlap => {
                "of the collective alone, a computation alone, and both at once (p50, slowest rank); \
                 hidden: 100 - 100 (both - alone) / collective, behind sleep and behind work on every core"
            }
            Self::Messages => {
                "latency one way; rates of all pairs together, one way and in each of both directions at once, with as many \
                 messages under way as window says"
            }
            Self::Puts => {
                "latency one way; rates one way and in each of both directions at once, with as many puts outstanding as window says"
            }
        }
    }
}

/// Its columns.
pub(super) fn of(kind: Kind) -> Vec<Column> {
    let column = Column::new;
    let mut case = vec![
        column("size", "(B)", 11, 0),
        column("count", "(elements)", 10, 3),
        column("type", "", 4, 4),
        column("redop", "", 5, 4),
        column("root", "", 4, 4),
    ];
    let times = |over: &'static str, least| {
        [
            column("time", "(us)", 8, least).over(over),
            column("algbw", "(GB/s)", 6, least.max(2)).over(over),
            column("busbw", "(GB/s)", 6, least).over(over),
            column("#wrong", "", 6, least).over(over),
        ]
    };
    let flow = || {
        vec![
            column("window", "", 6, 1),
            column("min", "(us)", 8, 3).over("latency"),
            column("p50", "(us)", 8, 0).over("latency"),
            column("p99", "(us)", 8, 3).over("latency"),
            column("one way", "(GB/s)", 8, 0).over("bandwidth"),
            column("both", "(GB/s)", 8, 1).over("bandwidth"),
            column("one way", "(M/s)", 7, 2).over("rate"),
            column("both", "(M/s)", 7, 2).over("rate"),
        ]
    };
    match kind {
        Kind::Both => {
            case.extend(times("out of place", 0).into_iter().chain(times("in place", 1)));
            case
        }
        Kind::One => {
            case.extend(times("", 0));
            case
        }
        Kind::Detail => vec![
            column("size", "(B)", 11, 0),
            column("place", "", 5, 2),
            column("algorithm", "", 18, 1),
            column("min", "(us)", 8, 3),
            column("p50", "(us)", 8, 0),
            column("p99", "(us)", 8, 3),
            column("mean", "(us)", 8, 3),
            column("busbw", "(GB/s)", 6, 0),
            column("of raw", "(%)", 6, 4),
            column("cpu", "(s/GB)", 6, 4),
            column("#wrong", "", 6, 0),
        ],
        Kind::Overlap => vec![
            column("size", "(B)", 10, 0),
            column("algorithm", "", 18, 2),
            column("alone", "(us)", 8, 0),
            column("|", "|", 1, 0),
            column("sleep", "(us)", 7, 1),
            column("both", "(us)", 7, 1),
            column("%hidden", "", 7, 0),
            column("|", "|", 1, 0),
            column("work", "(us)", 7, 1),
            column("both", "(us)", 7, 1),
            column("%hidden", "", 7, 0),
            column("|", "|", 1, 0),
            column("#wrong", "", 6, 0),
        ],
        Kind::Messages => {
            let mut all =
                vec![column("size", "(B)", 10, 0), column("count", "", 9, 4), column("type", "", 4, 4)];
            all.extend(flow());
            all.push(column("#wrong", "", 6, 0));
            all
        }
        Kind::Puts => std::iter::once(column("size", "(B)", 11, 0)).chain(flow()).collect(),
    }
}

/// The first cells of a collective.
pub(super) fn of_case(case: &Case) -> Vec<String> {
    let op = case.op.map_or_else(|| "none".to_owned(), |op| op.to_string());
    let root = case.root.map_or_else(|| "-1".to_owned(), |root| root.to_string());
    vec![case.bytes.to_string(), case.count.to_string(), case.dtype.name().to_owned(), op, root]
}

/// The cells of `--detail`.
pub(super) fn of_detail(row: &Row, busbw: f64, of_raw: Option<f64>) -> Vec<String> {
    let [min, p50, p99] = row.times_us().map(|time| fixed(time, 2, 8));
    let place = match row.case.in_place {
        Some(true) => "in",
        Some(false) => "out",
        None => "-",
    };
    vec![
        row.case.bytes.to_string(),
        place.to_owned(),
        row.case.algorithm.to_owned(),
        min,
        p50,
        p99,
        fixed(row.mean * 1e6, 2, 8),
        fixed(busbw, 3, 6),
        of_raw.map_or_else(|| "-".to_owned(), |percent| fixed(percent, 1, 6)),
        fixed(row.cpu_a_gigabyte(), 2, 6),
        row.case.wrong.to_string(),
    ]
}

/// The cells of `--overlap`.
pub(super) fn of_overlap(row: &OverlapRow) -> Vec<String> {
    let micros = |seconds: f64, width| fixed(seconds * 1e6, 2, width);
    let bar = || "|".to_owned();
    vec![
        row.case.bytes.to_string(),
        row.case.algorithm.to_owned(),
        micros(row.idle.communication, 8),
        bar(),
        micros(row.idle.computation, 7),
        micros(row.idle.both, 7),
        fixed(row.idle.hidden(), 1, 7),
        bar(),
        micros(row.busy.computation, 7),
        micros(row.busy.both, 7),
        fixed(row.busy.hidden(), 1, 7),
        bar(),
        row.case.wrong.to_string(),
    ]
}

/// The cells of messages or puts, behind the size.
pub(super) fn of_flow(flow: &Flow) -> Vec<String> {
    let [min, p50, p99] = flow.latency_us.map(|time| fixed(time, 2, 8));
    let bandwidth = [flow.one_way, flow.both_ways].map(|rates| fixed(rates.gigabytes, 3, 8));
    let rate = [flow.one_way, flow.both_ways].map(|rates| fixed(rates.millions, 3, 7));
    [vec![flow.window.to_string(), min, p50, p99], bandwidth.to_vec(), rate.to_vec()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::table::WIDEST;

    #[test]
    fn no_table_is_too_wide() {
        for kind in [Kind::Both, Kind::One, Kind::Detail, Kind::Overlap, Kind::Messages, Kind::Puts] {
            let columns = of(kind);
            let width = columns.iter().map(|column| column.width + 1).sum::<usize>() - 1;
            assert!(width <= WIDEST, "{kind:?}: {width}");
            for column in columns {
                assert!(
                    column.head.len() <= column.width && column.unit.len() <= column.width,
                    "{}",
                    column.head
                );
            }
        }
    }
}
