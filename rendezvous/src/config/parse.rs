//! Reads sizes, times and names from text.

use std::time::Duration;

/// The longest time of a setting.
pub const YEAR: Duration = Duration::from_secs(365 * 86400);

/// Reads a number of bytes: `4096`, `256K`, `4M`, `1G`; the suffixes are powers of 1024, and `KiB` or `KB`
/// mean the same as `K`.
///
/// # Errors
/// A sentence that says what is wrong with the text, and what is valid.
pub fn parse_size(text: &str) -> Result<usize, String> {
    let wrong = || "wanted a number of bytes such as 4096, 256K or 4M".to_owned();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim().to_ascii_lowercase();
    let shift = match unit.strip_suffix("ib").or_else(|| unit.strip_suffix('b')).unwrap_or(&unit) {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        _ => return Err(wrong()),
    };
    let number: usize = number.parse().map_err(|error: std::num::ParseIntError| match error.kind() {
        std::num::IntErrorKind::PosOverflow => "too large".to_owned(),
        _ => wrong(),
    })?;
    number.checked_mul(1 << shift).ok_or_else(|| "too large".into())
}

/// Reads a time: `300` (seconds), `1.5s`, `200ms`, `20us`, `10min`.
///
/// # Errors
/// A sentence that says what is wrong with the text, and what is valid.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || "wanted a time such as 300 (seconds), 5s, 200ms or 20us".to_owned();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let scale = match unit.trim() {
        "" | "s" => 1.0,
        "ms" => 1e-3,
        "us" | "µs" => 1e-6,
        "min" => 60.0,
        _ => return Err(wrong()),
    };
    // A time is at most a year, so that sums do not overflow.
    Duration::try_from_secs_f64((number * scale).min(YEAR.as_secs_f64())).map_err(|_| wrong())
}

pub(super) fn number(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "wanted a number".into())
}

pub(super) fn name(text: &str) -> Result<String, String> {
    if text.is_empty() { Err("wanted a name".into()) } else { Ok(text.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times() {
        for (text, size) in
            [("0", 0), ("4096", 4096), ("256K", 256 << 10), ("4 MiB", 4 << 20), ("1gb", 1 << 30)]
        {
            assert_eq!(parse_size(text), Ok(size), "{text}");
        }
        for (text, millis) in
            [("300", 300_000), ("5s", 5_000), ("200ms", 200), ("1.5 s", 1_500), ("2min", 120_000)]
        {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        assert_eq!(parse_duration("20us"), Ok(Duration::from_micros(20)));
        assert!(
            parse_duration("1e400s").is_err()
                && parse_duration("..").is_err()
                && parse_duration("s").is_err()
        );
        assert!(parse_duration("99999999999999999999").is_ok(), "a very long time is one that never ends");
    }
}
