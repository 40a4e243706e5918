//! `unisono compare`: the cost model's prediction for every algorithm beside its measured time on this machine.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::builder::NonEmptyStringValueParser;
use unisono::dtype::Dtype;
use unisono_schedule::{Collective, cost::Fabric, price::price};

use super::{Case, Result, describe, fit, measure_rank::Found};
use crate::bench;
use crate::words;

/// The model is right if its fastest algorithm takes at most this many times the time of the fastest one.
const CLOSE: f64 = 1.10;
/// Two algorithms whose times differ by less than this factor are not compared.
const APART: f64 = 1.15;

/// Measures every algorithm on this machine and compares it with the cost model's prediction.
///
/// For each size and number of ranks it prints whether the model's fastest algorithm is within 10 % of the fastest one (choice); how many
/// pairs of algorithms that differ by more than 15 % the model puts in the right order (pairs); and the measured median of each
/// algorithm, the fastest first, with the prediction in brackets.
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

/// How well the predictions agree with the measured times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Score {
    right: usize,
    of: usize,
}

impl Score {
    fn words(self) -> String {
        format!("{} of {} ({:.0} %)", self.right, self.of, 100.0 * self.right as f64 / self.of.max(1) as f64)
    }

    fn add(&mut self, other: Self) {
        (self.right, self.of) = (self.right + other.right, self.of + other.of);
    }
}

impl Compare {
    pub(crate) fn run(self) -> ExitCode {
        crate::status("compare", self.compare())
    }

    fn compare(&self) -> Result<()> {
        if self.min_bytes > self.max_bytes {
            return Err(format!("-b {} is more than -e {}", self.min_bytes, self.max_bytes).into());
        }
        let provider = Some(self.provider.as_str());
        let fabric = match self.fabric {
            Some(fabric) => fabric,
            None => {
                let fabric = fit::fabric(provider)?;
                fit::print(&fabric)?;
                fabric
            }
        };
        let sizes = bench::sweep(self.min_bytes, self.max_bytes, self.factor);
        let (mut cells, mut pairs) = (Score::default(), Score::default());
        for &ranks in &self.ranks {
            let ranks = ranks as usize;
            // All ranks are on this machine, whatever the fabric's preset says.
            let fabric = Fabric { ranks_per_host: ranks, ..fabric };
            let case = |bytes| Case::new(self.collective, ranks, bytes, Dtype::F32).on(&fabric);
            let sizes = super::distinct(sizes.iter().copied(), case);
            let list: Vec<_> = sizes.iter().map(|(bytes, _)| bytes.to_string()).collect();
            let arguments = [self.collective.name().to_owned(), format!("--bytes={}", list.join(","))];
            let found = fit::run(ranks, fabric.at_once(ranks), provider, &arguments)?;
            let mut out = io::stdout().lock();
            writeln!(out, "{} among {ranks} ranks over {}", self.collective.name(), found.library)?;
            writeln!(out, "predicted on {}", describe(&fabric, ranks))?;
            let heads = ("vector", "choice", "pairs", "algorithm, measured (predicted)");
            writeln!(out, "{:>10}  {} {:>5}  {}", heads.0, heads.1, heads.2, heads.3)?;
            for &(bytes, case) in &sizes {
                let both = both(&case, &found, bytes, &fabric);
                let (right, order) = judge(&both);
                cells.add(Score { right: usize::from(right), of: 1 });
                pairs.add(order);
                let each: Vec<_> = both
                    .iter()
                    .map(|&(name, measured, predicted)| {
                        format!("{name} {} ({})", words::time(measured), words::time(predicted))
                    })
                    .collect();
                let mark = if right { "right" } else { "WRONG" };
                let order = format!("{}/{}", order.right, order.of);
                writeln!(out, "{:>10}  {mark} {order:>6}  {}", words::size(case.whole()), each.join("  "))?;
            }
            writeln!(out)?;
        }
        writeln!(
            io::stdout(),
            "the model's fastest is within 10 % of the fastest in {} cells",
            cells.words()
        )?;
        writeln!(
            io::stdout(),
            "and {} pairs that differ by more than 15 % are in the right order",
            pairs.words()
        )?;
        Ok(())
    }
}

/// Name, measured and predicted time of every algorithm, by measured time.
fn both(case: &Case, found: &Found, bytes: usize, fabric: &Fabric) -> Vec<(&'static str, f64, f64)> {
    let with_price = found.of(bytes).filter_map(|(algorithm, measured)| {
        let job = case.job(case.shape(algorithm));
        let cost = price(algorithm.plan(case.collective)?, &job, case.dtype.size(), fabric).ok()?;
        Some((algorithm.name, measured, cost.seconds))
    });
    let mut both: Vec<_> = with_price.collect();
    both.sort_by(|one, other| one.1.total_cmp(&other.1));
    both
}

/// Compares predictions with measured times; the algorithms are sorted by measured time.
fn judge(both: &[(&str, f64, f64)]) -> (bool, Score) {
    let best = both.first().map_or(0.0, |it| it.1);
    let taken = both.iter().min_by(|one, other| one.2.total_cmp(&other.2));
    let mut order = Score::default();
    for (index, faster) in both.iter().enumerate() {
        for slower in both[index..].iter().filter(|it| it.1 > faster.1 * APART) {
            order.add(Score { right: usize::from(slower.2 > faster.2), of: 1 });
        }
    }
    (taken.is_some_and(|it| it.1 <= best * CLOSE), order)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_close_choice_is_right_and_close_pairs_do_not_count() {
        let both = [("a", 1.0, 2.0), ("b", 1.05, 1.0), ("c", 2.0, 1.5)];
        assert_eq!(judge(&both), (true, Score { right: 1, of: 2 }));
        assert_eq!(judge(&[("a", 1.0, 2.0), ("b", 1.2, 1.0)]), (false, Score { right: 0, of: 1 }));
        assert_eq!(judge(&[]), (false, Score::default()));
    }
}
