//! A communicator: a group as the engine knows it, with its members, mailbox, windows and flows, and the state that its operations
//! share.

use std::{collections::VecDeque, sync::Arc, time::Instant};

use bytemuck::Pod;
use unisono_core::position::{CALLS, CallRecord};
use unisono_schedule::{CallSchedule, Rank, windows::stride};
use unisono_transport::{Error, Region, RemoteRegion, Transport};

use super::{
    flow::IncomingFlow,
    member::{CommMember, NONE},
    slots::SharedSlots,
    window::{WindowMemory, WindowSender, WindowState},
};
use crate::{
    access,
    call::Signature,
    collective::LaneProgress,
    completion::Completion,
    p2p::Messages,
    request::Operation,
    settings::Settings,
    wire::{
        ClearToSend, CollectiveHeader, CommId, ControlKind, HEADER, MailboxEntry, OperationInfo, PAYLOAD,
        Way, WindowClass,
    },
};

/// The most clears to send that are kept of a peer: for the present operation, and for the next one if the peer has begun it.
const CLEAR_TO_SENDS: u8 = 2;

/// The place of operation `number` in [`Comm::calls`].
pub(crate) fn recent(number: u64) -> usize {
    const { assert!(CALLS == 4) }
    usize::from((number & 3) as u8)
}

/// A collective that is queued.
pub(crate) type QueuedCollective = (Box<Operation>, CallSchedule, Completion);

/// A control message that waits to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ControlMessage {
    /// A part of this rank's entry in the peer's mailbox (docs/wire.md).
    Part(ControlKind),
    /// Credit for a flow, by the index of its receiver.
    Credit(usize, Way),
}

/// A communicator that this rank has left, and with whose remaining members it has exchanged nothing: they may not have left, and what they
/// send by mistake must find the mailbox. When all members make another group, all have left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vacant {
    /// A new group may take its place.
    Offered,
    /// A group without all its members has asked for its place.
    Kept,
}

/// A communicator, without its operation under way.
pub(crate) struct Comm {
    /// Its id, which control messages of its members name.
    pub comm_id: CommId,
    /// The rank of this process in it.
    pub me: Rank,
    pub settings: Settings,
    /// Scratch memory of schedules: the most that any schedule has needed so far.
    pub scratch: Option<Region>,
    /// Memory for inputs that are put aside.
    pub aside: Option<Region>,
    /// The allocation of the last operation's lanes, for the next one.
    pub(crate) lanes: Vec<LaneProgress>,
    /// The sending ends of flows.
    pub senders: Vec<WindowSender>,
    /// The windows of peers that were closed: the peer, the class, and the index of the first sender, which stays for when it is
    /// opened again.
    pub(crate) closed_senders: Vec<(Rank, WindowClass, usize)>,
    /// The receiving ends of flows, for messages through slots.
    pub receivers: Vec<IncomingFlow>,
    /// The receiving ends of the same flows, for writes straight into this rank's memory.
    pub landings: Vec<IncomingFlow>,
    /// The number of the operation's puts in flight.
    pub under_way: usize,
    /// The number of those that read the caller's memory, for each lane.
    pub outstanding: Vec<usize>,
    pub(crate) members: Vec<CommMember>,
    pub(crate) windows: Vec<WindowMemory>,
    /// Written by peers, read when an immediate says so.
    pub(crate) mailbox: Region,
    /// Slots that ranks share, from the first operation that would use them.
    pub(crate) shared: SharedSlots,
    /// The sources of control messages, which this rank writes to the mailboxes of the others.
    pub(crate) control: Region,
    pub(crate) control_queue: VecDeque<(Rank, ControlMessage)>,
    /// Receivers whose senders are to get credit when there is time.
    pub(crate) debts: Vec<(usize, Way)>,
    /// The number of control messages in flight that the transport reads from `control`.
    pub(crate) control_in_flight: usize,
    /// The number of control messages in flight that the transport has copied.
    pub(crate) control_copies_in_flight: usize,
    /// Mismatch probes of operations that this rank has not ended: the latest of each rank.
    pub mismatch_probes: Vec<(Rank, WindowClass, OperationInfo)>,
    /// Clears to send of peers for operations that this rank has not ended: at most [`CLEAR_TO_SENDS`] of each.
    pub clear_to_sends: Vec<(Rank, ClearToSend)>,
    /// True if peers may write into this rank's output now.
    pub exposed: bool,
    /// The class of the windows that the collective under way needs, if it needs any.
    pub(crate) in_use: Option<WindowClass>,
    /// True if an operation is under way.
    pub(crate) busy: bool,
    /// The operations that are queued behind it.
    pub(crate) tasks: VecDeque<QueuedCollective>,
    /// The number of operations that have begun, which is the number of the next one.
    pub begun: u64,
    /// The latest operations, each at its number modulo `CALLS`.
    pub(crate) calls: [Signature; CALLS],
    /// The count of operations of all communicators when the latest operation began.
    pub(crate) used: u64,
    /// The id of the group: the same on all members, and unique; 0 for the world.
    pub(crate) id: u64,
    /// The name of the group in errors; `None` for the world.
    pub(crate) label: Option<Arc<str>>,
    /// Messages from point to point.
    pub(crate) messages: Messages,
    /// True if this rank is in the last barrier of shutdown: then no rank needs credit any more, and every put must be completed
    /// before the endpoint closes.
    pub(crate) shutting_down: bool,
    /// True if the members' mailboxes are known.
    pub(crate) introduced: bool,
    /// True if this rank leaves the group, or has left it before other members. `changed`: true if something has happened since the engine
    /// last looked at the group.
    pub(crate) leaves: bool,
    pub(crate) changed: bool,
    pub(crate) left: bool,
    /// Set if this rank has left, and has exchanged nothing with the members that remain.
    pub(crate) vacant: Option<Vacant>,
    /// True if this rank has told the members its end; also in the world, where the barriers of shutdown follow.
    pub(crate) end_told: bool,
}

impl Comm {
    /// The communicator of the world, for rank `me` of `ranks`. Registers its mailbox.
    pub(crate) fn new(
        transport: &mut dyn Transport,
        me: Rank,
        ranks: usize,
        settings: Settings,
    ) -> Result<Self, Error> {
        let bytes = ranks * size_of::<MailboxEntry>();
        let mailbox = transport.allocate(bytes)?;
        let control = transport.allocate(bytes)?;
        Ok(Self {
            comm_id: 0,
            me,
            settings,
            scratch: None,
            aside: None,
            lanes: Vec::new(),
            senders: Vec::new(),
            closed_senders: Vec::new(),
            receivers: Vec::new(),
            landings: Vec::new(),
            under_way: 0,
            outstanding: vec![0; settings.lanes.max(1)],
            members: Vec::new(),
            windows: Vec::new(),
            mailbox,
            shared: SharedSlots::default(),
            control,
            control_queue: VecDeque::new(),
            debts: Vec::new(),
            control_in_flight: 0,
            control_copies_in_flight: 0,
            mismatch_probes: Vec::new(),
            clear_to_sends: Vec::new(),
            exposed: false,
            in_use: None,
            busy: false,
            tasks: VecDeque::new(),
            begun: 0,
            calls: [Signature::default(); CALLS],
            used: 0,
            id: 0,
            label: None,
            messages: Messages::default(),
            shutting_down: false,
            introduced: false,
            leaves: false,
            changed: false,
            left: false,
            vacant: None,
            end_told: false,
        })
    }

    /// As [`Messages::longest_wait`], with ranks of the world.
    pub(crate) fn longest_wait(&self) -> Option<(Instant, Signature, Option<Rank>)> {
        let (at, signature, peer) = self.messages.longest_wait()?;
        let world = |rank| self.world(rank);
        Some((at, signature.worldwide(world), peer.map(world)))
    }

    /// As [`Messages::give_up_receives`], with ranks of the world.
    pub(crate) fn give_up_receives(&mut self) -> Vec<(String, Completion)> {
        let members = &self.members;
        self.messages.give_up_receives(|rank| members.get(rank).map_or(rank, |member| member.world))
    }

    /// The number of the latest operation.
    pub(crate) fn latest(&self) -> Option<u64> {
        self.begun.checked_sub(1)
    }

    /// The latest operations, the last one first; at most `most`.
    pub(crate) fn latest_calls(&self, most: usize) -> Vec<CallRecord> {
        let numbers = (0..self.begun).rev().take(most);
        numbers.map(|number| self.calls[recent(number)].record()).collect()
    }

    /// Forgets the operations that have begun; none is under way.
    pub(crate) fn forget_calls(&mut self) {
        self.begun = 0;
        self.calls = [Signature::default(); CALLS];
        for member in &mut self.members {
            (member.probed_classes, member.probed) = ([None; 3], None);
        }
        self.mismatch_probes.clear();
    }

    /// True if nothing that this rank sent is in flight or queued.
    pub(crate) fn is_settled(&self) -> bool {
        self.control_completed() && self.under_way == 0 && self.messages.under_way == 0
    }

    /// Sets the id and the name of the group.
    pub(crate) fn name(&mut self, id: u64, label: Arc<str>) {
        (self.id, self.label) = (id, Some(label));
    }

    /// The mailbox of this rank, for the others.
    pub(crate) fn mailbox(&self) -> RemoteRegion {
        self.mailbox.remote().unwrap_or_default()
    }

    /// Makes the mailboxes of the members known, by rank.
    pub(crate) fn introduce(&mut self, mailboxes: impl IntoIterator<Item = RemoteRegion>) {
        for (member, mailbox) in self.members.iter_mut().zip(mailboxes) {
            member.mailbox = mailbox;
        }
        self.introduced = true;
    }

    /// This rank leaves the group, unless it has left or something is under way. It tells the members that it has exchanged
    /// messages with.
    pub(crate) fn leave(&mut self) -> Result<(), Error> {
        if self.busy || self.left {
            return Ok(());
        }
        let gone = |rank: Rank| {
            rank == self.me || self.members.get(rank).is_some_and(|member| member.ended.is_some())
        };
        let others = self.members.len();
        self.messages.give_up_first(|from| from.map_or_else(|| (0..others).all(gone), gone));
        if self.messages.open() {
            return Ok(());
        }
        // A member that has received the end may drop the communicator, and not all providers keep the order of puts: so the end is
        // sent after all other puts have completed.
        self.settle_debts(true);
        if !self.is_settled() {
            return Ok(());
        }
        self.left = true;
        self.tell_end()
    }

    /// Tells the members that this rank has exchanged messages with that it leaves, and how many operations it has begun. A member that
    /// it [meets](Self::meets) later learns it then.
    pub(crate) fn tell_end(&mut self) -> Result<(), Error> {
        self.end_told = true;
        let met = (0..self.members.len()).filter(|&rank| self.members[rank].met);
        met.collect::<Vec<_>>().into_iter().try_for_each(|rank| self.tell_end_to(rank))
    }

    fn tell_end_to(&mut self, rank: Rank) -> Result<(), Error> {
        self.queue_control(rank, ControlKind::End, self.begun)
    }

    /// Queues a control message, and keeps the part that it writes to the mailbox of `to`.
    pub(crate) fn queue_control<T: Pod>(
        &mut self,
        to: Rank,
        about: ControlKind,
        part: T,
    ) -> Result<(), Error> {
        access::store(&self.control, to * size_of::<MailboxEntry>() + about.part().start, &part)?;
        self.control_queue.push_back((to, ControlMessage::Part(about)));
        Ok(())
    }

    /// The part of a member's mailbox that this rank has written last; zeros if none.
    pub(crate) fn sent_part<T: Pod>(&self, to: Rank, about: ControlKind) -> Result<T, Error> {
        access::load(&self.control, to * size_of::<MailboxEntry>() + about.part().start)
    }

    /// There is a flow between this rank and a member.
    pub(crate) fn meets(&mut self, rank: Rank) -> Result<(), Error> {
        let met = std::mem::replace(&mut self.members[rank].met, true);
        if met || !self.end_told { Ok(()) } else { self.tell_end_to(rank) }
    }

    /// True if all members that this rank has exchanged messages with have told their end: then everything that they sent has arrived.
    pub(crate) fn all_ended(&self) -> bool {
        self.members.iter().all(|member| member.ended.is_some() || !member.met)
    }

    /// True if nothing of the communicator is in flight to this rank or from it.
    pub(crate) fn is_over(&self) -> bool {
        self.left
            && self.all_ended()
            && self.control_completed()
            && self.under_way == 0
            && self.messages.is_over()
    }

    /// True if there are members that this rank has exchanged nothing with, which may not have left.
    pub(crate) fn has_strangers(&self) -> bool {
        let stranger =
            |(rank, member): (Rank, &CommMember)| rank != self.me && !member.met && member.ended.is_none();
        self.introduced && self.members.iter().enumerate().any(stranger)
    }

    /// Frees the memory that serves members that it has met. The mailbox and control messages stay for the others.
    pub(crate) fn vacate(&mut self) {
        self.vacant = Some(Vacant::Offered);
        (self.scratch, self.aside, self.lanes) = (None, None, Vec::new());
        self.windows.clear();
        (self.senders, self.receivers, self.landings) = (Vec::new(), Vec::new(), Vec::new());
        self.closed_senders.clear();
        self.debts.clear();
        self.shared = SharedSlots::default();
        for member in &mut self.members {
            (member.outgoing, member.incoming) = ([NONE; 3], [NONE; 3]);
        }
    }

    /// Sets the members: their ranks in the world, by rank.
    pub(crate) fn set_members(&mut self, members: impl IntoIterator<Item = Rank>) {
        let member = |world| CommMember {
            world,
            mailbox: RemoteRegion::default(),
            slots: None,
            outgoing: [NONE; 3],
            incoming: [NONE; 3],
            handshake_arrived: false,
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

    /// The bytes of registered memory: windows, mailbox, control messages, scratch, inputs put aside, shared slots.
    pub(crate) fn memory(&self) -> usize {
        let windows: usize = self.open_windows().map(|window| window.region.len()).sum();
        let scratch: usize =
            [&self.scratch, &self.aside].into_iter().flatten().map(|region| region.len()).sum();
        windows + self.mailbox.len() + self.control.len() + scratch + self.shared.memory()
    }

    /// The numbers of the flows to this rank: the first number and the lanes of each open window.
    pub(crate) fn listens(&self) -> impl Iterator<Item = (usize, usize)> {
        self.open_windows().map(|window| (window.number, window.lanes))
    }

    /// The open windows: index, the rank that sends through it, and class.
    pub(crate) fn opened(&self) -> impl Iterator<Item = (usize, Rank, WindowClass)> {
        let windows = self.windows.iter().enumerate();
        let open = windows.filter(|(_, window)| window.state != WindowState::Closed);
        open.map(|(index, window)| (index, self.receivers[window.first_flow].from, window.class))
    }

    fn open_windows(&self) -> impl Iterator<Item = &WindowMemory> {
        self.windows.iter().filter(|window| window.state != WindowState::Closed)
    }

    /// The numbers of the flows from this rank: the first number and the lanes for each window of a peer.
    pub(crate) fn speaks(&self) -> impl Iterator<Item = (usize, usize)> {
        let windows = self.members.iter().flat_map(|member| WindowClass::ALL.map(|class| (member, class)));
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
    pub(crate) fn sender(&self, to: Rank, class: WindowClass, lane: usize) -> Option<usize> {
        let first = self.members.get(to)?.outgoing[class.index()];
        (first != NONE).then_some(first as usize + lane)
    }

    /// The receiving end of a flow, if its window is open.
    pub(crate) fn receiver(&self, from: Rank, class: WindowClass, lane: usize) -> Option<usize> {
        let first = self.members.get(from)?.incoming[class.index()];
        (first != NONE).then_some(first as usize + lane)
    }

    /// The region and the offset of the elements in a slot of a receiver.
    pub(crate) fn slot(&self, receiver: usize, slot: usize) -> (&Region, usize) {
        let flow = &self.receivers[receiver];
        let window = &self.windows[flow.window];
        (&window.region, flow.first + slot * stride(window.slot_bytes) + PAYLOAD)
    }

    /// The clear to send of a peer for the operation of this number (the low 32 bits), if it has arrived.
    pub(crate) fn clear_to_send(&self, to: Rank, op: u32) -> Option<&ClearToSend> {
        let clear_to_send = self
            .clear_to_sends
            .iter()
            .find(|(from, clear_to_send)| *from == to && clear_to_send.operation.number == op);
        clear_to_send.map(|(_, clear_to_send)| clear_to_send)
    }

    /// True if a flow is for messages from point to point.
    pub(crate) fn is_message(&self, flow: &IncomingFlow) -> bool {
        self.windows[flow.window].class == WindowClass::Message
    }

    /// Messages of collectives that have landed and were not taken: sender and operation.
    pub(crate) fn untaken(&self) -> impl Iterator<Item = (Rank, OperationInfo)> {
        let flows = self.receivers.iter().enumerate().filter(|(_, flow)| !self.is_message(flow));
        flows.filter_map(|(index, flow)| {
            let header: CollectiveHeader = self.header(index, flow.ready_slot()?).ok()?;
            Some((flow.from, header.operation))
        })
    }

    /// True if a write of a collective has landed that no lane has awaited.
    pub(crate) fn unawaited(&self) -> bool {
        self.landings.iter().any(|landing| landing.ready() && !self.is_message(landing))
    }

    /// The header of the message that landed in a slot, or the beginning of it.
    pub(crate) fn header<T: Pod>(&self, receiver: usize, slot: usize) -> Result<T, Error> {
        let (region, at) = self.slot(receiver, slot);
        access::load(region, at - HEADER)
    }

    /// The part of a member's entry in this rank's mailbox that its control message has written. A part whose immediate has not
    /// arrived may be incomplete.
    pub(crate) fn received_part<T: Pod>(&self, from: Rank, about: ControlKind) -> Result<T, Error> {
        access::load(&self.mailbox, from * size_of::<MailboxEntry>() + about.part().start)
    }

    /// Messages of a flow were freed or have landed: queues credit if it is due. If the last credit was sent in a header or a clear
    /// to send, so is the next. Otherwise, or if the sender may wait, a control message is sent when this rank has nothing else to
    /// do; it is queued at once if all slots are free.
    pub(crate) fn owe(&mut self, receiver: usize, way: Way) {
        // A member that knows the end may have dropped the communicator.
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

    pub(crate) fn incoming(&mut self, receiver: usize, way: Way) -> &mut IncomingFlow {
        match way {
            Way::Slots => &mut self.receivers[receiver],
            Way::Direct => &mut self.landings[receiver],
        }
    }

    /// Queues credit that is due: if this rank is `idle`, all of it; else only the credit that is not sent in a header or a clear to send.
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

    /// Keeps a clear to send. False if there are more of this peer than there can be.
    pub(crate) fn keep_clear_to_send(&mut self, from: Rank, clear_to_send: ClearToSend) -> bool {
        let clear_to_sends = &mut self.members[from].clear_to_sends;
        *clear_to_sends += 1;
        self.clear_to_sends.push((from, clear_to_send));
        *clear_to_sends <= CLEAR_TO_SENDS
    }

    /// Drops the clears to send for an operation.
    pub(crate) fn drop_clear_to_sends(&mut self, op: u32) {
        let members = &mut self.members;
        self.clear_to_sends.retain(|(from, clear_to_send)| {
            let over = clear_to_send.operation.number == op;
            members[*from].clear_to_sends -= u8::from(over);
            !over
        });
    }

    /// True if there are control messages to send. While the mailboxes are unknown, answers to members that already know them wait.
    pub(crate) fn has_control(&self) -> bool {
        self.introduced && !self.control_queue.is_empty()
    }

    /// True if all control messages were sent, and no put reads their memory any more.
    pub(crate) fn control_sent(&self) -> bool {
        self.control_queue.is_empty() && self.control_in_flight == 0
    }

    pub(crate) fn control_completed(&self) -> bool {
        self.control_sent() && self.control_copies_in_flight == 0
    }

    /// The last barrier begins. This rank has taken all messages of the others, and in a barrier no rank sends more than one message to
    /// another, for which there is credit.
    pub(crate) fn shut_down(&mut self) {
        self.shutting_down = true;
        self.debts.clear();
    }
}
