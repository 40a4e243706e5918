//! The adversary: the events that are possible, and the choice of the next one.

use unisono_schedule::Rank;

/// How the adversary orders events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// At random.
    Random,
    /// Messages arrive, and senders learn of it, before any lane continues.
    Prompt,
    /// The event that became possible last is first.
    LatestFirst,
    /// Messages arrive only when no lane can continue, and senders learn of it only when nothing else is possible.
    LateArrival,
    /// Senders learn that their puts have left only when nothing else is possible.
    LateSent,
    /// This rank continues, and messages reach it, only when nothing else is possible.
    StarveRank(Rank),
    /// This lane, on all ranks, continues only when nothing else is possible.
    StarveLane(usize),
    /// At random, but no lane of this rank takes more than `after` steps. The others need not end then, but must do nothing wrong.
    Death {
        /// The rank.
        rank: Rank,
        /// The most steps of each of its lanes.
        after: usize,
    },
}

/// A possible event.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    /// A lane of a rank takes a step.
    Step { rank: Rank, lane: usize },
    /// A put arrives.
    Arrive { put: usize, to: Rank, lane: usize },
    /// The sender learns that a put has left.
    Sent { put: usize, lane: usize },
}

/// The possible events, in three classes. The next event is from the first class that is not empty.
pub(super) struct PendingEvents {
    policy: Policy,
    state: u64,
    classes: [Vec<Action>; 3],
}

impl PendingEvents {
    pub(super) fn new(policy: Policy, seed: u64) -> Self {
        Self { policy, state: seed, classes: [const { Vec::new() }; 3] }
    }

    pub(super) fn add(&mut self, action: Action) {
        let class = match (self.policy, action) {
            (Policy::Prompt, Action::Step { .. }) | (Policy::LateArrival, Action::Arrive { .. }) => 1,
            (Policy::LateArrival | Policy::LateSent, Action::Sent { .. }) => 2,
            (Policy::StarveRank(starved), Action::Step { rank, .. } | Action::Arrive { to: rank, .. })
                if rank == starved =>
            {
                2
            }
            (
                Policy::StarveLane(starved),
                Action::Step { lane, .. } | Action::Arrive { lane, .. } | Action::Sent { lane, .. },
            ) if lane == starved => 2,
            _ => 0,
        };
        self.classes[class].push(action);
    }

    pub(super) fn next(&mut self) -> Option<Action> {
        let class = self.classes.iter().position(|class| !class.is_empty())?;
        let len = self.classes[class].len();
        let index = match self.policy {
            Policy::LatestFirst => len - 1,
            _ => usize::try_from(self.random() % (len as u64)).unwrap_or(0),
        };
        Some(self.classes[class].swap_remove(index))
    }

    /// SplitMix64 (Guy Steele, Doug Lea and Christine Flood, "Fast splittable pseudorandom number
    /// generators", OOPSLA 2014).
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
