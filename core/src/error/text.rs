//! Texts of errors: text from outside made safe for a log and a terminal, and lists of ranks.

use std::fmt;

use unisono_schedule::Rank;

/// The longest text that is kept, in characters: the positions of 16 ranks fit.
#[doc(hidden)]
pub(super) const MAX_TEXT: usize = 4000;

/// The text in one line of at most `most` characters, without characters that move the cursor, change colours, begin a line or
/// change the direction of writing.
#[doc(hidden)]
pub fn clean(text: &str, most: usize) -> String {
    let mut clean = String::new();
    for (number, c) in text.chars().enumerate() {
        if number == most {
            clean.push_str("...");
            break;
        }
        match c {
            '\n' | '\r' | '\t' | '\u{2028}' | '\u{2029}' => clean.push(' '),
            _ if c.is_control() || turns(c) => clean.push('?'),
            _ => clean.push(c),
        }
    }
    clean
}

/// True if the character changes the direction of the text that follows it.
fn turns(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A text from another rank, in one line that is safe for a terminal.
pub(super) fn shown(what: impl fmt::Display) -> String {
    clean(&what.to_string(), MAX_TEXT)
}

/// A list of ranks: `0, 3, 5–9`.
#[doc(hidden)]
pub fn list(ranks: &[Rank]) -> String {
    let runs = ranks.chunk_by(|one, next| one.checked_add(1) == Some(*next));
    let shown = runs.map(|run| match run {
        [first, _, .., last] => format!("{first}–{last}"),
        [first, last] => format!("{first}, {last}"),
        run => run.iter().map(ToString::to_string).collect(),
    });
    shown.collect::<Vec<_>>().join(", ")
}

/// `rank 3` or `ranks 0, 3, 5–9`.
#[doc(hidden)]
pub fn rank_list(ranks: &[Rank]) -> String {
    format!("{} {}", if ranks.len() == 1 { "rank" } else { "ranks" }, list(ranks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_disturb_a_terminal_is_gone() {
        assert_eq!(clean("a\nb\u{1b}[2J\u{202e}c\0d\u{2028}é", 100), "a b?[2J?c?d é");
        assert_eq!(clean("12345", 5), "12345");
        assert_eq!(clean("123456", 5), "12345...");
    }
}
