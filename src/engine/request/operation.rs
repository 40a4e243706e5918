//! One operation as the engine runs it, and what it says of itself to the other ranks.

use std::sync::Arc;

use unisono_schedule::{Place, Rank, Span};
use unisono_transport::Region;

use crate::{
    buffer::Pieces,
    call::{Signature, narrow},
    engine::wire::{CollectiveHeader, FlowHeader, OperationInfo},
    error::Failure,
    position::CallRecord,
    reduce::Kernel,
};

/// One operation.
pub(crate) struct Operation {
    /// Its number in the group, from 0: the engine's to give, since only there it is known what came before.
    pub number: u64,
    pub signature: Signature,
    /// What its group is called in errors; nothing of the world.
    pub group: Option<Arc<str>>,
    /// That group's number, the same on all members; 0 of the world.
    pub group_id: u64,
    pub ranks: usize,
    /// How to reduce; for collectives that do not reduce, any kernel of the dtype.
    pub kernel: Kernel,
    /// Whether a finished sum is to be divided by the number of ranks.
    pub average: bool,
    /// Bytes of an element.
    pub size: usize,
    pub input: Region,
    pub output: Region,
    /// Instead of both: what is input and output and lies in several places.
    pub pieces: Option<Pieces>,
    /// Whether the schedule takes it for granted that others may write into the output.
    pub long: bool,
    /// Whether the output is only read: where it is the input, and this rank's alone to give.
    pub fixed: bool,
    /// Whether others may write into the output meanwhile: not where it is fixed, nor where the input lies there and is not gone yet.
    pub writable: bool,
    /// The registered buffers that input and output lie in, if they do, and where.
    pub registered_input: Option<(Region, usize)>,
    pub registered_output: Option<(Region, usize)>,
}

impl From<&OperationInfo> for Signature {
    fn from(info: &OperationInfo) -> Self {
        let OperationInfo { codes, root, contents, count, chunk, lanes, .. } = *info;
        Self { codes, root, contents, count, chunk, lanes }
    }
}

impl Operation {
    /// The memory of a span that lies scattered.
    pub(crate) fn scattered(&self, span: &Span) -> Option<&Pieces> {
        let borrowed = span.len > 0 && matches!(span.place, Place::Input | Place::Output);
        self.pieces.as_ref().filter(|_| borrowed)
    }

    /// Its number as headers carry it: the low 32 bits.
    pub(crate) fn op(&self) -> u32 {
        (self.number & 0xffff_ffff) as u32
    }

    /// The operation as ranks compare it.
    pub(crate) fn info(&self) -> OperationInfo {
        let Signature { codes, root, contents, count, chunk, lanes } = self.signature;
        OperationInfo { number: self.op(), lanes, reserved: 0, codes, root, count, contents, chunk }
    }

    /// What precedes a message of `len` elements from flow `reply`, telling that so many messages of the
    /// opposite flow were freed.
    pub(crate) fn header(&self, freed: u64, reply: usize, len: usize) -> CollectiveHeader {
        CollectiveHeader { flow: FlowHeader::new(freed, reply), len: narrow(len), operation: self.info() }
    }

    fn group_name(&self) -> Box<str> {
        self.group.as_deref().unwrap_or_default().into()
    }

    /// Compares what a peer says with what this rank does.
    pub(crate) fn agree(&self, me: Rank, from: Rank, info: &OperationInfo) -> Result<(), Failure> {
        let theirs = Signature::from(info);
        let number = self.op();
        if info.number != number {
            // The numbers' distance is small: take the one nearest to ours.
            let ahead = info.number.wrapping_sub(number);
            let op = if ahead < 1 << 31 {
                self.number + u64::from(ahead)
            } else {
                self.number.saturating_sub(u64::from(ahead.wrapping_neg()))
            };
            let mut sides = [
                (me, format!("is at op {} {}", self.number, self.signature.call())),
                (from, format!("is at op {op} {}", theirs.call())),
            ];
            sides.sort();
            let [left, right] = sides;
            let (op, call) = (self.number.min(op), String::new());
            return Err(Failure::Mismatch { group: self.group_name(), op, call, left, right });
        }
        if theirs != self.signature {
            let (ours, theirs) = (self.signature.record(), theirs.record());
            return Err(CallRecord::differ(self.group_name(), self.number, (me, &ours), (from, &theirs)));
        }
        Ok(())
    }
}
