//! The rounds of an operation that shows elements: where the elements lie, and which ranks it waits for.

use std::ops::Range;

use unisono_schedule::{Place, Rank, Shown, Span, Step};
use unisono_transport::{Region, streaming::copy_past_caches};

use crate::{
    access,
    call::Signature,
    comm::{
        Comm, Core,
        layout::{self, Offer},
    },
    memory::{Bytes, CopyBytes, copy_through_caches},
    request::Operation,
    stop::Result,
};

/// The rounds of an operation that shows elements.
#[derive(Default)]
pub(crate) struct ShowRounds {
    /// The round in which the calls of ranks are compared: the first one, unless they were compared before.
    compares: u64,
    /// The number of ranks whose calls have been compared with this one's.
    compared: usize,
    /// The bytes that another rank shows in this round.
    bytes: usize,
    /// How operands are read in place; `None` if all is copied to slots.
    in_place: Option<OperandReads>,
    /// True if messages go between hosts, and the ranks of this host read each other's scratch.
    pub(super) sends: bool,
}

/// How ranks read the operands of an operation.
#[derive(Default)]
pub(crate) struct OperandReads {
    /// True if this rank copies the elements that it shows to its slot; otherwise others read its operands where they lie.
    pub copies: bool,
    /// True if others read something of this rank.
    pub is_read: bool,
    /// The ranks that this one reads from.
    pub others: Vec<Other>,
}

/// A rank that is read from.
pub(crate) struct Other {
    pub rank: Rank,
    /// Where its operands lie, or that it copies the elements that it shows to its slot.
    pub offer: Offer,
    /// Its operands, if they are read. If messages go between hosts, its scratch stands in place of its input.
    pub input: Option<Region>,
    pub output: Option<Region>,
    /// The elements that it shows in this round.
    pub shown: Shown,
}

impl Other {
    /// True if it copies the elements that it shows to its slot.
    pub(super) fn copies(&self) -> bool {
        self.offer.kind == Offer::STAGED
    }
}

impl OperandReads {
    fn other(&self, rank: Rank) -> Option<&Other> {
        self.others.iter().find(|other| other.rank == rank)
    }
}

impl ShowRounds {
    /// The rounds of an operation whose operands are read in place. The calls of those ranks that this one reads have been compared.
    pub(super) fn in_place(in_place: OperandReads) -> Self {
        Self { compared: in_place.others.len(), in_place: Some(in_place), ..Self::default() }
    }

    /// The rounds of an operation whose messages go between hosts. The calls of all ranks of this host have been compared.
    pub(super) fn inside(in_place: OperandReads) -> Self {
        Self { in_place: Some(in_place), sends: true, ..Self::default() }
    }

    /// True if a step of a schedule that also sends messages needs none: ranks show its elements, or this rank does it alone.
    pub(super) fn has(step: &Step) -> bool {
        !matches!(
            step,
            Step::Put { .. } | Step::Take { .. } | Step::Write { .. } | Step::Await { .. } | Step::Settle
        )
    }

    /// True if messages go between hosts, and a rank shows elements to this one instead.
    pub(super) fn reads(&self, from: Rank) -> bool {
        self.how().is_some_and(|how| how.other(from).is_some())
    }

    /// Begins a round, if all others have begun the one before, in which this rank shows these elements. Copies them to its slot, unless
    /// operands are read in place. False if that must wait.
    pub(super) fn enter(
        &mut self,
        core: &mut Core<'_>,
        operation: &Operation,
        shown: &Shown,
    ) -> Result<bool> {
        if core.comm.shared.any_behind() {
            return Ok(false);
        }
        let round = core.enter_shared(operation, self.is_unchecked(operation.ranks))?;
        self.bytes = shown.len() * operation.plan.size;
        if self.compared == 0 && !self.sends {
            self.compares = round;
        }
        if self.how().is_none() && !shown.is_empty() {
            copy_to_slot(core, operation, shown, 0..shown.len(), layout::elements(round, self.bytes))?;
        }
        Ok(true)
    }

    /// Looks whether a rank has shown these elements in this round, and compares its call. False if it has not.
    pub(super) fn view(
        &mut self,
        core: &mut Core<'_>,
        operation: &Operation,
        from: Rank,
        shown: &Shown,
    ) -> Result<bool> {
        let Some(view) = core.comm.shared.shown_by(from) else { return Ok(false) };
        let round = core.comm.shared.number;
        if self.compares == round {
            let info: Signature = access::load(view, layout::slot(round) + size_of::<u64>())?;
            core.comm.agree(operation, from, &info)?;
            self.compared += 1;
            if !self.is_unchecked(operation.ranks) {
                core.comm.shared.unchecked = None;
            }
        }
        self.bytes = shown.len() * operation.plan.size;
        let others = self.in_place.as_mut().map(|in_place| &mut in_place.others);
        let other = others.and_then(|others| others.iter_mut().find(|other| other.rank == from));
        if other.as_ref().is_none_or(|other| other.copies()) {
            core.comm.shared.use_slots(self.bytes);
        }
        if let Some(other) = other {
            other.shown = *shown;
        }
        Ok(true)
    }

    /// True if the calls of some of the other ranks, of `ranks` in all, have not been compared.
    fn is_unchecked(&self, ranks: usize) -> bool {
        !self.sends && self.compared + 1 < ranks
    }

    /// How operands are read in place; `None` if all is copied to slots.
    pub(super) fn how(&self) -> Option<&OperandReads> {
        self.in_place.as_ref()
    }

    /// True if this rank copies the elements that it shows to a slot, a slice at a time, because its memory cannot be read in place.
    pub(super) fn copies_slices(&self) -> bool {
        self.in_place.as_ref().is_some_and(|in_place| in_place.copies)
    }

    /// The place of the elements that another rank shows in this round. `size`: the bytes of an element.
    pub(super) fn place<'c>(
        &'c self,
        comm: &'c Comm,
        from: Rank,
        span: Span,
        size: usize,
    ) -> Option<(&'c Region, usize)> {
        let other = match &self.in_place {
            Some(in_place) => Some(in_place.other(from)?).filter(|other| !other.copies()),
            None => None,
        };
        let Some(other) = other else {
            let round = comm.shared.number;
            let at = match &self.in_place {
                None => layout::elements(round, self.bytes),
                Some(how) => layout::staged(round, how.other(from)?.shown.len() * size),
            };
            return Some((comm.shared.view(from)?, at + span.offset * size));
        };
        let there = other.shown.within(span.offset, span.len)?;
        let operand = if there.place == Place::Output { &other.output } else { &other.input };
        Some((operand.as_ref()?, there.offset * size))
    }

    /// True if the operands of a rank are plain memory, which is read where it lies.
    pub(super) fn fetches(&self, from: Rank) -> bool {
        let other = self.how().and_then(|how| how.other(from));
        other.is_some_and(|other| other.offer.kind == Offer::READABLE)
    }

    /// The address, in the process of another rank, of the elements that it shows in this round. `size`: the bytes of an element.
    pub(super) fn address(&self, from: Rank, span: Span, size: usize) -> Option<u64> {
        let other = self.how()?.other(from)?;
        let there = other.shown.within(span.offset, span.len)?;
        let [address, len, _] =
            if there.place == Place::Output { other.offer.output } else { other.offer.input };
        let (at, bytes) = (there.offset.checked_mul(size)? as u64, there.len.checked_mul(size)? as u64);
        (at.checked_add(bytes)? <= len).then_some(address.checked_add(at)?)
    }

    /// The ranks that a step waits for.
    pub(super) fn waits<'c>(
        &self,
        comm: &'c Comm,
        step: &Step,
        begun: bool,
    ) -> impl Iterator<Item = Rank> + use<'c> {
        let (shared, round) = (&comm.shared, comm.shared.number);
        let (mut behind, mut unseen, mut reads) = (None, None, None);
        match *step {
            Step::Show { .. } if !begun => behind = Some(shared.behind()),
            Step::View { from, .. } => unseen = Some(from).filter(|from| !shared.has_published(*from, round)),
            Step::Settle if self.is_read() => reads = Some(shared.late(layout::DONE, round)),
            _ => {}
        }
        behind.into_iter().flatten().chain(unseen).chain(reads.into_iter().flatten())
    }

    /// True if others read operands of this rank, which then waits at the end until they have. A copy in a slot is overwritten two rounds
    /// later at the earliest, and no rank begins that round before all have ended this one.
    pub(super) fn is_read(&self) -> bool {
        self.how().is_some_and(|in_place| in_place.is_read && !in_place.copies)
    }
}

/// Copies a slice of the elements that this rank shows in this round to its slot, because its memory cannot be read in place. Returns the
/// number of elements that are copied by now.
pub(super) fn copy_slice(
    core: &mut Core<'_>,
    operation: &Operation,
    shown: &Shown,
    done: usize,
) -> Result<usize> {
    let (round, size) = (core.comm.shared.number, operation.plan.size);
    let end = shown.len().min(done + operation.plan.slice);
    copy_to_slot(core, operation, shown, done..end, layout::staged(round, shown.len() * size))?;
    Ok(end)
}

/// Copies elements that a rank shows to its slots, where the first of them lies at byte `at`.
fn copy_to_slot(
    core: &mut Core<'_>,
    operation: &Operation,
    shown: &Shown,
    elements: Range<usize>,
    at: usize,
) -> Result<()> {
    let operand = if shown.first.place == Place::Input { &operation.input } else { &operation.output };
    let (size, mut next) = (operation.plan.size, elements.start);
    let (shared, bytes) = (&mut core.comm.shared, elements.len() * size);
    shared.most = shared.most.max(shown.len() * size);
    shared.use_slots(shown.len() * size);
    let past = shared.writes.goes_past(bytes);
    let begun = shared.writes.begins(bytes).filter(|_| !past);
    let copy: CopyBytes = if past { copy_past_caches } else { copy_through_caches };
    let Some(own) = &core.comm.shared.own else { return Ok(()) };
    while let Some((first, from)) = shown.stretch(next, elements.end) {
        let into = Bytes::new(own, at + first * size, from.len * size);
        let copied = into.and_then(|into| operand.copy_by(copy, from.offset * size, into));
        let call = || operation.plan.signature.call();
        copied.map_err(|error| core.stop(format!("{} into a shared slot: {error}", call())))?;
        next = first + from.len;
    }
    if let Some(begun) = begun {
        core.comm.shared.writes.took(bytes, begun.elapsed());
    }
    Ok(())
}
