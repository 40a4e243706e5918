//! Runs an operation of the direct algorithm in one shot, through [shared slots](crate::engine::comm::Sharing): each rank writes its
//! contribution to its own slot once, and reads those of the others in place. There is no message.

use std::cell::Cell;

use smallvec::SmallVec;
use unisono_schedule::{Collective, Rank};
use unisono_transport::Region;

use crate::{
    buffer::{self, Bytes, Operand, SpanError},
    engine::{
        access,
        comm::{Comm, Core, Sharing},
        request::Operation,
        stop::Stop,
        wire::{OperationInfo, slots},
    },
};

/// An operation in one shot.
pub(crate) struct OneShot {
    collective: Collective,
    stage: Stage,
    sources: Sources,
    /// How many of the sources' contributions are there, from the first on.
    there: usize,
}

/// The ranks whose contributions a rank needs: those that its schedule takes messages from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sources {
    first: Rank,
    end: Rank,
    /// This rank, which is none of them.
    me: Rank,
}

impl Sources {
    fn of(collective: Collective, (me, ranks): (Rank, usize), root: Rank) -> Self {
        let (first, end) = match collective {
            Collective::Broadcast | Collective::Scatter => (root, root + usize::from(me != root)),
            Collective::Reduce | Collective::Gather if me != root => (0, 0),
            _ => (0, ranks),
        };
        Self { first, end, me }
    }

    /// Those from number `from` on, in ascending order.
    fn from(self, from: usize) -> impl Iterator<Item = Rank> {
        (self.first..self.end).filter(move |&rank| rank != self.me).skip(from)
    }

    fn is_empty(self) -> bool {
        self.from(0).next().is_none()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It is being found out whether the ranks share slots.
    Opening,
    /// Another rank has not entered the operation before.
    Entering,
    /// This rank has published operation `number`, and waits for contributions.
    Waiting { number: u64 },
}

/// The bytes of each rank that are reduced.
pub(super) type Ranks<'b> = SmallVec<[Bytes<'b>; 16]>;

/// What a pass over it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passed {
    Ended,
    Moved,
    Idle,
    /// The ranks do not share slots, or not all memory is mapped: the schedule must run.
    NoSlots,
}

impl OneShot {
    /// Begins an operation, if it is to be one.
    pub(super) fn begin(comm: &Comm, operation: &Operation) -> Option<Self> {
        let collective = operation.one_shot?;
        if !comm.shared.may_share() {
            return None;
        }
        let root = operation.signature.root as usize;
        let sources = Sources::of(collective, (comm.me, operation.ranks), root);
        let stage = if comm.shared.is_open() { Stage::Entering } else { Stage::Opening };
        Some(Self { collective, stage, sources, there: 0 })
    }

    /// Whether the ranks are known to share slots.
    pub(super) fn is_open(&self) -> bool {
        self.stage != Stage::Opening
    }

    /// Does what can be done now.
    pub(super) fn pass(&mut self, core: &mut Core<'_>, operation: &Operation) -> Result<Passed, Stop> {
        if self.stage == Stage::Opening {
            match core.open_shared()? {
                Sharing::Yes => self.stage = Stage::Entering,
                Sharing::Opening => return Ok(Passed::Idle),
                Sharing::No => return Ok(Passed::NoSlots),
            }
        }
        if self.stage == Stage::Entering {
            if core.comm.shared.behind().next().is_some() {
                return Ok(Passed::Idle);
            }
            self.stage = Stage::Waiting { number: self.enter(core, operation)? };
        }
        let Stage::Waiting { number } = self.stage else { return Ok(Passed::Idle) };
        for source in self.sources.from(self.there) {
            if !core.comm.shared.has_published(source, number) {
                return Ok(Passed::Idle);
            }
            let info = self.info(core, source, number)?;
            let agreed = operation.agree(core.port.me, (source, core.comm.world(source)), &info);
            agreed.map_err(Stop::from)?;
            self.there += 1;
        }
        if operation.fixed && !self.sources.is_empty() && operation.output.len() > 0 {
            let call = operation.signature.call();
            return Err(core.stop(format!("{call} writes to memory that is only read")));
        }
        let taken = self.take(core.comm, operation, number);
        taken.map_err(|error| {
            core.stop(format!("{} through shared slots: {error}", operation.signature.call()))
        })?;
        Ok(Passed::Ended)
    }

    fn info(&self, core: &Core<'_>, source: Rank, number: u64) -> Result<OperationInfo, Stop> {
        let at = slots::slot(number) + size_of::<u64>();
        match core.comm.shared.view(source) {
            Some(view) => Ok(access::load(view, at)?),
            None => Err(core.stop(format!("no memory of rank {source} is mapped"))),
        }
    }

    /// Publishes this rank's contribution. Returns the number of the operation.
    fn enter(&self, core: &mut Core<'_>, operation: &Operation) -> Result<u64, Stop> {
        let all = self.sources.from(0).count() + 1 == operation.ranks;
        let unchecked = (!all).then_some((operation.number, operation.signature));
        let number = core.enter_shared(&operation.info(0), unchecked)?;
        let at_root = core.comm.me == operation.signature.root as usize;
        let given = match self.collective {
            Collective::Barrier => None,
            Collective::Broadcast => at_root.then_some(&operation.output),
            Collective::Scatter => at_root.then_some(&operation.input),
            Collective::Reduce | Collective::Gather => (!at_root).then_some(&operation.input),
            _ => Some(&operation.input),
        };
        if let (Some(given), Some(own)) = (given, core.comm.shared.own()) {
            let at = slots::slot(number) + slots::payload(given.len());
            let copied = Bytes::new(own, at, given.len()).and_then(|slot| copy(given, 0, slot));
            copied.map_err(|error| {
                core.stop(format!("{} into a shared slot: {error}", operation.signature.call()))
            })?;
        }
        core.publish_shared()?;
        Ok(number)
    }

    /// Makes the result of all contributions.
    fn take(&self, comm: &Comm, operation: &Operation, number: u64) -> Result<(), SpanError> {
        let (me, ranks, output) = (comm.me, operation.ranks, &operation.output);
        // The elements that a rank shares: as many as any gives to all together.
        let block = usize::try_from(operation.signature.count).unwrap_or(0) * operation.size;
        let whole = match self.collective {
            Collective::ReduceScatter | Collective::AllToAll | Collective::Scatter => block * ranks,
            _ => block,
        };
        let at = slots::slot(number) + slots::payload(whole);
        let shared = |from: Rank, start: usize, len: usize| {
            comm.shared.view(from).map_or_else(
                || Bytes::new(&operation.input.region, usize::MAX, len),
                |view: &Region| Bytes::new(view, at + start, len),
            )
        };
        match self.collective {
            Collective::Barrier => Ok(()),
            Collective::AllReduce | Collective::Reduce | Collective::ReduceScatter => {
                if self.sources.is_empty() {
                    return Ok(());
                }
                let start = if self.collective == Collective::ReduceScatter { me * block } else { 0 };
                let near = [Cell::new(0), Cell::new(0)];
                let mut done = 0;
                while done < block {
                    let own = stretch(&operation.input, start + done, block - done, &near[0])?;
                    let into = stretch(output, done, own.len, &near[1])?;
                    let of = |rank| match rank == me {
                        true => Ok(own.part(0, into.len)),
                        false => shared(rank, start + done, into.len),
                    };
                    reduce(
                        operation,
                        &(0..operation.ranks).map(of).collect::<Result<Ranks<'_>, _>>()?,
                        into,
                    )?;
                    done += into.len;
                }
                Ok(())
            }
            Collective::Broadcast | Collective::Scatter => {
                let start = if self.collective == Collective::Scatter { me * block } else { 0 };
                match self.sources.from(0).next() {
                    Some(root) => spread(shared(root, start, block)?, output, 0),
                    None if self.collective == Collective::Scatter => keep(operation, me * block, 0, block),
                    None => Ok(()),
                }
            }
            Collective::AllGather | Collective::Gather | Collective::AllToAll => {
                if self.sources.is_empty() {
                    return Ok(());
                }
                let start = if self.collective == Collective::AllToAll { me * block } else { 0 };
                keep(operation, start, me * block, block)?;
                self.sources
                    .from(0)
                    .try_for_each(|from| spread(shared(from, start, block)?, output, from * block))
            }
        }
    }

    /// Whether the next pass would get further.
    pub(super) fn is_ready(&self, comm: &Comm) -> bool {
        self.waits(comm).next().is_none()
    }

    /// The ranks that it waits for.
    pub(super) fn waits<'c>(&'c self, comm: &'c Comm) -> impl Iterator<Item = Rank> + 'c {
        let (opening, entering, number) = match self.stage {
            Stage::Opening => (true, false, None),
            Stage::Entering => (false, true, None),
            Stage::Waiting { number } => (false, false, Some(number)),
        };
        let undecided = opening.then(|| comm.shared.undecided(comm.me)).into_iter().flatten();
        let behind = entering.then(|| comm.shared.behind()).into_iter().flatten();
        let missing = number.into_iter().flat_map(move |number| {
            let left = self.sources.from(self.there);
            left.filter(move |&source| !comm.shared.has_published(source, number))
        });
        undecided.chain(behind).chain(missing)
    }

    /// The number of ranks whose contribution is there.
    pub(super) fn steps(&self) -> u64 {
        self.there as u64
    }
}

/// Copies bytes of an operand.
fn copy(from: &Operand, at: usize, into: Bytes<'_>) -> Result<(), SpanError> {
    match &from.pieces {
        Some(pieces) => pieces.gather(at, into),
        None => buffer::copy(Bytes::new(&from.region, at, into.len)?, into),
    }
}

/// Some bytes of an operand, as far as they are contiguous: at least one.
fn stretch<'o>(of: &'o Operand, at: usize, most: usize, near: &Cell<usize>) -> Result<Bytes<'o>, SpanError> {
    let stretch = of.stretch(at, most, near)?;
    if stretch.len == 0 {
        Err(SpanError::Bounds { offset: at, len: most, place: of.len() })
    } else {
        Ok(stretch)
    }
}

/// Copies bytes to where they belong in an operand.
fn spread(from: Bytes<'_>, into: &Operand, at: usize) -> Result<(), SpanError> {
    let (near, mut done) = (Cell::new(0), 0);
    while done < from.len {
        let part = stretch(into, at + done, from.len - done, &near)?;
        buffer::copy(from.part(done, part.len), part)?;
        done += part.len;
    }
    Ok(())
}

/// Copies what this rank has for itself.
fn keep(operation: &Operation, from: usize, to: usize, len: usize) -> Result<(), SpanError> {
    let (near, mut done) = (Cell::new(0), 0);
    while done < len {
        let part = stretch(&operation.input, from + done, len - done, &near)?;
        spread(part, &operation.output, to + done)?;
        done += part.len;
    }
    Ok(())
}

/// Reduces what each rank has given, in the order of ranks.
pub(super) fn reduce(operation: &Operation, all: &[Bytes<'_>], into: Bytes<'_>) -> Result<(), SpanError> {
    match *all {
        [a, b] if !operation.average && !operation.signature.is_ordered() => {
            buffer::reduce(&operation.kernel, a, b, into)
        }
        _ => buffer::total(&operation.kernel, all, into),
    }
}

#[cfg(test)]
mod tests {
    use unisono_schedule::{Job, algorithm};

    use super::*;

    #[test]
    fn sources_are_those_of_the_schedule() {
        let direct = algorithm::find("direct").unwrap();
        for collective in Collective::ALL {
            for ranks in 1..=5 {
                for (me, root) in (0..ranks).flat_map(|me| (0..ranks).map(move |root| (me, root))) {
                    let root = if collective.has_root() { root } else { 0 };
                    let count = if collective == Collective::Barrier { 0 } else { 7 };
                    let job = Job { root, ..Job::new(collective, me, ranks, count) };
                    let mut wanted = Vec::new();
                    direct.make(&job).unwrap().sources(&mut |from| wanted.push(from));
                    wanted.sort_unstable();
                    let sources = Sources::of(collective, (me, ranks), root);
                    for from in 0..=wanted.len() {
                        let got: Vec<_> = sources.from(from).collect();
                        assert_eq!(got, wanted[from..], "{collective:?} {me} of {ranks}, root {root}");
                    }
                    assert_eq!(sources.is_empty(), wanted.is_empty());
                }
            }
        }
    }
}
