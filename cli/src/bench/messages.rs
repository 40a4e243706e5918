//! `unisono bench send_recv`: messages between pairs of ranks, as in osu_multi_lat and osu_mbw_mr: rank i of the first half
//! and rank i of the second, all pairs at once. The last of an odd number of ranks does nothing.

use std::time::Instant;

use unisono::{ProcessGroup, Work, reduce::ReduceOp};

use super::{
    Bench, Result,
    collective::{SECONDS, iterations},
    data::{self, OperandMemory, Sample, with_memory},
    ranks::partner,
    report::BenchReport,
    room_for,
    rows::{Flow, MessageFigures, Rates, micros},
};

/// Messages in flight in each direction in bandwidth tests: `WINDOW`, but of large messages no more than `WINDOW_BYTES`
/// together, and at least two.
const WINDOW: usize = 64;
const WINDOW_BYTES: usize = 16 << 20;

/// The tags of the messages that are measured, and of the one that acknowledges a window.
const DATA: u32 = 0;
const ARRIVED: u32 = 1;

/// Measures every size of the sweep. Returns the number of wrong elements on all ranks.
pub(super) fn sweep(group: &ProcessGroup, bench: &Bench, report: &mut BenchReport<'_>) -> Result<u64> {
    let size = bench.dtype.size();
    let mut sizes: Vec<usize> = bench.sizes().iter().map(|bytes| bytes / size * size).collect();
    sizes.dedup();
    bench.flows(report, &sizes, |bytes, window| {
        let window = window.unwrap_or_else(|| (WINDOW_BYTES / bytes.max(1)).clamp(2, WINDOW));
        with_memory!(bench, M => measure::<M>(group, bench, bytes, window))
    })
}

fn measure<M: OperandMemory>(
    group: &ProcessGroup,
    bench: &Bench,
    bytes: usize,
    window: usize,
) -> Result<Flow> {
    let count = bytes / bench.dtype.size();
    let pair = partner(group.rank(), group.size());
    let mut pair =
        pair.map(|(partner, first)| Pair::new(group, partner, first, count, window)).transpose()?;
    // Acts on this rank's pair; a rank without one does nothing.
    let mut each = |act: &mut dyn FnMut(&mut Pair<'_, M>) -> Result<()>| pair.as_mut().map_or(Ok(()), act);

    each(&mut |pair| (0..bench.asked.warmup).try_for_each(|_| pair.ping_pong()))?;
    let iters = iterations(group, bench, SECONDS, || each(&mut |pair| pair.ping_pong()))?;

    let mut times = room_for(iters)?;
    group.barrier()?;
    each(&mut |pair| {
        for _ in 0..iters {
            let begun = Instant::now();
            pair.ping_pong()?;
            if pair.first {
                times.push(begun.elapsed().as_secs_f64() / 2.0);
            }
        }
        Ok(())
    })?;
    let (mut latencies, _) = group.gather_v(&times, 0)?;
    latencies.sort_unstable_by(f64::total_cmp);

    // The slowest pair's time for all messages, one way and both ways.
    let mut seconds = [0.0; 2];
    for (both, seconds) in [false, true].into_iter().zip(&mut seconds) {
        each(&mut |pair| pair.stream(bench.asked.warmup as usize, both))?;
        group.barrier()?;
        let begun = Instant::now();
        each(&mut |pair| pair.stream(iters, both))?;
        *seconds = begun.elapsed().as_secs_f64();
    }
    group.all_reduce(&mut seconds, ReduceOp::Max)?;

    let mut wrong = [0];
    each(&mut |pair| {
        pair.spoil();
        pair.stream(pair.into.len(), true)?;
        wrong[0] += pair.wrong();
        pair.spoil();
        pair.ping_pong()?;
        wrong[0] += pair.into.first().map_or(0, |into| data::wrong_copied(pair.partner, 0, into));
        Ok(())
    })?;
    group.all_reduce(&mut wrong, ReduceOp::Sum)?;
    let pairs = group.size() / 2;
    let [one_way, both_ways] = seconds.map(|seconds| Rates::new(iters * pairs, bytes, seconds));
    let messages = Some(MessageFigures { count, dtype: bench.dtype, pairs, wrong: wrong[0] });
    let latency_us = micros(&latencies);
    Ok(Flow { bytes, window, iterations: iters, latency_us, one_way, both_ways, messages })
}

/// One rank of a pair, and the memory that it sends and receives.
struct Pair<'g, M> {
    group: &'g ProcessGroup,
    partner: usize,
    first: bool,
    /// The messages of a window.
    from: Vec<M>,
    into: Vec<M>,
}

impl<'g, M: OperandMemory> Pair<'g, M> {
    fn new(
        group: &'g ProcessGroup,
        partner: usize,
        first: bool,
        count: usize,
        window: usize,
    ) -> Result<Self> {
        let windowful = || (0..window).map(|_| M::zeros(group, count)).collect::<Result<Vec<M>>>();
        let (mut from, into) = (windowful()?, windowful()?);
        // Each message of a window has other contents, so that none passes for another.
        from.iter_mut().enumerate().for_each(|(k, data)| data::fill_copied(group.rank(), k, data));
        Ok(Self { group, partner, first, from, into })
    }

    /// Sends a message and receives one, or the other way round.
    fn ping_pong(&mut self) -> Result<()> {
        let (Some(from), Some(into)) = (self.from.first(), self.into.first_mut()) else { return Ok(()) };
        if self.first {
            self.group.send(from, (self.partner, DATA))?;
        }
        self.group.recv(into, (self.partner, DATA))?;
        if !self.first {
            self.group.send(from, (self.partner, DATA))?;
        }
        Ok(())
    }

    /// Sends `count` messages, window by window: from the first of the pair, or from both. Returns when they have arrived.
    fn stream(&mut self, count: usize, both: bool) -> Result<()> {
        let (sends, receives) = (self.first || both, !self.first || both);
        let mut left = count;
        while left > 0 {
            let window = left.min(self.from.len());
            left -= window;
            let group = self.group;
            let mut coming = Vec::new();
            if receives {
                let begin = |into| group.begin().recv(into, (self.partner, DATA));
                coming = self.into.drain(..window).map(begin).collect::<unisono::Result<_>>()?;
            }
            let mut going = Vec::new();
            if sends {
                let begin = |from| group.begin().send(from, (self.partner, DATA));
                going = self.from.drain(..window).map(begin).collect::<unisono::Result<_>>()?;
            }
            for work in going {
                self.from.push(Work::wait(work)?);
            }
            for work in coming {
                self.into.push(Work::wait(work)?.0);
            }
            // Each message of a window keeps its place.
            self.from.rotate_right(if sends { window } else { 0 });
            self.into.rotate_right(if receives { window } else { 0 });
            // If both send, a rank that has received a window knows that the other has finished as much.
            if !both {
                if self.first {
                    group.recv(&mut [0_u8; 0], (self.partner, ARRIVED))?;
                } else {
                    group.send(&[0_u8; 0], (self.partner, ARRIVED))?;
                }
            }
        }
        Ok(())
    }

    /// Overwrites the received data, so that it does not pass for the next.
    fn spoil(&mut self) {
        self.into.iter_mut().for_each(|into| into.fill(M::Element::SPOILT));
    }

    /// The number of wrong elements.
    fn wrong(&self) -> u64 {
        self.into.iter().enumerate().map(|(k, into)| data::wrong_copied(self.partner, k, into)).sum()
    }
}
