//! A progress bar: on a terminal only, and only once a run takes a while.

use std::{
    cell::Cell,
    io::IsTerminal,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Shorter runs need no bar.
const AFTER: Duration = Duration::from_secs(2);

/// How often the bar tells of the calls within a size: seldom, since drawing takes time from what is measured.
const EVERY: Duration = Duration::from_millis(250);

/// A bar over the sizes of a sweep, on standard error.
pub(crate) struct Progress {
    bar: ProgressBar,
    wanted: bool,
    bytes: Cell<usize>,
    /// When to draw next.
    next: Cell<Instant>,
}

impl Progress {
    /// `wanted` on the one rank that reports.
    pub(crate) fn new(sizes: usize, wanted: bool) -> Self {
        let bar = ProgressBar::with_draw_target(Some(sizes as u64), ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} sizes, {elapsed}") {
            bar.set_style(style);
        }
        let wanted = wanted && std::io::stderr().is_terminal();
        Self { bar, wanted, bytes: Cell::new(0), next: Cell::new(Instant::now() + AFTER) }
    }

    /// Begins a size.
    pub(crate) fn size(&self, bytes: usize) {
        self.bytes.set(bytes);
        self.draw(|| format!("{bytes} B"));
    }

    /// Tells how many calls of this size are done. Not to be called while one is timed.
    pub(crate) fn call(&self, done: usize, of: usize) {
        self.draw(|| format!("{} B, call {done} of {of}", self.bytes.get()));
    }

    fn draw(&self, message: impl FnOnce() -> String) {
        if !self.wanted || Instant::now() < self.next.get() {
            return;
        }
        if self.bar.is_hidden() {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.set_message(message());
        self.next.set(Instant::now() + EVERY);
    }

    /// Ends a size; `print` may write to standard output.
    pub(crate) fn done(&self, print: impl FnOnce()) {
        self.bar.suspend(print);
        self.bar.inc(1);
    }

    /// Takes the bar away.
    pub(crate) fn end(&self) {
        self.bar.finish_and_clear();
    }
}
