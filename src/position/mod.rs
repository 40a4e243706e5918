//! Where ranks position: what each has called, group by group, and whom it waits for; and what follows from all of it. Pure
//! data: a rank's engine gives its own, and whoever has those of all ranks compares them.

mod judge;
mod report;

use serde::{Deserialize, Serialize};
use unisono_schedule::Rank;

pub(crate) use self::judge::judge;
pub use self::report::{report, whereabouts};
use crate::error::{Failure, clean};

/// How many groups a rank tells of, how many of the latest calls of each, how many ranks that one call waits for, and how
/// many bytes of a group's name: what all ranks tell is gathered in one place.
pub(crate) const GROUPS: usize = 64;
pub(crate) const CALLS: usize = 4;
pub(crate) const PEERS: usize = 64;
const LABEL: usize = 200;

/// How much of a text that another rank tells is taken, in characters.
const MAX_TEXT: usize = 300;

/// Where a rank stood when asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// What it is about.
    pub stage: Stage,
    /// For how many milliseconds nothing of it has moved, if it can do nothing before another rank does something: each of
    /// its threads that calls this library waits, and nothing that it sends is under way.
    pub blocked: Option<u64>,
    /// Its groups: those with something under way first, then those that were used last.
    pub groups: Vec<GroupPosition>,
    /// For each rank that anything went to or came from: how many puts did, of all groups together.
    pub traffic: Vec<Traffic>,
}

/// What a rank is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    /// It has not joined yet.
    #[default]
    Joins,
    /// It calls, or may call.
    Calls,
    /// Whoever drives its communication did not answer in time.
    Busy,
    /// It leaves, and makes no other call.
    Leaves,
    /// It has left in good order.
    Left,
}

/// How many puts went to a rank, and how many came from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// The rank.
    pub rank: Rank,
    /// Puts to it.
    pub sent: u64,
    /// Puts of it that have arrived.
    pub arrived: u64,
}

/// Where a rank positions in one group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupPosition {
    /// The same on all members, and no other group's. Numbers of channels are each member's own.
    pub id: u64,
    /// What errors call it; nothing for the world.
    pub label: String,
    /// How many collective operations have begun: the number of the next.
    pub begun: u64,
    /// The latest of them, the last first.
    pub latest: Vec<Called>,
    /// Whether the last is under way: how far it is.
    pub running: Option<Running>,
    /// Messages from point to point that are under way.
    pub messages: Vec<MessagePosition>,
}

impl GroupPosition {
    /// A name that is not longer than is told.
    pub(crate) fn named(label: Option<&str>) -> String {
        label.unwrap_or_default().chars().take(LABEL).collect()
    }

    /// What the operation of this number was called as, if that is told.
    fn called(&self, op: u64) -> Option<&Called> {
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

/// How far an operation is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Running {
    /// How many of its steps are done.
    pub steps: u64,
    /// The ranks of the world without which it cannot go on; none if it can.
    pub waits: Vec<Rank>,
}

/// A message that is under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessagePosition {
    /// The call, for instance `recv(f32, from 0, tag 7)`.
    pub call: String,
    /// Whether it is a receive.
    pub receives: bool,
    /// The ranks of the world of which one can end it; none if it ends by itself.
    pub waits: Vec<Rank>,
}

/// What ranks must agree on in an operation, in words and numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Called {
    /// For instance `all_reduce(f32, sum)`.
    pub call: String,
    /// How many elements.
    pub count: u64,
    /// The algorithm's name.
    pub algorithm: String,
    /// The root, or what else positions there.
    pub root: u32,
    /// The most elements of a message.
    pub chunk: u32,
    /// On how many lanes.
    pub lanes: u32,
}

impl Called {
    /// What two ranks disagree on in an operation, in words that are the same whoever notices.
    pub(crate) fn differ(group: Box<str>, op: u64, one: (Rank, &Self), other: (Rank, &Self)) -> Failure {
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
            say("", &|it| format!("calls {}", it.call))
        } else if a.count != b.count {
            say(&a.call, &|it| format!("has {} elements", it.count))
        } else if a.algorithm != b.algorithm {
            say(&a.call, &|it| format!("uses algorithm {}", it.algorithm))
        } else if a.root != b.root {
            // The calls would differ, if it were a root.
            say(&a.call, &|it| format!("has tensors whose types and shapes hash to {:08x}", it.root))
        } else {
            say(&a.call, &|Self { chunk, lanes, .. }| {
                format!("cuts it into messages of {chunk} elements on {lanes} lanes")
            })
        }
    }
}

impl Position {
    /// The stand of a rank that is about this and tells nothing else.
    #[must_use]
    pub fn of(stage: Stage) -> Self {
        Self { stage, ..Self::default() }
    }

    /// The same with texts that disturb no terminal, whoever has made them.
    pub(crate) fn cleaned(mut self) -> Self {
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

    /// All that it waits for, with the groups.
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

/// Something that waits for ranks.
#[derive(Clone, Copy)]
struct Wait<'s> {
    group: &'s GroupPosition,
    call: &'s str,
    /// Of a collective.
    op: Option<u64>,
    receives: bool,
    ranks: &'s [Rank],
}

impl Wait<'_> {
    fn says(&self) -> String {
        self.group.says(self.call, self.op)
    }

    /// Whether a rank that positions so has not entered it, or is the other end of a message.
    fn is_without(&self, position: &Position) -> bool {
        self.op.is_none_or(|op| position.group(self.group.id).is_none_or(|group| group.begun <= op))
    }
}
