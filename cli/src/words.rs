//! Numbers as people read them, and the words that they may write.

use crate::meant;

/// A time in seconds: `850 ns`, `12.3 µs`, `4.56 ms`, `7.89 s`.
pub(crate) fn time(seconds: f64) -> String {
    for (least, factor, unit) in [(1.0, 1.0, "s"), (1e-3, 1e3, "ms"), (1e-6, 1e6, "µs")] {
        // A value that would be rounded up to the next unit has that unit.
        if seconds >= least * 0.9995 {
            return format!("{} {unit}", three(seconds * factor));
        }
    }
    format!("{} ns", three(seconds * 1e9))
}

/// Bytes: `17 B`, `1.5 KiB`, `256 KiB`, `3.73 GiB`.
pub(crate) fn size(bytes: usize) -> String {
    size64(bytes as u64)
}

/// As [`size`], of a number that may be too large for one.
pub(crate) fn size64(bytes: u64) -> String {
    let (mut value, mut unit) = (bytes as f64, "B");
    for next in ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"] {
        if value < 1023.5 {
            break;
        }
        (value, unit) = (value / 1024.0, next);
    }
    let short = if value.fract() == 0.0 || unit == "B" { format!("{value:.0}") } else { three(value) };
    format!("{short} {unit}")
}

/// Three significant digits, or all before the point.
fn three(value: f64) -> String {
    match value {
        value if value < 9.995 => format!("{value:.2}"),
        value if value < 99.95 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

/// What a word of the command line means, or an error that says what the user may have meant and lists the valid words.
pub(crate) fn known<T>(
    word: &str,
    found: Option<T>,
    what: &str,
    names: impl IntoIterator<Item = &'static str>,
) -> Result<T, String> {
    found.ok_or_else(|| {
        let names: Vec<_> = names.into_iter().collect();
        let meant = meant::question(word, names.iter().copied());
        let there = if meant.is_empty() { "there" } else { "There" };
        format!("there is no such {what}; {meant}{there} are {}", names.join(", "))
    })
}

/// The text in lines of at most `width` characters, broken between words; a longer word has a separate line.
pub(crate) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// This host's name for itself.
pub(crate) fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// `1 core`, `2 cores`.
pub(crate) fn some(count: usize, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits_and_a_unit() {
        for (seconds, wanted) in [
            (0.0, "0.00 ns"),
            (8.5e-7, "850 ns"),
            (1.234e-5, "12.3 µs"),
            (9.999e-4, "1.00 ms"),
            (0.0456, "45.6 ms"),
            (1234.5, "1234 s"),
        ] {
            assert_eq!(time(seconds), wanted);
        }
    }

    #[test]
    fn sizes_are_powers_of_1024() {
        for (bytes, wanted) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.50 KiB"),
            (256 << 10, "256 KiB"),
            ((1 << 20) - 1, "1.00 MiB"),
            (usize::MAX, "16 EiB"),
        ] {
            assert_eq!(size(bytes), wanted);
        }
    }
}
