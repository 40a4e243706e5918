//! What is left over when a group ends: messages that nobody took, and members that have called more than others.

use std::time::{Duration, Instant};

use unisono_schedule::Rank;

use super::{
    Engine, Stop, WORLD,
    comm::{Comm, Member},
    core::Core,
    operation::Signature,
    task::{Halt, Supervisor},
    ticket::Asked,
};
use crate::{
    error::Failure,
    position::{CALLS, Called},
};

impl Engine {
    /// This rank will leave all groups: from now on nobody waits for receives whose message has not come.
    pub(crate) fn leaves(&mut self) {
        self.net.leaves_all = true;
    }

    /// Whether all that is under way are receives whose message has not come, and that nothing announced.
    pub(crate) fn has_only_receives(&self) -> bool {
        let mut comms = self.net.comms.iter().flatten();
        self.running.is_empty() && comms.all(|comm| comm.tasks.is_empty() && comm.talk.only_receives())
    }

    /// Gives these up: their calls, and what belongs to who has asked.
    pub(crate) fn give_up_receives(&mut self) -> Vec<(String, Asked)> {
        let comms = self.net.comms.iter_mut().flatten();
        comms.flat_map(|comm| comm.give_up_receives()).collect()
    }

    /// When all ranks leave: tells the end of all groups to whom this rank has met there, and waits for theirs, which come
    /// after all else. Then no control message is under way any more either.
    pub(crate) fn take_leave(&mut self, supervisor: &dyn Supervisor, until: Instant) -> Result<(), Halt> {
        for comm in self.net.comms.iter_mut().flatten().filter(|comm| !comm.end_told) {
            comm.settle_debts(true);
            comm.left = comm.comm_id != WORLD;
            comm.tell_end().map_err(Stop::from)?;
        }
        loop {
            if supervisor.stopped() {
                return Err(Stop::Alarm.into());
            }
            // What has come may be for a receive that somebody kept.
            let moved = self.talk(supervisor)? | self.net.sweep()? | self.net.send_control()?;
            let ended = self.net.comms.iter().flatten().all(|comm| comm.all_ended());
            if ended && !moved && !self.net.has_control() {
                return Ok(());
            }
            if self.net.poll()? || moved {
                self.wait.reset();
                continue;
            }
            let now = Instant::now();
            if now >= until {
                return Err(Stop::Deadline.into());
            }
            if let Some(nap) = self.pause(until.min(now + Duration::from_secs(1))) {
                self.net.port.transport.park(nap).map_err(Stop::from)?;
            }
        }
    }

    /// What is left over of any group, after that.
    pub(crate) fn left_over(&mut self) -> Result<Option<Failure>, Stop> {
        for comm in self.net.comms.iter_mut().flatten() {
            let left = Core { port: &mut self.net.port, comm }.left_over()?;
            if left.is_some() {
                return Ok(left);
            }
        }
        Ok(None)
    }
}

impl Core<'_> {
    /// What is left over of a group that this rank has left.
    pub(super) fn left_over(&mut self) -> Result<Option<Failure>, Stop> {
        let unreceived = self.unreceived()?;
        Ok(unreceived.or_else(|| self.comm.untaken_message()).or_else(|| self.comm.uneven_end()))
    }
}

impl Comm {
    /// A message of an operation that nobody has taken.
    fn untaken_message(&self) -> Option<Failure> {
        let begun = self.calls_by_number();
        self.untaken().find_map(|(from, header)| {
            let (number, mine) =
                begun.iter().find(|(number, _)| number & 0xffff_ffff == u64::from(header.op))?;
            let theirs = Signature::of(&header).called(self.algorithm_name);
            let (me, from) = ((self.world(self.me), mine), (self.world(from), &theirs));
            (theirs != *mine).then(|| Called::differ(self.group_name(), *number, me, from))
        })
    }

    /// A member that has begun more operations than this rank, or fewer, and has left the group. Of the world, ranks compare
    /// that when they leave.
    fn uneven_end(&self) -> Option<Failure> {
        let ended = |(rank, member): (Rank, &Member)| Some((rank, member.ended?));
        let mut ends = self.members.iter().enumerate().filter_map(ended);
        let (rank, theirs) = ends.find(|&(_, ended)| self.id != 0 && ended != self.begun)?;
        let op = theirs.min(self.begun);
        let leaves = format!("has left the group after {op} operations");
        // Who has called more knows what, and the other may have a message of it.
        let more = if self.begun > theirs {
            self.calls_by_number()
                .into_iter()
                .find(|(number, _)| *number == op)
                .map(|(_, called)| called.call)
        } else {
            let header = self
                .untaken()
                .find(|(from, header)| *from == rank && u64::from(header.op) == op & 0xffff_ffff);
            header.map(|(_, header)| Signature::of(&header).call())
        };
        let calls = more.map_or_else(
            || format!("has begun {} operations", theirs.max(self.begun)),
            |call| format!("calls {call}"),
        );
        let (mine, its) = if self.begun > theirs { (calls, leaves) } else { (leaves, calls) };
        let mut sides = [(self.world(self.me), mine), (self.world(rank), its)];
        sides.sort();
        let [left, right] = sides;
        Some(Failure::Mismatch { group: self.group_name(), op, call: String::new(), left, right })
    }

    /// The latest operations, with their numbers.
    fn calls_by_number(&self) -> Vec<(u64, Called)> {
        (0..self.begun).rev().zip(self.latest_calls(CALLS)).collect()
    }

    fn group_name(&self) -> Box<str> {
        self.label.as_deref().unwrap_or_default().into()
    }
}
