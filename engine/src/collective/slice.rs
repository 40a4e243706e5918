//! The work of lanes: reductions and copies, a slice at a time.

use std::{cell::Cell, ops::Range};

use smallvec::SmallVec;
use unisono_schedule::{Place, SLICE, Span, Step};

use super::{
    rounds::{ShowRounds, copy_slice},
    run::Run,
};
use crate::{
    comm::Core,
    memory::{self, Bytes, SpanError},
    request::{Operation, OutputAccess},
    stop::Stop,
};

/// The bytes that are reduced at once, one after the other.
pub(super) type Contributions<'b> = SmallVec<[Bytes<'b>; 16]>;

impl Run {
    /// Reduces or copies a slice on one lane whose step does that: the lane that did so last, or else the next one. Returns the number
    /// of bytes; `None` if there is no such lane.
    pub(crate) fn work(&mut self, core: &mut Core<'_>) -> Result<Option<usize>, Stop> {
        let (lanes, first) = (self.lanes.len(), self.working);
        let slices = self.rounds.as_ref().is_some_and(ShowRounds::copies_slices);
        let work = |lane: usize| match self.lanes[lane].step {
            Some(step @ Step::Show { shown }) if slices && self.lanes[lane].begun => {
                Some((lane, step, Span { len: shown.len(), ..shown.first }))
                    .filter(|_| self.lanes[lane].done < shown.len())
            }
            Some(step @ (Step::Reduce { into, .. } | Step::Fold { into, .. } | Step::Copy { into, .. })) => {
                Some((lane, step, into))
            }
            _ => None,
        };
        let found = match lanes {
            1 => work(0),
            _ => (first..lanes).chain(0..first).find_map(work),
        };
        let Some((lane, step, into)) = found else { return Ok(None) };
        let before = self.lanes[lane].done;
        self.slice(core, lane, step, into)?;
        let now = self.lanes[lane].done;
        // A step that shows elements ends when it has published them.
        if now >= into.len && !matches!(step, Step::Show { .. }) {
            #[cfg(debug_assertions)]
            core.trace(lane, Some(step));
            self.finish(lane);
        }
        self.working = lane;
        Ok(Some((now - before) * self.operation.plan.size))
    }

    /// Does a slice of a step.
    fn slice(&mut self, core: &mut Core<'_>, lane: usize, step: Step, into: Span) -> Result<(), Stop> {
        if let Step::Show { shown } = step {
            self.lanes[lane].done = copy_slice(core, &self.operation, &shown, self.lanes[lane].done)?;
            return Ok(());
        }
        let core = &*core;
        // Some memory is borrowed to be read only. A copy of a span onto itself writes nothing.
        let stays = |from: Span| from == Span { place: Place::Input, ..into };
        let fixed = |place| {
            place == Place::Input || place == Place::Output && self.operation.access == OutputAccess::Nobody
        };
        match step {
            // If the input is put aside, the elements of such a copy already lie in the output.
            Step::Copy { from, .. } if stays(from) && self.operation.access == OutputAccess::AllAfterCopy => {
                self.lanes[lane].done = into.len;
                return Ok(());
            }
            Step::Copy { from, .. } if stays(from) => {}
            _ if into.len > 0 && fixed(into.place) => {
                return Err(core.stop(format!("{step:?} writes to memory that is only read")));
            }
            _ => {}
        }
        let size = self.operation.plan.size;
        let mut done = self.lanes[lane].done;
        let end = into.len.min(done + SLICE / size);
        let near = Cell::new(0);
        while done < end {
            let part = |span: &Span| self.part(core, lane, span, done..end, &near);
            done += self.portion(core, &step, &part)? / size;
        }
        self.lanes[lane].done = done;
        Ok(())
    }

    /// Reduces or copies the beginnings of the parts that `part` returns, as far as each is contiguous. Returns the number of bytes,
    /// which is not 0, since no part is empty.
    fn portion<'c>(
        &self,
        core: &Core<'_>,
        step: &Step,
        part: &dyn Fn(&Span) -> Result<Bytes<'c>, Stop>,
    ) -> Result<usize, Stop> {
        let kernel = &self.operation.plan.kernel;
        let (len, result) = match step {
            Step::Reduce { a, b, into, last } => {
                let [a, b, into] = shortest([part(a)?, part(b)?, part(into)?]);
                let reduced = memory::reduce(kernel, a, b, into);
                let result = match *last && self.operation.plan.average {
                    true => reduced.and_then(|()| memory::divide(kernel, into, self.operation.group.ranks)),
                    false => reduced,
                };
                (into.len, result)
            }
            Step::Fold { own, at, into } => {
                let landed = |rank| Span { offset: *at, ..Span::landed(rank, into.len) };
                let of = |rank| if rank == core.comm.identity.me { *own } else { landed(rank) };
                let mut all = Contributions::new();
                for rank in 0..self.operation.group.ranks {
                    all.push(part(&of(rank))?);
                }
                all.push(part(into)?);
                cut(&mut all);
                let into = all.pop().ok_or_else(|| core.stop("a fold without a target".to_owned()))?;
                (into.len, fold(&self.operation, &all, into))
            }
            Step::Copy { from, into } => {
                let [from, into] = shortest([part(from)?, part(into)?]);
                (into.len, memory::copy(from, into))
            }
            _ => return Err(core.stop(format!("{step:?} neither reduces nor copies"))),
        };
        result.map(|()| len).map_err(|error| self.broken(core, *step, &error))
    }

    /// Some of a span's elements, as far as they are contiguous. `near` keeps the piece that they lie in for the next call.
    fn part<'c>(
        &'c self,
        core: &'c Core<'_>,
        lane: usize,
        span: &Span,
        elements: Range<usize>,
        near: &Cell<usize>,
    ) -> Result<Bytes<'c>, Stop> {
        let (offset, len) = (span.offset + elements.start, elements.len());
        let Some(pieces) = self.operation.scattered(span) else {
            return self.bytes(core, lane, Span { offset, len, ..*span });
        };
        let size = self.operation.plan.size;
        let stretch = pieces.stretch(offset * size, len * size, near);
        stretch.map_err(|error| core.stop(format!("a step's span {span:?}: {error}")))
    }
}

/// Reduces contributions in the order of ranks.
pub(super) fn fold(
    operation: &Operation,
    contributions: &[Bytes<'_>],
    into: Bytes<'_>,
) -> Result<(), SpanError> {
    match *contributions {
        // The order of two contributions makes no difference.
        [a, b] if !operation.plan.average && !operation.plan.signature.is_ordered() => {
            memory::reduce(&operation.plan.kernel, a, b, into)
        }
        _ => memory::total(&operation.plan.kernel, contributions, into),
    }
}

/// The parts, cut to the length of the shortest.
fn shortest<const N: usize>(mut parts: [Bytes<'_>; N]) -> [Bytes<'_>; N] {
    cut(&mut parts);
    parts
}

fn cut(parts: &mut [Bytes<'_>]) {
    let len = parts.iter().map(|part| part.len).min().unwrap_or(0);
    for part in parts {
        *part = part.part(0, len);
    }
}
