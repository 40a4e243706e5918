//! Tables of choices: the algorithm of a call, the length of its messages, and the number of its lanes.
//!
//! A table is a text. Its first line is `unisono tuning 1`, `#` begins a comment, and every other line is a row:
//!
//! ```text
//! all_reduce ranks 4 bytes 64K two_shot chunk 128K lanes 3
//! all_reduce ranks ..8 bytes 256K/rank ring chunk 128K..256K lanes 4
//! all_reduce ranks any bytes any ring chunk 256K lanes 4
//! ```
//!
//! | word | value |
//! |---|---|
//! | `ranks` | `4`: this number; `..8`: this number or fewer; `any` |
//! | `bytes` | the most bytes of [`Job::count`](crate::Job::count) elements; `256K/rank`: 256 KiB times the number of ranks; `any` |
//! | `chunk` | the most bytes of a message, a multiple of 64; `128K..256K`: so that each lane has a message, within these bounds |
//! | `lanes` | the most lanes |
//!
//! Ranks that share memory have a second choice for plain memory: to copy it to slots, where the others read it, to read it where it
//! lies, or to send messages by the row above. Memory in registered buffers is read where it lies. The rows of that choice are
//!
//! ```text
//! all_gather ranks any bytes 32K shown 1M
//! all_gather ranks 2 bytes 2M shown read
//! all_gather ranks any bytes any shown 0
//! ```
//!
//! | word | value |
//! |---|---|
//! | `bytes` | the most bytes that a rank gives to all others together |
//! | `shown` | the most bytes that a rank copies to its slot at once, a power of two up to 1 MiB; `0`: messages are faster; `read`: it is read where it lies, or where the system forbids that, the next row that fits decides |
//!
//! The first row of each kind that fits a call decides. `unisono tune` writes such a file, and the setting `UNISONO_TUNING` names it.
//! The tables of the library ([`super::Chooser`]) have the same format.

use std::fmt;

use super::{
    choice::Choice,
    shown::{PlainMemory, check_copies},
};
use crate::Collective;
use crate::algorithm::{ALGORITHMS, Algorithm};

/// The first line of a table.
const FIRST: &str = "unisono tuning 1";

/// The numbers of ranks of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ranks {
    /// This number.
    Exactly(usize),
    /// This number or fewer; `usize::MAX` for any number.
    AtMost(usize),
}

impl Ranks {
    const fn fit(self, ranks: usize) -> bool {
        match self {
            Self::Exactly(wanted) => ranks == wanted,
            Self::AtMost(most) => ranks <= most,
        }
    }
}

impl fmt::Display for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(ranks) => write!(f, "{ranks}"),
            Self::AtMost(usize::MAX) => f.write_str("any"),
            Self::AtMost(ranks) => write!(f, "..{ranks}"),
        }
    }
}

/// A row: the choice for a collective, some numbers of ranks, and at most this many bytes.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The collective.
    pub collective: Collective,
    /// The numbers of ranks.
    pub ranks: Ranks,
    /// The most bytes; `usize::MAX` for any number.
    pub bytes: usize,
    /// If true, `bytes` is multiplied by the number of ranks.
    pub each: bool,
    /// The chosen algorithm.
    pub algorithm: &'static Algorithm,
    /// The least and the greatest length of a message (bytes).
    pub chunk: (usize, usize),
    /// The most lanes.
    pub lanes: usize,
}

impl Row {
    /// The row of this choice for exactly this number of ranks and at most `bytes` bytes.
    #[must_use]
    pub const fn new(collective: Collective, ranks: usize, bytes: usize, choice: Choice) -> Self {
        let Choice { algorithm, chunk_bytes, lanes, .. } = choice;
        let (ranks, chunk) = (Ranks::Exactly(ranks), (chunk_bytes, chunk_bytes));
        Self { collective, ranks, bytes, each: false, algorithm, chunk, lanes }
    }

    /// The row's choice for a call that it fits.
    #[must_use]
    pub fn choice(&self, ranks: usize, bytes: usize) -> Choice {
        Choice::cut(self.algorithm, self.collective, ranks, bytes, self.chunk, self.lanes)
    }

    /// True if the row applies to this number of ranks.
    #[cfg(test)]
    pub(super) const fn is_for(&self, ranks: usize) -> bool {
        self.ranks.fit(ranks)
    }

    fn fits(&self, collective: Collective, ranks: usize, bytes: usize) -> bool {
        self.collective == collective && self.ranks.fit(ranks) && bytes <= self.most(ranks)
    }

    /// The most bytes among this number of ranks.
    const fn most(&self, ranks: usize) -> usize {
        if self.each { self.bytes.saturating_mul(ranks) } else { self.bytes }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { collective, ranks, bytes, each, algorithm, chunk: (least, most), lanes } = self;
        let (collective, algorithm) = (collective.name(), algorithm.name);
        let bytes = limit(*bytes);
        let each = if *each { "/rank" } else { "" };
        write!(f, "{collective} ranks {ranks} bytes {bytes}{each} {algorithm} chunk {}", size(*least))?;
        if least != most {
            write!(f, "..{}", size(*most))?;
        }
        write!(f, " lanes {lanes}")
    }
}

/// A row about plain memory of ranks that share slots, for a collective, some numbers of ranks, and at most this many bytes.
#[derive(Clone, Copy, Debug)]
pub struct ShownRow {
    /// The collective.
    pub collective: Collective,
    /// The numbers of ranks.
    pub ranks: Ranks,
    /// The most bytes that a rank gives to all others together; `usize::MAX` for any number.
    pub bytes: usize,
    /// How they move.
    pub way: PlainMemory,
}

impl fmt::Display for ShownRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { collective, ranks, bytes, way } = self;
        let way = match way {
            PlainMemory::Messages => size(0),
            PlainMemory::Copied(copies) => size(*copies),
            PlainMemory::Read => "read".to_owned(),
        };
        write!(f, "{} ranks {ranks} bytes {} shown {way}", collective.name(), limit(*bytes))
    }
}

/// A table: rows in the order in which they are tried.
#[derive(Clone, Debug, Default)]
pub struct Table {
    rows: Vec<Row>,
    shown: Vec<ShownRow>,
}

impl Table {
    /// A table of these rows.
    #[must_use]
    pub const fn new(rows: Vec<Row>, shown: Vec<ShownRow>) -> Self {
        Self { rows, shown }
    }

    /// The table of the rows that apply to this number of ranks.
    #[must_use]
    pub fn of(mut self, ranks: usize) -> Self {
        self.rows.retain(|row| row.ranks.fit(ranks));
        self.shown.retain(|row| row.ranks.fit(ranks));
        self
    }

    /// Parses a table.
    ///
    /// # Errors
    /// A sentence that says what is wrong, with the number of the line.
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
        let mut table = Self::default();
        for (number, line) in lines {
            table.read(line).map_err(|problem| format!("line {number}: {problem}"))?;
        }
        Ok(table)
    }

    /// Reads a row.
    fn read(&mut self, line: &str) -> Result<(), String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [collective, "ranks", ranks, "bytes", bytes, algorithm, "chunk", chunk, "lanes", lanes] => {
                self.rows.push(row(collective, ranks, bytes, (algorithm, chunk, lanes))?);
            }
            [collective, "ranks", ranks, "bytes", bytes, "shown", way] => {
                let (collective, ranks) = (collective_of(collective)?, ranks_of(ranks)?);
                let way = way_of(collective, way)?;
                self.shown.push(ShownRow { collective, ranks, bytes: limit_of(bytes)?, way });
            }
            _ => {
                return Err(format!(
                    "{line:?} is no row; wanted for instance: all_reduce ranks 4 bytes 64K two_shot chunk 128K lanes 3, \
                     or all_reduce ranks 4 bytes any shown 1M"
                ));
            }
        }
        Ok(())
    }

    /// The rows about plain memory of which a rank gives `bytes` bytes to all others together.
    pub fn shown(
        &self,
        collective: Collective,
        ranks: usize,
        bytes: usize,
    ) -> impl Iterator<Item = PlainMemory> {
        let fits =
            move |row: &&ShownRow| row.collective == collective && row.ranks.fit(ranks) && bytes <= row.bytes;
        self.shown.iter().filter(fits).map(|row| row.way)
    }

    /// The first row that fits a call and whose algorithm is allowed.
    pub fn find(
        &self,
        collective: Collective,
        ranks: usize,
        bytes: usize,
        allowed: impl Fn(&Algorithm) -> bool,
    ) -> Option<&Row> {
        self.rows.iter().find(|row| row.fits(collective, ranks, bytes) && allowed(row.algorithm))
    }

    /// The choice for a call, if a row with an allowed algorithm fits it.
    #[must_use]
    pub fn choose(
        &self,
        collective: Collective,
        ranks: usize,
        bytes: usize,
        allowed: impl Fn(&Algorithm) -> bool,
    ) -> Option<Choice> {
        self.find(collective, ranks, bytes, allowed).map(|row| row.choice(ranks, bytes))
    }

    /// Its rows.
    #[cfg(test)]
    pub(super) fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The most bytes of each row of a collective among this number of ranks.
    #[cfg(test)]
    pub(super) fn limits(&self, collective: Collective, ranks: usize) -> impl Iterator<Item = usize> {
        let rows = self.rows.iter().filter(move |row| row.collective == collective && row.ranks.fit(ranks));
        rows.map(move |row| row.most(ranks)).filter(|&most| most < usize::MAX)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{FIRST}")?;
        self.rows.iter().try_for_each(|row| writeln!(f, "{row}"))?;
        self.shown.iter().try_for_each(|row| writeln!(f, "{row}"))
    }
}

/// The way of plain memory in a row.
fn way_of(collective: Collective, text: &str) -> Result<PlainMemory, String> {
    if text == "read" {
        let reduces =
            format!("{} reduces: shown read is for collectives that only move elements", collective.name());
        return if collective.reduces() { Err(reduces) } else { Ok(PlainMemory::Read) };
    }
    let copies = bytes_of("shown", text)?;
    check_copies(copies)?;
    Ok(if copies == 0 { PlainMemory::Messages } else { PlainMemory::Copied(copies) })
}

/// A number of bytes in the shortest exact notation.
fn size(bytes: usize) -> String {
    match bytes {
        0 => "0".to_owned(),
        _ if bytes.is_multiple_of(1 << 20) => format!("{}M", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{}K", bytes >> 10),
        _ => bytes.to_string(),
    }
}

/// A limit of bytes: [`size`], or `any`.
fn limit(bytes: usize) -> String {
    if bytes == usize::MAX { "any".to_owned() } else { size(bytes) }
}

fn unknown(what: &str, name: &str, there: &[&str]) -> String {
    format!("there is no {what} {name:?}; there are {}", there.join(", "))
}

/// The collective of this name.
///
/// # Errors
/// A sentence that names all collectives.
pub(super) fn collective_of(name: &str) -> Result<Collective, String> {
    Collective::parse(name).ok_or_else(|| unknown("collective", name, &Collective::ALL.map(Collective::name)))
}

fn number_of(name: &str, text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|&number: &usize| number > 0);
    number.ok_or_else(|| format!("{name} {text:?}: wanted a number from 1"))
}

fn ranks_of(text: &str) -> Result<Ranks, String> {
    Ok(match text.strip_prefix("..") {
        Some(most) => Ranks::AtMost(number_of("ranks", most)?),
        None if text == "any" => Ranks::AtMost(usize::MAX),
        None => Ranks::Exactly(number_of("ranks", text)?),
    })
}

fn bytes_of(name: &str, text: &str) -> Result<usize, String> {
    parse_bytes(text)
        .ok_or_else(|| format!("{name} {text:?}: wanted a number of bytes such as 512, 64K or 4M"))
}

fn limit_of(text: &str) -> Result<usize, String> {
    if text == "any" { Ok(usize::MAX) } else { bytes_of("bytes", text) }
}

fn message_of(text: &str) -> Result<usize, String> {
    let bytes = bytes_of("chunk", text)?;
    let fits = bytes > 0 && bytes.is_multiple_of(64);
    if fits { Ok(bytes) } else { Err(format!("chunk {text:?}: wanted a multiple of 64 bytes")) }
}

fn row(
    collective: &str,
    ranks: &str,
    bytes: &str,
    (algorithm, chunk, lanes): (&str, &str, &str),
) -> Result<Row, String> {
    let collective = collective_of(collective)?;
    let able: Vec<_> = ALGORITHMS.iter().filter(|algorithm| algorithm.supports(collective)).collect();
    let algorithm = able.iter().find(|it| it.name == algorithm).ok_or_else(|| {
        let names: Vec<_> = able.iter().map(|it| it.name).collect();
        unknown(&format!("algorithm for {}", collective.name()), algorithm, &names)
    })?;
    let (least, most) = chunk.split_once("..").unwrap_or((chunk, chunk));
    let chunk_bytes = (message_of(least)?, message_of(most)?);
    if chunk_bytes.0 > chunk_bytes.1 {
        return Err(format!("chunk {chunk:?}: the lower bound is above the upper one"));
    }
    // "any/rank" has no meaning.
    let each = bytes.strip_suffix("/rank");
    Ok(Row {
        collective,
        ranks: ranks_of(ranks)?,
        bytes: each.map_or_else(|| limit_of(bytes), |each| bytes_of("bytes", each))?,
        each: each.is_some(),
        algorithm,
        chunk: chunk_bytes,
        lanes: number_of("lanes", lanes)?,
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
    use crate::select::shown::PlainWays;

    const TEXT: &str = "\
unisono tuning 1
all_reduce ranks 4 bytes 8K direct chunk 256K lanes 1
all_reduce ranks 4 bytes any two_shot chunk 128K lanes 3
broadcast ranks 2 bytes 100 binomial chunk 64 lanes 1
broadcast ranks ..8 bytes 128K/rank tree chunk 128K..256K lanes 4
broadcast ranks any bytes any ring chunk 1M lanes 4
broadcast ranks 2 bytes 16K shown 128K
broadcast ranks 2 bytes 64K shown read
broadcast ranks any bytes any shown 0
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
        assert_eq!(table.clone().of(2).to_string().lines().count(), 7);
        let ways = |ranks, bytes| PlainWays::of(table.shown(Collective::Broadcast, ranks, bytes));
        let (copied, sent) = (PlainWays { reads: false, copies: 128 << 10 }, PlainWays::default());
        let read = PlainWays { reads: true, copies: 0 };
        assert_eq!(
            [ways(2, 16 << 10), ways(2, (16 << 10) + 1), ways(2, 64 << 10), ways(2, 1 << 20), ways(3, 8)],
            [copied, read, read, sent, sent]
        );
        assert_eq!(
            [copied, read, sent].map(PlainWays::first),
            [PlainMemory::Copied(128 << 10), PlainMemory::Read, PlainMemory::Messages]
        );
        assert!(table.shown(Collective::AllReduce, 2, 8).next().is_none());
        let commented = format!("# made somewhere\n\n{TEXT}\n # the end\n");
        assert_eq!(Table::parse(&commented).unwrap().to_string(), TEXT);
    }

    #[test]
    fn limits_and_bounds_follow_the_ranks() {
        let table = Table::parse(TEXT).unwrap();
        let of = |ranks, bytes| {
            let choice = table.choose(Collective::Broadcast, ranks, bytes, |_| true).unwrap();
            (choice.algorithm.name, choice.chunk_bytes >> 10)
        };
        assert_eq!(of(4, 512 << 10), ("tree", 128), "two pieces on four lanes");
        assert_eq!(of(8, 1 << 20), ("tree", 128));
        assert_eq!(of(4, (512 << 10) + 1), ("ring", 1024));
        assert_eq!(of(9, 8), ("ring", 1024));
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
            (
                format!("{FIRST}\n{}", good.replace("direct", "bruck")),
                "there is no algorithm for all_reduce \"bruck\"",
            ),
            (format!("{FIRST}\n{}", good.replace("all_reduce", "every")), "no collective \"every\""),
            (
                format!("{FIRST}\n{}", good.replace("ranks 4", "ranks 0")),
                "ranks \"0\": wanted a number from 1",
            ),
            (
                format!("{FIRST}\n{}", good.replace("ranks 4", "ranks ..x")),
                "ranks \"x\": wanted a number from 1",
            ),
            (format!("{FIRST}\n{}", good.replace("8K", "8G")), "bytes \"8G\": wanted"),
            (format!("{FIRST}\n{}", good.replace("8K", "any/rank")), "bytes \"any\": wanted"),
            (
                format!("{FIRST}\n{}", good.replace("8K", "99999999999999999999K")),
                "bytes \"99999999999999999999K\"",
            ),
            (format!("{FIRST}\n{}", good.replace("256K", "100")), "chunk \"100\": wanted a multiple of 64"),
            (format!("{FIRST}\n{}", good.replace("256K", "4K..100")), "chunk \"100\": wanted a multiple"),
            (format!("{FIRST}\n{}", good.replace("256K", "8K..4K")), "the lower bound is above the upper"),
            (format!("{FIRST}\n{}", good.replace("lanes 1", "lanes x")), "lanes \"x\""),
            (
                format!("{FIRST}\nbroadcast ranks 2 bytes any shown x"),
                "shown \"x\": wanted a number of bytes",
            ),
            (
                format!("{FIRST}\nall_reduce ranks 2 bytes any shown read"),
                "all_reduce reduces: shown read is for collectives that only move elements",
            ),
            (
                format!("{FIRST}\nbroadcast ranks 2 bytes 1K/rank shown 8"),
                "bytes \"1K/rank\": wanted a number",
            ),
            (format!("{FIRST}\nbroadcast ranks 2 bytes any shown"), "is no row"),
            (
                format!("{FIRST}\nbroadcast ranks 2 bytes any shown 3K"),
                "wanted 0 or a power of two up to 1048576",
            ),
            (format!("{FIRST}\nbroadcast ranks 2 bytes any shown 2M"), "a rank copies 2097152 bytes"),
        ] {
            let error = Table::parse(&text).unwrap_err();
            assert!(error.contains(words), "{text:?}: {error}");
        }
    }
}
