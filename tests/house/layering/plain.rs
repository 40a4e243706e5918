//! Words and sentences that a reader who learned English as a foreign language must read twice, and what to write instead.

use super::{
    source::{Token, tokens},
    words::phrases,
};

/// Phrases, in comments, strings and papers, each with what to write instead.
const PHRASES: &[(&str, &str)] = &[
    ("whoever", "name who it is: a rank that, a caller that"),
    ("whom", "turn the sentence around, so that it has a subject: the rank that sent it"),
    ("so many", "give the number, or `this many`"),
    ("for want of", "because there is no"),
    ("of its own", "`its`, or `a separate`"),
    ("of their own", "`their`, or `separate`"),
    ("of our own", "`our`, or the thing's name"),
    ("of one s own", "`your`"),
    ("one another", "each other"),
    ("hear of", "get, notice, learn of"),
    ("anew", "again, or a new one"),
];
/// Names of functions and variables, each with the reason.
const NAMES: &[(&str, &str)] =
    &[("told", "it says how something came, not what it is: message, messages, error, report, known")];

/// The words and sentences of a file that a reader must read twice, by line.
pub(crate) fn stumbles(file: &str, text: &str) -> Vec<(usize, String)> {
    let mut found: Vec<_> = phrases(text, PHRASES)
        .into_iter()
        .map(|(line, old, new)| (line, format!("`{old}`: {new}")))
        .collect();
    let what = "a sentence that begins with `Who` and asks nothing: begin with the rank, the caller or the process that it means";
    found.extend(who(text).into_iter().map(|line| (line, what.to_owned())));
    if file.ends_with(".rs") {
        found.extend(names(&tokens(text)));
    }
    if file.ends_with(".py") || file.ends_with(".pyi") {
        found.extend(names(&python(text)));
    }
    found
}

/// The lines whose sentences begin with "Who" and are no questions.
fn who(text: &str) -> Vec<usize> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices("Who ") {
        // A sentence begins after the marks of a comment, or after the end of another one.
        let before = text[..at].trim_end_matches(' ');
        let begins =
            before.is_empty() || before.ends_with(['\n', '.', ':', ';', '?', '/', '!', '#', '"', '*', '-']);
        let ends = text[at..].find(['.', '?', '!', ';', '"', '|']).map(|end| &text[at + end..]);
        if begins && !ends.is_some_and(|rest| rest.starts_with('?')) {
            found.push(text[..at].matches('\n').count() + 1);
        }
    }
    found
}

/// The names and keywords of a Python file, without its comments and strings.
fn python(text: &str) -> Vec<Token> {
    let (mut found, mut rest) = (Vec::new(), text);
    while let Some(first) = rest.chars().next() {
        let quote = ["\"\"\"", "'''", "\"", "'"].into_iter().find(|quote| rest.starts_with(quote));
        let len = if first == '#' {
            rest.find('\n').unwrap_or(rest.len())
        } else if let Some(quote) = quote {
            let ends =
                |at: &usize| rest[..*at].bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 0;
            let mut ends =
                rest[quote.len()..].match_indices(quote).map(|(at, _)| at + quote.len()).filter(ends);
            ends.next().map_or(rest.len(), |at| at + quote.len())
        } else {
            rest.find(|it: char| !it.is_alphanumeric() && it != '_')
                .unwrap_or(rest.len())
                .max(first.len_utf8())
        };
        let (text_here, after) = rest.split_at(len);
        if first.is_alphabetic() || first == '_' {
            let line = text[..text.len() - rest.len()].matches('\n').count() + 1;
            found.push(Token { text: text_here.to_owned(), line });
        }
        rest = after;
    }
    found
}

fn names(tokens: &[Token]) -> Vec<(usize, String)> {
    let found = tokens.iter().filter_map(|token| {
        let (name, reason) = NAMES.iter().find(|(name, _)| token.text == *name)?;
        Some((token.line, format!("the name `{name}`: {reason}")))
    });
    found.collect()
}

#[test]
fn planted_stumbles_are_found() {
    let lines =
        |file: &str, text: &str| stumbles(file, text).into_iter().map(|(line, _)| line).collect::<Vec<_>>();
    assert_eq!(lines("README.md", "x\nWhoever leads has a thread of\nits own.\n"), [2, 3]);
    assert_eq!(lines("README.md", "A rank that leads owns its thread: many do so.\n"), [0; 0]);
    assert_eq!(lines("python/src/x.rs", "/// Who comes late is\n/// refused.\nfn a() {}\n"), [1]);
    assert_eq!(
        lines("python/src/x.rs", "// It asks. Who comes late?\n// A rank: Who it is, rank 0 says.\n"),
        [2]
    );
    assert_eq!(lines("python/src/x.rs", "// told\nfn a(b: &str) { let told = \"told\"; }\n"), [2]);
    let text = "# told\nx = 'it\\'s told' + \"\"\"\"told\nmany\"\"\"\ntold = f\"{x}\"\n";
    assert_eq!(lines("python/unisono/x.py", text), [4]);
    assert_eq!(lines("docs/decisions/x.md", "Who comes late has\na rank of its own."), [2, 1]);
}
