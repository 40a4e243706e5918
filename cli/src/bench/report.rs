//! Prints the table and writes the lines of JSON, on rank 0 only.

use std::{
    fs::File,
    io::{self, BufWriter, ErrorKind, Write},
    path::Path,
};

use rustix::termios::tcgetwinsize;
use serde_json::{Value, json};
use unisono::{ProcessGroup, Reduction};
use unisono_schedule::Collective;

use super::{
    Bench, Benchmark, Result, columns,
    origin::Origin,
    ranks::second,
    rows::{Flow, MeasuredCase, MessageFigures, OverlapRow, TimeRow, Times, bus_factor, micros},
    table::{self, Column, WIDEST, fitting, fixed, wrapped},
};
use crate::{tune::output::is_fifo, words};

/// The names of the fields that only some kinds of records have; the others have null there.
const ONLY_SOME: &str = "collective algorithm count dtype op reduction root in_place window pairs pair wrong time_us algbw \
    busbw pct_of_raw raw_GBps raw_pair cpu_s_per_GB registered_bytes communication_us idle busy latency_us one_way_GBps \
    both_ways_GBps rate_Mps rate_both_Mps send_recv put";

/// Prints and records the results.
pub(super) struct BenchReport<'g> {
    pub group: &'g ProcessGroup,
    /// Bytes a second of raw puts at 1 MiB from rank 0 to the second of the pair.
    pub raw: Option<f64>,
    json: Option<Box<dyn Write>>,
    /// True if nothing is printed: on other ranks than 0, and if lines of JSON go to standard output.
    quiet: bool,
    width: usize,
    origin: Origin,
    /// What is measured now.
    now: Option<Bench>,
    introduced: bool,
    /// True if the places of the ranks were printed.
    greeted: bool,
    /// The algorithms that were used, and the size from which each was.
    algorithms: Vec<(&'static str, usize)>,
    wrong: u64,
    /// Bus bandwidths: their sum and their number.
    bus: (f64, u32),
    trouble: Option<io::Error>,
    /// True if standard output has no reader, as the last check has found.
    pub closed: bool,
}

/// True if lines of JSON go to standard output.
fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

/// Checks that the file for lines of JSON, if there is to be one, can be written. An existing one is emptied.
pub(super) fn check_json(path: Option<&Path>) -> Result<()> {
    path.filter(|path| !is_fifo(path) && !is_stdout(path)).map_or(Ok(()), |path| create(path).map(drop))
}

/// Creates or empties the file for lines of JSON.
fn create(path: &Path) -> Result<File> {
    Ok(File::create(path).map_err(|error| format!("--json {}: {error}", path.display()))?)
}

/// The width of the lines: that of the terminal, if standard output is one.
fn width() -> usize {
    let columns = tcgetwinsize(io::stdout()).map_or(0, |size| usize::from(size.ws_col));
    if columns == 0 { WIDEST } else { columns.min(WIDEST) }
}

impl<'g> BenchReport<'g> {
    /// To be called by all ranks.
    pub(super) fn new(group: &'g ProcessGroup, bench: &Bench) -> Result<Self> {
        let reports = group.rank() == 0;
        let path = bench.asked.json.as_deref().filter(|_| reports);
        let only_json = path.is_some_and(is_stdout);
        let json: Option<Box<dyn Write>> = match path {
            Some(path) if !only_json => Some(Box::new(BufWriter::new(create(path)?))),
            path => path.map(|_| Box::new(io::stdout()) as _),
        };
        Ok(Self {
            group,
            raw: None,
            json,
            quiet: only_json || !reports,
            width: width(),
            origin: Origin::of(group)?,
            now: None,
            introduced: false,
            greeted: false,
            algorithms: Vec::new(),
            wrong: 0,
            bus: (0.0, 0),
            trouble: None,
            closed: false,
        })
    }

    /// Begins a measurement. One that differs from the last only in type, reduction or root continues in the same table.
    pub(super) fn begin(&mut self, bench: &Bench) {
        if self.now.as_ref().is_some_and(|last| last.what == bench.what) {
            return;
        }
        self.sum_up();
        self.now = Some(bench.clone());
        self.introduced = false;
    }

    fn head(&mut self, columns: &[Column]) {
        if std::mem::replace(&mut self.introduced, true) {
            return;
        }
        let Some(bench) = &self.now else { return };
        let (width, ranks, limits) = (self.width, self.group.size(), self.group.limits());
        let mut lines = Vec::new();
        if !std::mem::replace(&mut self.greeted, true) {
            let (host, cores) = self.origin.first();
            let version = env!("CARGO_PKG_VERSION");
            let (Origin { date, processor, .. }, cores) = (&self.origin, words::some(cores, "core"));
            let first = format!("unisono {version}, {date}, on {host} ({processor}, {cores})");
            lines.extend(wrapped(&first, width));
            lines.extend(self.origin.lines(width));
        }
        let memory = if bench.asked.registered { "registered memory" } else { "plain memory" };
        let place = if bench.forms() == [true] && !bench.asked.detail { ", in place" } else { "" };
        let reproducible =
            bench.what.is(Collective::reduces) && self.group.config().reduction == Reduction::Reproducible;
        let reproducible = if reproducible { ", reproducible" } else { "" };
        let over = format!("over {} ({})", limits.provider, limits.version);
        let second = second(ranks).unwrap_or_default();
        let what = match bench.what {
            Benchmark::SendRecv => {
                format!("send_recv on {ranks} ranks, pairs at once: {}, {over}, {memory}", ranks / 2)
            }
            Benchmark::Put => format!("put between ranks 0 and {second} of {ranks} {over}"),
            Benchmark::Collective(collective) => {
                format!("{} on {ranks} ranks {over}, {memory}{place}{reproducible}", collective.name())
            }
        };
        lines.extend(wrapped(&what, width));
        if let Some(raw) = self.raw {
            let raw = format!("raw put {:.2} GB/s at 1 MiB from rank 0 to {second}", raw / 1e9);
            lines.extend(wrapped(&raw, width));
        }
        lines.extend(wrapped(columns::meaning(bench), width));
        lines.extend(table::head(columns));
        lines.iter().for_each(|line| self.line(line));
    }

    fn line(&mut self, text: &str) {
        if !self.quiet
            && let Err(error) = writeln!(io::stdout(), "{text}")
        {
            self.trouble.get_or_insert(error);
        }
    }

    /// Prints a row of the table.
    fn row(&mut self, columns: Vec<Column>) {
        let columns = fitting(columns, self.width);
        self.head(&columns);
        self.line(&table::row(&columns));
    }

    /// True, on all ranks, if they continue: false if standard output has no reader.
    ///
    /// # Errors
    /// If the results could not be written for another reason.
    pub(super) fn check(&mut self) -> Result<bool> {
        if self.trouble.as_ref().is_some_and(|error| error.kind() != ErrorKind::BrokenPipe) {
            self.written()?;
        }
        let mut closed = [u32::from(self.trouble.is_some())];
        self.group.broadcast(&mut closed, 0)?;
        self.closed = closed != [0];
        Ok(!self.closed)
    }

    /// Reports a collective: out of place, in place, or both.
    pub(super) fn collective(&mut self, rows: &[TimeRow]) {
        let detail = self.now.as_ref().is_some_and(|bench| bench.asked.detail);
        let mut columns = rows.first().map_or_else(Vec::new, |row| columns::of_case(&row.case));
        for (at, row) in rows.iter().enumerate() {
            let [min, p50, p99] = micros(&row.samples);
            let (algbw, busbw) = self.bandwidths(&row.case, p50);
            let of_raw = self.raw.map(|raw| 100.0 * busbw * 1e9 / raw);
            if detail {
                self.row(columns::of_detail(row, busbw, of_raw));
            }
            let over = match row.case.in_place {
                _ if rows.len() == 1 => "",
                Some(true) => "in place",
                _ => "out of place",
            };
            columns.extend(columns::of_times(over, at > 0, [p50, algbw, busbw], row.case.wrong));
            let raw_pair = self.raw.and_then(|_| Some([0, second(self.group.size())?]));
            let measured = json!({
                "time_us": { "min": min, "p50": p50, "p99": p99, "mean": row.mean * 1e6 },
                "algbw": algbw, "busbw": busbw, "pct_of_raw": of_raw, "raw_GBps": self.raw.map(|raw| raw / 1e9),
                "raw_pair": raw_pair, "cpu_s_per_GB": row.cpu_a_gigabyte(), "registered_bytes": row.memory,
            });
            self.record_case(&row.case, measured);
        }
        if !detail {
            self.row(columns);
        }
    }

    /// The algorithm's bandwidth and the bus bandwidth of a collective that takes this many microseconds, in GB/s. Counts it for the
    /// last lines.
    fn bandwidths(&mut self, case: &MeasuredCase, time: f64) -> (f64, f64) {
        let algbw = case.bytes as f64 / time / 1e3;
        let busbw = algbw * bus_factor(case.collective, self.group.size());
        self.count(case.wrong, busbw);
        if self.algorithms.last().is_none_or(|(last, _)| *last != case.algorithm) {
            self.algorithms.push((case.algorithm, case.bytes));
        }
        (algbw, busbw)
    }

    /// Counts wrong elements and a bus bandwidth for the last lines.
    fn count(&mut self, wrong: u64, busbw: f64) {
        self.wrong += wrong;
        self.bus = (self.bus.0 + busbw, self.bus.1 + 1);
    }

    /// Reports a collective with computations.
    pub(super) fn overlap(&mut self, row: &OverlapRow) {
        self.row(columns::of_overlap(row));
        let collective = row.idle.communication * 1e6;
        let (algbw, busbw) = self.bandwidths(&row.case, collective);
        let beside = |times: &Times| {
            let (compute, total) = (times.computation * 1e6, times.both * 1e6);
            json!({ "compute_us": compute, "total_us": total, "overlap_pct": times.hidden() })
        };
        let mut busy = beside(&row.busy);
        busy["threads"] = row.threads.into();
        let measured = json!({
            "time_us": { "min": null, "p50": collective, "p99": null, "mean": null }, "algbw": algbw, "busbw": busbw,
            "communication_us": collective, "idle": beside(&row.idle), "busy": busy,
        });
        self.record_case(&row.case, measured);
    }

    /// Records a collective: its case, and the measured figures.
    fn record_case(&mut self, case: &MeasuredCase, measured: Value) {
        let what = json!({
            "collective": case.collective.name(), "algorithm": case.algorithm, "count": case.count,
            "dtype": case.dtype.name(), "op": case.op.map(|op| op.to_string()),
            "reduction": case.op.map(|_| self.group.config().reduction.name()), "root": case.root,
            "in_place": case.in_place, "wrong": case.wrong,
        });
        self.record(case.bytes, case.iterations, [what, measured]);
    }

    /// Reports messages or puts.
    pub(super) fn flow(&mut self, flow: &Flow) {
        self.row(columns::of_flow(flow));
        let what = match &flow.messages {
            Some(MessageFigures { count, dtype, pairs, wrong }) => {
                self.count(*wrong, flow.one_way.gigabytes);
                let dtype = dtype.name();
                json!({ "send_recv": true, "pairs": pairs, "count": count, "dtype": dtype, "wrong": wrong })
            }
            None => {
                self.count(0, flow.one_way.gigabytes);
                json!({ "put": true, "pair": [0, second(self.group.size())] })
            }
        };
        let [min, p50, p99] = flow.latency_us;
        let (one_way, both_ways) = (flow.one_way, flow.both_ways);
        let measured = json!({
            "window": flow.window, "latency_us": { "min": min, "p50": p50, "p99": p99 },
            "time_us": { "min": min, "p50": p50, "p99": p99, "mean": null },
            "algbw": one_way.gigabytes, "busbw": one_way.gigabytes,
            "one_way_GBps": one_way.gigabytes, "both_ways_GBps": both_ways.gigabytes,
            "rate_Mps": one_way.millions, "rate_both_Mps": both_ways.millions,
        });
        self.record(flow.bytes, flow.iterations, [what, measured]);
    }

    /// Writes a record with the fields of all kinds, and null for those of only some kinds that are not among these.
    fn record(&mut self, bytes: usize, iterations: usize, fields: [Value; 2]) {
        let (Some(bench), Some(json)) = (&self.now, &mut self.json) else { return };
        let ((host, processors), limits) = (self.origin.first(), self.group.limits());
        let mut record = json!({
            "bench": bench.what.name(), "unisono": env!("CARGO_PKG_VERSION"), "library": limits.version,
            "provider": limits.provider, "date": self.origin.date, "host": host, "hosts": self.origin.hosts(),
            "processors": processors, "processor": self.origin.processor, "ranks": self.group.size(), "bytes": bytes,
            "registered": (bench.what != Benchmark::Put).then_some(bench.asked.registered),
            "iterations": iterations, "warmup": bench.asked.warmup,
        });
        for name in ONLY_SOME.split_whitespace() {
            record[name] = Value::Null;
        }
        for fields in fields.iter().filter_map(Value::as_object) {
            fields.iter().for_each(|(name, value)| record[name] = value.clone());
        }
        if let Err(error) = writeln!(json, "{record}").and_then(|()| json.flush()) {
            self.trouble.get_or_insert(error);
            self.json = None;
        }
    }

    /// Prints the last lines of what was measured: the algorithms, wrong values, the average.
    fn sum_up(&mut self) {
        let Some(bench) = &self.now else { return };
        let (what, all) = (bench.what, std::mem::take(&mut self.algorithms));
        let (wrong, (sum, count)) = (std::mem::take(&mut self.wrong), std::mem::take(&mut self.bus));
        if count == 0 {
            return;
        }
        if let Some(((first, _), more)) = all.split_first() {
            let more: String = more.iter().map(|(name, bytes)| format!(", {name} from {bytes} B")).collect();
            let lines = wrapped(&format!("Algorithm              : {first}{more}"), self.width);
            lines.iter().for_each(|line| self.line(line));
        }
        if what != Benchmark::Put {
            let well = if wrong == 0 { "OK" } else { "FAILED" };
            self.line(&format!("# Wrong values           : {wrong} {well}"));
        }
        self.line(&format!("# Average bus bandwidth  : {} GB/s", fixed(sum / f64::from(count), 3, 9)));
    }

    /// Ends the report.
    ///
    /// # Errors
    /// If something could not be written, unless the reader has gone.
    pub(super) fn end(mut self) -> Result<()> {
        if self.greeted {
            self.sum_up();
            self.line(&format!("# Registered for windows : {} bytes on rank 0", self.group.usage().memory));
        }
        self.written()
    }

    fn written(&mut self) -> Result<()> {
        match self.trouble.take() {
            Some(error) if error.kind() != ErrorKind::BrokenPipe => {
                Err(format!("writing the results: {error}").into())
            }
            _ => Ok(()),
        }
    }
}
