//! `unisono simulate` of several sizes: a table of the predicted times, the algorithms downwards and the sizes to the right.

use std::io::{self, Write};

use unisono_schedule::algorithm::Algorithm;

use super::{Case, Priced, Result, describe, fastest};
use crate::{bench, words};

/// The number of sizes that fit side by side in 100 columns.
const BESIDE: usize = 7;

/// The sizes of a sweep.
#[derive(clap::Args)]
pub(super) struct Sizes {
    /// The smallest size in bytes, for a table of several sizes, with -e or -f [default: 8]
    #[arg(short = 'b', long, value_name = "BYTES", conflicts_with_all = ["bytes", "goal", "draw"], value_parser = unisono::config::parse_size)]
    min_bytes: Option<usize>,
    /// The largest size in bytes, for a table of several sizes [default: 64M]
    #[arg(short = 'e', long, value_name = "BYTES", conflicts_with_all = ["bytes", "goal", "draw"], value_parser = unisono::config::parse_size)]
    max_bytes: Option<usize>,
    /// The factor from one size to the next [default: 8]
    #[arg(short = 'f', long, value_name = "N", conflicts_with_all = ["bytes", "goal", "draw"], value_parser = clap::value_parser!(u32).range(2..))]
    factor: Option<u32>,
}

impl Sizes {
    /// The sizes, where several are wanted.
    pub(super) fn list(&self) -> Result<Option<Vec<usize>>> {
        if (self.min_bytes, self.max_bytes, self.factor) == (None, None, None) {
            return Ok(None);
        }
        let (least, most) = (self.min_bytes.unwrap_or(8), self.max_bytes.unwrap_or(64 << 20));
        if least > most {
            return Err(format!("-b {least} is more than -e {most}").into());
        }
        Ok(Some(bench::sweep(least, most, self.factor.unwrap_or(8))))
    }
}

/// Prints the times of all algorithms; a case has its algorithms in the same order.
pub(super) fn table(out: &mut impl Write, cells: &[(Case, Vec<Priced>)]) -> io::Result<()> {
    let Some((first, algorithms)) = cells.first() else { return Ok(()) };
    let ranks = words::some(first.ranks, "rank");
    let (collective, dtype) = (first.collective.name(), first.dtype.name());
    writeln!(out, "{collective} of {dtype} among {ranks}, by the size of the whole vector")?;
    writeln!(out, "{}", describe(&first.fabric, first.ranks))?;
    for cells in cells.chunks(BESIDE) {
        let row = |name: &str, of: &dyn Fn(&Case, &[Priced]) -> String| {
            let cells: String = cells.iter().map(|(case, priced)| of(case, priced)).collect();
            format!("{name:<18}{cells}").trim_end().to_owned()
        };
        writeln!(out)?;
        writeln!(out, "{}", row("algorithm", &|case, _| format!(" {:>8}  ", words::size(case.whole()))))?;
        for (index, it) in algorithms.iter().enumerate() {
            let cell = |case: &Case, priced: &[Priced]| {
                let best = if fastest(priced) == Some(index) { "*" } else { "" };
                let taken = taken(case).is_some_and(|taken| taken.code == it.algorithm.code);
                let marks = format!("{best}{}", if taken { "+" } else { "" });
                format!(" {:>8}{marks:<2}", priced[index].time())
            };
            writeln!(out, "{}", row(it.algorithm.name, &cell))?;
        }
        let bound = |case: &Case, _: &[Priced]| format!(" {:>8}  ", words::time(case.bound()));
        writeln!(out, "{}", row("lower bound", &bound))?;
    }
    writeln!(out, "\n* the fastest   + the library's choice; unisono explain says why")?;
    let all = || cells.iter().flat_map(|(_, priced)| priced);
    if all().any(|it| it.cost.is_ok_and(|cost| cost.extrapolated)) {
        writeln!(out, "~ extrapolated from smaller sizes")?;
    }
    match all().find_map(|it| it.cost.err()) {
        Some(why) => writeln!(out, "- {why}"),
        None => Ok(()),
    }
}

/// The algorithm that a group chooses.
fn taken(case: &Case) -> Option<&'static Algorithm> {
    case.chooser().choose(case.collective, case.bytes(), |_| true).map(|choice| choice.algorithm)
}
