//! The plan of a case of the campaign, which every rank computes from its seed.

use std::time::Duration;

use unisono::ReduceOp;

use super::{
    call::{Call, Dtype, What},
    settings,
};
use crate::random::Random;

/// One case.
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) ranks: usize,
    /// The rank whose call differs, or that dies.
    pub(super) victim: usize,
    pub(super) kind: Kind,
    /// The members of another group than the world: at least two ranks, the victim among them.
    pub(super) members: Vec<usize>,
    calls: Vec<Call>,
    /// The index of the call in which the victim differs.
    at: usize,
    /// The seed of the victim's other calls.
    chance: Random,
    /// The ranks that die or stop, how and when.
    deaths: Vec<(usize, Fate, Moment)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    Differs(Field),
    Dies(Fate, Moment),
    /// Three ranks die in one run.
    ThreeDie,
    /// The victim cannot join.
    Refused(Wrong),
    /// All ranks are idle for different times before they call.
    Idle,
    /// The ranks differ in a small call, which is their last: they drop their groups after it.
    Ends(Last),
}

/// Why a rank cannot join.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Wrong {
    WorldSize,
    RankThatIsTaken,
    Token,
    /// An invalid setting.
    Setting,
}

/// The difference between the ranks at their end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Last {
    /// The victim has another root than the others.
    Root,
    /// The victim sends a message that no rank receives.
    Message,
}

/// How one rank's calls differ from the others'.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Field {
    Nothing,
    Asynchronous,
    Collective,
    Variant,
    Dtype,
    Count,
    Root,
    Operation,
    Group,
    Order,
    Less,
    More,
    Tag,
    Peer,
    /// The index of one of [`settings::ALL`].
    Setting(usize),
}

/// The fate of one rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fate {
    Killed,
    Terminated,
    AbortsProcess,
    Exits,
    /// Aborts the group and lives on.
    Aborts,
    Stops,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Moment {
    /// This long after it began to join.
    Joining(Duration),
    /// This long after this call began.
    Call { round: usize, at: usize, delay: Duration },
}

const FIELDS: [Field; 15] = [
    Field::Nothing,
    Field::Asynchronous,
    Field::Collective,
    Field::Variant,
    Field::Dtype,
    Field::Count,
    Field::Root,
    Field::Operation,
    Field::Group,
    Field::Order,
    Field::Less,
    Field::More,
    Field::Tag,
    Field::Peer,
    Field::Setting(0),
];
/// The fates that end a process at once.
const FATAL: [Fate; 3] = [Fate::Killed, Fate::AbortsProcess, Fate::Exits];
const FATES: [Fate; 6] =
    [Fate::Killed, Fate::Terminated, Fate::AbortsProcess, Fate::Exits, Fate::Aborts, Fate::Stops];

impl Kind {
    /// A death or a difference; if it happens in a call, it happens in this one.
    fn any(chance: &mut Random, at: usize) -> Self {
        if chance.below(3) > 0 {
            return Self::Differs(match one(chance, &FIELDS) {
                Field::Setting(_) => Field::Setting(chance.below(settings::ALL.len())),
                field => field,
            });
        }
        let fate = one(chance, &FATES);
        // A rank cannot abort a group before it has joined it.
        let joining = fate != Fate::Aborts && chance.below(3) == 0;
        let moment = match joining {
            true => Moment::Joining(Duration::from_millis(chance.below(120) as u64)),
            false => Moment::call(chance, at),
        };
        Self::Dies(fate, moment)
    }

    fn any_other(chance: &mut Random) -> Self {
        let wrong = [Wrong::WorldSize, Wrong::RankThatIsTaken, Wrong::Token, Wrong::Setting];
        match chance.below(4) {
            0 => Self::ThreeDie,
            1 => Self::Refused(one(chance, &wrong)),
            2 => Self::Idle,
            _ => Self::Ends(one(chance, &[Last::Root, Last::Message])),
        }
    }

    pub(super) fn name(self) -> String {
        match self {
            Self::Differs(Field::Setting(_)) => "differs: Setting".to_owned(),
            Self::Differs(field) => format!("differs: {field:?}"),
            Self::Dies(fate, Moment::Joining(_)) => format!("joining: {fate:?}"),
            Self::Dies(fate, Moment::Call { .. }) => format!("calling: {fate:?}"),
            Self::ThreeDie => "calling: three die".to_owned(),
            Self::Refused(wrong) => format!("refused: {wrong:?}"),
            Self::Idle => "idle".to_owned(),
            Self::Ends(last) => format!("ends: {last:?}"),
        }
    }
}

impl Moment {
    fn call(chance: &mut Random, at: usize) -> Self {
        let delay = Duration::from_micros(chance.below(4000) as u64);
        Self::Call { round: chance.below(3), at, delay: one(chance, &[Duration::ZERO, delay]) }
    }
}

/// A random one of these.
pub(super) fn one<T: Copy>(chance: &mut Random, of: &[T]) -> T {
    of[chance.below(of.len())]
}

/// The number of calls of a rank in each round.
const CALLS: usize = 6;

impl Plan {
    pub(super) fn new(seed: u64) -> Self {
        // The multiplication makes neighbouring seeds independent.
        let mut chance = Random(seed.wrapping_mul(0xd134_2543_de82_ef95));
        let third = chance.below(4) == 0;
        // At least one rank survives the deaths of one run.
        let ranks = if third { 4 } else { 2 } + chance.below(3);
        let victim = chance.below(ranks);
        let at = chance.below(CALLS);
        let kind = if third { Kind::any_other(&mut chance) } else { Kind::any(&mut chance, at) };
        let deaths = match kind {
            Kind::Dies(fate, moment) => vec![(victim, fate, moment)],
            Kind::ThreeDie => (0..3)
                .map(|number| {
                    let at = chance.below(CALLS);
                    ((victim + number) % ranks, one(&mut chance, &FATAL), Moment::call(&mut chance, at))
                })
                .collect(),
            _ => Vec::new(),
        };
        let left_out = chance.below(ranks);
        let mut members: Vec<usize> = (0..ranks).filter(|&rank| rank == victim || rank != left_out).collect();
        if members.len() < 2 {
            members = (0..ranks).collect();
        }
        let mut calls: Vec<Call> = (0..CALLS).map(|_| Call::any(&mut chance, ranks, &members)).collect();
        let call = &mut calls[at];
        let other = (victim + 1 + chance.below(ranks - 1)) % ranks;
        match kind {
            Kind::Differs(Field::Tag | Field::Peer) => {
                let (from, to) = one(&mut chance, &[(victim, other), (other, victim)]);
                call.what = What::Message { from, to };
                call.some = false;
            }
            // Only calls with a count can differ in it.
            Kind::Differs(Field::Count) => call.what = one(&mut chance, What::COUNTED),
            Kind::Differs(Field::Root) => call.what = one(&mut chance, &What::ROOTED),
            Kind::Differs(Field::Operation) => call.what = one(&mut chance, &What::REDUCING),
            Kind::Differs(Field::Variant) => {
                call.what = one(&mut chance, &[What::AllGather, What::Broadcast])
            }
            Kind::Differs(Field::Group) if matches!(call.what, What::Message { .. }) => {
                call.what = What::Barrier
            }
            Kind::Ends(last) => {
                call.count = one(&mut chance, &[1, 2, 9]);
                call.some = false;
                call.what = match last {
                    Last::Root => {
                        one(&mut chance, &[What::Reduce, What::Broadcast, What::Gather, What::Scatter])
                    }
                    Last::Message => What::Message { from: victim, to: other },
                };
                calls.truncate(at + 1);
            }
            _ => {}
        }
        Self { seed, ranks, victim, kind, members, calls, at, chance, deaths }
    }

    /// The fate of a rank, and its moment.
    pub(super) fn fate(&self, rank: usize) -> Option<(Fate, Moment)> {
        self.deaths.iter().find(|(whose, ..)| *whose == rank).map(|&(_, fate, moment)| (fate, moment))
    }

    /// The variable by which the victim cannot join.
    pub(super) fn wrong(&self) -> Option<(&'static str, &'static str)> {
        let Kind::Refused(wrong) = self.kind else { return None };
        Some(match wrong {
            Wrong::WorldSize => ("UNISONO_WORLD_SIZE", "9"),
            Wrong::RankThatIsTaken => ("UNISONO_RANK", ["0", "1"][self.taken()]),
            Wrong::Token => ("UNISONO_TOKEN", "another"),
            Wrong::Setting => ("UNISONO_CHUNK", "abc"),
        })
    }

    /// The rank that the victim claims although another process has it.
    fn taken(&self) -> usize {
        usize::from(self.victim == 0)
    }

    /// True if a rank must report the results of its calls.
    pub(super) fn survives(&self, rank: usize) -> bool {
        match self.kind {
            // It is chance which of two processes of one rank comes first.
            Kind::Refused(Wrong::RankThatIsTaken) => rank != self.victim && rank != self.taken(),
            Kind::Refused(_) => rank != self.victim,
            _ => self.fate(rank).is_none_or(|(fate, _)| fate == Fate::Aborts),
        }
    }

    /// True if the text first names a rank that is at fault.
    pub(super) fn blames(&self, text: &str) -> bool {
        let named = |rank: usize| text.starts_with(&format!("rank {rank} "));
        named(self.victim) || self.deaths.iter().any(|&(rank, ..)| named(rank))
    }

    /// The time that a rank is idle before a call.
    pub(super) fn idle(&self, rank: usize, at: usize) -> Duration {
        let mut chance = Random(self.seed ^ (rank * CALLS + at + 1) as u64);
        match (self.kind, chance.below(3)) {
            (Kind::Idle, 0) => Duration::from_millis(chance.below(700) as u64),
            _ => Duration::ZERO,
        }
    }

    /// The calls of a rank.
    pub(super) fn calls(&self, rank: usize) -> Vec<Call> {
        let mut calls = self.calls.clone();
        if let Kind::Ends(last) = self.kind
            && let Some(call) = calls.last_mut()
        {
            match last {
                Last::Root if rank == self.victim => {
                    call.root += 1 + self.chance.clone().below(self.ranks - 1)
                }
                Last::Message if rank != self.victim => drop(calls.pop()),
                _ => {}
            }
        }
        let Kind::Differs(field) = self.kind else { return calls };
        if rank != self.victim {
            return calls;
        }
        let mut chance = self.chance;
        let at = self.at;
        let call = &mut calls[at];
        match field {
            Field::Nothing | Field::Setting(_) => {}
            Field::Asynchronous => call.asynchronous = !call.asynchronous,
            Field::Collective => call.what = other(&mut chance, call.what, &What::PLAIN),
            Field::Variant => {
                call.what = match call.what {
                    What::AllGather => one(&mut chance, &[What::AllGatherV, What::AllGatherObject]),
                    _ => one(&mut chance, &[What::BroadcastObject, What::BroadcastTensors]),
                }
            }
            Field::Dtype => {
                call.dtype = other(&mut chance, call.dtype, &[Dtype::F32, Dtype::I32, Dtype::U64])
            }
            Field::Count => call.count += one(&mut chance, &[1, 7, 3000, 40_000]),
            Field::Root => call.root += 1 + chance.below(call.size(self) - 1),
            Field::Operation => {
                call.op = other(&mut chance, call.op, &[ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min])
            }
            Field::Group => call.some = !call.some,
            Field::Order => calls.swap(at, (at + 1) % CALLS),
            Field::Less => drop(calls.remove(at)),
            Field::More => {
                let more = calls[chance.below(CALLS)];
                calls.insert(at, more);
            }
            Field::Tag => call.tag += 1,
            Field::Peer => {
                if let What::Message { from, to } = &mut call.what {
                    // Between two ranks, the message goes in the other direction, or to its sender.
                    let mine = if *from == rank { to } else { from };
                    *mine = (*mine + 1) % self.ranks;
                }
            }
        }
        calls
    }

    /// The possible results.
    pub(super) fn due(&self) -> &'static [&'static str] {
        match self.kind {
            Kind::Differs(Field::Setting(at)) if settings::ALL[at].alike => &["settings"],
            Kind::Differs(Field::Setting(_)) => &["right"],
            Kind::Differs(_) => self.due_of_calls(),
            Kind::Dies(Fate::Aborts, _) => &["aborted"],
            Kind::Dies(Fate::Stops, Moment::Joining(_)) => &["deadline", "missing"],
            Kind::Dies(Fate::Stops, _) => &["deadline"],
            // A rank that dies before it has reached the store is missing, and has not reported its signal.
            Kind::Dies(Fate::Terminated, Moment::Joining(_)) => &["ended", "died", "missing"],
            Kind::Dies(Fate::Terminated, _) => &["ended"],
            Kind::Dies(_, Moment::Joining(_)) => &["died", "missing"],
            Kind::Dies(..) | Kind::ThreeDie => &["died"],
            Kind::Refused(_) => &["could not join"],
            Kind::Idle => &["right"],
            Kind::Ends(_) => &["mismatch", "deadlock", "left"],
        }
    }

    /// The possible results if the victim's calls differ.
    fn due_of_calls(&self) -> &'static [&'static str] {
        let seen = |calls: &[Call]| -> Vec<Call> {
            calls.iter().filter_map(|call| call.seen(self.victim, self)).collect()
        };
        let (wanted, own) = (seen(&self.calls), seen(&self.calls(self.victim)));
        // There are messages, and the collectives of each of the two groups. The library must report a difference within one of these kinds.
        let kind = |call: &Call| match call.what {
            What::Message { .. } => 0,
            _ => 1 + usize::from(call.some),
        };
        let apart = |calls: &[Call]| {
            let mut apart: [Vec<Call>; 3] = Default::default();
            calls.iter().for_each(|call| apart[kind(call)].push(*call));
            apart
        };
        if wanted == own {
            &["right"]
        } else if apart(&wanted) == apart(&own) {
            // A call that comes earlier or later may still be right if nothing else waits for it: a message, or a reduction with
            // another rank as its root.
            &["right", "mismatch", "deadlock", "left"]
        } else {
            &["mismatch", "deadlock", "left"]
        }
    }

    pub(super) fn words(&self) -> String {
        let Self { ranks, victim, kind, members, at, .. } = self;
        let whole = self.calls.get(*at);
        let own = self.calls(*victim);
        format!(
            "{ranks} ranks, rank {victim} {kind:?} at call {at} {whole:?}, where it has {:?}; the other group has ranks {members:?}",
            own.get(*at)
        )
    }
}

fn other<T: Copy + PartialEq>(chance: &mut Random, than: T, of: &[T]) -> T {
    let others: Vec<T> = of.iter().copied().filter(|it| *it != than).collect();
    one(chance, &others)
}
