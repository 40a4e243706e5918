//! `unisono bench put`: latency, bandwidth and message rate of raw puts, one way and both ways.

use std::time::Duration;

use unisono::ProcessGroup;
use unisono_transport::ofi::Options;

use super::{
    Bench, Result,
    progress::Progress,
    put_pair::{self, Pair},
    report::BenchReport,
    rows::{Flow, Rates, micros, quantile},
};

/// Bytes to move for each figure if the number of puts is not given.
const VOLUME: usize = 256 << 20;

/// Measures every size of the sweep.
pub(super) fn sweep(
    group: &ProcessGroup,
    bench: &Bench,
    options: &Options,
    report: &mut BenchReport,
) -> Result<()> {
    let sizes: Vec<usize> = bench.sizes().into_iter().filter(|&bytes| bytes > 0).collect();
    let largest = sizes.last().copied().unwrap_or(1);
    let mut pair = put_pair::pair(group, options, largest)?;
    let windows = bench.windows();
    let progress = Progress::new(sizes.len() * windows.len(), group.rank() == 0);
    for (bytes, &window) in sizes.iter().flat_map(|&bytes| windows.iter().map(move |window| (bytes, window)))
    {
        let window = window.unwrap_or(put_pair::WINDOW);
        progress.size(bytes);
        let count =
            bench.asked.iters.map_or_else(|| (VOLUME / bytes.max(1)).clamp(32, 5000), |iters| iters as usize);
        let row = match &mut pair {
            Some(pair) => measure(group, pair, (bytes, window), count, bench.asked.warmup as usize)?,
            None => Flow::default(),
        };
        group.barrier()?;
        progress.done(|| report.put(&row));
        if !report.check(group)? {
            break;
        }
    }
    progress.end();
    Ok(())
}

fn measure(
    group: &ProcessGroup,
    pair: &mut Pair,
    (bytes, window): (usize, usize),
    count: usize,
    warmup: usize,
) -> Result<Flow> {
    let first = group.rank() == 0;
    pair.ping_pong(bytes, warmup, first)?;
    let mut times = pair.ping_pong(bytes, count, first)?;
    times.sort_unstable();
    let rounds = count as u64;
    pair.stream((bytes, window), warmup as u64, first, !first)?;
    let one_way = pair.stream((bytes, window), rounds, first, !first)?;
    pair.stream((bytes, window), warmup as u64, true, true)?;
    let both_ways = pair.stream((bytes, window), rounds, true, true)?;
    let rates = |time: Duration| Rates::new(count, bytes, time.as_secs_f64());
    Ok(Flow {
        bytes,
        window,
        iterations: count,
        latency_us: [quantile(&times, 0.0), quantile(&times, 0.5), quantile(&times, 0.99)].map(micros),
        one_way: rates(one_way),
        both_ways: rates(both_ways),
    })
}
