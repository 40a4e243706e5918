//! Failures that show when a group ends: messages that no call has received, calls through shared slots that no rank has compared, and
//! members that have called more operations than others.

use unisono_core::{error::Failure, position::CallRecord};
use unisono_schedule::Rank;

use super::{communicator::Comm, member::CommMember};
use crate::wire::low;

impl Comm {
    /// A message of a collective that no lane has taken.
    pub(super) fn untaken_message(&self) -> Option<Failure> {
        let begun = self.collectives.calls_by_number();
        self.flows.untaken().find_map(|(from, info)| {
            let (number, mine) = begun.iter().find(|(number, _)| low(*number) == info.number)?;
            let theirs = info.record();
            let (me, from) =
                ((self.identity.world(self.identity.me), mine), (self.identity.world(from), &theirs));
            (theirs != *mine).then(|| CallRecord::differ(self.identity.group_name(), *number, me, from))
        })
    }

    /// A member that has left the group after more or fewer operations than this rank. (In the world, the barriers of shutdown
    /// compare that.)
    pub(super) fn uneven_end(&self) -> Option<Failure> {
        let ended = |(rank, member): (Rank, &CommMember)| Some((rank, member.ended?));
        let mut ends = self.identity.members.iter().enumerate().filter_map(ended);
        let (rank, theirs) =
            ends.find(|&(_, ended)| self.identity.id != 0 && ended != self.collectives.begun)?;
        let op = theirs.min(self.collectives.begun);
        let leaves = format!("has left the group after {op} operations");
        // The rank that has called more knows the call; the other one may have a message of it.
        let more = if self.collectives.begun > theirs {
            self.collectives
                .calls_by_number()
                .into_iter()
                .find(|(number, _)| *number == op)
                .map(|(_, called)| called.call)
        } else {
            let info = self.flows.untaken().find(|(from, info)| *from == rank && info.number == low(op));
            info.map(|(_, info)| info.call())
        };
        let calls = more.map_or_else(
            || format!("has begun {} operations", theirs.max(self.collectives.begun)),
            |call| format!("calls {call}"),
        );
        let (mine, its) = if self.collectives.begun > theirs { (calls, leaves) } else { (leaves, calls) };
        let mut sides = [(self.identity.world(self.identity.me), mine), (self.identity.world(rank), its)];
        sides.sort();
        let [left, right] = sides;
        Some(Failure::Mismatch { group: self.identity.group_name(), op, call: String::new(), left, right })
    }
}
