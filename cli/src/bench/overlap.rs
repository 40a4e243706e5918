//! `--overlap`: how much of a collective's time is hidden by computation, as in OSU's non-blocking benchmarks.
//!
//! For each size three times are measured, each the median over the calls of the slowest rank's time after a barrier: the
//! communication alone (started and waited for), the computation alone, which takes somewhat longer so that it can hide
//! all of it, and both (started, computed, waited for). The third less the second is the part that was not hidden. The
//! three are measured alternately, so that drift affects all of them alike.

use std::time::Instant;

use unisono::{ProcessGroup, Work, reduce::ReduceOp};
use unisono_schedule::{Collective, Job};

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
    pub(super) fn overlap<M: OperandMemory>(&self, crew: &Crew) -> Result<OverlapRow> {
        let (group, bench) = (self.group, self.bench);
        let (inputs, outputs) = self.part.lengths()?;
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

        let case = self.case(calls.wrong(|| Computation::Idle(length).run())?, iters)?;
        Ok(OverlapRow { case, idle, busy, threads: crew.threads() })
    }

    /// Times, in turn, a collective, computations of `length` seconds, and both together. The computations are a sleep and work on all
    /// cores.
    fn in_turn<'c, M: OperandMemory>(
        &self,
        calls: &mut Calls<'_, M>,
        crew: &'c Crew,
        length: f64,
        iters: usize,
    ) -> Result<(Times, Times)> {
        let group = self.group;
        let run = |computation: Computation<'c>| -> Result<_> {
            Ok((computation.lasting(group, length)?, room_for(iters)?, room_for(iters)?))
        };
        let mut runs = [run(Computation::Busy(crew, FIRST))?, run(Computation::Idle(length))?];
        let mut alone = room_for(iters)?;
        for done in 0..iters {
            self.progress.call(done, iters);
            for (computation, computed, both) in &mut runs {
                group.barrier()?;
                computed.push(computation.timed());
                both.push(calls.call(|| computation.run())?);
            }
            // This follows the sleep: if other processes need the cores, a thread that has just computed gets one late.
            alone.push(calls.call(|| ())?);
        }
        let communication = slowest(group, alone)?;
        let [busy, idle] = runs.map(|(_, computed, both)| -> Result<Times> {
            Ok(Times { communication, computation: slowest(group, computed)?, both: slowest(group, both)? })
        });
        Ok((idle?, busy?))
    }
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
        let (input, output) = self.memory()?;
        self.run.group.barrier()?;
        let begun = Instant::now();
        let begin = self.run.group.begin();
        let RankPart { op, job: Job { collective, root, .. } } = self.run.part;
        self.memory = Some(match collective {
            Collective::AllReduce => finish(begin.all_reduce((input, output), op)?, compute)?,
            Collective::Reduce => finish(begin.reduce((input, output), op, root)?, compute)?,
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

    /// The number of wrong elements on this rank after a call that is checked.
    fn wrong(&mut self, compute: impl FnOnce()) -> Result<u64> {
        let (input, mut output) = self.memory()?;
        self.run.part.spoil(&input, &mut output);
        self.memory = Some((input, output));
        self.call(compute)?;
        let (input, output) = self.memory()?;
        Ok(self.run.part.wrong(input.len(), &output))
    }
}

/// Computes while a call runs, and waits for it.
fn finish<M>(work: Work<M>, compute: impl FnOnce()) -> Result<M> {
    compute();
    Ok(work.wait()?)
}
