//! Where this rank stands, for whoever compares it with where others do; and since when something waits in vain.

use std::{
    sync::{Condvar, Mutex, PoisonError},
    time::{Duration, Instant},
};

use unisono_schedule::Rank;

use super::{Engine, circle::Circle, task::Overseer};
use crate::position::{CALLS, GROUPS, GroupStand, PEERS, Running, Stand, Traffic};

/// A question where this rank stands, which whoever drives answers.
#[derive(Default)]
pub(crate) struct Question {
    answer: Mutex<Option<Stand>>,
    answered: Condvar,
}

impl Question {
    pub(super) fn answer(&self, stand: Stand) {
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(stand);
        self.answered.notify_all();
    }

    /// The answer, if it comes within this time.
    pub(crate) fn wait(&self, time: Duration) -> Option<Stand> {
        let answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.answered.wait_timeout_while(answer, time, |answer| answer.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.take()
    }
}

impl Engine {
    /// Where this rank stands. It is `blocked` as far as this engine knows: nothing has moved for so long, and nothing that
    /// it sent is under way.
    pub(crate) fn position(&self) -> Stand {
        let mut circles: Vec<_> = self.net.circles.iter().flatten().filter(|it| it.is_introduced()).collect();
        let running = |circle: &Circle| {
            let alone = self.alone.iter().map(|(channel, run)| (*channel, run));
            let mut all = self.running.iter().map(|it| (it.channel, &it.run)).chain(alone);
            all.find(|(channel, _)| *channel == circle.channel).map(|(_, run)| run)
        };
        let idle = |circle: &Circle| running(circle).is_none() && !circle.talk.open();
        circles.sort_by_key(|circle| (idle(circle), std::cmp::Reverse(circle.used)));
        let mut cut = circles.len() > GROUPS;
        let settled = circles.iter().all(|circle| circle.is_settled());
        let leaves = self.net.leaves_all;
        let groups = circles.iter().take(GROUPS).map(|circle| {
            let world = |rank: Rank| circle.world(rank);
            let running = running(circle).map(|run| {
                let (steps, waits) = run.stand();
                let waits: Vec<_> = waits.into_iter().map(world).collect();
                cut |= waits.len() > PEERS;
                Running { steps, waits: waits.into_iter().take(PEERS).collect() }
            });
            let mut messages = circle.talk.stands(world, circle.size(), leaves);
            cut |= messages.len() > PEERS || messages.iter().any(|message| message.waits.len() > PEERS);
            messages.truncate(PEERS);
            messages.iter_mut().for_each(|message| message.waits.truncate(PEERS));
            GroupStand {
                id: circle.id,
                label: GroupStand::named(circle.label.as_deref()),
                begun: circle.begun,
                latest: circle.latest_calls(CALLS),
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
        Stand { blocked: quiet.filter(|_| settled && !cut), groups, traffic, ..Stand::default() }
    }

    /// Tells since when what has waited longest waits in vain, if it is not for all ranks to leave.
    pub(super) fn tell_wait(&mut self, overseer: &dyn Overseer) {
        let operations = self.running.iter().filter(|it| !it.run.operation.signature.is_leaving());
        let operations = operations.filter_map(|it| it.doubted);
        let messages = self.talking.iter().filter_map(|&channel| {
            self.net.circles.get(usize::from(channel))?.as_ref()?.talk.stand().map(|(at, ..)| at)
        });
        if let Some(since) = operations.chain(messages).min() {
            overseer.waits(Instant::now().saturating_duration_since(since));
        }
    }
}
