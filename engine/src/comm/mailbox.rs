//! The mailbox of this rank in a communicator, and its control messages to the mailboxes of the members: what has arrived and is kept, and
//! what waits to be sent.

use std::collections::VecDeque;

use bytemuck::Pod;
use unisono_schedule::Rank;
use unisono_transport::{Error, Region, RemoteRegion, Transport};

use crate::{
    access,
    call::Signature,
    wire::{ClearToSend, ControlKind, FlowWay, MailboxEntry, WindowClass},
};

/// The most clears to send that are kept of a peer: for the present operation, and for the next one if the peer has begun it.
const CLEAR_TO_SENDS: u8 = 2;

/// A control message that waits to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ControlMessage {
    /// A part of this rank's entry in the peer's mailbox (docs/wire.md).
    MessagePart(ControlKind),
    /// Credit for a flow, by the index of its receiver.
    Credit(usize, FlowWay),
}

/// The mailbox of a member, and what control messages to it and from it have said.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PeerMailbox {
    /// Its mailbox: one [`MailboxEntry`] for every rank of the communicator.
    pub(crate) remote: RemoteRegion,
    /// For each class, the operation of the latest mismatch probe to it.
    pub(crate) probed_classes: [Option<u32>; 3],
    /// True if it has not yet read the latest mismatch probe to it.
    pub(crate) unread: bool,
    /// The operation of the latest mismatch probe from it.
    probed: Option<u32>,
    /// The number of its clears to send in [`Mailbox::clear_to_sends`].
    clear_to_sends: u8,
}

/// The mailbox of this rank, which the members write to, and its control messages to theirs.
pub(crate) struct Mailbox {
    /// Written by peers, read when an immediate says so.
    pub(crate) entries: Region,
    /// The sources of control messages, which this rank writes to the mailboxes of the others.
    pub(crate) sources: Region,
    pub(crate) queue: VecDeque<(Rank, ControlMessage)>,
    /// The number of control messages in flight that the transport reads from `sources`.
    pub(crate) in_flight: usize,
    /// The number of control messages in flight that the transport has copied.
    pub(super) copies_in_flight: usize,
    /// The mailboxes of the members, by rank.
    pub(super) peers: Vec<PeerMailbox>,
    /// True if the members' mailboxes are known.
    pub(crate) introduced: bool,
    /// Mismatch probes of operations that this rank has not ended: the latest of each rank.
    pub mismatch_probes: Vec<(Rank, WindowClass, Signature)>,
    /// Clears to send of peers for operations that this rank has not ended: at most [`CLEAR_TO_SENDS`] of each.
    pub clear_to_sends: Vec<(Rank, ClearToSend)>,
}

impl Mailbox {
    /// Registers a mailbox for this many ranks.
    pub(super) fn new(transport: &mut dyn Transport, ranks: usize) -> Result<Self, Error> {
        let bytes = ranks * size_of::<MailboxEntry>();
        Ok(Self {
            entries: transport.allocate(bytes)?,
            sources: transport.allocate(bytes)?,
            queue: VecDeque::new(),
            in_flight: 0,
            copies_in_flight: 0,
            peers: Vec::new(),
            introduced: false,
            mismatch_probes: Vec::new(),
            clear_to_sends: Vec::new(),
        })
    }

    /// The mailbox of this rank, for the others.
    pub(crate) fn remote(&self) -> RemoteRegion {
        self.entries.remote().unwrap_or_default()
    }

    /// The bytes of registered memory.
    pub(super) fn memory(&self) -> usize {
        self.entries.len() + self.sources.len()
    }

    /// Sets the number of members, whose mailboxes are unknown.
    pub(super) fn set_members(&mut self, members: usize) {
        self.peers = vec![PeerMailbox::default(); members];
    }

    /// Makes the mailboxes of the members known, by rank.
    pub(crate) fn introduce(&mut self, mailboxes: impl IntoIterator<Item = RemoteRegion>) {
        for (peer, mailbox) in self.peers.iter_mut().zip(mailboxes) {
            peer.remote = mailbox;
        }
        self.introduced = true;
    }

    /// Queues a control message, and keeps the part that it writes to the mailbox of `to`.
    pub(crate) fn send<T: Pod>(&mut self, to: Rank, about: ControlKind, part: T) -> Result<(), Error> {
        access::store(&self.sources, to * size_of::<MailboxEntry>() + about.part().start, &part)?;
        self.queue.push_back((to, ControlMessage::MessagePart(about)));
        Ok(())
    }

    /// Queues credit for a flow from this member.
    pub(super) fn send_credit(&mut self, to: Rank, receiver: usize, way: FlowWay) {
        self.queue.push_back((to, ControlMessage::Credit(receiver, way)));
    }

    /// The part of a member's mailbox that this rank has written last; zeros if none.
    pub(crate) fn sent_part<T: Pod>(&self, to: Rank, about: ControlKind) -> Result<T, Error> {
        access::load(&self.sources, to * size_of::<MailboxEntry>() + about.part().start)
    }

    /// The part of a member's entry in this rank's mailbox that its control message has written. A part whose immediate has not
    /// arrived may be incomplete.
    pub(crate) fn received_part<T: Pod>(&self, from: Rank, about: ControlKind) -> Result<T, Error> {
        access::load(&self.entries, from * size_of::<MailboxEntry>() + about.part().start)
    }

    /// True if there are control messages to send. While the mailboxes are unknown, answers to members that already know them wait.
    #[inline]
    pub(crate) fn has_queued(&self) -> bool {
        self.introduced && !self.queue.is_empty()
    }

    /// True if all control messages were sent, and no put reads their memory any more.
    #[inline]
    pub(crate) fn is_sent(&self) -> bool {
        self.queue.is_empty() && self.in_flight == 0
    }

    /// True if all control messages were sent, and no put of them is in flight.
    #[inline]
    pub(crate) fn is_completed(&self) -> bool {
        self.is_sent() && self.copies_in_flight == 0
    }

    /// A control message was put; `copied` if the transport has copied it.
    pub(super) fn put(&mut self, copied: bool) {
        self.in_flight += usize::from(!copied);
        self.copies_in_flight += usize::from(copied);
    }

    /// The put of a control message has ended.
    pub(super) fn put_left(&mut self, copied: bool) {
        let in_flight = if copied { &mut self.copies_in_flight } else { &mut self.in_flight };
        *in_flight = in_flight.saturating_sub(1);
    }

    /// Keeps a mismatch probe. False if it is older than the last one of this peer, or the same. Only the latest of a peer counts: it has
    /// ended its earlier operations.
    pub(super) fn keep_probe(&mut self, from: Rank, class: WindowClass, info: Signature) -> bool {
        let before = self.peers[from].probed.replace(info.number);
        if before.is_some_and(|before| info.number.wrapping_sub(before).wrapping_sub(1) >= 1 << 31) {
            return false;
        }
        self.mismatch_probes.retain(|(it, ..)| *it != from);
        self.mismatch_probes.push((from, class, info));
        true
    }

    /// Forgets the probes of operations that have begun.
    pub(crate) fn forget_probes(&mut self) {
        for peer in &mut self.peers {
            (peer.probed_classes, peer.probed) = ([None; 3], None);
        }
        self.mismatch_probes.clear();
    }

    /// The clear to send of a peer for the operation of this number (the low 32 bits), if it has arrived.
    pub(crate) fn clear_to_send(&self, to: Rank, op: u32) -> Option<&ClearToSend> {
        let clear_to_send = self
            .clear_to_sends
            .iter()
            .find(|(from, clear_to_send)| *from == to && clear_to_send.operation.number == op);
        clear_to_send.map(|(_, clear_to_send)| clear_to_send)
    }

    /// Keeps a clear to send. False if there are more of this peer than there can be.
    pub(super) fn keep_clear_to_send(&mut self, from: Rank, clear_to_send: ClearToSend) -> bool {
        let kept = &mut self.peers[from].clear_to_sends;
        *kept += 1;
        self.clear_to_sends.push((from, clear_to_send));
        *kept <= CLEAR_TO_SENDS
    }

    /// Drops the clears to send for an operation.
    pub(crate) fn drop_clear_to_sends(&mut self, op: u32) {
        let peers = &mut self.peers;
        self.clear_to_sends.retain(|(from, clear_to_send)| {
            let over = clear_to_send.operation.number == op;
            peers[*from].clear_to_sends -= u8::from(over);
            !over
        });
    }
}
