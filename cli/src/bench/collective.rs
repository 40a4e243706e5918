//! Measures a collective. Each sample is the slowest rank's time of one call after a barrier; the mean is that of calls back to
//! back, as in nccl-tests. Then the result is checked.

use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};
use unisono::{ProcessGroup, reduce::ReduceOp};
use unisono_schedule::{Collective, Job};

use super::{
    Bench, Result,
    check::RankPart,
    compute::Crew,
    data::{OperandMemory, with_memory},
    operands::{CallMemory, has_both},
    progress::Progress,
    put_pair,
    report::BenchReport,
    room_for,
    rows::{MeasuredCase, TimeRow},
};

/// Seconds to spend on a size if the number of calls is not given.
pub(super) const SECONDS: f64 = 0.25;

/// Measures every size of the sweep. Returns the number of wrong elements on all ranks.
pub(super) fn sweep(
    group: &ProcessGroup,
    bench: &Bench,
    collective: Collective,
    report: &mut BenchReport<'_>,
) -> Result<u64> {
    let crew = if bench.asked.overlap { Some(Crew::new(group)?) } else { None };
    if crew.is_none() && !bench.asked.no_raw && report.raw.is_none() {
        report.raw = put_pair::bandwidth(group)?;
    }
    let (rank, ranks) = (group.rank(), group.size());
    let sizes = if collective == Collective::Barrier { vec![0] } else { bench.sizes() };
    let progress = Progress::new(sizes.len(), group.rank() == 0);
    let mut wrong = 0;
    let mut last = None;
    for bytes in sizes {
        // The sizes are those of the whole vector.
        let count = match bytes / bench.dtype.size() {
            elements if collective.has_blocks() => elements / ranks,
            elements => elements,
        };
        // Several sizes may be the same number of elements.
        if last.replace(count) == Some(count) {
            continue;
        }
        progress.size(bytes);
        let job = Job { root: bench.root, ..Job::new(collective, rank, ranks, count) };
        let part = RankPart { job, op: bench.op };
        let run = SizeRun { group, bench, part, in_place: false, progress: &progress };
        wrong += match &crew {
            Some(crew) => {
                let row = with_memory!(bench, M => run.overlap::<M>(crew))?;
                progress.done(|| report.overlap(&row));
                row.case.wrong
            }
            None => {
                let mut rows = Vec::new();
                for in_place in bench.forms() {
                    let run = SizeRun { in_place, ..run };
                    rows.push(with_memory!(bench, M => run.measure::<M>())?);
                }
                progress.done(|| report.collective(&rows));
                rows.iter().map(|row| row.case.wrong).sum()
            }
        };
        if !report.check()? {
            break;
        }
    }
    progress.end();
    Ok(wrong)
}

/// A size of a collective.
#[derive(Clone, Copy)]
pub(super) struct SizeRun<'a> {
    pub group: &'a ProcessGroup,
    pub bench: &'a Bench,
    /// This rank's part, which makes the input and checks the output.
    pub part: RankPart,
    in_place: bool,
    pub progress: &'a Progress,
}

impl SizeRun<'_> {
    fn measure<M: OperandMemory>(&self) -> Result<TimeRow> {
        let (group, bench, part) = (self.group, self.bench, self.part);
        let zeros = |len| M::zeros(group, len);
        let mut operands: CallMemory<M> = CallMemory::new(&part, self.in_place, zeros)?;
        for _ in 0..bench.asked.warmup {
            operands.call(group, &part)?;
        }
        let iters = iterations(group, bench, SECONDS, || operands.call(group, &part))?;

        let mut samples = room_for(iters)?;
        for done in 0..iters {
            self.progress.call(done, iters);
            group.barrier()?;
            let begun = Instant::now();
            operands.call(group, &part)?;
            samples.push(begun.elapsed().as_secs_f64());
        }
        group.all_reduce(&mut samples, ReduceOp::Max)?;
        samples.sort_unstable_by(f64::total_cmp);

        group.barrier()?;
        let (cpu, begun) = (cpu_seconds(), Instant::now());
        for _ in 0..iters {
            operands.call(group, &part)?;
        }
        let mut mean = [begun.elapsed().as_secs_f64() / iters as f64];
        let mut cpu = [(cpu_seconds() - cpu) / iters as f64];
        group.all_reduce(&mut mean, ReduceOp::Max)?;
        group.all_reduce(&mut cpu, ReduceOp::Sum)?;

        operands.prepare(&part);
        operands.call(group, &part)?;
        let case = self.case(operands.wrong(&part), iters)?;
        Ok(TimeRow { case, samples, mean: mean[0], cpu: cpu[0], memory: group.usage().memory })
    }

    /// The case of the report. `wrong` is the number of wrong elements on this rank; the case has that of all ranks.
    pub(super) fn case(&self, wrong: u64, iterations: usize) -> Result<MeasuredCase> {
        let (group, RankPart { job, op }) = (self.group, self.part);
        let (Job { collective, count, root, .. }, dtype) = (job, self.bench.dtype);
        let mut wrong = [wrong];
        group.all_reduce(&mut wrong, ReduceOp::Sum)?;
        let (inputs, outputs) = RankPart { job: Job { rank: root, ..job }, op }.lengths()?;
        Ok(MeasuredCase {
            collective,
            algorithm: group.choice(collective, count, dtype)?.algorithm.name,
            bytes: inputs.max(outputs) * dtype.size(),
            count,
            dtype,
            op: collective.reduces().then_some(op),
            root: collective.has_root().then_some(root),
            in_place: has_both(collective).then_some(self.in_place),
            iterations,
            wrong: wrong[0],
        })
    }
}

/// The number of calls to time: the given one, or as many as take `seconds` on the slowest rank. The same on all ranks.
pub(super) fn iterations(
    group: &ProcessGroup,
    bench: &Bench,
    seconds: f64,
    mut call: impl FnMut() -> Result<()>,
) -> Result<usize> {
    if let Some(iters) = bench.asked.iters {
        return Ok(iters as usize);
    }
    group.barrier()?;
    let begun = Instant::now();
    for _ in 0..3 {
        call()?;
    }
    let mut each = [begun.elapsed().as_secs_f64() / 3.0];
    group.all_reduce(&mut each, ReduceOp::Max)?;
    #[allow(clippy::cast_possible_truncation, reason = "clamped")]
    Ok((seconds / each[0].max(1e-9)).clamp(5.0, 2000.0) as usize)
}

/// Processor time that this process has used, in seconds.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
