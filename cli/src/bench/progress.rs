//! A progress bar over the sizes of a sweep.

use std::{cell::Cell, time::Duration};

use crate::progress::Bar;

/// When the bar first appears.
const AFTER: Duration = Duration::from_secs(2);

/// The time between two updates: long, because drawing disturbs the measurement.
const EVERY: Duration = Duration::from_millis(250);

pub(crate) struct Progress {
    bar: Bar,
    sizes: usize,
    done: Cell<usize>,
    bytes: Cell<usize>,
}

impl Progress {
    /// `wanted` is true only on the rank that reports.
    pub(crate) fn new(sizes: usize, wanted: bool) -> Self {
        let bar = Bar::new("{msg} {wide_bar} {pos}/{len} sizes, {elapsed}", wanted, AFTER, EVERY);
        Self { bar, sizes, done: Cell::default(), bytes: Cell::default() }
    }

    /// Begins a size.
    pub(crate) fn size(&self, bytes: usize) {
        self.bytes.set(bytes);
        self.draw(|| format!("{bytes} B"));
    }

    /// Shows how many calls of this size are done. Not to be called while a call is timed.
    pub(crate) fn call(&self, done: usize, of: usize) {
        self.draw(|| format!("{} B, call {done} of {of}", self.bytes.get()));
    }

    fn draw(&self, message: impl FnOnce() -> String) {
        self.bar.draw((self.done.get() as u64, self.sizes as u64), message);
    }

    /// Ends a size; `print` may write to standard output.
    pub(crate) fn done(&self, print: impl FnOnce()) {
        self.bar.suspend(print);
        self.done.set(self.done.get() + 1);
    }

    /// Removes the bar.
    pub(crate) fn end(&self) {
        self.bar.end();
    }
}
