//! Events for the people who run a program: they go to its subscriber of `tracing`. If it has set none, warnings and errors go to
//! standard error.
//!
//! `RUST_LOG` selects events, as it does for `tracing-subscriber`: by levels, and by `target=level` for the targets with this prefix. A
//! program may set its subscriber at any time, because nothing here is set as the default.

use std::{
    fmt,
    io::{self, Write as _},
    sync::OnceLock,
};

#[doc(hidden)]
pub use tracing;
use tracing::{
    Event, Level, Metadata, Subscriber,
    dispatcher::{self, Dispatch},
    field::{Field, Visit},
    level_filters::LevelFilter,
    span,
    subscriber::NoSubscriber,
};

/// The default levels: the failure of a group is not logged, because a call returns it or the group's drop reports it.
const UNASKED: &str = "warn,unisono::failure=off";

#[doc(hidden)]
#[macro_export]
macro_rules! __error {
    ($($event:tt)*) => {
        $crate::log::event($crate::log::tracing::Level::ERROR, || $crate::log::tracing::error!($($event)*))
    };
}
#[doc(hidden)]
#[macro_export]
macro_rules! __warn {
    ($($event:tt)*) => {
        $crate::log::event($crate::log::tracing::Level::WARN, || $crate::log::tracing::warn!($($event)*))
    };
}
#[doc(hidden)]
#[macro_export]
macro_rules! __info {
    ($($event:tt)*) => {
        $crate::log::event($crate::log::tracing::Level::INFO, || $crate::log::tracing::info!($($event)*))
    };
}
#[doc(hidden)]
#[macro_export]
macro_rules! __debug {
    ($($event:tt)*) => {
        $crate::log::event($crate::log::tracing::Level::DEBUG, || $crate::log::tracing::debug!($($event)*))
    };
}
/// The macros of `tracing` of these names, through which this library logs all events.
pub use crate::{__debug as debug, __error as error, __info as info, __warn as warn};

/// Gives an event to the program's subscriber, or to this file's if it has none.
#[doc(hidden)]
pub fn event(level: Level, event: impl FnOnce()) {
    static LINES: OnceLock<Dispatch> = OnceLock::new();
    let lines = LINES.get_or_init(|| Levels::asked(std::env::var("RUST_LOG").ok().as_deref()).lines());
    if level > LevelFilter::current() {
        return;
    }
    if dispatcher::get_default(|current| current.is::<NoSubscriber>()) {
        dispatcher::with_default(lines, event);
    } else {
        event();
    }
}

/// The message of an event, and its other fields by name.
#[doc(hidden)]
#[derive(Default)]
pub struct Text {
    pub message: String,
    pub fields: Vec<(&'static str, String)>,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            name => self.fields.push((name, format!("{value:?}"))),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

/// A subscriber of the events, up to a level, that `wants` accepts; `tell` gets the source and the text of each.
#[doc(hidden)]
pub struct Events<W, T> {
    pub most: LevelFilter,
    pub wants: W,
    pub tell: T,
}

impl<W, T> Subscriber for Events<W, T>
where
    W: Fn(&Metadata<'_>) -> bool + 'static,
    T: Fn(&'static Metadata<'static>, Text) + 'static,
{
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= self.most && (self.wants)(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.most)
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        (self.tell)(event.metadata(), text);
    }

    // Spans are not enabled.
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// The events that are lines on standard error: the level of each prefix of targets, the longest first, and that of all targets
/// last.
struct Levels(Vec<(String, LevelFilter)>);

impl Levels {
    /// The levels that `RUST_LOG` asks for. A directive without a meaning here, such as one for spans, is for other subscribers.
    fn asked(text: Option<&str>) -> Self {
        let text = text.filter(|text| !text.trim().is_empty()).unwrap_or(UNASKED);
        let directives = text.split(',').map(str::trim).filter(|directive| !directive.is_empty());
        let level = |directive: &str| match directive.rsplit_once('=') {
            // `tracing` reads an empty level as that of errors.
            Some((target, level)) if !level.trim().is_empty() => {
                Some((target.trim().to_owned(), level.trim().parse().ok()?))
            }
            Some(_) => None,
            None => Some(match directive.parse() {
                Ok(level) => (String::new(), level),
                Err(_) => (directive.to_owned(), LevelFilter::TRACE),
            }),
        };
        let mut levels: Vec<_> = [(String::new(), LevelFilter::WARN)].into_iter().collect();
        levels.extend(directives.filter_map(level));
        // The last directive for a target counts.
        levels.reverse();
        levels.sort_by_key(|(target, _)| std::cmp::Reverse(target.len()));
        Self(levels)
    }

    fn level(&self, target: &str) -> LevelFilter {
        let first = self.0.iter().find(|(prefix, _)| target.starts_with(prefix.as_str()));
        first.map_or(LevelFilter::WARN, |(_, level)| *level)
    }

    /// Writes each event by one call, so that the lines of several ranks do not mix.
    fn lines(self) -> Dispatch {
        let most = self.0.iter().map(|(_, level)| *level).max().unwrap_or(LevelFilter::OFF);
        let wants = move |metadata: &Metadata<'_>| *metadata.level() <= self.level(metadata.target());
        let tell = |metadata: &Metadata<'_>, text: Text| {
            let fields: String = text.fields.iter().map(|(name, value)| format!(" {name}={value}")).collect();
            let line = format!("{} unisono: {}{fields}\n", metadata.level(), text.message);
            // If standard error is closed, there is no reader.
            let _ = io::stderr().write_all(line.as_bytes());
        };
        Dispatch::new(Events { most, wants, tell })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rust_log_says_which_events_are_lines() {
        let of = |asked: Option<&str>, target: &str| Levels::asked(asked).level(target);
        let asked = [
            (None, "unisono::launch", LevelFilter::WARN),
            (None, "unisono::failure", LevelFilter::OFF),
            (Some(""), "unisono::failure", LevelFilter::OFF),
            (Some("off"), "unisono::launch", LevelFilter::OFF),
            (Some("error"), "unisono::failure", LevelFilter::ERROR),
            (Some("info,unisono=debug"), "unisono_transport::shm", LevelFilter::DEBUG),
            (Some("unisono=debug,unisono::launch=off"), "unisono::launch::slurm", LevelFilter::OFF),
            (Some("info,error"), "unisono::launch", LevelFilter::ERROR),
            // Directives that do not concern this library do not silence it.
            (Some("hyper=debug,my_program"), "unisono::launch", LevelFilter::WARN),
            (Some("a[b{c=1}]=trace, =, ,x=loud"), "unisono::launch", LevelFilter::WARN),
            (Some("unisono_transport"), "unisono_transport::shm", LevelFilter::TRACE),
        ];
        for (asked, target, level) in asked {
            assert_eq!(of(asked, target), level, "RUST_LOG={asked:?} {target}");
        }
    }
}
