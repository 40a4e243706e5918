//! Warnings and errors of the library as records of Python's `logging`.
//!
//! The thread that reports one formats it and continues; the thread that runs Python's code makes the record, in `unisono/_log.py`. At
//! most [`MOST`] records wait for it; those beyond are counted, and the next record is preceded by their number. The failure of a world
//! is no record, since calls raise it.

use std::sync::{
    Once,
    atomic::{AtomicUsize, Ordering},
};

use pyo3::{IntoPyObjectExt, prelude::*};
use unisono::log::{
    Events, Text,
    tracing::{self, Level, Metadata, level_filters::LevelFilter},
};

use crate::finisher;

/// The most records that wait for the thread that makes them.
const MOST: usize = 256;

/// The numbers of records that wait, and that were dropped since the last one was made.
static WAITING: AtomicUsize = AtomicUsize::new(0);
static DROPPED: AtomicUsize = AtomicUsize::new(0);

/// Forwards warnings to Python from now on, unless the process has another subscriber.
pub(crate) fn begin(py: Python<'_>) -> PyResult<()> {
    static BEGUN: Once = Once::new();
    BEGUN.call_once(|| {
        drop(tracing::subscriber::set_global_default(Events { most: LevelFilter::WARN, wants, tell }));
    });
    finisher::begin(py)
}

/// True if only the log reports it.
fn wants(metadata: &Metadata<'_>) -> bool {
    metadata.target().starts_with("unisono") && metadata.target() != "unisono::failure"
}

fn tell(metadata: &'static Metadata<'static>, text: Text) {
    if WAITING.fetch_add(1, Ordering::Relaxed) >= MOST {
        WAITING.fetch_sub(1, Ordering::Relaxed);
        DROPPED.fetch_add(1, Ordering::Relaxed);
        return;
    }
    finisher::soon(move |py| {
        WAITING.fetch_sub(1, Ordering::Relaxed);
        let emit = py.import("unisono._log")?.getattr("emit")?;
        let level = if *metadata.level() == Level::ERROR { 40 } else { 30 };
        let place = (metadata.file().unwrap_or_default(), metadata.line().unwrap_or_default());
        let dropped = DROPPED.swap(0, Ordering::Relaxed);
        let arguments = (level, place.0, place.1, whole(text), dropped);
        Ok((emit.unbind(), arguments.into_py_any(py)?))
    });
}

fn whole(Text { message, fields }: Text) -> String {
    if fields.is_empty() {
        return message;
    }
    let fields: Vec<_> = fields.into_iter().map(|(name, value)| format!("{name}: {value}")).collect();
    format!("{message} ({})", fields.join(", "))
}
