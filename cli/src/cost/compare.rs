//! `unisono compare`: the cost model's prediction for every algorithm beside its measured time on this machine.

use std::io::{self, Write};

use clap::builder::NonEmptyStringValueParser;
use unisono::dtype::Dtype;
use unisono_schedule::{Collective, cost::Fabric, price::Effort};

use super::{Case, Priced, Result, describe, fit, measure_rank::Measurements};
use crate::{bench, words};

/// The model is right if its fastest algorithm takes at most this many times the time of the fastest one.
const CLOSE: f64 = 1.10;
/// Two algorithms whose times differ by less than this factor are not compared.
const APART: f64 = 1.15;

/// Measures every algorithm on this machine and compares it with the cost model's prediction.
///
/// For each number of ranks and size it prints a row for each algorithm, the fastest first: the measured time, the predicted time, and the
/// first divided by the second (ratio). The first row of a size also says whether the model's fastest algorithm is within 10 % of the
/// fastest one (choice), and how many pairs of algorithms that differ by more than 15 % the model puts in the right order (pairs).
#[derive(clap::Args)]
pub(crate) struct Compare {
    /// all_reduce or another collective with a size
    #[arg(value_parser = parse_sized, default_value = "all_reduce")]
    collective: Collective,
    /// The numbers of ranks, separated by commas
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "2,4,8",
        value_parser = clap::value_parser!(u32).range(2..=1024))]
    ranks: Vec<u32>,
    /// The smallest size in bytes
    #[arg(short = 'b', long, value_name = "BYTES", default_value = "8", value_parser = unisono::config::parse_size)]
    min_bytes: usize,
    /// The largest size in bytes
    #[arg(short = 'e', long, value_name = "BYTES", default_value = "32M", value_parser = unisono::config::parse_size)]
    max_bytes: usize,
    /// The factor from one size to the next
    #[arg(short = 'f', long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(2..))]
    factor: u32,
    /// The provider
    #[arg(long, default_value = "tcp", value_parser = NonEmptyStringValueParser::new())]
    provider: String,
    /// The fabric that the model assumes: shm, ndr400, hdr, efa, tcp [default: fitted to this machine now]
    #[arg(long, value_name = "NAME", value_parser = super::parse_fabric)]
    fabric: Option<Fabric>,
}

/// A collective with a size.
fn parse_sized(text: &str) -> std::result::Result<Collective, String> {
    match super::parse_collective(text)? {
        Collective::Barrier => Err("a barrier has no size".to_owned()),
        collective => Ok(collective),
    }
}

impl Compare {
    /// What is compared, and what the columns mean.
    fn head(&self, out: &mut impl Write) -> io::Result<()> {
        let (collective, provider) = (self.collective.name(), &self.provider);
        let fabric = self.fabric.map_or("fitted to this machine", |fabric| fabric.name);
        writeln!(
            out,
            "{collective} of f32 over {provider}, all ranks on this machine: every algorithm's measured time
beside the time that the cost model (docs/cost.md) predicts for it, on the fabric {fabric}
  size       bytes of the whole vector
  choice     right: what the model takes for the fastest is measured within 10 % of the fastest
  pairs      of the pairs of algorithms whose measured times differ by more than 15 %, how many the
             model puts in the right order
  measured   the median of calls after a barrier, each as long as on the slowest rank
  predicted  the time that the model gives
  ratio      measured / predicted: above 1, it takes longer here than predicted
"
        )
    }

    pub(crate) fn run(self) -> Result<()> {
        bench::check_sizes(self.min_bytes, self.max_bytes)?;
        let provider = Some(self.provider.as_str());
        self.head(&mut io::stdout().lock())?;
        let fabric = match self.fabric {
            Some(fabric) => fabric,
            None => {
                let fabric = fit::fabric(provider)?;
                fit::print(&fabric)?;
                fabric
            }
        };
        let sizes = bench::sweep(self.min_bytes, self.max_bytes, self.factor);
        // Whether the model is right about the fastest of each cell, and about each pair.
        let (mut cells, mut pairs) = (Vec::new(), Vec::new());
        for &ranks in &self.ranks {
            let ranks = ranks as usize;
            // All ranks are on this machine, whatever the fabric's preset says.
            let fabric = Fabric { ranks_per_host: ranks, ..fabric };
            let case = |bytes| Case::new(self.collective, ranks, bytes, Dtype::F32).on(&fabric);
            let cases = super::distinct(sizes.clone(), case);
            let list: Vec<_> = cases.iter().map(|case| case.whole().to_string()).collect();
            let arguments = [self.collective.name().to_owned(), format!("--bytes={}", list.join(","))];
            let found = fit::run(ranks, fabric.at_once(ranks), provider, &arguments)?;
            let mut out = io::stdout().lock();
            writeln!(out, "{} among {ranks} ranks over {}", self.collective.name(), found.library)?;
            writeln!(out, "predicted on {}", describe(&fabric, ranks))?;
            writeln!(
                out,
                "{:>10}  {:<6} {:>7}  {:<18} {:>9} {:>9} {:>6}",
                "size", "choice", "pairs", "algorithm", "measured", "predicted", "ratio"
            )?;
            for case in &cases {
                let both = both(case, &found);
                let (right, order) = judge(&both);
                cells.push(right);
                rows(&mut out, words::size(case.whole()), right, &order, &both)?;
                pairs.extend(order);
            }
            writeln!(out)?;
        }
        let score = |all: &[bool]| {
            let right = right(all);
            format!("{right} of {} ({:.0} %)", all.len(), 100.0 * right as f64 / all.len().max(1) as f64)
        };
        let (cells, pairs) = (score(&cells), score(&pairs));
        Ok(writeln!(
            io::stdout(),
            "the model's fastest is within 10 % of the fastest in {cells} cells
and {pairs} pairs that differ by more than 15 % are in the right order"
        )?)
    }
}

/// How many of these are right.
fn right(all: &[bool]) -> usize {
    all.iter().filter(|right| **right).count()
}

/// Prints the rows of a size; its algorithms are sorted by measured time.
fn rows(
    out: &mut impl Write,
    size: String,
    fastest: bool,
    pairs: &[bool],
    both: &[(&str, f64, f64)],
) -> io::Result<()> {
    let mark = if fastest { "right" } else { "WRONG" };
    let mut first = [size, mark.to_owned(), format!("{}/{}", right(pairs), pairs.len())];
    for &(name, measured, predicted) in both {
        let [size, mark, order] = std::mem::take(&mut first);
        let ratio = measured / predicted;
        let (measured, predicted) = (words::time(measured), words::time(predicted));
        writeln!(
            out,
            "{size:>10}  {mark:<6} {order:>7}  {name:<18} {measured:>9} {predicted:>9} {ratio:>6.2}"
        )?;
    }
    Ok(())
}

/// Name, measured and predicted time of every algorithm, by measured time.
fn both(case: &Case, found: &Measurements) -> Vec<(&'static str, f64, f64)> {
    let with_price = found.of(case.whole()).filter_map(|(algorithm, measured)| {
        let plan = algorithm.plan(case.collective)?;
        let priced = Priced::of(case, plan, case.choice(algorithm), Effort::EXACT);
        Some((algorithm.name, measured, priced.seconds()?))
    });
    let mut both: Vec<_> = with_price.collect();
    both.sort_by(|one, other| one.1.total_cmp(&other.1));
    both
}

/// Compares predictions with measured times: whether the fastest is right, and each pair. The algorithms are sorted by measured time.
fn judge(both: &[(&str, f64, f64)]) -> (bool, Vec<bool>) {
    let best = both.first().map_or(0.0, |it| it.1);
    let taken = both.iter().min_by(|one, other| one.2.total_cmp(&other.2));
    let slower = |faster: &(&str, f64, f64)| {
        let (measured, predicted) = (faster.1 * APART, faster.2);
        both.iter().filter(move |it| it.1 > measured).map(move |it| it.2 > predicted)
    };
    (taken.is_some_and(|it| it.1 <= best * CLOSE), both.iter().flat_map(slower).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_close_choice_is_right_and_close_pairs_do_not_count() {
        let both = [("a", 1.0, 2.0), ("b", 1.05, 1.0), ("c", 2.0, 1.5)];
        assert_eq!(judge(&both), (true, vec![false, true]));
        assert_eq!(judge(&[("a", 1.0, 2.0), ("b", 1.2, 1.0)]), (false, vec![false]));
        assert_eq!(judge(&[]), (false, vec![]));
    }

    #[test]
    fn a_row_has_both_times_and_the_first_by_the_second() {
        let mut out = Vec::new();
        let both = [("recursive_doubling", 3e-6, 2e-6), ("star", 1e-3, 2e-3)];
        rows(&mut out, "8 B".to_owned(), true, &[true], &both).unwrap();
        let wanted = "       8 B  right      1/1  recursive_doubling   3.00 µs   2.00 µs   1.50
                            star                 1.00 ms   2.00 ms   0.50
";
        assert_eq!(String::from_utf8(out).unwrap(), wanted);
    }
}
