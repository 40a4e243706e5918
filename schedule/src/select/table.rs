//! A table of choices that was measured: what `unisono tune` writes and the setting `UNISONO_TUNING` names.
//!
//! A text of lines. The first is `unisono tuning 1`; `#` begins a comment; every other line is a row:
//! `all_reduce ranks 4 bytes 64K two_shot chunk 128K lanes 3` — for so many ranks and at most so many bytes (`any` for all
//! sizes), this algorithm, with messages of at most so many bytes, on at most so many lanes. The first row that fits a
//! call is taken; where none does, the built-in table decides.

use std::fmt;

use super::Choice;
use crate::Collective;
use crate::algorithm::{ALGORITHMS, Algorithm};

/// What a file must begin with.
const FIRST: &str = "unisono tuning 1";

/// One choice: for this collective, this number of ranks and at most so many bytes.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The collective.
    pub collective: Collective,
    /// The world size.
    pub ranks: usize,
    /// The most bytes, as [`super::choose`] counts them.
    pub bytes: usize,
    /// What does it.
    pub choice: Choice,
}

/// Rows in their order.
#[derive(Clone, Debug, Default)]
pub struct Table {
    rows: Vec<Row>,
}

impl Table {
    /// Of these rows.
    #[must_use]
    pub fn new(rows: Vec<Row>) -> Self {
        Self { rows }
    }

    /// The rows that concern a world of so many ranks.
    #[must_use]
    pub fn of(mut self, ranks: usize) -> Self {
        self.rows.retain(|row| row.ranks == ranks);
        self
    }

    /// Reads a table.
    ///
    /// # Errors
    /// What is wrong, with the number of the line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
        let mut lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        match lines.next() {
            Some((_, FIRST)) => {}
            Some((_, line)) if line.starts_with("unisono tuning") => {
                return Err(format!("it is {line:?}, and this version reads {FIRST:?}: tune again"));
            }
            _ => return Err(format!("it does not begin with {FIRST:?}: it is no tuning file")),
        }
        let rows =
            lines.map(|(number, line)| row(line).map_err(|problem| format!("line {number}: {problem}")));
        Ok(Self { rows: rows.collect::<Result<_, _>>()? })
    }

    /// The choice for a call, if a row that is allowed fits it.
    #[must_use]
    pub fn choose(
        &self,
        collective: Collective,
        ranks: usize,
        bytes: usize,
        allowed: impl Fn(&Algorithm) -> bool,
    ) -> Option<Choice> {
        let fits = |row: &&Row| row.collective == collective && row.ranks == ranks && bytes <= row.bytes;
        self.rows.iter().filter(fits).find(|row| allowed(row.choice.algorithm)).map(|row| row.choice)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{FIRST}")?;
        for Row { collective, ranks, bytes, choice } in &self.rows {
            let Choice { algorithm, chunk_bytes, lanes } = choice;
            let bytes = if *bytes == usize::MAX { "any".to_owned() } else { size(*bytes) };
            writeln!(
                f,
                "{} ranks {ranks} bytes {bytes} {} chunk {} lanes {lanes}",
                collective.name(),
                algorithm.name,
                size(*chunk_bytes)
            )?;
        }
        Ok(())
    }
}

/// A number of bytes as short as it can be written exactly.
fn size(bytes: usize) -> String {
    match bytes {
        0 => "0".to_owned(),
        _ if bytes.is_multiple_of(1 << 20) => format!("{}M", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{}K", bytes >> 10),
        _ => bytes.to_string(),
    }
}

fn row(line: &str) -> Result<Row, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let &[collective, "ranks", ranks, "bytes", bytes, algorithm, "chunk", chunk, "lanes", lanes] = &words[..]
    else {
        return Err(format!(
            "{line:?} is no row; wanted for instance: all_reduce ranks 4 bytes 64K two_shot chunk 128K lanes 3"
        ));
    };
    let unknown = |what: &str, name: &str, there: Vec<&str>| {
        format!("there is no {what} {name:?}; there are {}", there.join(", "))
    };
    let collective = Collective::parse(collective)
        .ok_or_else(|| unknown("collective", collective, Collective::ALL.map(Collective::name).into()))?;
    let able: Vec<_> = ALGORITHMS.iter().filter(|algorithm| algorithm.supports(collective)).collect();
    let algorithm = able.iter().find(|it| it.name == algorithm).ok_or_else(|| {
        let what = format!("algorithm for {}", collective.name());
        unknown(&what, algorithm, able.iter().map(|it| it.name).collect())
    })?;
    let number = |name: &str, text: &str| {
        let number = text.parse().ok().filter(|&number: &usize| number > 0);
        number.ok_or_else(|| format!("{name} {text:?}: wanted a number from 1"))
    };
    let of_bytes = |name: &str, text: &str| {
        parse_bytes(text)
            .ok_or_else(|| format!("{name} {text:?}: wanted a number of bytes such as 512, 64K or 4M"))
    };
    let chunk_bytes = of_bytes("chunk", chunk)?;
    if chunk_bytes == 0 || !chunk_bytes.is_multiple_of(64) {
        return Err(format!("chunk {chunk:?}: wanted a multiple of 64 bytes"));
    }
    Ok(Row {
        collective,
        ranks: number("ranks", ranks)?,
        bytes: if bytes == "any" { usize::MAX } else { of_bytes("bytes", bytes)? },
        choice: Choice { algorithm, chunk_bytes, lanes: number("lanes", lanes)? },
    })
}

fn parse_bytes(text: &str) -> Option<usize> {
    let (number, shift) = match text.strip_suffix('K') {
        Some(number) => (number, 10),
        None => text.strip_suffix('M').map_or((text, 0), |number| (number, 20)),
    };
    number.parse::<usize>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
unisono tuning 1
all_reduce ranks 4 bytes 8K direct chunk 256K lanes 1
all_reduce ranks 4 bytes any two_shot chunk 128K lanes 3
broadcast ranks 2 bytes 100 binomial chunk 64 lanes 1
";

    #[test]
    fn a_table_is_written_as_it_is_read() {
        let table = Table::parse(TEXT).unwrap();
        assert_eq!(table.to_string(), TEXT);
        let name = |bytes, ranks| {
            table.choose(Collective::AllReduce, ranks, bytes, |_| true).map(|choice| choice.algorithm.name)
        };
        assert_eq!(
            [name(8 << 10, 4), name((8 << 10) + 1, 4), name(8, 5)],
            [Some("direct"), Some("two_shot"), None]
        );
        let other = table.choose(Collective::AllReduce, 4, 8, |algorithm| algorithm.name != "direct");
        assert_eq!(other.map(|choice| choice.algorithm.name), Some("two_shot"));
        assert_eq!(table.clone().of(2).to_string().lines().count(), 2);
        let commented = format!("# made somewhere\n\n{TEXT}\n # the end\n");
        assert_eq!(Table::parse(&commented).unwrap().to_string(), TEXT);
    }

    #[test]
    fn what_is_no_table_is_told_with_its_line() {
        let good = "all_reduce ranks 4 bytes 8K direct chunk 256K lanes 1";
        for (text, words) in [
            (String::new(), "does not begin with \"unisono tuning 1\""),
            (good.to_owned(), "it is no tuning file"),
            (format!("unisono tuning 2\n{good}"), "this version reads \"unisono tuning 1\": tune again"),
            (format!("{FIRST}\n{good} and more"), "line 2: "),
            (
                format!("{FIRST}\n\n{}", good.replace("direct", "magic")),
                "line 3: there is no algorithm for all_reduce \"magic\"; there are direct, ring",
            ),
            (format!("{FIRST}\n{}", good.replace("all_reduce", "every")), "no collective \"every\""),
            (
                format!("{FIRST}\n{}", good.replace("ranks 4", "ranks 0")),
                "ranks \"0\": wanted a number from 1",
            ),
            (format!("{FIRST}\n{}", good.replace("8K", "8G")), "bytes \"8G\": wanted"),
            (
                format!("{FIRST}\n{}", good.replace("8K", "99999999999999999999K")),
                "bytes \"99999999999999999999K\"",
            ),
            (format!("{FIRST}\n{}", good.replace("256K", "100")), "chunk \"100\": wanted a multiple of 64"),
            (format!("{FIRST}\n{}", good.replace("lanes 1", "lanes x")), "lanes \"x\""),
        ] {
            let error = Table::parse(&text).unwrap_err();
            assert!(error.contains(words), "{text:?}: {error}");
        }
    }
}
