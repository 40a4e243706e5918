//! The report: sections of lines, each marked ok, warning or problem, and their layout on a terminal.

use serde::Serialize;

use crate::words::wrapped;

/// How wide a line may be, in characters.
const WIDTH: usize = 100;
/// How wide marks are, with the space before and behind.
const MARGIN: usize = 11;

/// What a line means to the reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum LineMark {
    /// For information.
    Note,
    /// It works.
    Ok,
    /// It works, but not as well as it could, or not in all circumstances.
    Warn,
    /// It does not work.
    Problem,
}

impl LineMark {
    /// Its word, and the escape sequence of its colour.
    fn shown(self) -> (&'static str, &'static str) {
        match self {
            Self::Note => ("-", "\x1b[2m"),
            Self::Ok => ("ok", "\x1b[32m"),
            Self::Warn => ("warn", "\x1b[33m"),
            Self::Problem => ("PROBLEM", "\x1b[1;31m"),
        }
    }
}

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct ReportLine {
    /// The mark before it.
    pub(super) mark: LineMark,
    /// The finding.
    pub(super) text: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mend: Option<String>,
}

/// Lines that belong together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Section {
    /// What they are about.
    pub(super) title: &'static str,
    /// The lines.
    pub(super) lines: Vec<ReportLine>,
}

impl Section {
    pub(super) fn new(title: &'static str) -> Self {
        Self { title, lines: Vec::new() }
    }

    /// Adds information.
    pub(super) fn note(&mut self, text: impl Into<String>) {
        self.lines.push(ReportLine { mark: LineMark::Note, text: text.into(), mend: None });
    }

    /// Adds a finding that is good.
    pub(super) fn ok(&mut self, text: impl Into<String>) {
        self.lines.push(ReportLine { mark: LineMark::Ok, text: text.into(), mend: None });
    }

    /// Adds a finding that could be better, and what to do.
    pub(super) fn warn(&mut self, text: impl Into<String>, mend: impl Into<String>) {
        self.lines.push(ReportLine { mark: LineMark::Warn, text: text.into(), mend: Some(mend.into()) });
    }

    /// Adds a finding that something does not work, and what to do.
    pub(super) fn problem(&mut self, text: impl Into<String>, mend: impl Into<String>) {
        self.lines.push(ReportLine { mark: LineMark::Problem, text: text.into(), mend: Some(mend.into()) });
    }

    /// How many lines have this mark.
    pub(super) fn count(&self, mark: LineMark) -> usize {
        self.lines.iter().filter(|line| line.mark == mark).count()
    }

    /// The section as text for people, with an empty line behind it.
    pub(super) fn render(&self, colours: bool) -> String {
        let (bold, plain) = if colours { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
        let mut out = format!("{bold}{}{plain}\n", self.title);
        for line in &self.lines {
            let (word, colour) = line.mark.shown();
            let colour = if colours { colour } else { "" };
            let pad = " ".repeat(MARGIN.saturating_sub(2 + word.len()));
            let first = format!("  {colour}{word}{plain}{pad}");
            put(&mut out, &first, MARGIN, &line.text);
            if let Some(mend) = &line.mend {
                put(&mut out, &format!("{}=> ", " ".repeat(MARGIN)), MARGIN + 3, mend);
            }
        }
        out.push('\n');
        out
    }
}

/// A value that may be unknown.
pub(super) fn or_unknown(value: &Option<String>) -> &str {
    value.as_deref().unwrap_or("unknown")
}

/// Appends `text`, broken between words, behind `first`, which shows `indent` characters wide.
fn put(out: &mut String, first: &str, indent: usize, text: &str) {
    out.push_str(first);
    out.push_str(&wrapped(text, WIDTH - indent).join(&format!("\n{}", " ".repeat(indent))));
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_between_words_and_never_too_wide() {
        let mut section = Section::new("title");
        section.problem("word ".repeat(60), "do this ".repeat(40));
        section.note("x".repeat(120));
        let text = section.render(false);
        assert!(text.lines().filter(|line| !line.contains("xx")).all(|line| line.chars().count() <= WIDTH));
        assert!(text.lines().skip(2).all(|line| line.is_empty() || line.starts_with("  ")), "{text}");
        let words = |text: &str, word: &str| text.split_whitespace().filter(|it| *it == word).count();
        assert_eq!((words(&text, "word"), words(&text, "this")), (60, 40));
    }

    #[test]
    fn colours_change_nothing_else() {
        let mut section = Section::new("title");
        section.ok("good");
        section.warn("bad", "mend it");
        let mut coloured = section.render(true);
        for sequence in ["\x1b[0m", "\x1b[1m", "\x1b[32m", "\x1b[33m"] {
            assert!(coloured.contains(sequence));
            coloured = coloured.replace(sequence, "");
        }
        assert_eq!(coloured, section.render(false));
        assert_eq!(coloured, "title\n  ok       good\n  warn     bad\n           => mend it\n\n");
    }
}
