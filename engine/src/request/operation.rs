//! One collective operation as the engine runs it, and the part of it that ranks compare.

use std::{sync::Arc, time::Instant};

use unisono_core::{dtype::Alias, error::Failure, position::CallRecord, reduce::Kernel};
use unisono_schedule::{Job, Place, Rank, Span, algorithm::Plan};

use crate::{
    call::{Signature, narrow},
    memory::{Operand, Pieces},
    stop::{Halt, Stop, halt},
    wire::{CollectiveHeader, FlowHeader, OperationInfo, low},
};

/// One operation.
pub struct Operation {
    /// Its number in the group, from 0; it gets the number when it begins.
    pub number: u64,
    /// What all ranks must call alike.
    pub signature: Signature,
    /// The name of its group in errors; `None` for the world.
    pub group: Option<Arc<str>>,
    /// The id of that group, the same on all members; 0 for the world.
    pub group_id: u64,
    /// The number of ranks of the group.
    pub ranks: usize,
    /// How to reduce; for collectives that do not reduce, any kernel of the dtype.
    pub kernel: Kernel,
    /// True if a finished sum is to be divided by the number of ranks.
    pub average: bool,
    /// How its ranks read each other's operands in place, if all share memory.
    pub shown: Option<Arc<ShownPlan>>,
    /// True if input and output overlap in a collective that exchanges blocks.
    pub overlaps: bool,
    /// Bytes of an element.
    pub size: usize,
    /// What it reads.
    pub input: Operand,
    /// What it writes.
    pub output: Operand,
    /// The lengths of blocks, if each two ranks know only those of their blocks for each other.
    pub pairs: Option<Box<Pairs>>,
    /// True if the schedule needs peers to write into the output.
    pub long: bool,
    /// True if the output is only read: it is the input, and only this rank gives it.
    pub fixed: bool,
    /// True if peers may write into the output during the operation: not if it is fixed, nor if the input lies there, is still
    /// needed and is not put aside.
    pub writable: bool,
    /// True if peers write where the input lies, so that all blocks of it but this rank's own are put aside first. Blocks are
    /// equally long then.
    pub aside: bool,
}

/// How ranks that share memory read each other's operands where they lie. Elements of other memory are copied to slots.
pub struct ShownPlan {
    /// The plan that shows them.
    pub plan: &'static Plan,
    /// The job, whose elements are shown in place.
    pub job: Job<'static>,
    /// The most bytes that a rank copies to a slot at once; 0 if messages are faster than copies.
    pub copies: usize,
}

/// The lengths of blocks in elements, by rank of the group: of those that this rank sends, and of those that it gets. 0 where there
/// is no block.
pub struct Pairs {
    /// To each rank.
    pub sends: Vec<usize>,
    /// From each rank.
    pub gets: Vec<usize>,
}

impl From<&OperationInfo> for Signature {
    fn from(info: &OperationInfo) -> Self {
        let OperationInfo { codes, root, contents, count, chunk, lanes, alias, .. } = *info;
        Self { codes, root, contents, count, chunk, lanes, alias: Alias::from_code(alias) }
    }
}

impl Operation {
    /// The pieces that a span lies in; `None` if the span is contiguous.
    pub(crate) fn scattered(&self, span: &Span) -> Option<&Pieces> {
        let pieces = match span.place {
            Place::Input => &self.input.pieces,
            Place::Output => &self.output.pieces,
            Place::Scratch | Place::Landed(_) => return None,
        };
        pieces.as_ref().filter(|_| span.len > 0)
    }

    /// Its number, and the name and the id of its group, for errors.
    pub(crate) fn which(&self) -> (Option<u64>, Option<Arc<str>>, u64) {
        (Some(self.number), self.group.clone(), self.group_id)
    }

    /// Why the engine stops at it. It was submitted at `since`.
    pub(crate) fn halt(&self, stop: Stop, since: Instant) -> Halt {
        halt(stop, self.which(), self.signature, since)
    }

    /// Its number as headers carry it: the low 32 bits.
    pub(crate) fn op(&self) -> u32 {
        low(self.number)
    }

    /// The operation as it is compared with that of rank `to` of the group.
    pub(crate) fn info(&self, to: Rank) -> OperationInfo {
        let Signature { codes, root, contents, mut count, chunk, lanes, alias } = self.signature;
        if let Some(pairs) = &self.pairs {
            count = pairs.sends.get(to).map_or(0, |&len| len as u64);
        }
        let alias = alias.code();
        OperationInfo { number: self.op(), lanes, alias, codes, root, count, contents, chunk }
    }

    /// The header of a message of `len` elements to rank `to` of the group.
    pub(crate) fn header(&self, flow: FlowHeader, to: Rank, len: usize) -> CollectiveHeader {
        CollectiveHeader { flow, len: narrow(len), operation: self.info(to) }
    }

    fn group_name(&self) -> Box<str> {
        self.group.as_deref().unwrap_or_default().into()
    }

    /// Compares the operation of a peer, rank `from` of the group and `world` of the world, with this one of rank `me` of the world.
    pub(crate) fn agree(
        &self,
        me: Rank,
        (from, world): (Rank, Rank),
        info: &OperationInfo,
    ) -> Result<(), Failure> {
        let mut theirs = Signature::from(info);
        let number = self.op();
        if info.number != number {
            // The full number is the one nearest to ours.
            let ahead = info.number.wrapping_sub(number);
            let op = if ahead < 1 << 31 {
                self.number + u64::from(ahead)
            } else {
                self.number.saturating_sub(u64::from(ahead.wrapping_neg()))
            };
            let mut sides = [
                (me, format!("is at op {} {}", self.number, self.signature.call())),
                (world, format!("is at op {op} {}", theirs.call())),
            ];
            sides.sort();
            let [left, right] = sides;
            let (op, call) = (self.number.min(op), String::new());
            return Err(Failure::Mismatch { group: self.group_name(), op, call, left, right });
        }
        // If the peer's call is of this kind, its count is the length of its block for this rank.
        let pairs = self.pairs.as_ref().filter(|_| theirs.contents == self.signature.contents);
        let has = pairs.map(|_| std::mem::replace(&mut theirs.count, self.signature.count));
        if theirs != self.signature {
            let (ours, theirs) = (self.signature.record(), theirs.record());
            return Err(CallRecord::differ(self.group_name(), self.number, (me, &ours), (world, &theirs)));
        }
        let gets = pairs.map(|pairs| pairs.gets.get(from).map_or(0, |&len| len as u64));
        match (gets, has) {
            (Some(gets), Some(has)) if gets != has => Err(self.misfit((me, gets), (world, has))),
            _ => Ok(()),
        }
    }

    /// The failure of a rank that expects another length of a block than its peer has for it.
    #[cold]
    fn misfit(&self, (me, gets): (Rank, u64), (from, has): (Rank, u64)) -> Failure {
        let mut sides = [
            (me, format!("expects {gets} elements of rank {from}")),
            (from, format!("has {has} elements for rank {me}")),
        ];
        sides.sort();
        let [left, right] = sides;
        let (group, op, call) = (self.group_name(), self.number, self.signature.call());
        Failure::Mismatch { group, op, call, left, right }
    }
}
