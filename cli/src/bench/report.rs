//! The table on standard output and the lines of JSON, from rank 0 alone.

use std::{
    fs::File,
    io::{BufWriter, Write},
    path::Path,
    time::Duration,
};

use serde_json::json;
use unisono::{ProcessGroup, dtype::Dtype, reduce::ReduceOp, schedule::Collective};

use super::{Bench, Result, What};

/// Where results go.
pub(super) struct Report {
    /// Bytes a second of raw puts at 1 MiB, one way.
    pub raw: Option<f64>,
    reports: bool,
    headed: bool,
    what: What,
    json: Option<BufWriter<File>>,
    ranks: usize,
    provider: String,
    library: String,
    registered: bool,
    trouble: Option<std::io::Error>,
}

/// A collective at one size.
pub(super) struct Row {
    pub collective: Collective,
    pub algorithm: &'static str,
    /// Of the whole vector.
    pub bytes: usize,
    pub count: usize,
    pub dtype: Dtype,
    pub op: Option<ReduceOp>,
    pub root: Option<usize>,
    /// The slowest rank's times of single calls, in seconds, in ascending order.
    pub samples: Vec<f64>,
    /// Of calls back to back, in seconds.
    pub mean: f64,
    /// Processor time of all ranks together for one call, in seconds.
    pub cpu: f64,
    pub wrong: u64,
    /// Bytes of registered memory on rank 0.
    pub memory: usize,
}

/// Raw puts at one size.
#[derive(Debug, Default)]
pub(super) struct PutRow {
    pub bytes: usize,
    /// One way: least, median, 99th percentile.
    pub latency_us: [f64; 3],
    /// 10^9 bytes a second, one way and in each of both directions at once.
    pub one_way: f64,
    pub both_ways: f64,
    /// Millions of puts a second, likewise.
    pub rate: f64,
    pub rate_both: f64,
}

pub(super) fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// The value below which a fraction `q` of a sorted, non-empty list lies; the default for an empty one.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "an index into the list"
)]
pub(crate) fn quantile<T: Copy + Default>(sorted: &[T], q: f64) -> T {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * q).round() as usize).copied().unwrap_or_default()
}

/// What the algorithm's bandwidth is multiplied with to get that of the wire (nccl-tests,
/// doc/PERFORMANCE.md).
#[allow(clippy::cast_precision_loss, reason = "a number of ranks")]
fn bus_factor(collective: Collective, ranks: usize) -> f64 {
    let share = (ranks as f64 - 1.0) / ranks as f64;
    match collective {
        Collective::AllReduce => 2.0 * share,
        collective if collective.has_blocks() => share,
        _ => 1.0,
    }
}

/// The file for lines of JSON, empty, if one is wanted.
pub(super) fn json_file(path: Option<&Path>) -> Result<Option<File>> {
    let create =
        |path: &Path| File::create(path).map_err(|error| format!("--json {}: {error}", path.display()));
    Ok(path.map(create).transpose()?)
}

impl Report {
    pub(super) fn new(group: &ProcessGroup, bench: &Bench) -> Result<Self> {
        let reports = group.rank() == 0;
        let json = json_file(bench.json.as_deref().filter(|_| reports))?.map(BufWriter::new);
        let limits = group.limits();
        Ok(Self {
            raw: None,
            reports,
            headed: false,
            what: bench.what,
            json,
            ranks: group.size(),
            provider: limits.provider.clone(),
            library: limits.version.clone(),
            registered: bench.registered,
            trouble: None,
        })
    }

    fn head(&mut self) {
        if std::mem::replace(&mut self.headed, true) {
            return;
        }
        let raw =
            self.raw.map_or_else(String::new, |raw| format!(", raw put {:.2} GB/s at 1 MiB", raw / 1e9));
        let memory = if self.registered { "registered" } else { "plain" };
        match self.what {
            What::Collective(collective) => self.line(&format!(
                "# {} on {} ranks over {} ({}), {memory} memory{raw}\n\
                 # times in µs: of single calls after a barrier (slowest rank), and the mean of calls back to back\n\
                 #{:>11} {:>11} {:>5} {:>6} {:>4} {:>19} {:>9} {:>9} {:>9} {:>9} {:>7} {:>7} {:>6} {:>7} {:>6}",
                collective.name(), self.ranks, self.provider, self.library, "bytes", "count", "type", "redop", "root",
                "algorithm", "min", "p50", "p99", "mean", "algbw", "busbw", "%raw", "cpu/GB", "#wrong"
            )),
            What::Put => self.line(&format!(
                "# put between 2 ranks over {} ({})\n\
                 # latency in µs one way; GB/s of 10^9 bytes and millions of puts a second, each direction\n\
                 #{:>11} {:>8} {:>8} {:>8} {:>8} {:>8} {:>9} {:>9}",
                self.provider, self.library, "bytes", "min", "p50", "p99", "one way", "both", "Mput/s", "both"
            )),
        }
    }

    fn line(&mut self, text: &str) {
        if let Err(error) = writeln!(std::io::stdout(), "{text}") {
            self.trouble.get_or_insert(error);
        }
    }

    fn record(&mut self, record: &serde_json::Value) {
        if let Some(json) = &mut self.json
            && let Err(error) = writeln!(json, "{record}").and_then(|()| json.flush())
        {
            self.trouble.get_or_insert(error);
        }
    }

    /// Reports a collective.
    #[allow(clippy::cast_precision_loss, reason = "figures for people")]
    pub(super) fn collective(&mut self, row: &Row) {
        if !self.reports {
            return;
        }
        self.head();
        let [min, p50, p99] = [0.0, 0.5, 0.99].map(|q| quantile(&row.samples, q) * 1e6);
        let mean = row.mean * 1e6;
        let algbw = row.bytes as f64 / p50 / 1e3;
        let busbw = algbw * bus_factor(row.collective, self.ranks);
        let of_raw = self.raw.map(|raw| 100.0 * busbw * 1e9 / raw);
        let cpu = if row.bytes == 0 { 0.0 } else { row.cpu / (row.bytes as f64 / 1e9) };
        let op = row.op.map_or("none", ReduceOp::name);
        let root = row.root.map_or_else(|| "-1".to_owned(), |root| root.to_string());
        self.line(&format!(
            "{:>12} {:>11} {:>5} {op:>6} {root:>4} {:>19} {min:>9.2} {p50:>9.2} {p99:>9.2} {mean:>9.2} {algbw:>7.3} \
             {busbw:>7.3} {:>6} {cpu:>7.2} {:>6}",
            row.bytes,
            row.count,
            row.dtype.name(),
            row.algorithm,
            of_raw.map_or_else(|| "-".to_owned(), |percent| format!("{percent:.1}")),
            row.wrong,
        ));
        self.record(&json!({
            "collective": row.collective.name(), "algorithm": row.algorithm, "ranks": self.ranks,
            "provider": self.provider, "libfabric": self.library, "bytes": row.bytes, "count": row.count,
            "dtype": row.dtype.name(), "op": row.op.map(ReduceOp::name), "root": row.root,
            "registered": self.registered,
            "time_us": { "min": min, "p50": p50, "p99": p99, "mean": mean },
            "algbw": algbw, "busbw": busbw, "wrong": row.wrong, "pct_of_raw": of_raw, "cpu_s_per_GB": cpu,
            "registered_bytes": row.memory,
        }));
    }

    /// Reports puts.
    pub(super) fn put(&mut self, row: &PutRow) {
        if !self.reports {
            return;
        }
        self.head();
        let [min, p50, p99] = row.latency_us;
        self.line(&format!(
            "{:>12} {min:>8.2} {p50:>8.2} {p99:>8.2} {:>8.3} {:>8.3} {:>9.3} {:>9.3}",
            row.bytes, row.one_way, row.both_ways, row.rate, row.rate_both
        ));
        self.record(&json!({
            "put": true, "ranks": 2, "provider": self.provider, "libfabric": self.library, "bytes": row.bytes,
            "latency_us": { "min": min, "p50": p50, "p99": p99 },
            "one_way_GBps": row.one_way, "both_ways_GBps": row.both_ways,
            "rate_Mps": row.rate, "rate_both_Mps": row.rate_both,
        }));
    }

    /// Ends the report: what it could not write is an error.
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
    fn bus_factors_are_those_of_nccl_tests() {
        assert_eq!(bus_factor(Collective::AllReduce, 4), 1.5);
        assert_eq!(bus_factor(Collective::AllGather, 4), 0.75);
        assert_eq!(bus_factor(Collective::AllToAll, 4), 0.75);
        assert_eq!(bus_factor(Collective::Reduce, 4), 1.0);
        assert_eq!(bus_factor(Collective::Broadcast, 4), 1.0);
    }
}
