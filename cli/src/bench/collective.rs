//! Measures a collective. Each sample is the slowest rank's time of one call after a barrier; the mean is that of calls back to
//! back, as in nccl-tests. Then the result is checked.

use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};
use unisono::{ProcessGroup, reduce::ReduceOp};
use unisono_schedule::{Collective, Job};
use unisono_transport::ofi::Options;

use super::{
    Bench, Result,
    check::RankPart,
    compute::Crew,
    data::{OperandMemory, with_memory},
    operands::CallMemory,
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
    options: &Options,
    report: &mut BenchReport,
) -> Result<u64> {
    let crew = if bench.asked.overlap { Some(Crew::new(group)?) } else { None };
    if crew.is_none() && !bench.asked.no_raw && report.raw.is_none() {
        report.raw = put_pair::bandwidth(group, options)?;
    }
    let (op, root) = (bench.op(), bench.root());
    let part = RankPart { collective, op, root, rank: group.rank(), ranks: group.size() };
    let sizes = if collective == Collective::Barrier { vec![0] } else { bench.sizes() };
    let progress = Progress::new(sizes.len(), group.rank() == 0);
    let mut wrong = 0;
    let mut last = None;
    for bytes in sizes {
        let run = SizeRun { group, bench, part, bytes, in_place: false, progress: &progress };
        let count = run.count();
        // Several sizes may be the same number of elements.
        if last.replace(count) == Some(count) {
            continue;
        }
        progress.size(bytes);
        wrong += match &crew {
            Some(crew) => {
                let row = with_memory!(bench, M => run.overlap::<M>(count, crew))?;
                progress.done(|| report.overlap(&row));
                row.case.wrong
            }
            None => {
                let mut rows = Vec::new();
                for in_place in bench.forms() {
                    let run = SizeRun { in_place, ..run };
                    rows.push(with_memory!(bench, M => run.measure::<M>(count))?);
                }
                progress.done(|| report.collective(&rows));
                rows.iter().map(|row| row.case.wrong).sum()
            }
        };
        if !report.check(group)? {
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
    bytes: usize,
    in_place: bool,
    pub progress: &'a Progress,
}

impl SizeRun<'_> {
    /// The collective's count: the sweep's sizes are those of the whole vector.
    fn count(&self) -> usize {
        let elements = self.bytes / self.bench.dtype().size();
        match self.part.collective {
            Collective::Barrier => 0,
            collective if collective.has_blocks() => elements / self.group.size(),
            _ => elements,
        }
    }

    /// The numbers of elements of the input and of the output of rank `rank`.
    pub(super) fn lengths(&self, rank: usize, count: usize) -> Result<(usize, usize)> {
        let RankPart { collective, root, ranks, .. } = self.part;
        let root = if collective.has_root() { root } else { 0 };
        let job = Job { root, ..Job::new(collective, rank, ranks, count) };
        Ok(job.lengths().ok_or("the sizes overflow")?)
    }

    fn measure<M: OperandMemory>(&self, count: usize) -> Result<TimeRow> {
        let (group, bench, part) = (self.group, self.bench, self.part);
        let lengths = self.lengths(group.rank(), count)?;
        let zeros = |len| M::zeros(group, len);
        let mut operands: CallMemory<M> = CallMemory::new(&part, self.in_place, lengths, zeros)?;
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
        let case = self.case(count, operands.wrong(&part), iters)?;
        Ok(TimeRow { case, samples, mean: mean[0], cpu: cpu[0], memory: group.usage().memory })
    }

    /// The case of the report. `wrong` is the number of wrong elements on this rank; the case has that of all ranks.
    pub(super) fn case(&self, count: usize, wrong: u64, iterations: usize) -> Result<MeasuredCase> {
        let (group, bench, collective) = (self.group, self.bench, self.part.collective);
        let mut wrong = [wrong];
        group.all_reduce(&mut wrong, ReduceOp::Sum)?;
        let (inputs, outputs) = self.lengths(bench.root(), count)?;
        Ok(MeasuredCase {
            collective,
            algorithm: group.choice(collective, count, bench.dtype())?.algorithm.name,
            bytes: inputs.max(outputs) * bench.dtype().size(),
            count,
            dtype: bench.dtype(),
            op: collective.reduces().then_some(bench.op()),
            root: collective.has_root().then_some(bench.root()),
            in_place: bench.is_in_place().map(|overlaps| overlaps && bench.asked.overlap || self.in_place),
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
