//! libfabric's own environment variables, as far as they decide which provider may be used, or how large its queues are. From 1.18 on
//! libfabric's file `libfabric.conf` may set them too; it is not read here.

use std::env;

/// A variable, and the value that a launcher should give it for its ranks if it is not set. Without it, Slingshot's NICs do not
/// write with immediate data (man/fi_cxi.7.md in libfabric 2.5).
pub const LAUNCH_WITH: (&str, &str) = ("FI_CXI_ENABLE_WRITEDATA", "1");

/// The truth value of a variable, as libfabric reads it (`fi_parse_bool` in src/var.c); `None` if it is not set, or is no word for
/// yes or no.
pub(super) fn switch(name: &str) -> Option<bool> {
    truth(&env::var(name).ok()?)
}

fn truth(word: &str) -> Option<bool> {
    let is = |words: [&str; 4]| words.iter().any(|one| one.eq_ignore_ascii_case(word));
    let (no, yes) = (is(["0", "false", "no", "off"]), is(["1", "true", "yes", "on"]));
    (no || yes).then_some(yes)
}

/// The number in a variable, as libfabric reads it (`strtol` with base 0); `None` if it is not set.
pub(super) fn size(name: &str) -> Option<usize> {
    env::var(name).ok().map(|text| number(&text))
}

fn number(text: &str) -> usize {
    let text = text.trim_start();
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None => (text, if text.starts_with('0') { 8 } else { 10 }),
    };
    let end = digits.find(|digit: char| !digit.is_digit(radix)).unwrap_or(digits.len());
    usize::from_str_radix(digits.get(..end).unwrap_or_default(), radix).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_mean_what_libfabric_takes_them_for() {
        assert_eq!(["0", "False", "NO", "off"].map(truth), [Some(false); 4]);
        assert_eq!(["1", "TRUE", "yes", "On"].map(truth), [Some(true); 4]);
        assert_eq!(["", "2", "yes ", "enabled"].map(truth), [None; 4]);
    }

    #[test]
    fn numbers_are_read_as_far_as_they_go() {
        assert_eq!(["64", " 64k", "0x40", "0100", "0", ""].map(number), [64, 64, 64, 64, 0, 0]);
    }
}
