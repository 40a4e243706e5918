//! Point to point: messages between two ranks of a group that only these two know of.
//!
//! All of them to one rank go through one flow of slots, in the order in which they were sent, but for the parts of large
//! ones, which go before what was sent later. A small one is in its slot whole. Of a large one an announcement comes
//! first; when its receive is there, the receiver answers with a grant, and the sender writes straight into the receiver's
//! memory, or sends it in parts through slots where one of the two cannot be registered. A small message that nobody has
//! asked for yet is copied out of its slot, so that others get past it.

mod incoming;
mod matching;
mod outgoing;
mod waits;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use bytemuck::Zeroable;
use unisono_schedule::Rank;
use unisono_transport::{Region, RemoteRegion};

pub(super) use self::matching::{Envelope, Matching, Want};
use super::{
    Stop,
    core::Core,
    operation::Signature,
    ticket::{Asked, Held, Received, Ticket},
    wire::{Header, Message},
};
use crate::{buffer::Fresh, dtype::Dtype, error::Failure};

/// The largest piece of a message that is written at once, as a power of two: below what every provider takes.
const PIECE: u8 = 26;

/// The same where the memory is fresh. What may be under way at first is made zeros before, and what follows while it comes.
/// So few bytes that the first need not wait and that what was made ready is still in a core's own cache.
const FRESH_PIECE: u8 = if cfg!(test) { 6 } else { 18 };

/// How many bytes of messages that nobody has asked for are kept aside. Those that come when there are more wait in
/// their slots, and their senders with them; but a large one from a rank that waits for a large one of this rank's comes in
/// any case, and so do those in front of the parts of one that was asked for.
const ASIDE: usize = if cfg!(test) { 1 << 20 } else { 256 << 20 };

/// How long large messages have waited for each other before one of them is taken aside: far longer than a receive
/// takes to be asked for right after a send.
const STALE: Duration = Duration::from_millis(1);

/// What a message that is kept aside counts beside its elements: its entry, and memory of its own.
const ENTRY: usize = 256;

/// How long a collective or a receive has waited before it may be for a rank whose large message waits to be taken: far
/// longer than they take, since what is taken aside is copied once more.
pub(super) const LONG: Duration = Duration::from_millis(100);

/// What a message is: what sender and receiver must agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    pub form: Form,
    pub dtype: Dtype,
    /// Elements.
    pub count: usize,
}

/// What its elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Elements, and nothing else.
    Plain,
    /// What tensors are whose elements follow.
    Tensors,
    /// A value, encoded.
    Object,
    /// What belongs to tensors or an invitation that was sent before. The tag is the number that was sent with it.
    Inner,
    /// An invitation to make a group of the two ranks.
    Pair,
    /// What the invited rank answers. The tag is the number that was sent with the invitation.
    Answer,
}

impl Form {
    const ALL: [Self; 6] = [Self::Plain, Self::Tensors, Self::Object, Self::Inner, Self::Pair, Self::Answer];

    /// Whether it belongs to a message that came before.
    const fn is_inner(self) -> bool {
        matches!(self, Self::Inner | Self::Answer)
    }

    pub(super) const fn code(self) -> u8 {
        match self {
            Self::Plain => 0,
            Self::Tensors => 1,
            Self::Object => 2,
            Self::Inner => 3,
            Self::Pair => 4,
            Self::Answer => 5,
        }
    }

    pub(super) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

impl Kind {
    pub(crate) fn bytes(&self) -> usize {
        self.count.saturating_mul(self.dtype.size())
    }

    /// What it counts among what is kept aside.
    pub(super) fn kept(&self) -> usize {
        self.bytes().saturating_add(ENTRY)
    }

    /// For people: `5 f32 elements`.
    fn words(&self) -> String {
        match self.form {
            Form::Plain => format!("{} {} elements", self.count, self.dtype.name()),
            Form::Tensors => "tensors".to_owned(),
            Form::Object => "an object".to_owned(),
            Form::Inner if self.dtype == Dtype::U64 => format!("{} words about a pair", self.count),
            Form::Inner => format!("{} bytes of tensors", self.count),
            Form::Pair => "an invitation to a pair".to_owned(),
            Form::Answer => "an answer to an invitation".to_owned(),
        }
    }
}

/// A message that somebody sends.
pub(crate) struct Outbound {
    pub to: Rank,
    pub tag: u32,
    pub kind: Kind,
    pub source: Region,
    /// The registered buffer that it lies in, if it does, and where.
    pub registered: Option<(Region, usize)>,
}

/// A message that somebody asks for.
pub(crate) struct Inbound {
    /// From any rank, if from none.
    pub from: Option<Rank>,
    pub tag: u32,
    pub form: Form,
    pub dtype: Dtype,
    pub place: Place,
}

/// Where a message goes.
pub(crate) enum Place {
    /// There, and it must have that many elements.
    There { output: Region, count: usize, registered: Option<(Region, usize)> },
    /// To fresh memory, however long it is up to so many bytes.
    Fresh { most: usize },
    /// To fresh memory for so many elements of this type, which the message must fill.
    New { dtype: Dtype, count: usize },
}

/// A message that leaves.
struct Sending {
    outbound: Outbound,
    asked: Asked,
    /// Its number among those to this rank; the low 32 bits.
    number: u32,
    /// How many elements were handed to the transport, or bytes of it written.
    gone: usize,
    /// Puts of it under way.
    under_way: usize,
    stage: Stage,
}

impl Outbound {
    /// Where its elements lie, and whether that is registered.
    fn place(&self) -> (Region, usize, bool) {
        match &self.registered {
            Some((region, at)) => (region.clone(), *at, true),
            None => (self.source.clone(), 0, false),
        }
    }
}

impl Sending {
    /// Whether it has waited for so long, and nothing of it has gone.
    fn stuck(&self, now: Instant, how_long: Duration) -> bool {
        matches!(self.stage, Stage::Queued | Stage::Announced) && now >= self.asked.at + how_long
    }

    /// The header of a message of this sort, but for what the flow adds.
    fn header(&self, sort: Message, len: u32) -> Header {
        let Outbound { tag, kind, .. } = self.outbound;
        Header {
            op: self.number,
            codes: [sort.code(), kind.dtype.code(), kind.form.code(), 0],
            root: tag,
            count: kind.count as u64,
            len,
            ..Header::zeroed()
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// Waits for its turn.
    Queued,
    /// Waits for a grant.
    Announced,
    /// Is written there, in pieces of so many bytes.
    Writing(RemoteRegion, usize),
    /// Goes in parts.
    Parting,
    /// All has been handed to the transport.
    Gone,
}

/// What goes to a rank through slots.
#[derive(Clone, Copy, Debug)]
enum Item {
    /// A message or its announcement.
    Message(u64),
    /// The message's next parts.
    Parts(u64),
    /// Leave to send that message; in pieces, if it may be written.
    ClearToSend { number: u32, place: Option<RemoteRegion>, piece: u8 },
}

/// A message that has come, or been announced, before its receive.
enum Early {
    Whole {
        kind: Kind,
        number: u32,
        bytes: Fresh,
    },
    Announced {
        kind: Kind,
        number: u32,
        writes: bool,
        since: Instant,
    },
    /// It is coming into memory of its own.
    Coming {
        kind: Kind,
        number: u32,
    },
}

impl Early {
    /// What it is, and its number.
    fn known(&self) -> (Kind, u32) {
        match self {
            Self::Whole { kind, number, .. }
            | Self::Announced { kind, number, .. }
            | Self::Coming { kind, number } => (*kind, *number),
        }
    }
}

/// A receive that waits.
struct Receiving {
    inbound: Inbound,
    asked: Asked,
}

impl Receiving {
    /// Whether nobody waits for it any more.
    fn forsaken(&self) -> bool {
        Arc::strong_count(&self.asked.ticket) == 1
    }
}

/// A large message that comes.
struct Landing {
    tag: u32,
    kind: Kind,
    /// Whose it is; nobody's, if it was taken aside.
    receiving: Option<Receiving>,
    into: Region,
    /// The memory, where it was taken aside or its length was not known.
    fresh: Option<Fresh>,
    /// Whether that counts among what is kept aside.
    aside: bool,
    /// What the sender writes to, registered for the time.
    exposed: Option<Region>,
    /// In which pieces it does: a power of two.
    piece: u8,
    /// Elements that have come in parts, or pieces that were written.
    come: usize,
}

impl Landing {
    /// One that is granted: nothing has come of it.
    fn new(tag: u32, kind: Kind, receiving: Option<Receiving>, into: Region, fresh: Option<Fresh>) -> Self {
        let (aside, piece) = (receiving.is_none(), if fresh.is_some() { FRESH_PIECE } else { PIECE });
        Self { tag, kind, receiving, into, fresh, aside, exposed: None, piece, come: 0 }
    }

    /// Makes ready what may be written when this many pieces may be under way behind those that have come; or all of it.
    fn provide(&mut self, ahead: Option<usize>) {
        if let Some(fresh) = &mut self.fresh {
            let pieces = ahead.map_or(usize::MAX, |ahead| self.come + ahead);
            fresh.provide(pieces.saturating_mul(1 << self.piece));
        }
    }
}

/// What a group has of it.
#[derive(Default)]
pub(super) struct Talk {
    /// By the order in which they were asked for.
    sendings: BTreeMap<u64, Sending>,
    asked: u64,
    /// How many messages went to each rank.
    numbers: BTreeMap<Rank, u32>,
    /// What waits for a slot, for each rank; and messages to be written, in the order in which they were granted.
    queues: BTreeMap<Rank, VecDeque<Item>>,
    writes: BTreeMap<Rank, VecDeque<u64>>,
    matching: Matching<Receiving, Early>,
    landings: BTreeMap<(Rank, u32), Landing>,
    /// Those that are written, in the order in which they were granted.
    clear_to_send: BTreeMap<Rank, VecDeque<u32>>,
    /// Flows with messages that nobody has looked at.
    pub(super) arrived: Vec<usize>,
    pub(super) written: Vec<usize>,
    /// Bytes kept aside.
    aside: usize,
    /// Puts under way.
    pub(super) under_way: usize,
    /// Who has asked for what cannot be, to be told when all is over.
    lost: Vec<Asked>,
    /// What has ended, to be told to those who asked, and what it has received.
    pub(super) ended: VecDeque<(Asked, Option<Received>)>,
    /// No deadline is before this; `None` where nobody waits.
    soonest: Option<Instant>,
}

impl Talk {
    /// Whether anything that was asked for is on its way, or has ended and nobody was told.
    fn busy(&self) -> bool {
        let landing = self.landings.values().any(|landing| landing.receiving.is_some());
        !self.sendings.is_empty() || landing || !self.ended.is_empty()
    }

    /// Whether anybody waits for the end of a send or a receive.
    pub(super) fn open(&self) -> bool {
        self.busy() || self.matching.receives().next().is_some()
    }

    /// Whether anything waits to be sent.
    pub(super) fn has_more(&self) -> bool {
        !self.queues.is_empty() || !self.writes.is_empty()
    }

    /// Whether all that is under way are receives whose message has not come, and of no message that belongs to another: its
    /// sender goes on with that.
    pub(super) fn only_receives(&self) -> bool {
        !self.busy() && !self.matching.receives().any(|(want, _)| want.inner)
    }

    /// Gives up the receives that have got no message, and that nobody waits for any more, if this is so of them and of the
    /// rank they take one from.
    pub(super) fn give_up(&mut self, so: impl Fn(&Asked, Option<Rank>) -> bool) {
        let so = |want: Want, receiving: &Receiving| receiving.forsaken() && so(&receiving.asked, want.from);
        for Receiving { asked, inbound } in self.matching.take_back(so) {
            tracing::debug!(from = ?inbound.from, tag = inbound.tag, "a receive that nobody waits for is given up");
            self.ended.push_back((Asked { held: Held::Back(None), ..asked }, None));
        }
    }

    /// Whether nothing is left of it on the way.
    pub(super) fn over(&self) -> bool {
        !self.open() && self.landings.is_empty() && self.queues.is_empty() && self.under_way == 0
    }

    /// Whose deadline has passed: since when it waits, and its call.
    pub(super) fn late(&mut self, now: Instant) -> Option<(Instant, Signature)> {
        if self.soonest.is_none_or(|soonest| now < soonest) {
            return None;
        }
        self.give_up(|asked, _| asked.deadline <= now);
        let first = self.waits().min_by_key(|waits| waits.asked().deadline);
        let found = first.map(|first| (first.asked().deadline, first.asked().at, first.signature()));
        self.soonest = found.map(|(deadline, ..)| deadline);
        found.filter(|(deadline, ..)| *deadline <= now).map(|(_, at, signature)| (at, signature))
    }

    /// The earliest deadline, or an earlier moment.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.soonest
    }

    /// When to look whether something is to be taken aside; `None` if nothing is.
    pub(super) fn patience(&mut self) -> Option<Instant> {
        let waits = |sending: &&Sending| matches!(sending.stage, Stage::Queued | Stage::Announced);
        // They are in the order in which they were asked for.
        let oldest = self.sendings.values().find(waits)?.asked.at;
        let announced = self.matching.messages().any(|(_, early)| matches!(early, Early::Announced { .. }));
        announced.then_some(oldest + STALE)
    }

    /// Gives all up: what belongs to those who asked.
    pub(super) fn abandon(&mut self) -> Vec<(Arc<Ticket>, Held)> {
        let sendings = std::mem::take(&mut self.sendings).into_values().map(|sending| sending.asked);
        let landings = std::mem::take(&mut self.landings).into_values();
        let landings = landings.filter_map(|landing| landing.receiving.map(|receiving| receiving.asked));
        let receives = self.matching.give_up().map(|receiving| receiving.asked);
        let ended = self.ended.drain(..).map(|(asked, _)| asked);
        let left = sendings.chain(landings).chain(receives).chain(self.lost.drain(..)).chain(ended);
        left.map(|asked| (asked.ticket, asked.held)).collect()
    }
}

impl Core<'_> {
    /// Takes on a send.
    pub(super) fn send(&mut self, outbound: Outbound, asked: Asked) {
        let talk = &mut self.comm.talk;
        let number = talk.numbers.entry(outbound.to).or_default();
        let sending =
            Sending { number: *number, asked, gone: 0, under_way: 0, stage: Stage::Queued, outbound };
        *number = number.wrapping_add(1);
        let id = talk.asked;
        talk.asked += 1;
        talk.wait_until(sending.asked.deadline);
        talk.queues.entry(sending.outbound.to).or_default().push_back(Item::Message(id));
        talk.sendings.insert(id, sending);
    }

    /// Takes on a receive.
    pub(super) fn receive(&mut self, inbound: Inbound, asked: Asked) -> Result<(), Stop> {
        let want = Want { from: inbound.from, tag: inbound.tag, inner: inbound.form.is_inner() };
        self.comm.talk.wait_until(asked.deadline);
        match self.comm.talk.matching.receive(want, Receiving { inbound, asked }) {
            None => Ok(()),
            Some((envelope, early, receiving)) => self.early(envelope, early, receiving),
        }
    }

    /// Goes on with messages. True if anything moved.
    pub(super) fn talk(&mut self) -> Result<bool, Stop> {
        let mut moved = self.messages_arrived()?;
        moved |= self.writes_arrived()?;
        moved |= self.send_items()?;
        moved |= self.write_messages()?;
        if self.comm.has_debts() {
            self.comm.settle_debts(false);
        }
        if self.comm.has_control() {
            moved |= self.send_control()?;
        }
        Ok(moved)
    }

    /// Where large messages wait for each other, because ranks send before they receive, or for a rank that waits in a
    /// receive or, as it `waits`, in a collective, one is taken aside.
    pub(super) fn relieve(&mut self, now: Instant, waits: bool) -> Result<bool, Stop> {
        let Talk { sendings, matching, aside, .. } = &mut self.comm.talk;
        let sends = sendings.values().any(|sending| sending.stuck(now, STALE));
        let receives = matching.receives().any(|(_, receiving)| now >= receiving.asked.at + LONG);
        if !sends && !receives && !waits || self.comm.left {
            return Ok(false);
        }
        // What is waited for may be for a rank that is only late. But nothing else helps where sends wait for each other.
        let fits = |from: Rank, kind: &Kind| {
            aside.saturating_add(kind.kept()) <= ASIDE
                || sends && *aside == 0
                || wait_for(sendings, from, now)
        };
        let mut announced = matching.messages().filter_map(|(envelope, early)| match *early {
            Early::Announced { kind, number, writes, since } => {
                // Its receive may come right after the one that waits.
                let may = (sends || waits || now >= since + LONG) && fits(envelope.from, &kind);
                may.then_some((envelope, early, kind, number, writes))
            }
            _ => None,
        });
        let Some((envelope, early, kind, number, writes)) = announced.next() else { return Ok(false) };
        let Some(fresh) = Fresh::new(kind.dtype, kind.count) else { return Ok(false) };
        *early = Early::Coming { kind, number };
        drop(announced);
        *aside += kind.kept();
        let into = fresh.region().clone();
        let landing = Landing::new(envelope.tag, kind, None, into, Some(fresh));
        self.grant_message((envelope.from, number), landing, None, writes)?;
        self.port.mark_active(self.comm.comm_id);
        Ok(true)
    }

    /// A message that has come and that nobody has received. Sends nothing: the others may be gone.
    pub(super) fn unreceived(&mut self) -> Result<Option<Failure>, Stop> {
        self.messages_arrived()?;
        let Core { port, comm } = self;
        if !comm.talk.only_receives() {
            // What belongs to a message may have come before it is asked for.
            return Ok(None);
        }
        let Some((envelope, early)) = comm.talk.matching.messages().next() else { return Ok(None) };
        let (kind, number) = early.known();
        let from = comm.members.get(envelope.from).map_or(envelope.from, |member| member.world);
        Ok(Some(Failure::Message {
            number: u64::from(number),
            tag: envelope.tag,
            sender: (from, kind.words()),
            receiver: (port.me, "nothing, and leaves".to_owned()),
        }))
    }

    /// What sender and receiver differ in.
    fn differ(&self, (number, tag): (u32, u32), (from, kind): (Rank, Kind), me: &Inbound) -> Stop {
        let wanted = match me.place {
            Place::There { count, .. } => Kind { form: me.form, dtype: me.dtype, count }.words(),
            Place::New { dtype, count } => {
                Kind { form: me.form, dtype: me.dtype, count: count.saturating_mul(dtype.size()) }.words()
            }
            Place::Fresh { .. } if me.form != kind.form || me.dtype != kind.dtype => match me.form {
                Form::Plain => format!("{} elements", me.dtype.name()),
                form => Kind { form, dtype: me.dtype, count: 0 }.words(),
            },
            Place::Fresh { most } => format!("at most {most} bytes"),
        };
        Stop::from(Failure::Message {
            number: u64::from(number),
            tag,
            sender: (self.comm.world(from), kind.words()),
            receiver: (self.port.me, wanted),
        })
    }
}

/// Whether a large message to this rank has waited so long that the rank may wait for something from here.
fn wait_for(sendings: &BTreeMap<u64, Sending>, to: Rank, now: Instant) -> bool {
    sendings.values().any(|sending| sending.outbound.to == to && sending.stuck(now, LONG))
}

impl Talk {
    fn wait_until(&mut self, deadline: Instant) {
        self.soonest = Some(self.soonest.map_or(deadline, |soonest| soonest.min(deadline)));
    }
}
