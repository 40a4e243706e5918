//! Measures several ways to do one collective beside each other: in rounds, so that what drifts hits all alike.

use std::time::Instant;

use unisono::{Config, ProcessGroup, algorithm::Choice, reduce::ReduceOp, schedule::Job};

use super::Result;
use crate::{
    bench::{
        collective::call,
        data::{self, Sample, with_dtype},
        progress::Progress,
        report::quantile,
    },
    cost::Case,
};

/// Seconds to spend on a size, or somewhat more where a few rounds take longer.
const SECONDS: f64 = 0.8;
/// At least and at most so many rounds.
const ROUNDS: (usize, usize) = (7, 100);
/// Up to so many bytes a way is called several times in a round: the first call may find the caches full of others'.
const SMALL: usize = 64 << 10;
const CALLS: usize = 4;

/// After so many rounds, how many times slower than the fastest a way may be and stay in the race.
const LIMITS: [(usize, f64); 4] = [(1, 3.0), (3, 1.6), (7, 1.3), (20, 1.15)];

/// Every algorithm that can do it, each with the chunks and lanes that may matter.
pub(super) fn candidates(config: &Config, case: &Case) -> Vec<Choice> {
    let pairs = pairs(config, case.bytes());
    let choices = case.plans().flat_map(|(algorithm, _)| {
        pairs.iter().map(move |&(chunk_bytes, lanes)| Choice { algorithm, chunk_bytes, lanes })
    });
    choices.collect()
}

/// Chunks, in multiples of 64 bytes as the table wants them, and lanes.
fn pairs(config: &Config, bytes: usize) -> Vec<(usize, usize)> {
    let whole = |bytes: usize| bytes / 64 * 64;
    let eager = whole(config.eager.min(config.chunk));
    let mut pairs = Vec::new();
    // In one message, or in a few small ones.
    if bytes <= eager.saturating_mul(8) {
        pairs.push((eager, 1));
    }
    if bytes > eager {
        // Among chunks into none of which it has to be cut, one will do.
        let chunks = [0, 1, 2].map(|halvings| whole(config.chunk >> halvings));
        let cuts = |&(index, chunk): &(usize, usize)| index == 2 || chunk < bytes.saturating_mul(2);
        pairs.extend(chunks.into_iter().enumerate().filter(cuts).map(|(_, chunk)| (chunk, config.lanes)));
    }
    pairs.retain(|&(chunk, _)| chunk > 0);
    pairs.sort_unstable();
    pairs.dedup();
    pairs
}

/// The median time of a call in each of these ways, in the order given: of the slowest rank, after a barrier. All
/// ranks get the same.
pub(crate) fn seconds(
    group: &ProcessGroup,
    case: &Case,
    ways: &[Choice],
    progress: &Progress,
) -> Result<Vec<f64>> {
    with_dtype!(case.dtype, T => race::<T>(group, case, ways, progress))
}

fn race<T: Sample>(
    group: &ProcessGroup,
    case: &Case,
    ways: &[Choice],
    progress: &Progress,
) -> Result<Vec<f64>> {
    if ways.is_empty() {
        return Err(
            "UNISONO_CHUNK and UNISONO_EAGER are less than 64 bytes, which a tuning file cannot say".into()
        );
    }
    let job = Job::new(case.collective, group.rank(), group.size(), case.count);
    let (inputs, outputs) = job.lengths().ok_or("the sizes overflow")?;
    let (input, mut output) = (data::zeros::<T>(inputs)?, data::zeros::<T>(outputs)?);
    let handles = ways
        .iter()
        .map(|way| group.with_algorithms(way.algorithm.name)?.with_pipeline(way.chunk_bytes, way.lanes));
    let handles: Vec<ProcessGroup> = handles.collect::<unisono::Result<_>>()?;
    let mut run = |way: usize| call(&handles[way], case.collective, ReduceOp::Sum, 0, &input, &mut output);

    let mut samples: Vec<Vec<f64>> = vec![Vec::new(); ways.len()];
    let mut alive: Vec<usize> = (0..ways.len()).collect();
    for &way in &alive {
        // The first call opens windows.
        run(way)?;
        run(way)?;
    }
    let calls = if case.whole() <= SMALL { CALLS } else { 1 };
    let begun = Instant::now();
    for round in 1..=ROUNDS.1 {
        progress.call(round, ROUNDS.1);
        let mut times = Vec::new();
        for &way in &alive {
            for _ in 0..calls {
                group.barrier()?;
                let begun = Instant::now();
                run(way)?;
                times.push(begun.elapsed().as_secs_f64());
            }
        }
        // All ranks learn the same numbers, and so decide the same.
        times.push(begun.elapsed().as_secs_f64());
        group.all_reduce(&mut times, ReduceOp::Max)?;
        let elapsed = times.pop().unwrap_or_default();
        for (&way, times) in alive.iter().zip(times.chunks(calls)) {
            samples[way].extend_from_slice(times);
        }
        if let Some(&(_, limit)) = LIMITS.iter().find(|(after, _)| *after == round) {
            // By their fastest calls: of a few, most may have been disturbed.
            let least = |way: usize| samples[way].iter().copied().fold(f64::INFINITY, f64::min);
            let best = alive.iter().map(|&way| least(way)).fold(f64::INFINITY, f64::min);
            alive.retain(|&way| least(way) <= best * limit);
        }
        if elapsed > SECONDS && round >= ROUNDS.0 {
            break;
        }
    }
    Ok(samples.iter().map(|samples| median(samples)).collect())
}

fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    quantile(&sorted, 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_within_the_configuration_and_none_is_for_nothing() {
        let config = Config::default();
        assert_eq!(pairs(&config, 8), [(32 << 10, 1)]);
        assert_eq!(pairs(&config, 64 << 10), [(32 << 10, 1), (64 << 10, 2)]);
        assert_eq!(pairs(&config, 32 << 20), [(64 << 10, 2), (128 << 10, 2), (256 << 10, 2)]);
        for chunk in [16, 64, 100, 1 << 20] {
            for eager in [128, 1 << 20] {
                for bytes in [0, 8, 1000, usize::MAX] {
                    let config = Config { chunk, eager, ..Config::default() };
                    let pairs = pairs(&config, bytes);
                    assert!(pairs.is_empty() == (chunk < 64), "{chunk} {eager} {bytes}: {pairs:?}");
                    assert!(
                        pairs.iter().all(|&(bytes, lanes)| bytes % 64 == 0 && bytes <= chunk && lanes <= 2)
                    );
                }
            }
        }
    }
}
