//! `unisono bench put`: latency, bandwidth and message rate of raw puts, one way and both ways.

use unisono::ProcessGroup;

use super::{
    Bench, Result, put_pair,
    report::BenchReport,
    rows::{Flow, Rates, micros},
};

/// Bytes to move for each figure if the number of puts is not given.
const VOLUME: usize = 256 << 20;

/// Measures every size of the sweep.
pub(super) fn sweep(group: &ProcessGroup, bench: &Bench, report: &mut BenchReport<'_>) -> Result<u64> {
    let sizes: Vec<usize> = bench.sizes().into_iter().filter(|&bytes| bytes > 0).collect();
    let mut pair = put_pair::pair(group, sizes.last().copied().unwrap_or(1))?;
    let (iters, warmup) = (bench.asked.iters, bench.asked.warmup);
    bench.flows(report, &sizes, |bytes, window| {
        let count = iters.map_or_else(|| (VOLUME / bytes.max(1)).clamp(32, 5000), |iters| iters as usize);
        let window = window.unwrap_or(put_pair::WINDOW);
        let mut flow = Flow::default();
        if let Some(pair) = &mut pair {
            pair.ping_pong(bytes, warmup as usize)?;
            let times = pair.ping_pong(bytes, count)?;
            let mut rates = |both: bool| -> Result<Rates> {
                pair.stream(bytes, window, u64::from(warmup), both)?;
                Ok(Rates::new(count, bytes, pair.stream(bytes, window, count as u64, both)?))
            };
            let (one_way, both_ways) = (rates(false)?, rates(true)?);
            let latency_us = micros(&times);
            flow = Flow { bytes, window, iterations: count, latency_us, one_way, both_ways, messages: None };
        }
        group.barrier()?;
        Ok(flow)
    })
}
