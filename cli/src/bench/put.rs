//! `unisono bench put`: latency, bandwidth and message rate of raw puts, one way and both ways.

use unisono::ProcessGroup;

use super::{
    Bench, Result,
    put_pair::{self, Pair},
    report::BenchReport,
    rows::{Flow, Rates, micros},
};

/// Bytes to move for each figure if the number of puts is not given.
const VOLUME: usize = 256 << 20;

/// Measures every size of the sweep.
pub(super) fn sweep(group: &ProcessGroup, bench: &Bench, report: &mut BenchReport<'_>) -> Result<u64> {
    let sizes: Vec<usize> = bench.sizes().into_iter().filter(|&bytes| bytes > 0).collect();
    let largest = sizes.last().copied().unwrap_or(1);
    let mut pair = put_pair::pair(group, largest)?;
    let (iters, warmup) = (bench.asked.iters, bench.asked.warmup as usize);
    bench.flows(report, &sizes, |bytes, window| {
        let count = iters.map_or_else(|| (VOLUME / bytes.max(1)).clamp(32, 5000), |iters| iters as usize);
        let window = window.unwrap_or(put_pair::WINDOW);
        let flow = match &mut pair {
            Some(pair) => measure(pair, group.rank() == 0, (bytes, window), count, warmup)?,
            None => Flow::default(),
        };
        group.barrier()?;
        Ok(flow)
    })
}

fn measure(
    pair: &mut Pair,
    first: bool,
    (bytes, window): (usize, usize),
    count: usize,
    warmup: usize,
) -> Result<Flow> {
    pair.ping_pong(bytes, warmup, first)?;
    let times = pair.ping_pong(bytes, count, first)?;
    let rounds = count as u64;
    pair.stream((bytes, window), warmup as u64, first, !first)?;
    let one_way = pair.stream((bytes, window), rounds, first, !first)?;
    pair.stream((bytes, window), warmup as u64, true, true)?;
    let both_ways = pair.stream((bytes, window), rounds, true, true)?;
    let [one_way, both_ways] = [one_way, both_ways].map(|seconds| Rates::new(count, bytes, seconds));
    let latency_us = micros(&times);
    Ok(Flow { bytes, window, iterations: count, latency_us, one_way, both_ways, messages: None })
}
