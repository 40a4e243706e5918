//! `--overlap`: how much of a collective's time is hidden by computation, as in OSU's non-blocking benchmarks.
//!
//! For each size three times are measured, each the median over the calls of the slowest rank's time after a barrier: the
//! communication alone (started and waited for), the computation alone, which takes somewhat longer so that it can hide
//! all of it, and both (started, computed, waited for). The third less the second is the part that was not hidden. The
//! three are measured alternately, so that drift affects all of them alike.

use std::time::Instant;

use unisono::{ProcessGroup, Work, reduce::ReduceOp};
use unisono_schedule::Collective;

use super::{
    Result,
    check::RankPart,
    collective::{SECONDS, SizeRun, iterations},
    compute::{Computation, Crew, FIRST},
    data::OperandMemory,
    room_for,
    rows::{OverlapRow, Times, median},
};

/// The time of a round in calls: the call alone, the calibration (two calls and a sleep), and two computations, each alone and with a
/// call.
const ROUND: f64 = 9.0;

/// The length of a computation relative to the communication.
const LONGER: f64 = 1.1;

/// The most attempts, with longer and longer computations, if the communication lasts longer than the computation.
const TRIES: usize = 3;

impl SizeRun<'_> {
    /// Measures a size.
    pub(super) fn overlap<M: OperandMemory>(&self, count: usize, crew: &Crew) -> Result<OverlapRow> {
        let (group, bench) = (self.group, self.bench);
        let (inputs, outputs) = self.lengths(group.rank(), count)?;
        let outputs = if in_place(self.part.collective) { inputs } else { outputs };
        let (mut input, output) = (M::zeros(group, inputs)?, M::zeros(group, outputs)?);
        self.part.fill(&mut input);
        let mut calls = Calls { run: self, memory: Some((input, output)) };
        for _ in 0..bench.asked.warmup {
            calls.call(|| ())?;
        }
        let iters = iterations(group, bench, SECONDS / ROUND, || calls.call(|| ()).map(drop))?;

        // The second time is as in the measurement, after the ranks have slept.
        let mut length = 0.0;
        for pause in [false, true] {
            let mut alone = room_for(iters)?;
            for _ in 0..iters {
                if pause {
                    Computation::Idle(length).run();
                }
                alone.push(calls.call(|| ())?);
            }
            length = LONGER * slowest(group, alone)?;
        }
        // Between computations that keep the cores busy, a call may take longer than alone, and longer than the computation that is
        // to hide it.
        let mut tries = 0;
        let (idle, busy) = loop {
            let (idle, busy) = self.in_turn(&mut calls, crew, length, iters)?;
            tries += 1;
            if tries == TRIES || idle.communication <= idle.computation {
                break (idle, busy);
            }
            length = LONGER * idle.communication;
        };

        calls.spoil();
        calls.call(|| Computation::Idle(length).run())?;
        let case = self.case(count, calls.wrong()?, iters)?;
        Ok(OverlapRow { case, idle, busy, threads: crew.threads() })
    }

    /// Times, in turn, a collective, computations of `length` seconds, and both together. The computations are a sleep and work on all
    /// cores.
    fn in_turn<M: OperandMemory>(
        &self,
        calls: &mut Calls<'_, M>,
        crew: &Crew,
        length: f64,
        iters: usize,
    ) -> Result<(Times, Times)> {
        let group = self.group;
        let computations = [
            Computation::Busy(crew, FIRST).lasting(group, length)?,
            Computation::Idle(length).lasting(group, length)?,
        ];

        let mut alone = room_for(iters)?;
        let mut computed = [room_for(iters)?, room_for(iters)?];
        let mut both = [room_for(iters)?, room_for(iters)?];
        for done in 0..iters {
            self.progress.call(done, iters);
            for (computation, (computed, both)) in computations.iter().zip(computed.iter_mut().zip(&mut both))
            {
                group.barrier()?;
                computed.push(computation.timed());
                both.push(calls.call(|| computation.run())?);
            }
            // This follows the sleep: if other processes need the cores, a thread that has just computed gets one late.
            alone.push(calls.call(|| ())?);
        }
        let communication = slowest(group, alone)?;
        let times = |computed, both| -> Result<Times> {
            Ok(Times { communication, computation: slowest(group, computed)?, both: slowest(group, both)? })
        };
        let ([busy_computed, idle_computed], [busy_both, idle_both]) = (computed, both);
        Ok((times(idle_computed, idle_both)?, times(busy_computed, busy_both)?))
    }
}

pub(super) const fn in_place(collective: Collective) -> bool {
    matches!(collective, Collective::AllReduce | Collective::Reduce)
}

/// The median of the slowest rank's times, in seconds; the same on all ranks.
fn slowest(group: &ProcessGroup, mut samples: Vec<f64>) -> Result<f64> {
    group.all_reduce(&mut samples, ReduceOp::Max)?;
    Ok(median(samples))
}

/// Calls of a collective. Its input and output belong to the call while it runs.
struct Calls<'r, M> {
    run: &'r SizeRun<'r>,
    memory: Option<(M, M)>,
}

impl<M: OperandMemory> Calls<'_, M> {
    /// After a barrier, begins the collective, computes, and waits for it. Returns how many seconds that took.
    fn call(&mut self, compute: impl FnOnce()) -> Result<f64> {
        let (input, mut output) = self.memory()?;
        if in_place(self.run.part.collective) {
            // Repeated reductions of a result would overflow, or give numbers that are slow to compute with.
            output.copy_from_slice(&input);
        }
        // The barrier follows the copy, which does not end at the same time on all ranks.
        self.run.group.barrier()?;
        let begun = Instant::now();
        let (begin, RankPart { collective, op, root, .. }) = (self.run.group.begin(), self.run.part);
        self.memory = Some(match collective {
            Collective::AllReduce => (input, finish(begin.all_reduce(output, op)?, compute)?),
            Collective::Reduce => (input, finish(begin.reduce(output, op, root)?, compute)?),
            Collective::Broadcast => (input, finish(begin.broadcast(output, root)?, compute)?),
            Collective::ReduceScatter => finish(begin.reduce_scatter((input, output), op)?, compute)?,
            Collective::AllGather => finish(begin.all_gather((input, output))?, compute)?,
            Collective::Gather => finish(begin.gather((input, output), root)?, compute)?,
            Collective::Scatter => finish(begin.scatter((input, output), root)?, compute)?,
            Collective::AllToAll => finish(begin.all_to_all((input, output))?, compute)?,
            Collective::Barrier => {
                finish(begin.barrier()?, compute)?;
                (input, output)
            }
        });
        Ok(begun.elapsed().as_secs_f64())
    }

    fn memory(&mut self) -> Result<(M, M)> {
        Ok(self.memory.take().ok_or("the memory was lost with a call that failed")?)
    }

    fn spoil(&mut self) {
        if let Some((input, output)) = &mut self.memory {
            self.run.part.spoil(input, output);
        }
    }

    /// The number of wrong elements on this rank.
    fn wrong(&mut self) -> Result<u64> {
        let (input, output) = self.memory()?;
        let part = self.run.part;
        let no_output = part.collective == Collective::Reduce && part.rank != part.root;
        Ok(if no_output { 0 } else { part.wrong(input.len(), &output) })
    }
}

/// Computes while a call runs, and waits for it.
fn finish<M>(work: Work<M>, compute: impl FnOnce()) -> Result<M> {
    compute();
    Ok(work.wait()?)
}
