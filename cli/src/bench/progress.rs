//! What a person who waits gets to see: a bar, on a terminal only, and only once it takes a while.

use std::{
    io::IsTerminal,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Shorter runs need no bar.
const AFTER: Duration = Duration::from_secs(2);

/// A bar over the sizes of a sweep, on standard error.
pub(super) struct Progress {
    bar: ProgressBar,
    begun: Instant,
    wanted: bool,
}

impl Progress {
    /// `wanted` on the one rank that reports.
    pub(super) fn new(sizes: usize, wanted: bool) -> Self {
        let bar = ProgressBar::with_draw_target(Some(sizes as u64), ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template("{msg:>12} {wide_bar} {pos}/{len} sizes, {elapsed}") {
            bar.set_style(style);
        }
        Self { bar, begun: Instant::now(), wanted: wanted && std::io::stderr().is_terminal() }
    }

    /// Begins a size.
    pub(super) fn size(&self, bytes: usize) {
        if self.wanted && self.bar.is_hidden() && self.begun.elapsed() > AFTER {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.set_message(format!("{bytes} B"));
    }

    /// Ends a size; `print` may write to standard output.
    pub(super) fn done(&self, print: impl FnOnce()) {
        self.bar.suspend(print);
        self.bar.inc(1);
    }

    /// Takes the bar away.
    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }
}
