//! `unisono simulate` of several sizes: a table of the predicted times, the algorithms downwards and the sizes to the right.

use std::io::{self, Write};

use super::{Case, Priced, describe, fastest};
use crate::words;

/// The number of sizes that fit side by side in 100 columns.
const BESIDE: usize = 7;

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
                let taken =
                    case.chosen().is_some_and(|taken| taken.algorithm.code == it.choice.algorithm.code);
                let marks = format!("{best}{}", if taken { "+" } else { "" });
                format!(" {:>8}{marks:<2}", priced[index].time())
            };
            writeln!(out, "{}", row(it.name(), &cell))?;
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
