//! The results of one size.

use unisono::{dtype::Dtype, reduce::ReduceOp};
use unisono_schedule::Collective;

/// A collective of one size, and whether its result is right.
pub(super) struct MeasuredCase {
    pub collective: Collective,
    pub algorithm: &'static str,
    /// The size of the whole vector.
    pub bytes: usize,
    pub count: usize,
    pub dtype: Dtype,
    pub op: Option<ReduceOp>,
    pub root: Option<usize>,
    /// True if the call was in place; `None` if it has only one form.
    pub in_place: Option<bool>,
    /// The number of timed calls.
    pub iterations: usize,
    /// The number of wrong elements on all ranks.
    pub wrong: u64,
}

/// The times of a collective.
pub(super) struct TimeRow {
    pub case: MeasuredCase,
    /// The slowest rank's times of single calls, in seconds, in ascending order.
    pub samples: Vec<f64>,
    /// The mean time of calls back to back, in seconds.
    pub mean: f64,
    /// Processor time of all ranks together for one call, in seconds.
    pub cpu: f64,
    /// Bytes of registered memory on rank 0.
    pub memory: usize,
}

impl TimeRow {
    /// Processor seconds of all ranks for 10^9 bytes; 0 where there are none.
    pub(super) fn cpu_a_gigabyte(&self) -> f64 {
        if self.case.bytes == 0 { 0.0 } else { self.cpu / (self.case.bytes as f64 / 1e9) }
    }
}

/// How much of a collective is hidden by computations.
pub(super) struct OverlapRow {
    pub case: MeasuredCase,
    /// With a sleep, and with work on all cores.
    pub idle: Times,
    pub busy: Times,
    /// The number of threads that compute on rank 0.
    pub threads: usize,
}

/// The times of the collective alone, of a computation alone, and of both at once, in seconds.
pub(super) struct Times {
    pub communication: f64,
    pub computation: f64,
    pub both: f64,
}

impl Times {
    /// The percentage of the collective that the computation hides.
    pub(super) fn hidden(&self) -> f64 {
        let left = (self.both - self.computation) / self.communication.max(1e-9);
        (100.0 - 100.0 * left).clamp(0.0, 100.0)
    }
}

/// What only messages have, of all pairs together.
#[derive(Debug)]
pub(super) struct MessageFigures {
    pub count: usize,
    pub dtype: Dtype,
    pub pairs: usize,
    /// The number of wrong elements on all ranks.
    pub wrong: u64,
}

/// The bandwidth and rate in each direction, per second.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rates {
    /// 10^9 bytes.
    pub gigabytes: f64,
    /// Millions of puts or messages.
    pub millions: f64,
}

impl Rates {
    /// The rates of `count` messages of `bytes` bytes in this many seconds.
    pub(super) fn new(count: usize, bytes: usize, seconds: f64) -> Self {
        let rate = count as f64 / seconds.max(1e-9);
        Self { gigabytes: rate * bytes as f64 / 1e9, millions: rate / 1e6 }
    }
}

/// Messages or raw puts of one size.
#[derive(Debug, Default)]
pub(super) struct Flow {
    pub bytes: usize,
    /// The number under way at once, for the rates.
    pub window: usize,
    /// The number that was timed.
    pub iterations: usize,
    /// One way: least, median, 99th percentile.
    pub latency_us: [f64; 3],
    /// One way, and in each of both directions at once.
    pub one_way: Rates,
    pub both_ways: Rates,
    pub messages: Option<MessageFigures>,
}

/// The least, median and 99th percentile of seconds in ascending order, in microseconds.
pub(super) fn micros(sorted: &[f64]) -> [f64; 3] {
    [0.0, 0.5, 0.99].map(|q| quantile(sorted, q) * 1e6)
}

/// The value below which a fraction `q` of a sorted, non-empty list lies; 0 for an empty one.
#[allow(clippy::cast_possible_truncation, reason = "an index into the list")]
pub(crate) fn quantile(sorted: &[f64], q: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * q).round() as usize).copied().unwrap_or_default()
}

/// The median; 0 of an empty list.
pub(crate) fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_unstable_by(f64::total_cmp);
    quantile(&samples, 0.5)
}

/// The ratio of the bus bandwidth to the algorithm's bandwidth (nccl-tests, doc/PERFORMANCE.md).
pub(super) fn bus_factor(collective: Collective, ranks: usize) -> f64 {
    let share = (ranks as f64 - 1.0) / ranks as f64;
    match collective {
        Collective::AllReduce => 2.0 * share,
        collective if collective.has_blocks() => share,
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_members() {
        let sorted = [1.0, 2.0, 3.0, 4.0, 100.0];
        assert_eq!(quantile(&sorted, 0.0), 1.0);
        assert_eq!(quantile(&sorted, 0.5), 3.0);
        assert_eq!(quantile(&sorted, 0.99), 100.0);
        assert_eq!(quantile(&[], 0.5), 0.0);
    }

    #[test]
    fn what_is_hidden_is_a_percentage_of_the_communication() {
        let hidden = |communication, computation, both| Times { communication, computation, both }.hidden();
        assert_eq!(hidden(8.0, 10.0, 10.0), 100.0);
        assert_eq!(hidden(8.0, 10.0, 18.0), 0.0);
        assert_eq!(hidden(8.0, 10.0, 12.0), 75.0);
        // Noise may make both together faster than the computation alone, or slower than one after the other.
        assert_eq!(
            [hidden(8.0, 10.0, 9.0), hidden(8.0, 10.0, 20.0), hidden(0.0, 0.0, 0.0)],
            [100.0, 0.0, 100.0]
        );
    }

    #[test]
    fn bus_factors_are_those_of_nccl_tests() {
        assert_eq!(bus_factor(Collective::AllReduce, 4), 1.5);
        assert_eq!(bus_factor(Collective::AllGather, 4), 0.75);
        assert_eq!(bus_factor(Collective::AllToAll, 4), 0.75);
        assert_eq!(bus_factor(Collective::Reduce, 4), 1.0);
        assert_eq!(bus_factor(Collective::Broadcast, 4), 1.0);
    }
}
