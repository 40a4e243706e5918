//! Progress bars: on a terminal only, and only once a run takes a while.

use std::{
    cell::Cell,
    io::IsTerminal,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar on standard error.
pub(crate) struct Bar {
    bar: ProgressBar,
    wanted: bool,
    /// When to draw next, and the time between two updates.
    next: Cell<Instant>,
    every: Duration,
}

impl Bar {
    /// `wanted` is true only on the rank that reports; shorter runs than `after` need no bar.
    pub(crate) fn new(template: &str, wanted: bool, after: Duration, every: Duration) -> Self {
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        let wanted = wanted && std::io::stderr().is_terminal();
        Self { bar, wanted, next: Cell::new(Instant::now() + after), every }
    }

    /// Draws how much is done of all, and a message, unless it is too soon.
    pub(crate) fn draw(&self, (done, all): (u64, u64), message: impl FnOnce() -> String) {
        if !self.wanted || Instant::now() < self.next.get() {
            return;
        }
        if self.bar.is_hidden() {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.set_length(all);
        self.bar.set_position(done);
        self.bar.set_message(message());
        self.next.set(Instant::now() + self.every);
    }

    /// Hides the bar while `print` writes to standard output.
    pub(crate) fn suspend(&self, print: impl FnOnce()) {
        self.bar.suspend(print);
    }

    /// Removes the bar.
    pub(crate) fn end(&self) {
        self.bar.finish_and_clear();
    }
}
