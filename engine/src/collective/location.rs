//! Where the elements of a step lie, and the work on them.

use std::{cell::Cell, ops::Range};

use smallvec::SmallVec;
use unisono_schedule::{Place, Rank, Span, Step};
use unisono_transport::Region;

use crate::{
    comm::Core,
    memory::{self, Bytes, Operand, SpanError},
    request::{Operation, OutputAccess},
    stop::Stop,
};

/// Where the elements of a span lie, from a byte on.
#[derive(Clone, Copy)]
pub(super) enum Location<'c> {
    Operand(&'c Operand, usize),
    /// Scratch, a slot, or memory of another rank.
    Region(&'c Region, usize),
}

impl<'c> Location<'c> {
    /// Their first bytes, as far as they are contiguous: at least one, and at most `most`. `near` keeps the piece that they lie in for the
    /// next call.
    #[inline]
    fn stretch(self, most: usize, near: &Cell<usize>) -> Result<Bytes<'c>, SpanError> {
        match self {
            Self::Operand(Operand { pieces: Some(pieces), .. }, at) => pieces.stretch(at, most, near),
            one => one.together(most),
        }
    }

    /// These bytes of memory in one piece; an error if it is several pieces.
    #[inline]
    fn together(self, bytes: usize) -> Result<Bytes<'c>, SpanError> {
        match self {
            Self::Region(region, at) => Bytes::new(region, at, bytes),
            // Empty if there are pieces.
            Self::Operand(Operand { memory, .. }, at) => memory.bytes(at, bytes),
        }
    }

    /// The elements that begin `bytes` after these.
    fn after(self, bytes: usize) -> Self {
        match self {
            Self::Operand(operand, at) => Self::Operand(operand, at + bytes),
            Self::Region(region, at) => Self::Region(region, at + bytes),
        }
    }

    /// Copies them into contiguous memory.
    pub(super) fn copy_to(self, into: Bytes<'_>) -> Result<(), SpanError> {
        match self {
            Self::Region(region, at) => memory::copy(Bytes::new(region, at, into.len)?, into),
            Self::Operand(operand, at) => operand.copy_to(at, into),
        }
    }
}

/// The bytes that are reduced at once, one after the other.
type Contributions<'b> = SmallVec<[Bytes<'b>; 16]>;

/// Does these elements of a step that reduces or copies, on rank `me`. `locate` finds the elements of a span.
#[inline]
pub(super) fn compute<'c>(
    operation: &Operation,
    me: Rank,
    step: &Step,
    elements: Range<usize>,
    locate: impl Fn(Span) -> Result<Location<'c>, SpanError>,
) -> Result<(), SpanError> {
    // There may be no place for no elements.
    if elements.is_empty() {
        return Ok(());
    }
    let size = operation.plan.size;
    if let Step::Copy { from, into } = step {
        let at =
            |span: &Span| locate(Span { offset: span.offset + elements.start, len: elements.len(), ..*span });
        return copy(at(from)?, at(into)?, elements.len() * size);
    }
    let (near, mut done) = (Cell::new(0), elements.start);
    while done < elements.end {
        let len = elements.end - done;
        let (locate, near) = (&locate, &near);
        let part = move |span: &Span| {
            locate(Span { offset: span.offset + done, len, ..*span })?.stretch(len * size, near)
        };
        let bytes = reduce(operation, me, step, part)?;
        // A division takes as long as all else with a few elements.
        done += if bytes == len * size { len } else { bytes / size };
    }
    Ok(())
}

/// Copies bytes.
#[inline]
fn copy(from: Location<'_>, into: Location<'_>, bytes: usize) -> Result<(), SpanError> {
    match (from.together(bytes), into.together(bytes)) {
        (Ok(from), Ok(into)) => memory::copy(from, into),
        _ => copy_pieces(from, into, bytes),
    }
}

#[inline(never)] // A copy of one piece needs none of it.
fn copy_pieces(from: Location<'_>, into: Location<'_>, bytes: usize) -> Result<(), SpanError> {
    let (near_from, near_into, mut done) = (Cell::new(0), Cell::new(0), 0);
    while done < bytes {
        let from = from.after(done).stretch(bytes - done, &near_from)?;
        let into = into.after(done).stretch(from.len, &near_into)?;
        memory::copy(from.part(0, into.len), into)?;
        done += into.len;
    }
    Ok(())
}

/// Reduces the beginnings of the parts that `part` returns, as far as each is contiguous. Returns the number of bytes, which is not 0,
/// since no part is empty.
#[inline(never)] // Its frame is large, and copies need none.
fn reduce<'c>(
    operation: &Operation,
    me: Rank,
    step: &Step,
    part: impl Fn(&Span) -> Result<Bytes<'c>, SpanError>,
) -> Result<usize, SpanError> {
    let (kernel, average, ranks) = (&operation.plan.kernel, operation.plan.average, operation.ranks);
    match step {
        Step::Reduce { a, b, into, last } => {
            let [a, b, into] = shortest([part(a)?, part(b)?, part(into)?]);
            memory::reduce(kernel, a, b, into)?;
            if *last && average {
                memory::divide(kernel, into, ranks)?;
            }
            Ok(into.len)
        }
        Step::Fold { own, at, into } => {
            let landed = |rank| Span { offset: *at, ..Span::landed(rank, into.len) };
            let of = |rank| part(&if rank == me { *own } else { landed(rank) });
            // The order of two contributions makes no difference.
            if ranks == 2 && !average && !operation.plan.ordered {
                let [a, b, into] = shortest([of(0)?, of(1)?, part(into)?]);
                memory::reduce(kernel, a, b, into)?;
                return Ok(into.len);
            }
            let mut all = Contributions::new();
            for rank in 0..ranks {
                all.push(of(rank)?);
            }
            all.push(part(into)?);
            cut(&mut all);
            let Some(into) = all.pop() else { return Err(SpanError::Step) };
            memory::total(kernel, &all, into)?;
            Ok(into.len)
        }
        _ => Err(SpanError::Step),
    }
}

/// Checks that a step does not write to memory that is borrowed to be read only. A copy of a span onto itself writes nothing.
pub(super) fn check_writes(operation: &Operation, step: &Step, into: Span) -> Result<(), SpanError> {
    let fixed = match into.place {
        Place::Input => true,
        Place::Output => operation.access == OutputAccess::Nobody,
        Place::Scratch | Place::Landed(_) => false,
    };
    if fixed && into.len > 0 && !stays(step) { Err(SpanError::Fixed) } else { Ok(()) }
}

/// True if a step copies elements of the input to the same place of the output.
pub(super) fn stays(step: &Step) -> bool {
    matches!(step, Step::Copy { from, into } if *from == Span { place: Place::Input, ..*into })
}

/// Why the engine stops at a step.
#[cold]
pub(super) fn broken(core: &Core<'_>, operation: &Operation, step: &Step, error: &SpanError) -> Stop {
    core.stop(format!("{} {step:?}: {error}", operation.plan.signature.call()))
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
