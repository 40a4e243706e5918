//! One collective operation as the engine runs it, and the part of it that ranks compare.

use std::sync::Arc;

use unisono_schedule::{Place, Rank, Span};
use unisono_transport::Region;

use crate::{
    buffer::Pieces,
    call::{Signature, narrow},
    engine::wire::{CollectiveHeader, FlowHeader, OperationInfo, low},
    error::Failure,
    position::CallRecord,
    reduce::Kernel,
};

/// One operation.
pub(crate) struct Operation {
    /// Its number in the group, from 0; assigned when it begins.
    pub number: u64,
    pub signature: Signature,
    /// The name of its group in errors; `None` for the world.
    pub group: Option<Arc<str>>,
    /// The id of that group, the same on all members; 0 for the world.
    pub group_id: u64,
    /// The number of ranks of the group.
    pub ranks: usize,
    /// How to reduce; for collectives that do not reduce, any kernel of the dtype.
    pub kernel: Kernel,
    /// Whether a finished sum is to be divided by the number of ranks.
    pub average: bool,
    /// Bytes of an element.
    pub size: usize,
    pub input: Region,
    pub output: Region,
    /// Instead of both: several pieces of memory that are input and output.
    pub pieces: Option<Pieces>,
    /// Whether the schedule needs peers to write into the output.
    pub long: bool,
    /// Whether the output is only read: it is the input, and only this rank gives it.
    pub fixed: bool,
    /// Whether peers may write into the output during the operation: not if it is fixed, nor if the input lies there and is still
    /// needed.
    pub writable: bool,
    /// The registered buffers that input and output lie in, if any, and the offsets there.
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
    /// The pieces that a span lies in; `None` if the span is contiguous.
    pub(crate) fn scattered(&self, span: &Span) -> Option<&Pieces> {
        let borrowed = span.len > 0 && matches!(span.place, Place::Input | Place::Output);
        self.pieces.as_ref().filter(|_| borrowed)
    }

    /// Its number as headers carry it: the low 32 bits.
    pub(crate) fn op(&self) -> u32 {
        low(self.number)
    }

    /// The operation as ranks compare it.
    pub(crate) fn info(&self) -> OperationInfo {
        let Signature { codes, root, contents, count, chunk, lanes } = self.signature;
        OperationInfo { number: self.op(), lanes, reserved: 0, codes, root, count, contents, chunk }
    }

    /// The header of a message of `len` elements.
    pub(crate) fn header(&self, flow: FlowHeader, len: usize) -> CollectiveHeader {
        CollectiveHeader { flow, len: narrow(len), operation: self.info() }
    }

    fn group_name(&self) -> Box<str> {
        self.group.as_deref().unwrap_or_default().into()
    }

    /// Compares the operation of a peer with this one.
    pub(crate) fn agree(&self, me: Rank, from: Rank, info: &OperationInfo) -> Result<(), Failure> {
        let theirs = Signature::from(info);
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
