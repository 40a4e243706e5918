//! Positions of ranks: the calls that each has made, by group, and the ranks that it waits for; and the failures that follow from the
//! positions of all ranks. This is pure data: the engine of a rank makes the rank's position, and the store compares all of them.

mod judge;
mod report;

use serde::{Deserialize, Serialize};
use unisono_schedule::Rank;

#[doc(hidden)]
pub use self::judge::judge;
pub use self::report::report;
#[doc(hidden)]
pub use self::report::whereabouts;
use crate::error::{Failure, clean};

/// Bounds of a position, since one process collects those of all ranks: the number of groups, of latest calls of each group, of
/// ranks that a call waits for, and the length of a group's name in characters.
#[doc(hidden)]
pub const GROUPS: usize = 64;
#[doc(hidden)]
pub const CALLS: usize = 4;
#[doc(hidden)]
pub const PEERS: usize = 64;
const LABEL: usize = 200;

/// The call with which a rank leaves the world.
#[doc(hidden)]
pub const LEAVES: &str = "leave()";

/// The longest text of another rank that is kept, in characters.
const MAX_TEXT: usize = 300;

/// The position of a rank at the time when the store asks for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The state of the rank.
    pub stage: Stage,
    /// For how many milliseconds the rank has been blocked; `None` if it is not. A rank is blocked if each of its threads in this
    /// library waits for another rank, no put of it is in flight, and it does not wait for room for a window, which any rank may give back.
    pub blocked: Option<u64>,
    /// Its groups: first those with calls in progress, then those used last.
    pub groups: Vec<GroupPosition>,
    /// The numbers of puts for each rank that puts went to or came from, over all groups.
    pub traffic: Vec<Traffic>,
}

/// The state of a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    /// It has not joined yet.
    #[default]
    Joins,
    /// It has joined, and may be in calls.
    Calls,
    /// The thread that drives its communication did not answer in time.
    Busy,
    /// It is leaving, and makes no other call.
    Leaves,
    /// It has left in good order.
    Left,
}

/// The numbers of puts to a rank and from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// The rank.
    pub rank: Rank,
    /// Puts to it.
    pub sent: u64,
    /// Puts of it that have arrived.
    pub arrived: u64,
}

/// The position of a rank in one group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupPosition {
    /// The id of the group: the same on all members, and unique. (Another group may have the same communicator id.)
    pub id: u64,
    /// The name of the group in errors; empty for the world.
    pub label: String,
    /// The number of collective operations that have begun, which is the number of the next one.
    pub begun: u64,
    /// The latest operations, the last one first.
    pub latest: Vec<CallRecord>,
    /// The progress of the last operation, if it has not finished.
    pub running: Option<Running>,
    /// Sends and receives in progress.
    pub messages: Vec<MessagePosition>,
}

impl GroupPosition {
    /// A group's name, cut to the longest that a position holds.
    #[doc(hidden)]
    pub fn named(label: Option<&str>) -> String {
        label.unwrap_or_default().chars().take(LABEL).collect()
    }

    /// The record of operation `op`, if the position holds it.
    fn called(&self, op: u64) -> Option<&CallRecord> {
        let back = self.begun.checked_sub(op)?.checked_sub(1)?;
        self.latest.get(usize::try_from(back).ok()?)
    }

    /// `barrier()`, or `op 3 barrier() of group world/0 of ranks 0, 1`.
    fn says(&self, call: &str, op: Option<u64>) -> String {
        let of = if self.label.is_empty() { String::new() } else { format!(" of group {}", self.label) };
        let op = op.map_or_else(String::new, |op| format!("op {op} "));
        format!("{op}{call}{of}")
    }
}

/// The progress of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Running {
    /// The number of its steps that are done.
    pub steps: u64,
    /// The ranks, in the world, that it waits for; empty if it waits for none.
    pub waits: Vec<Rank>,
}

/// A send or receive in progress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessagePosition {
    /// The call, for instance `recv(f32, from 0, tag 7)`.
    pub call: String,
    /// True if it is a receive.
    pub receives: bool,
    /// The ranks, in the world, one of which can end it; empty if it waits for none.
    pub waits: Vec<Rank>,
}

/// A record of a call: everything that ranks must agree on in an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallRecord {
    /// For instance `all_reduce(f32, sum)`.
    pub call: String,
    /// The number of elements.
    pub count: u64,
    /// The algorithm's name.
    pub algorithm: String,
    /// Further arguments that must be alike: for many tensors a hash of their types and shapes, for blocks of given lengths a hash of the
    /// lengths; otherwise 0.
    pub contents: u32,
    /// True if blocks may differ in length.
    pub uneven: bool,
    /// The largest message, in elements.
    pub chunk: u32,
    /// The number of lanes.
    pub lanes: u32,
}

impl CallRecord {
    /// The failure that names the difference between the calls of two ranks, in the same words on every rank.
    #[doc(hidden)]
    pub fn differ(group: Box<str>, op: u64, one: (Rank, &Self), other: (Rank, &Self)) -> Failure {
        let (left, right) = if one.0 < other.0 { (one, other) } else { (other, one) };
        let (a, b) = (left.1, right.1);
        let say = |call: &str, say: &dyn Fn(&Self) -> String| Failure::Mismatch {
            group,
            op,
            call: call.to_owned(),
            left: (left.0, say(a)),
            right: (right.0, say(b)),
        };
        if a.call != b.call {
            say("", &|it| match &*it.call {
                // The rank may have left before its program meant to.
                LEAVES => "has left before it".to_owned(),
                call => format!("calls {call}"),
            })
        } else if a.uneven && a.contents != b.contents {
            say(&a.call, &|it| match it.contents {
                0 => "asks for the lengths of the other ranks' blocks".to_owned(),
                hash => format!(
                    "was given lengths of blocks that hash to {hash:08x}, the longest of {} elements",
                    it.count
                ),
            })
        } else if a.count != b.count {
            say(&a.call, &|it| format!("has {} elements", it.count))
        } else if a.algorithm != b.algorithm {
            say(&a.call, &|it| format!("uses algorithm {}", it.algorithm))
        } else if a.contents != b.contents {
            say(&a.call, &|it| format!("has tensors whose types and shapes hash to {:08x}", it.contents))
        } else {
            say(&a.call, &|Self { chunk, lanes, .. }| {
                format!("cuts it into messages of {chunk} elements on {lanes} lanes")
            })
        }
    }
}

impl Position {
    /// A position that holds a state and nothing else.
    #[must_use]
    pub fn of(stage: Stage) -> Self {
        Self { stage, ..Self::default() }
    }

    /// The same position, with all texts made safe for a terminal, because another process has made them.
    #[doc(hidden)]
    pub fn cleaned(mut self) -> Self {
        for group in &mut self.groups {
            let called = group.latest.iter_mut().flat_map(|called| [&mut called.call, &mut called.algorithm]);
            let messages = group.messages.iter_mut().map(|message| &mut message.call);
            let texts = called.chain(messages).chain([&mut group.label]);
            texts.for_each(|text| *text = clean(text, MAX_TEXT));
        }
        self
    }

    fn group(&self, id: u64) -> Option<&GroupPosition> {
        self.groups.iter().find(|group| group.id == id)
    }

    fn traffic(&self, rank: Rank) -> Option<&Traffic> {
        self.traffic.iter().find(|traffic| traffic.rank == rank)
    }

    /// Everything that the rank waits for.
    fn waits(&self) -> impl Iterator<Item = Wait<'_>> {
        self.groups.iter().flat_map(|group| {
            let op = group.begun.saturating_sub(1);
            let running = group.running.iter().map(move |running| Wait {
                group,
                call: group.called(op).map_or("", |called| &called.call),
                op: Some(op),
                receives: false,
                ranks: &running.waits,
            });
            let messages = group.messages.iter().map(move |message| Wait {
                group,
                call: &message.call,
                op: None,
                receives: message.receives,
                ranks: &message.waits,
            });
            running.chain(messages)
        })
    }
}

/// An operation or message that waits for ranks.
#[derive(Clone, Copy)]
struct Wait<'s> {
    group: &'s GroupPosition,
    call: &'s str,
    /// The number of the operation, if it is a collective.
    op: Option<u64>,
    receives: bool,
    ranks: &'s [Rank],
}

impl Wait<'_> {
    fn says(&self) -> String {
        self.group.says(self.call, self.op)
    }

    /// True if a rank at `position` has not entered the operation, or this is a message.
    fn is_without(&self, position: &Position) -> bool {
        self.op.is_none_or(|op| position.group(self.group.id).is_none_or(|group| group.begun <= op))
    }
}
