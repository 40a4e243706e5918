//! `unisono bench --plot`: time and bus bandwidth against size, of the results of several runs beside each other.

use std::{collections::BTreeSet, fs, path::Path};

use serde::Deserialize;

use super::Result;
use crate::{
    chart::{self, Line, Panel},
    words,
};

/// The fields that are read of a line of JSON, from `--json` or, for other libraries, from `benches/peers/run.sh --json`.
#[derive(Deserialize)]
struct Record {
    collective: String,
    ranks: usize,
    bytes: usize,
    /// Other libraries' are out of place.
    #[serde(default)]
    in_place: Option<bool>,
    time_us: Times,
    busbw: f64,
}

#[derive(Deserialize)]
struct Times {
    p50: f64,
}

/// The results in one file of a collective, in place or not, with one number of ranks.
struct Series {
    file: String,
    what: (String, bool, usize),
    records: Vec<Record>,
}

/// Draws the results in the files to `picture`.
pub(super) fn draw(picture: &Path, files: &[impl AsRef<Path>]) -> Result<()> {
    let mut all = Vec::new();
    for file in files {
        all.extend(read(file.as_ref())?);
    }
    if all.len() > chart::MOST {
        return Err(format!("--plot: {} lines where {} can be told apart", all.len(), chart::MOST).into());
    }
    // What all series have in common is in the title.
    let whats: BTreeSet<_> = all.iter().map(|series| &series.what).collect();
    let common = whats.len() == 1;
    let name = |(collective, in_place, ranks): &(String, bool, usize)| {
        format!("{collective}{}, {ranks} ranks", if *in_place { " in place" } else { "" })
    };
    let title = all.first().filter(|_| common).map_or_else(String::new, |series| name(&series.what));
    let lines = |value: fn(&Record) -> f64| {
        let line = |series: &Series| Line {
            name: match common {
                true => series.file.clone(),
                false => format!("{}: {}", series.file, name(&series.what)),
            },
            points: series.records.iter().map(|record| (record.bytes, value(record))).collect(),
        };
        all.iter().map(line).collect()
    };
    let time = Panel {
        title: &title,
        values: "time (p50 of the slowest rank)",
        label: words::time,
        lines: lines(|record| record.time_us.p50 / 1e6),
        bound: None,
    };
    let bandwidth = Panel {
        title: &title,
        values: "bus bandwidth",
        label: |gigabytes| format!("{gigabytes} GB/s"),
        lines: lines(|record| record.busbw),
        bound: None,
    };
    chart::draw(picture, &[time, bandwidth])
}

/// The series of a file, in the order in which they begin there, each in ascending order of bytes.
fn read(file: &Path) -> Result<Vec<Series>> {
    let wrong = |what: String| format!("--plot: {}: {what}", file.display());
    let text = fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    let name = file.file_stem().unwrap_or_default().to_string_lossy();
    let mut found: Vec<Series> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let record: Record = serde_json::from_str(line).map_err(|error| {
            wrong(format!("line {}: no result of a collective as --json writes it: {error}", index + 1))
        })?;
        let what = (record.collective.clone(), record.in_place == Some(true), record.ranks);
        match found.iter_mut().find(|series| series.what == what) {
            Some(series) => series.records.push(record),
            None => found.push(Series { file: name.to_string(), what, records: vec![record] }),
        }
    }
    if found.is_empty() {
        return Err(wrong("it has no results".to_owned()).into());
    }
    for series in &mut found {
        // A barrier has no bytes and so no point.
        series.records.retain(|record| record.bytes > 0);
        series.records.sort_by_key(|record| record.bytes);
        if series.records.is_empty() {
            return Err(wrong(format!("{} has no sizes", series.what.0)).into());
        }
    }
    Ok(found)
}
