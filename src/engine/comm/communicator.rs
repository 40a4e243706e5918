//! A group as the engine knows it: its members, its mailbox, its windows and flows, and what its operations leave behind
//! for the next.

use std::{collections::VecDeque, sync::Arc, time::Instant};

use bytemuck::Pod;
use unisono_schedule::{CallSchedule, Rank, windows::stride};
use unisono_transport::{Error, Memory, Region, RemoteRegion, Transport};

use super::{
    flow::Incoming,
    member::{Member, NONE},
    window::{Sender, WindowMemory, WindowState},
};
use crate::{
    call::Signature,
    engine::{
        access,
        collective::Lane,
        completion::Completion,
        p2p::Talk,
        request::Operation,
        settings::Settings,
        wire::{
            Class, ClearToSend, CollectiveHeader, CommId, ControlKind, Entry, HEADER, OperationInfo, PAYLOAD,
            Way,
        },
    },
    position::{CALLS, CallRecord},
};

/// The most clears to send of a peer at once: for the operation under way here, and, if that is over for the peer, for the next.
const CLEAR_TO_SENDS: u8 = 2;

/// Where the operation of that number is among the latest.
pub(crate) fn recent(number: u64) -> usize {
    const { assert!(CALLS == 4) }
    usize::from((number & 3) as u8)
}

/// A collective that waits for its turn.
pub(crate) type QueuedCollective = (Box<Operation>, CallSchedule, Completion);

/// A small message outside of any flow: what docs/wire.md has in the mailbox, and credits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ControlMessage {
    Window(Class),
    ClearToSend,
    Credit(usize, Way),
    Hello,
    MismatchProbe(Class),
    End,
    Close(Class),
    Answer(Class),
    Read,
}

/// A group, without its operation under way.
pub(crate) struct Comm {
    /// By which its members' control messages find it.
    pub comm_id: CommId,
    /// This process's rank in it.
    pub me: Rank,
    pub settings: Settings,
    /// What schedules may keep things in; as much as any has needed so far.
    pub scratch: Option<Region>,
    /// The room of the latest operation's lanes.
    pub(crate) lanes: Vec<Lane>,
    pub senders: Vec<Sender>,
    /// The first of those of windows that were closed, which serve for the next of their class.
    pub(crate) spare_senders: Vec<(Class, usize)>,
    pub receivers: Vec<Incoming>,
    /// For each of them, what comes straight into this rank's output.
    pub landings: Vec<Incoming>,
    /// Puts under way, and of those the ones that read the caller's memory, by lane.
    pub under_way: usize,
    pub outstanding: Vec<usize>,
    pub(crate) members: Vec<Member>,
    pub(crate) windows: Vec<WindowMemory>,
    /// Written by peers, read when an immediate says so.
    mailbox: Region,
    /// What this rank writes to the others' mailboxes: kept here until it has left.
    pub(crate) control: Region,
    pub(crate) control_queue: VecDeque<(Rank, ControlMessage)>,
    /// Receivers whose senders should hear of their credit when there is time.
    pub(crate) debts: Vec<(usize, Way)>,
    /// Control messages that the transport has not reported as sent: those that it reads from `control`, and copies.
    pub(crate) control_in_flight: usize,
    pub(crate) control_copies_in_flight: usize,
    /// Headers of messages that peers cannot send yet, until this rank comes to their operation; and in which class they
    /// would come. No more than the latest of each rank.
    pub mismatch_probes: Vec<(Rank, Class, OperationInfo)>,
    /// What peers allow, until the end of the operation for which they do. No more than [`CLEAR_TO_SENDS`] of each.
    pub clear_to_sends: Vec<(Rank, ClearToSend)>,
    /// Whether peers may write into this rank's output now.
    pub exposed: bool,
    /// Whether an operation is under way, and those that wait for their turn.
    pub(crate) busy: bool,
    pub(crate) tasks: VecDeque<QueuedCollective>,
    /// Operations begun so far: the number of the next.
    pub begun: u64,
    /// What the latest of them were, each at its number modulo as many.
    pub(crate) calls: [Signature; CALLS],
    /// When it began the last of them, counted in those of all groups.
    pub(crate) used: u64,
    /// Its number, the same on all members and no other group's, and what errors call it; 0 and nothing of the world.
    pub(crate) id: u64,
    pub(crate) label: Option<Arc<str>>,
    /// Messages from point to point.
    pub(crate) talk: Talk,
    /// Whether this rank says shutdown to the world: then nobody needs credit any more, and what it puts must not be
    /// lost when it closes its endpoint.
    pub(crate) shutting_down: bool,
    /// Whether the members' mailboxes are known.
    introduced: bool,
    /// Whether this rank has left the group.
    pub(crate) left: bool,
    /// Whether its end was told: also of the world, by whose barriers ranks leave.
    pub(crate) end_told: bool,
}

impl Comm {
    /// Registers the mailbox of rank `me` of `ranks`, for the world's group.
    pub(crate) fn new(
        transport: &mut dyn Transport,
        me: Rank,
        ranks: usize,
        settings: Settings,
    ) -> Result<Self, Error> {
        let bytes = ranks * size_of::<Entry>();
        let mailbox = transport.register(Memory::map(bytes, false)?)?;
        let control = transport.register(Memory::map(bytes, false)?)?;
        Ok(Self {
            comm_id: 0,
            me,
            settings,
            scratch: None,
            lanes: Vec::new(),
            senders: Vec::new(),
            spare_senders: Vec::new(),
            receivers: Vec::new(),
            landings: Vec::new(),
            under_way: 0,
            outstanding: vec![0; settings.lanes.max(1)],
            members: Vec::new(),
            windows: Vec::new(),
            mailbox,
            control,
            control_queue: VecDeque::new(),
            debts: Vec::new(),
            control_in_flight: 0,
            control_copies_in_flight: 0,
            mismatch_probes: Vec::new(),
            clear_to_sends: Vec::new(),
            exposed: false,
            busy: false,
            tasks: VecDeque::new(),
            begun: 0,
            calls: [Signature::default(); CALLS],
            used: 0,
            id: 0,
            label: None,
            talk: Talk::default(),
            shutting_down: false,
            introduced: false,
            left: false,
            end_told: false,
        })
    }

    /// Where the message stands that has waited longest, as [`Talk::stand`] by ranks of the world.
    pub(crate) fn longest_wait(&self) -> Option<(Instant, Signature, Option<Rank>)> {
        let (at, signature, peer) = self.talk.longest_wait()?;
        let world = |rank| self.world(rank);
        Some((at, signature.worldwide(world), peer.map(world)))
    }

    /// Gives up all receives for which nothing has come.
    pub(crate) fn give_up_receives(&mut self) -> Vec<(String, Completion)> {
        let members = &self.members;
        self.talk.give_up_receives(|rank| members.get(rank).map_or(rank, |member| member.world))
    }

    /// The number of the latest operation.
    pub(crate) fn latest(&self) -> Option<u64> {
        self.begun.checked_sub(1)
    }

    /// The latest operations, the last first.
    pub(crate) fn latest_calls(&self, most: usize) -> Vec<CallRecord> {
        let numbers = (0..self.begun).rev().take(most);
        numbers.map(|number| self.calls[recent(number)].record()).collect()
    }

    /// How many members it has.
    pub(crate) fn size(&self) -> usize {
        self.members.len()
    }

    /// Whether the members' mailboxes are known: before, nothing is called in it.
    pub(crate) fn is_introduced(&self) -> bool {
        self.introduced
    }

    /// Whether nothing that this rank sent is under way, nor waits for room.
    pub(crate) fn is_settled(&self) -> bool {
        self.control_completed() && self.under_way == 0 && self.talk.under_way == 0
    }

    /// It is called so, and has this number.
    pub(crate) fn name(&mut self, id: u64, label: Arc<str>) {
        (self.id, self.label) = (id, Some(label));
    }

    /// Where the others write what this rank is to know.
    pub(crate) fn mailbox(&self) -> RemoteRegion {
        self.mailbox.remote().unwrap_or_default()
    }

    /// The mailbox itself.
    #[cfg(test)]
    pub(crate) fn mailbox_memory(&self) -> &Region {
        &self.mailbox
    }

    /// Where the others' mailboxes are, by rank.
    pub(crate) fn introduce(&mut self, mailboxes: impl IntoIterator<Item = RemoteRegion>) {
        for (member, mailbox) in self.members.iter_mut().zip(mailboxes) {
            member.mailbox = mailbox;
        }
        self.introduced = true;
    }

    /// This rank leaves the group, unless it has already or something is under way: those that it has exchanged messages
    /// with hear of it.
    pub(crate) fn leave(&mut self) -> Result<(), Error> {
        if self.busy || self.left {
            return Ok(());
        }
        let gone = |rank: Rank| {
            rank == self.me || self.members.get(rank).is_some_and(|member| member.ended.is_some())
        };
        let others = self.members.len();
        self.talk.give_up(|_, from| from.map_or_else(|| (0..others).all(gone), gone));
        if self.talk.open() {
            return Ok(());
        }
        // The end comes after all else: whoever has got it may forget the group. Not all providers keep the order of puts.
        self.settle_debts(true);
        if !self.is_settled() {
            return Ok(());
        }
        self.left = true;
        self.tell_end()
    }

    /// Those that this rank has exchanged messages with are told that it leaves, and how many operations it has begun; and
    /// so is whoever [meets](Self::meets) it later.
    pub(crate) fn tell_end(&mut self) -> Result<(), Error> {
        self.end_told = true;
        let met = (0..self.members.len()).filter(|&rank| self.members[rank].met());
        met.collect::<Vec<_>>().into_iter().try_for_each(|rank| self.tell_end_to(rank))
    }

    fn tell_end_to(&mut self, rank: Rank) -> Result<(), Error> {
        let at = rank * size_of::<Entry>() + ControlKind::End.place();
        access::store(&self.control, at, &self.begun)?;
        self.control_queue.push_back((rank, ControlMessage::End));
        Ok(())
    }

    /// There is a flow between this rank and another.
    pub(crate) fn meets(&mut self, rank: Rank) -> Result<(), Error> {
        let met = std::mem::replace(&mut self.members[rank].met, true);
        if met || !self.end_told { Ok(()) } else { self.tell_end_to(rank) }
    }

    /// Whether all that it has met have told their end: then all that they sent has come.
    pub(crate) fn all_ended(&self) -> bool {
        self.members.iter().all(|member| member.ended.is_some() || !member.met())
    }

    /// Whether nothing of the group is on its way any more, to this rank or from it.
    pub(crate) fn over(&self) -> bool {
        self.left && self.all_ended() && self.control_completed() && self.under_way == 0 && self.talk.over()
    }

    /// Who the members are, by rank: their ranks in the world.
    pub(crate) fn meet(&mut self, members: impl IntoIterator<Item = Rank>) {
        let member = |world| Member {
            world,
            mailbox: RemoteRegion::default(),
            outgoing: [NONE; 3],
            incoming: [NONE; 3],
            greeted: false,
            met: false,
            large_due: false,
            ended: None,
            probed_classes: [None; 3],
            unread: false,
            probed: None,
            clear_to_sends: 0,
        };
        self.members = members.into_iter().map(member).collect();
    }

    /// Bytes of registered memory: windows, mailbox, control messages, scratch.
    pub(crate) fn memory(&self) -> usize {
        let windows: usize = self.open_windows().map(|window| window.region.len()).sum();
        let scratch = self.scratch.as_ref().map_or(0, |scratch| scratch.len());
        windows + self.mailbox.len() + self.control.len() + scratch
    }

    /// The numbers of the flows that lead here: first number and lanes of each window.
    pub(crate) fn listens(&self) -> impl Iterator<Item = (usize, usize)> {
        self.open_windows().map(|window| (window.number, window.lanes))
    }

    /// The windows that are open: which, for whom, and of which class.
    pub(crate) fn opened(&self) -> impl Iterator<Item = (usize, Rank, Class)> {
        let windows = self.windows.iter().enumerate();
        let open = windows.filter(|(_, window)| window.state != WindowState::Closed);
        open.map(|(index, window)| (index, self.receivers[window.first_flow].from, window.class))
    }

    fn open_windows(&self) -> impl Iterator<Item = &WindowMemory> {
        self.windows.iter().filter(|window| window.state != WindowState::Closed)
    }

    /// The numbers under which the flows' receivers send credits: first number and lanes of each window.
    pub(crate) fn speaks(&self) -> impl Iterator<Item = (usize, usize)> {
        let windows = self.members.iter().flat_map(|member| Class::ALL.map(|class| (member, class)));
        windows.filter_map(|(member, class)| {
            let first = self.senders.get(member.outgoing[class.index()] as usize)?;
            Some((first.reply, self.settings.window(class).0))
        })
    }

    /// A member's rank in the world.
    pub(crate) fn world(&self, rank: Rank) -> Rank {
        self.members.get(rank).map_or(rank, |member| member.world)
    }

    /// The sending end of a flow, if the window it goes to is known.
    pub(crate) fn sender(&self, to: Rank, class: Class, lane: usize) -> Option<usize> {
        let first = self.members.get(to)?.outgoing[class.index()];
        (first != NONE).then_some(first as usize + lane)
    }

    /// The receiving end of a flow, if its window is open.
    pub(crate) fn receiver(&self, from: Rank, class: Class, lane: usize) -> Option<usize> {
        let first = self.members.get(from)?.incoming[class.index()];
        (first != NONE).then_some(first as usize + lane)
    }

    /// The region of a receiver's slots, and where the elements in `slot` begin.
    pub(crate) fn slot(&self, receiver: usize, slot: usize) -> (&Region, usize) {
        let flow = &self.receivers[receiver];
        let window = &self.windows[flow.window];
        (&window.region, flow.first + slot * stride(window.slot_bytes) + PAYLOAD)
    }

    /// What a peer allows in the operation of this number (its low 32 bits), if that is known yet.
    pub(crate) fn clear_to_send(&self, to: Rank, op: u32) -> Option<&ClearToSend> {
        let clear_to_send = self
            .clear_to_sends
            .iter()
            .find(|(from, clear_to_send)| *from == to && clear_to_send.operation.number == op);
        clear_to_send.map(|(_, clear_to_send)| clear_to_send)
    }

    /// Whether what comes there is a message from point to point.
    pub(crate) fn is_message(&self, flow: &Incoming) -> bool {
        self.windows[flow.window].class == Class::Message
    }

    /// The operations of messages that have landed and were not taken, and who sent them.
    pub(crate) fn untaken(&self) -> impl Iterator<Item = (Rank, OperationInfo)> {
        let flows = self.receivers.iter().enumerate().filter(|(_, flow)| !self.is_message(flow));
        flows.filter_map(|(index, flow)| {
            let header: CollectiveHeader = self.header(index, flow.ready_slot()?).ok()?;
            Some((flow.from, header.operation))
        })
    }

    /// Whether something was written that no lane awaited.
    pub(crate) fn unawaited(&self) -> bool {
        self.landings.iter().any(|landing| landing.ready() && !self.is_message(landing))
    }

    /// The header of the message that landed in a slot, or the beginning of it.
    pub(crate) fn header<T: Pod>(&self, receiver: usize, slot: usize) -> Result<T, Error> {
        let (region, at) = self.slot(receiver, slot);
        access::load(region, at - HEADER)
    }

    /// What a member has written to its entry of the mailbox, `at` so many bytes in it. Only that of which an immediate has
    /// told: the rest may be being written.
    pub(crate) fn told<T: Pod>(&self, from: Rank, at: usize) -> Result<T, Error> {
        access::load(&self.mailbox, from * size_of::<Entry>() + at)
    }

    /// This neighbour is greeted, and greets, perhaps by a large message too.
    pub(crate) fn await_greeting(&mut self, from: Rank, large: bool) {
        self.members[from].large_due = large;
    }

    /// Whether this neighbour's pattern has come, and come right, if its greeting is still awaited.
    pub(crate) fn awaits(&self, from: Rank) -> Option<bool> {
        let Member { greeted, large_due, .. } = self.members[from];
        (!greeted || large_due).then_some(greeted)
    }

    /// Messages of a flow were freed, or have landed. Its sender hears of what was freed by what goes the other way, if that is
    /// how it heard the latest. Otherwise, or if it may be waiting for it, it hears when this rank has nothing else to do; and
    /// at once if all its messages were freed, so that nothing of it is under way any more.
    pub(crate) fn owe(&mut self, receiver: usize, way: Way) {
        // Whoever has been told of the end may have forgotten the group.
        if self.shutting_down || self.left {
            return;
        }
        let flow = self.incoming(receiver, way);
        let (from, exhausted, due) = (flow.from, flow.exhausted(), flow.owes() || flow.stalls());
        if exhausted {
            self.control_queue.push_back((from, ControlMessage::Credit(receiver, way)));
        } else if due && !self.debts.contains(&(receiver, way)) {
            self.debts.push((receiver, way));
        }
    }

    pub(crate) fn incoming(&mut self, receiver: usize, way: Way) -> &mut Incoming {
        match way {
            Way::Slots => &mut self.receivers[receiver],
            Way::Direct => &mut self.landings[receiver],
        }
    }

    /// Whether a sender has not heard of all its credit.
    pub(crate) fn has_debts(&self) -> bool {
        !self.debts.is_empty()
    }

    /// Makes control messages of debts: where this rank is `idle`, of all; else of those about which nothing else tells the sender.
    pub(crate) fn settle_debts(&mut self, idle: bool) {
        let mut debts = std::mem::take(&mut self.debts);
        debts.retain(|&(receiver, way)| {
            let flow = self.incoming(receiver, way);
            let (from, stalls, now) = (flow.from, flow.stalls(), flow.owes() || idle && flow.stalls());
            if now {
                self.control_queue.push_back((from, ControlMessage::Credit(receiver, way)));
            }
            stalls && !now
        });
        self.debts = debts;
    }

    /// A peer allows something. False if that is more than it may allow at once.
    pub(crate) fn keep_clear_to_send(&mut self, from: Rank, clear_to_send: ClearToSend) -> bool {
        let clear_to_sends = &mut self.members[from].clear_to_sends;
        *clear_to_sends += 1;
        self.clear_to_sends.push((from, clear_to_send));
        *clear_to_sends <= CLEAR_TO_SENDS
    }

    /// What peers allowed in this operation is over.
    pub(crate) fn drop_clear_to_sends(&mut self, op: u32) {
        let members = &mut self.members;
        self.clear_to_sends.retain(|(from, clear_to_send)| {
            let over = clear_to_send.operation.number == op;
            members[*from].clear_to_sends -= u8::from(over);
            !over
        });
    }

    /// Whether there are control messages to be sent. Until it is known where to, those wait that answer members who know already.
    pub(crate) fn has_control(&self) -> bool {
        self.introduced && !self.control_queue.is_empty()
    }

    /// Whether all control messages have left: no memory of theirs is read any more.
    pub(crate) fn control_sent(&self) -> bool {
        self.control_queue.is_empty() && self.control_in_flight == 0
    }

    /// Whether none is under way any more.
    pub(crate) fn control_completed(&self) -> bool {
        self.control_sent() && self.control_copies_in_flight == 0
    }

    /// From now on this rank parts from the others. Of what they sent it has taken all, and in a barrier nobody sends more
    /// than one message to another: there is credit for that.
    pub(crate) fn shut_down(&mut self) {
        self.shutting_down = true;
        self.debts.clear();
    }
}
