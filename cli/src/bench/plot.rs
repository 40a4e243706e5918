//! `unisono bench --plot`: time and bus bandwidth against size, of the results of several runs beside each other.

use std::{collections::BTreeSet, fs, path::Path};

use serde::Deserialize;

use super::Result;
use crate::{
    chart::{self, Panel, PanelLine},
    words,
};

/// The fields that are read of a line of JSON, from `--json` or, for other libraries, from `benches/peers/run.sh --json`.
#[derive(Deserialize)]
struct Record {
    bench: Option<String>,
    /// In lines of other libraries.
    collective: Option<String>,
    ranks: usize,
    bytes: usize,
    /// Calls of other libraries are out of place.
    in_place: Option<bool>,
    dtype: Option<String>,
    op: Option<String>,
    root: Option<usize>,
    window: Option<usize>,
    communication_us: Option<f64>,
    time_us: Times,
    busbw: f64,
}

#[derive(Deserialize)]
struct Times {
    p50: f64,
}

/// What a line of the picture shows: its name with its place, the ranks, and properties that are named only if lines differ in
/// them.
type SeriesKey = (String, usize, [Option<String>; 5]);

impl Record {
    /// What its line shows; `None` if it names nothing.
    fn what(&self) -> Option<SeriesKey> {
        let name = self.bench.as_ref().or(self.collective.as_ref())?;
        let place = if self.in_place == Some(true) { " in place" } else { "" };
        let more = [
            self.dtype.clone(),
            self.op.clone(),
            self.root.map(|root| format!("root {root}")),
            // By default, large messages have smaller ones.
            self.window.map(|window| format!("window {window}")),
            self.communication_us.map(|_| "begun apart".to_owned()),
        ];
        Some((format!("{name}{place}"), self.ranks, more))
    }
}

/// The results in one file of the same kind.
struct Series {
    file: String,
    what: SeriesKey,
    records: Vec<Record>,
}

/// Draws the results in the files to `picture`.
pub(super) fn draw(picture: &Path, files: &[impl AsRef<Path>]) -> Result<()> {
    let mut all = Vec::new();
    for file in files {
        let file = file.as_ref();
        all.extend(read(file).map_err(|why| format!("--plot: {}: {why}", file.display()))?);
    }
    if all.len() > chart::MOST {
        return Err(
            format!("--plot: {} lines; at most {} can be distinguished", all.len(), chart::MOST).into()
        );
    }
    // What all series have in common is in the title.
    let whats: BTreeSet<_> = all.iter().map(|series| &series.what).collect();
    let common = whats.len() == 1;
    // A file may lack a property that another one has.
    let differs: [bool; 5] = std::array::from_fn(|at| {
        all.iter().filter_map(|it| it.what.2[at].as_ref()).collect::<BTreeSet<_>>().len() > 1
    });
    let name = |(collective, ranks, more): &SeriesKey| {
        let more =
            more.iter().zip(differs).filter(|(_, differs)| *differs).filter_map(|(text, _)| text.as_ref());
        let more: String = more.map(|text| format!(", {text}")).collect();
        format!("{collective}, {ranks} ranks{more}")
    };
    let title = all.first().filter(|_| common).map_or_else(String::new, |series| name(&series.what));
    let lines = |value: fn(&Record) -> f64| {
        let line = |series: &Series| PanelLine {
            name: match common {
                true => series.file.clone(),
                false => format!("{}: {}", series.file, name(&series.what)),
            },
            points: series.records.iter().map(|record| (record.bytes, value(record))).collect(),
        };
        all.iter().map(line).collect()
    };
    let panel =
        |values, label, value| Panel { title: &title, values, label, lines: lines(value), bound: None };
    let time = panel("time (p50 of the slowest rank)", words::time, |record| record.time_us.p50 / 1e6);
    let bandwidth = panel("bus bandwidth (GB/s)", power, |record| record.busbw);
    chart::draw(picture, &[time, bandwidth])
}

/// A power of ten, which the logarithm of the axis does not hit exactly.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some digits")]
fn power(value: f64) -> String {
    let digits = (-value.log10().round()).max(0.0) as usize;
    format!("{value:.digits$}")
}

/// The series of a file, in the order in which they begin there, each in ascending order of bytes.
fn read(file: &Path) -> Result<Vec<Series>> {
    let text = fs::read_to_string(file)?;
    let name = file.file_stem().unwrap_or_default().to_string_lossy();
    let mut found: Vec<Series> = Vec::new();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let unread = |error: &dyn std::fmt::Display| {
            format!("line {number}: no result of a collective, messages or puts as --json writes it: {error}")
        };
        let record: Record = serde_json::from_str(line).map_err(|error| unread(&error))?;
        let what = record.what().ok_or_else(|| unread(&"it names no collective"))?;
        match found.iter_mut().find(|series| series.what == what) {
            Some(series) => series.records.push(record),
            None => found.push(Series { file: name.to_string(), what, records: vec![record] }),
        }
    }
    if found.is_empty() {
        return Err("it has no results".into());
    }
    for series in &mut found {
        // A barrier has no bytes and so no point.
        series.records.retain(|record| record.bytes > 0);
        series.records.sort_by_key(|record| record.bytes);
    }
    let name = found[0].what.0.clone();
    found.retain(|series| !series.records.is_empty());
    if found.is_empty() { Err(format!("{name} has no sizes").into()) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use super::power;

    #[test]
    fn labels_are_short() {
        let labels = [1e-5 * (1.0 - 1e-15), 0.1, 1.0, 1_000.000_000_1].map(power);
        assert_eq!(labels, ["0.00001", "0.1", "1", "1000"]);
    }
}
