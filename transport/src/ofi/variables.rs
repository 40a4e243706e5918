//! libfabric's own variables, where what they say decides what may be taken, or how much of it there is.

use std::env;

/// What a variable switches, as libfabric reads it (`fi_parse_bool` in src/var.c); `None` where it is not set, or to no word
/// for yes or no.
pub(super) fn switch(name: &str) -> Option<bool> {
    truth(&env::var(name).ok()?)
}

fn truth(word: &str) -> Option<bool> {
    let is = |words: [&str; 4]| words.iter().any(|one| one.eq_ignore_ascii_case(word));
    let (no, yes) = (is(["0", "false", "no", "off"]), is(["1", "true", "yes", "on"]));
    (no || yes).then_some(yes)
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
}
