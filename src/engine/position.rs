//! Where this rank stands, for whoever compares it with where others do; and since when something waits in vain.

use std::time::Instant;

use unisono_schedule::Rank;

use crate::{
    engine::{comm::Comm, progress::Engine, supervisor::Supervisor},
    position::{CALLS, GROUPS, GroupPosition, PEERS, Position, Running, Traffic},
};

impl Engine {
    /// Where this rank stands. It is `blocked` as far as this engine knows: nothing has moved for so long, and nothing that
    /// it sent is under way.
    pub(crate) fn position(&self) -> Position {
        let mut comms: Vec<_> = self.net.comms.iter().flatten().filter(|it| it.is_introduced()).collect();
        let running = |comm: &Comm| {
            let alone = self.alone.iter().map(|(comm_id, run)| (*comm_id, run));
            let mut all = self.running.iter().map(|it| (it.comm_id, &it.run)).chain(alone);
            all.find(|(comm_id, _)| *comm_id == comm.comm_id).map(|(_, run)| run)
        };
        let idle = |comm: &Comm| running(comm).is_none() && !comm.talk.open();
        comms.sort_by_key(|comm| (idle(comm), std::cmp::Reverse(comm.used)));
        let mut cut = comms.len() > GROUPS;
        let settled = comms.iter().all(|comm| comm.is_settled());
        let leaves = self.net.leaves_all;
        let groups = comms.iter().take(GROUPS).map(|comm| {
            let world = |rank: Rank| comm.world(rank);
            let running = running(comm).map(|run| {
                let (steps, waits) = run.progress();
                let waits: Vec<_> = waits.into_iter().map(world).collect();
                cut |= waits.len() > PEERS;
                Running { steps, waits: waits.into_iter().take(PEERS).collect() }
            });
            let mut messages = comm.talk.positions(world, comm.size(), leaves);
            cut |= messages.len() > PEERS || messages.iter().any(|message| message.waits.len() > PEERS);
            messages.truncate(PEERS);
            messages.iter_mut().for_each(|message| message.waits.truncate(PEERS));
            GroupPosition {
                id: comm.id,
                label: GroupPosition::named(comm.label.as_deref()),
                begun: comm.begun,
                latest: comm.latest_calls(CALLS),
                running,
                messages,
            }
        });
        let groups = groups.collect();
        let mut traffic: Vec<Traffic> = self.net.port.traffic().collect();
        cut |= traffic.len() > GROUPS * PEERS;
        traffic.truncate(GROUPS * PEERS);
        let quiet =
            self.wait.waits().map(|since| u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX));
        Position { blocked: quiet.filter(|_| settled && !cut), groups, traffic, ..Position::default() }
    }

    /// Tells since when what has waited longest waits in vain, if it is not for all ranks to leave.
    pub(crate) fn tell_wait(&mut self, supervisor: &dyn Supervisor) {
        if self.attends {
            return;
        }
        let operations = self.running.iter().filter(|it| !it.run.operation.signature.is_leaving());
        let operations = operations.filter_map(|it| it.doubted);
        let messages = self.talking.iter().filter_map(|&comm_id| {
            self.net.comms.get(usize::from(comm_id))?.as_ref()?.talk.longest_wait().map(|(at, ..)| at)
        });
        if let Some(since) = operations.chain(messages).min() {
            supervisor.waits(Instant::now().saturating_duration_since(since));
        }
    }
}
