//! The position of this rank, which the store compares with those of the others, and for how long a call has been stalled.
//! Where debug assertions are on, also what tests see: the steps that operations have finished, and counts.

use std::time::Instant;

use unisono_core::position::{GROUPS, GroupPosition, PEERS, Position, Running, Traffic};
use unisono_schedule::Rank;

#[cfg(debug_assertions)]
use crate::endpoint::Traced;
use crate::{comm::Comm, progress::Engine, supervisor::Supervisor};

impl Engine {
    /// The position of this rank. As far as the engine knows, the rank is `blocked` if nothing moves, nothing that it sent is in
    /// flight, and it does not wait for room for a window, which any rank may give back.
    pub fn position(&self) -> Position {
        let comms = self.net.comms.iter().flatten();
        let mut comms: Vec<_> =
            comms.filter(|it| it.mailbox.introduced && !it.shutdown.is_vacant()).collect();
        let running = |comm: &Comm| {
            let running = self.running.iter().find(|it| it.comm_id == comm.identity.comm_id);
            running.map(|it| &it.run)
        };
        let idle = |comm: &Comm| running(comm).is_none() && !comm.messages.open();
        comms.sort_by_key(|comm| (idle(comm), std::cmp::Reverse(comm.collectives.used)));
        let mut cut = comms.len() > GROUPS;
        let settled = self.net.port.wanting.is_empty() && comms.iter().all(|comm| comm.is_settled());
        let leaves = self.net.leaves_all;
        let groups = comms.iter().take(GROUPS).map(|comm| {
            let world = |rank: Rank| comm.identity.world(rank);
            let running = running(comm).map(|run| {
                let (steps, waits) = run.progress(comm);
                let waits: Vec<_> = waits.into_iter().map(world).collect();
                cut |= waits.len() > PEERS;
                Running { steps, waits: waits.into_iter().take(PEERS).collect() }
            });
            let mut messages = comm.messages.positions(world, comm.identity.members.len(), leaves, PEERS + 1);
            cut |= messages.len() > PEERS || messages.iter().any(|message| message.waits.len() > PEERS);
            messages.truncate(PEERS);
            messages.iter_mut().for_each(|message| message.waits.truncate(PEERS));
            GroupPosition {
                id: comm.identity.id,
                label: GroupPosition::named(comm.identity.label.as_deref()),
                begun: comm.collectives.begun,
                latest: comm.collectives.latest_calls(),
                running,
                messages,
            }
        });
        let groups = groups.collect();
        let mut traffic: Vec<Traffic> = self.net.port.traffic().collect();
        cut |= traffic.len() > GROUPS * PEERS;
        traffic.truncate(GROUPS * PEERS);
        let quiet =
            self.wait.since().map(|since| u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX));
        Position { blocked: quiet.filter(|_| settled && !cut), groups, traffic, ..Position::default() }
    }

    /// Reports for how long the call that stalled first has done so, unless it waits for all ranks to leave.
    pub(crate) fn report_stall(&self, supervisor: &dyn Supervisor) {
        if self.joins_or_leaves {
            return;
        }
        let operations = self.running.iter().filter(|it| !it.run.operation.plan.signature.is_leaving());
        let operations = operations.filter_map(|it| it.stalled);
        let message = self.oldest_message().map(|(_, wait)| wait.since);
        if let Some(since) = operations.chain(message).min() {
            supervisor.waits(Instant::now().saturating_duration_since(since));
        }
    }

    /// Starts to keep the steps of operations, and returns those that were kept so far.
    #[cfg(debug_assertions)]
    pub fn keep_trace(&mut self) -> Vec<Traced> {
        self.net.port.trace.replace(Vec::new()).unwrap_or_default()
    }

    /// How often a communicator that this rank is leaving was looked at.
    #[cfg(debug_assertions)]
    pub fn looks(&self) -> usize {
        self.net.leaving.looks
    }

    /// The number of communicators, and of those of them that this rank is leaving and will look at.
    #[cfg(debug_assertions)]
    pub fn communicators(&self) -> (usize, usize) {
        let leaving = &self.net.leaving;
        (self.net.comms.iter().flatten().count(), leaving.changed.len() + leaving.watched.len())
    }
}
