//! Failures of ranks that call different operations, and those that show when a group ends: messages that no call has received, calls
//! through shared slots that no rank has compared, and members that have called more operations than others.

use unisono_core::{error::Failure, position::CallRecord};
use unisono_schedule::Rank;

use super::{communicator::Comm, identity::CommMember};
use crate::{call::Signature, request::Operation, wire::low};

impl Comm {
    /// Compares the operation of a peer, as that peer calls it, with this one, which is under way.
    #[inline]
    pub(crate) fn agree(&self, operation: &Operation, from: Rank, info: &Signature) -> Result<(), Failure> {
        // Lengths that each two ranks compare are not the same on both.
        if operation.pairs.is_none() && *info == operation.info(from) {
            return Ok(());
        }
        self.compare(operation, from, info)
    }

    /// As [`agree`](Self::agree), for calls that differ, or whose ranks compare lengths.
    #[cold]
    fn compare(&self, operation: &Operation, from: Rank, info: &Signature) -> Result<(), Failure> {
        let Operation { number, plan, pairs, .. } = operation;
        let mut theirs = info.unnumbered();
        if info.number != low(*number) {
            // The full number is the one nearest to ours.
            let ahead = info.number.wrapping_sub(low(*number));
            let op = if ahead < 1 << 31 {
                number + u64::from(ahead)
            } else {
                number.saturating_sub(u64::from(ahead.wrapping_neg()))
            };
            let mine = format!("is at op {number} {}", plan.signature.call());
            let its = format!("is at op {op} {}", theirs.call());
            return Err(self.mismatch(op.min(*number), String::new(), mine, (from, its)));
        }
        // If the peer's call is of this kind, its count is the length of its block for this rank.
        let pairs = pairs.as_ref().filter(|_| theirs.contents == plan.signature.contents);
        let has = pairs.map(|_| std::mem::replace(&mut theirs.count, plan.signature.count));
        if theirs != plan.signature {
            return Err(self.differ(*number, &plan.signature.record(), (from, &theirs.record())));
        }
        let gets = pairs.map(|pairs| pairs.gets.get(from).map_or(0, |&len| len as u64));
        match (gets, has) {
            (Some(gets), Some(has)) if gets != has => {
                let (me, world) = (self.identity.world(self.identity.me), self.identity.world(from));
                let mine = format!("expects {gets} elements of rank {world}");
                let its = format!("has {has} elements for rank {me}");
                Err(self.mismatch(*number, plan.signature.call(), mine, (from, its)))
            }
            _ => Ok(()),
        }
    }

    /// The failure of this rank and another one of which these sentences hold in an operation.
    #[cold]
    fn mismatch(&self, op: u64, call: String, mine: String, (from, its): (Rank, String)) -> Failure {
        let mut sides = [(self.identity.world(self.identity.me), mine), (self.identity.world(from), its)];
        sides.sort();
        let [left, right] = sides;
        Failure::Mismatch { group: self.identity.group_name(), op, call, left, right }
    }

    /// The failure of this rank and another one that call these as one operation.
    #[cold]
    pub(super) fn differ(&self, op: u64, mine: &CallRecord, (from, theirs): (Rank, &CallRecord)) -> Failure {
        let (me, from) = (self.identity.world(self.identity.me), self.identity.world(from));
        CallRecord::differ(self.identity.group_name(), op, (me, mine), (from, theirs))
    }

    /// A message of a collective that no lane has taken.
    pub(super) fn untaken_message(&self) -> Option<Failure> {
        let begun = self.collectives.calls_by_number();
        self.flows.untaken().find_map(|(from, info)| {
            let (number, mine) = begun.iter().find(|(number, _)| low(*number) == info.number)?;
            let theirs = info.record();
            (theirs != *mine).then(|| self.differ(*number, mine, (from, &theirs)))
        })
    }

    /// A member that has left the group after more or fewer operations than this rank. (In the world, the barriers of shutdown
    /// compare that.)
    pub(super) fn uneven_end(&self) -> Option<Failure> {
        let ended = |(rank, member): (Rank, &CommMember)| Some((rank, member.ended?));
        let mut ends = self.identity.members.iter().enumerate().filter_map(ended);
        let begun = self.collectives.begun;
        let (rank, theirs) = ends.find(|&(_, ended)| self.identity.id != 0 && ended != begun)?;
        let op = theirs.min(begun);
        let leaves = format!("has left the group after {op} operations");
        // The rank that has called more knows the call; the other one may have a message of it.
        let more = if begun > theirs {
            let mut calls = self.collectives.calls_by_number().into_iter();
            calls.find(|(number, _)| *number == op).map(|(_, called)| called.call)
        } else {
            let info = self.flows.untaken().find(|(from, info)| *from == rank && info.number == low(op));
            info.map(|(_, info)| info.call())
        };
        let calls = more.map_or_else(
            || format!("has begun {} operations", theirs.max(begun)),
            |call| format!("calls {call}"),
        );
        let (mine, its) = if begun > theirs { (calls, leaves) } else { (leaves, calls) };
        Some(self.mismatch(op, String::new(), mine, (rank, its)))
    }
}
