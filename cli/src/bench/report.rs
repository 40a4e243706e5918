//! Prints the table and writes the lines of JSON, on rank 0 only.

use std::{
    fmt,
    fs::File,
    io::{BufWriter, Write},
    path::Path,
    time::Duration,
};

use serde_json::{Value, json};
use unisono::{ProcessGroup, Reduction, dtype::Dtype, reduce::ReduceOp};
use unisono_schedule::Collective;

use super::{Bench, Result, What, ranks::second};
use crate::tune::output::is_fifo;

/// Prints and records the results.
pub(super) struct Report {
    /// Bytes a second of raw puts at 1 MiB from rank 0 to the second of the pair.
    pub raw: Option<f64>,
    reports: bool,
    headed: bool,
    what: What,
    overlap: bool,
    json: Option<BufWriter<File>>,
    ranks: usize,
    provider: String,
    library: String,
    registered: bool,
    in_place: Option<bool>,
    reduction: Reduction,
    trouble: Option<std::io::Error>,
}

/// A collective of one size, and whether its result is right.
pub(super) struct Case {
    pub collective: Collective,
    pub algorithm: &'static str,
    /// The size of the whole vector.
    pub bytes: usize,
    pub count: usize,
    pub dtype: Dtype,
    pub op: Option<ReduceOp>,
    pub root: Option<usize>,
    /// The number of wrong elements on all ranks.
    pub wrong: u64,
}

/// The times of a collective.
pub(super) struct Row {
    pub case: Case,
    /// The slowest rank's times of single calls, in seconds, in ascending order.
    pub samples: Vec<f64>,
    /// The mean time of calls back to back, in seconds.
    pub mean: f64,
    /// Processor time of all ranks together for one call, in seconds.
    pub cpu: f64,
    /// Bytes of registered memory on rank 0.
    pub memory: usize,
}

/// How much of a collective is hidden by computations.
pub(super) struct OverlapRow {
    pub case: Case,
    /// With a sleep, and with work on all cores.
    pub idle: Times,
    pub busy: Times,
    /// The number of threads that compute on rank 0.
    pub threads: usize,
}

/// The times of the collective alone, of a computation alone, and of both at once, in seconds.
pub(super) struct Times {
    pub communication: f64,
    pub computation: f64,
    pub both: f64,
}

impl Times {
    /// The percentage of the collective that the computation hides.
    fn hidden(&self) -> f64 {
        let left = (self.both - self.computation) / self.communication.max(1e-9);
        (100.0 - 100.0 * left).clamp(0.0, 100.0)
    }
}

/// Messages of one size, of all pairs together.
pub(super) struct MessageRow {
    pub flow: Flow,
    pub count: usize,
    pub dtype: Dtype,
    pub pairs: usize,
    /// The number of wrong elements on all ranks.
    pub wrong: u64,
}

/// The bandwidth and rate in each direction, per second.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rates {
    /// 10^9 bytes.
    pub gigabytes: f64,
    /// Millions of puts or messages.
    pub millions: f64,
}

impl Rates {
    /// The rates of `count` messages of `bytes` bytes in this many seconds.
    pub(super) fn new(count: usize, bytes: usize, seconds: f64) -> Self {
        let rate = count as f64 / seconds.max(1e-9);
        Self { gigabytes: rate * bytes as f64 / 1e9, millions: rate / 1e6 }
    }
}

/// Messages or raw puts of one size.
#[derive(Debug, Default)]
pub(super) struct Flow {
    pub bytes: usize,
    /// One way: least, median, 99th percentile.
    pub latency_us: [f64; 3],
    /// One way, and in each of both directions at once.
    pub one_way: Rates,
    pub both_ways: Rates,
}

/// Its columns behind the size.
impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { latency_us: [min, p50, p99], one_way, both_ways, .. } = self;
        write!(
            f,
            "{min:>8.2} {p50:>8.2} {p99:>8.2} {:>8.3} {:>8.3}",
            one_way.gigabytes, both_ways.gigabytes
        )?;
        write!(f, " {:>9.3} {:>9.3}", one_way.millions, both_ways.millions)
    }
}

pub(super) fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// The value below which a fraction `q` of a sorted, non-empty list lies; the default for an empty one.
#[allow(clippy::cast_possible_truncation, reason = "an index into the list")]
pub(crate) fn quantile<T: Copy + Default>(sorted: &[T], q: f64) -> T {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * q).round() as usize).copied().unwrap_or_default()
}

/// An object with the fields of both.
fn merged(mut one: Value, other: Value) -> Value {
    if let (Some(fields), Value::Object(other)) = (one.as_object_mut(), other) {
        fields.extend(other);
    }
    one
}

/// The median; 0 of an empty list.
pub(crate) fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_unstable_by(f64::total_cmp);
    quantile(&samples, 0.5)
}

/// The ratio of the bus bandwidth to the algorithm's bandwidth (nccl-tests, doc/PERFORMANCE.md).
fn bus_factor(collective: Collective, ranks: usize) -> f64 {
    let share = (ranks as f64 - 1.0) / ranks as f64;
    match collective {
        Collective::AllReduce => 2.0 * share,
        collective if collective.has_blocks() => share,
        _ => 1.0,
    }
}

/// Checks that the file for lines of JSON, if there is to be one, can be written. An existing one is emptied.
pub(super) fn check_json(path: Option<&Path>) -> Result<()> {
    json_file(path.filter(|path| !is_fifo(path))).map(drop)
}

/// Creates or empties the file for lines of JSON, if there is to be one.
fn json_file(path: Option<&Path>) -> Result<Option<File>> {
    let create =
        |path: &Path| File::create(path).map_err(|error| format!("--json {}: {error}", path.display()));
    Ok(path.map(create).transpose()?)
}

/// The first columns of its line.
impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let op = self.op.map_or_else(|| "none".to_owned(), |op| op.to_string());
        let root = self.root.map_or_else(|| "-1".to_owned(), |root| root.to_string());
        let Self { bytes, count, dtype, algorithm, .. } = self;
        write!(f, "{bytes:>12} {count:>11} {:>5} {op:>6} {root:>4} {algorithm:>19}", dtype.name())
    }
}

impl Report {
    pub(super) fn new(group: &ProcessGroup, bench: &Bench, reduction: Reduction) -> Result<Self> {
        let reports = group.rank() == 0;
        let json = json_file(bench.json.as_deref().filter(|_| reports))?.map(BufWriter::new);
        let limits = group.limits();
        Ok(Self {
            raw: None,
            reports,
            headed: false,
            what: bench.what,
            overlap: bench.overlap,
            json,
            ranks: group.size(),
            provider: limits.provider.clone(),
            library: limits.version.clone(),
            registered: bench.registered,
            in_place: bench.is_in_place(),
            reduction,
            trouble: None,
        })
    }

    fn head(&mut self) {
        if std::mem::replace(&mut self.headed, true) {
            return;
        }
        let second = second(self.ranks).unwrap_or_default();
        let raw = self.raw.map_or_else(String::new, |raw| {
            format!(", raw put {:.2} GB/s at 1 MiB from rank 0 to {second}", raw / 1e9)
        });
        let memory = if self.registered { "registered memory" } else { "plain memory" };
        let place = if self.in_place == Some(true) { ", in place" } else { "" };
        let reduces = matches!(self.what, What::Collective(collective) if collective.reduces());
        let reproducible =
            if reduces && self.reduction == Reduction::Reproducible { ", reproducible" } else { "" };
        let case = format!(
            "#{:>11} {:>11} {:>5} {:>6} {:>4} {:>19}",
            "bytes", "count", "type", "redop", "root", "algorithm"
        );
        match self.what {
            What::Collective(collective) if self.overlap => self.line(&format!(
                "# {} on {} ranks over {} ({}), {memory}{place}{reproducible}, and what the ranks compute meanwhile\n\
                 # times in µs: of the collective alone, of a computation alone, and of both at once (p50, slowest rank);\n\
                 # hidden: 100 - 100 (both - alone) / collective, behind sleep and behind work on every core\n\
                 {case} {:>10} | {:>9} {:>9} {:>7} | {:>9} {:>9} {:>7} | {:>6}",
                collective.name(), self.ranks, self.provider, self.library,
                "collective", "sleep", "both", "%hidden", "work", "both", "%hidden", "#wrong"
            )),
            What::Collective(collective) => self.line(&format!(
                "# {} on {} ranks over {} ({}), {memory}{place}{reproducible}{raw}\n\
                 # times in µs: of single calls after a barrier (slowest rank), and the mean of calls back to back\n\
                 {case} {:>9} {:>9} {:>9} {:>9} {:>7} {:>7} {:>6} {:>7} {:>6}",
                collective.name(), self.ranks, self.provider, self.library,
                "min", "p50", "p99", "mean", "algbw", "busbw", "%raw", "cpu/GB", "#wrong"
            )),
            What::SendRecv => self.line(&format!(
                "# send_recv on {} ranks, pairs at once: {}, over {} ({}), {memory}\n\
                 # latency in µs one way; GB/s of 10^9 bytes and millions of messages a second, all pairs together, \
                 each direction\n\
                 #{:>11} {:>11} {:>5} {:>8} {:>8} {:>8} {:>8} {:>8} {:>9} {:>9} {:>6}",
                self.ranks, self.ranks / 2, self.provider, self.library, "bytes", "count", "type", "min", "p50", "p99",
                "one way", "both", "Mmsg/s", "both", "#wrong"
            )),
            What::Put => self.line(&format!(
                "# put between ranks 0 and {second} of {} over {} ({})\n\
                 # latency in µs one way; GB/s of 10^9 bytes and millions of puts a second, each direction\n\
                 #{:>11} {:>8} {:>8} {:>8} {:>8} {:>8} {:>9} {:>9}",
                self.ranks, self.provider, self.library, "bytes", "min", "p50", "p99", "one way", "both", "Mput/s",
                "both"
            )),
        }
    }

    fn line(&mut self, text: &str) {
        if let Err(error) = writeln!(std::io::stdout(), "{text}") {
            self.trouble.get_or_insert(error);
        }
    }

    fn record(&mut self, record: Value) {
        if let Some(json) = &mut self.json
            && let Err(error) = writeln!(json, "{record}").and_then(|()| json.flush())
        {
            self.trouble.get_or_insert(error);
            self.json = None;
        }
    }

    /// Fails if the file for lines of JSON could not be written.
    pub(super) fn check(&mut self) -> Result<()> {
        match self.trouble.take_if(|_| self.json.is_none()) {
            Some(error) => Err(format!("writing the results: {error}").into()),
            None => Ok(()),
        }
    }

    /// Reports a collective.
    pub(super) fn collective(&mut self, row: &Row) {
        if !self.reports {
            return;
        }
        self.head();
        let [min, p50, p99] = [0.0, 0.5, 0.99].map(|q| quantile(&row.samples, q) * 1e6);
        let mean = row.mean * 1e6;
        let bytes = row.case.bytes as f64;
        let algbw = bytes / p50 / 1e3;
        let busbw = algbw * bus_factor(row.case.collective, self.ranks);
        let of_raw = self.raw.map(|raw| 100.0 * busbw * 1e9 / raw);
        let cpu = if row.case.bytes == 0 { 0.0 } else { row.cpu / (bytes / 1e9) };
        self.line(&format!(
            "{} {min:>9.2} {p50:>9.2} {p99:>9.2} {mean:>9.2} {algbw:>7.3} {busbw:>7.3} {:>6} {cpu:>7.2} {:>6}",
            row.case,
            of_raw.map_or_else(|| "-".to_owned(), |percent| format!("{percent:.1}")),
            row.case.wrong,
        ));
        self.record(self.of_case(
            &row.case,
            json!({
                "time_us": { "min": min, "p50": p50, "p99": p99, "mean": mean },
                "algbw": algbw, "busbw": busbw, "pct_of_raw": of_raw, "raw_GBps": self.raw.map(|raw| raw / 1e9),
                "raw_pair": self.raw.and_then(|_| Some([0, second(self.ranks)?])), "cpu_s_per_GB": cpu,
                "registered_bytes": row.memory,
            }),
        ));
    }

    /// Reports a collective with computations.
    pub(super) fn overlap(&mut self, row: &OverlapRow) {
        if !self.reports {
            return;
        }
        self.head();
        let [collective, sleep, with_sleep, work, with_work] = [
            row.idle.communication,
            row.idle.computation,
            row.idle.both,
            row.busy.computation,
            row.busy.both,
        ]
        .map(|seconds| seconds * 1e6);
        let [idle, busy] = [row.idle.hidden(), row.busy.hidden()];
        self.line(&format!(
            "{} {collective:>10.2} | {sleep:>9.2} {with_sleep:>9.2} {idle:>7.1} | {work:>9.2} {with_work:>9.2} \
             {busy:>7.1} | {:>6}",
            row.case, row.case.wrong,
        ));
        self.record(self.of_case(
            &row.case,
            json!({
                "communication_us": collective,
                "idle": { "compute_us": sleep, "total_us": with_sleep, "overlap_pct": idle },
                "busy": {
                    "compute_us": work, "total_us": with_work, "overlap_pct": busy, "threads": row.threads,
                },
            }),
        ));
    }

    /// A record of a collective: its case, and what was measured.
    fn of_case(&self, case: &Case, measured: Value) -> Value {
        let what = json!({
            "collective": case.collective.name(), "algorithm": case.algorithm, "ranks": self.ranks,
            "provider": self.provider, "library": self.library, "bytes": case.bytes, "count": case.count,
            "dtype": case.dtype.name(), "op": case.op.map(|op| op.to_string()),
            "reduction": case.op.map(|_| self.reduction.name()), "root": case.root,
            "registered": self.registered, "in_place": self.in_place, "wrong": case.wrong,
        });
        merged(what, measured)
    }

    /// A record of messages or puts: what they were, and what was measured.
    fn of_flow(&self, what: Value, flow: &Flow) -> Value {
        let Flow { bytes, latency_us: [min, p50, p99], one_way, both_ways } = flow;
        let measured = json!({
            "ranks": self.ranks, "provider": self.provider, "library": self.library, "bytes": bytes,
            "latency_us": { "min": min, "p50": p50, "p99": p99 },
            "one_way_GBps": one_way.gigabytes, "both_ways_GBps": both_ways.gigabytes,
            "rate_Mps": one_way.millions, "rate_both_Mps": both_ways.millions,
        });
        merged(what, measured)
    }

    /// Reports messages.
    pub(super) fn messages(&mut self, row: &MessageRow) {
        if !self.reports {
            return;
        }
        self.head();
        let MessageRow { flow, count, dtype, pairs, wrong } = row;
        let dtype = dtype.name();
        self.line(&format!("{:>12} {count:>11} {dtype:>5} {flow} {wrong:>6}", flow.bytes));
        let what = json!({
            "send_recv": true, "pairs": pairs, "count": count, "dtype": dtype, "registered": self.registered,
            "wrong": wrong,
        });
        self.record(self.of_flow(what, flow));
    }

    /// Reports puts.
    pub(super) fn put(&mut self, flow: &Flow) {
        if !self.reports {
            return;
        }
        self.head();
        self.line(&format!("{:>12} {flow}", flow.bytes));
        self.record(self.of_flow(json!({ "put": true, "pair": [0, second(self.ranks)] }), flow));
    }

    /// Ends the report. Fails if something could not be written.
    pub(super) fn end(mut self, group: &ProcessGroup) -> Result<()> {
        if self.reports && self.headed {
            let memory = group.memory();
            self.line(&format!("# {memory} bytes of registered memory for windows on this rank"));
        }
        match self.trouble {
            Some(error) => Err(format!("writing the results: {error}").into()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_members() {
        let sorted = [1.0, 2.0, 3.0, 4.0, 100.0];
        assert_eq!(quantile(&sorted, 0.0), 1.0);
        assert_eq!(quantile(&sorted, 0.5), 3.0);
        assert_eq!(quantile(&sorted, 0.99), 100.0);
        assert_eq!(quantile::<f64>(&[], 0.5), 0.0);
    }

    #[test]
    fn what_is_hidden_is_a_percentage_of_the_communication() {
        let hidden = |communication, computation, both| Times { communication, computation, both }.hidden();
        assert_eq!(hidden(8.0, 10.0, 10.0), 100.0);
        assert_eq!(hidden(8.0, 10.0, 18.0), 0.0);
        assert_eq!(hidden(8.0, 10.0, 12.0), 75.0);
        // Noise: faster together than the computation alone, and slower than one after the other.
        assert_eq!(
            [hidden(8.0, 10.0, 9.0), hidden(8.0, 10.0, 20.0), hidden(0.0, 0.0, 0.0)],
            [100.0, 0.0, 100.0]
        );
    }

    #[test]
    fn bus_factors_are_those_of_nccl_tests() {
        assert_eq!(bus_factor(Collective::AllReduce, 4), 1.5);
        assert_eq!(bus_factor(Collective::AllGather, 4), 0.75);
        assert_eq!(bus_factor(Collective::AllToAll, 4), 0.75);
        assert_eq!(bus_factor(Collective::Reduce, 4), 1.0);
        assert_eq!(bus_factor(Collective::Broadcast, 4), 1.0);
    }
}
