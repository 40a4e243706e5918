//! Warnings and errors of the library as records of Python's `logging`, in the logger `unisono`.
//!
//! Whoever reports one formats it and goes on: the thread that takes the GIL for the library makes the record. At most [`MOST`]
//! wait for it; those beyond are counted, and the next record is preceded by their number. The failure of a world is no record,
//! since calls raise it.

use std::{
    fmt::{self, Write},
    sync::{
        Once,
        atomic::{AtomicUsize, Ordering},
    },
};

use pyo3::{prelude::*, types::PyTuple};
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
    span,
};

use crate::finisher;

/// The most records that wait for the thread that makes them.
const MOST: usize = 256;

/// The name of the logger.
const LOGGER: &str = "unisono";

/// The numbers of records that wait, and that were dropped since the last one was made.
static WAITING: AtomicUsize = AtomicUsize::new(0);
static DROPPED: AtomicUsize = AtomicUsize::new(0);

/// Has Python told of warnings from now on, unless the process has another subscriber.
pub(crate) fn begin() {
    static BEGUN: Once = Once::new();
    BEGUN.call_once(|| drop(tracing::subscriber::set_global_default(Log)));
}

/// The subscriber of `tracing`.
struct Log;

impl Log {
    /// Whether it is a warning or an error that only the log tells.
    fn wants(metadata: &Metadata<'_>) -> bool {
        let target = metadata.target();
        // What this package's thread itself reports cannot wait for that thread.
        let ours = target.starts_with("unisono") && !target.starts_with("unisono_native");
        ours && target != "unisono::failure" && *metadata.level() <= Level::WARN
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        Self::wants(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::WARN)
    }

    fn event(&self, event: &Event<'_>) {
        if WAITING.fetch_add(1, Ordering::Relaxed) >= MOST {
            WAITING.fetch_sub(1, Ordering::Relaxed);
            DROPPED.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut text = Text::default();
        event.record(&mut text);
        let metadata = event.metadata();
        let severe = *metadata.level() == Level::ERROR;
        finisher::soon(move |py| {
            WAITING.fetch_sub(1, Ordering::Relaxed);
            if let Err(error) = emit(py, metadata, severe, text.whole()) {
                error.write_unraisable(py, None);
            }
        });
    }

    // There are no spans.
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// Gives Python a record.
fn emit(py: Python<'_>, metadata: &Metadata<'_>, severe: bool, text: String) -> PyResult<()> {
    let logger = py.import("logging")?.call_method1("getLogger", (LOGGER,))?;
    let record = |level: i32, text: String| -> PyResult<()> {
        if logger.call_method1("isEnabledFor", (level,))?.is_truthy()? {
            let (file, line) = (metadata.file().unwrap_or_default(), metadata.line().unwrap_or_default());
            let fields = (LOGGER, level, file, line, text, PyTuple::empty(py), py.None());
            logger.call_method1("handle", (logger.call_method1("makeRecord", fields)?,))?;
        }
        Ok(())
    };
    let dropped = DROPPED.swap(0, Ordering::Relaxed);
    if dropped > 0 {
        record(30, format!("{dropped} warnings were dropped, since {MOST} waited to be logged"))?;
    }
    record(if severe { 40 } else { 30 }, text)
}

/// The message of an event, and its other fields.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Text {
    fn whole(self) -> String {
        if self.fields.is_empty() { self.message } else { format!("{} ({})", self.message, self.fields) }
    }
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let between = if self.fields.is_empty() { "" } else { ", " };
        // Writing to a string cannot fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, "{between}{name}: {value:?}"),
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}
