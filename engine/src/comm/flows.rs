//! The flows of a communicator, and the windows that they lead through: their ends on this rank, and the credit that it owes.

use bytemuck::Pod;
use unisono_schedule::{Rank, windows::stride};
use unisono_transport::{Error, Region};

use super::{
    flow::IncomingFlow,
    window::{WindowMemory, WindowSender, WindowState},
};
use crate::{
    access,
    call::{Signature, narrow},
    settings::{Settings, WindowSize},
    wire::{CollectiveHeader, FlowWay, HEADER, PAYLOAD, WindowClass},
};

/// Stands for the index of a flow that does not exist yet.
pub(super) const NONE: u32 = u32::MAX;

/// The flows between this rank and the members of a communicator.
#[derive(Default)]
pub(crate) struct Flows {
    /// The sending ends.
    pub senders: Vec<WindowSender>,
    /// The windows of peers that were closed: the peer, the class, and the index of the first sender, which stays for when it is
    /// opened again.
    pub(super) closed_senders: Vec<(Rank, WindowClass, usize)>,
    /// The receiving ends, for messages through slots.
    pub receivers: Vec<IncomingFlow>,
    /// The receiving ends of the same flows, for writes straight into this rank's memory.
    pub landings: Vec<IncomingFlow>,
    /// The windows of this rank.
    pub(super) windows: Vec<WindowMemory>,
    /// By member, the first flow to it of each class; [`NONE`] if there is none.
    pub(super) outgoing: Vec<[u32; 3]>,
    /// By member, the first flow from it of each class; [`NONE`] if there is none.
    pub(super) incoming: Vec<[u32; 3]>,
    /// Receivers whose senders are to get credit when there is time.
    debts: Vec<(usize, FlowWay)>,
}

impl Flows {
    /// No flows, between this rank and this many members.
    pub(super) fn new(members: usize) -> Self {
        Self { outgoing: vec![[NONE; 3]; members], incoming: vec![[NONE; 3]; members], ..Self::default() }
    }

    /// Adds a closed window for messages of a member, and its flows. `empty` stands for its memory.
    pub(super) fn add_window(&mut self, from: Rank, class: WindowClass, settings: &Settings, empty: Region) {
        let WindowSize { lanes, slots, slot_bytes, lane_bytes } = settings.window(class);
        let (window, first_flow) = (self.windows.len(), self.receivers.len());
        for lane in 0..lanes {
            self.receivers.push(IncomingFlow::new(from, window, lane * lane_bytes, slots));
            self.landings.push(IncomingFlow::new(from, window, 0, settings.writes()));
        }
        self.windows.push(WindowMemory {
            number: 0,
            lanes,
            region: empty,
            slot_bytes,
            class,
            first_flow,
            state: WindowState::Closed,
            wanted: false,
            used: 0,
            credits: 0,
        });
        self.incoming[from][class.index()] = narrow(first_flow);
    }

    /// The bytes of the windows.
    pub(super) fn memory(&self) -> usize {
        self.open_windows().map(|window| window.region.len()).sum()
    }

    /// The open windows: index, the rank that sends through it, and class.
    pub(super) fn opened(&self) -> impl Iterator<Item = (usize, Rank, WindowClass)> {
        let windows = self.windows.iter().enumerate();
        let open = windows.filter(|(_, window)| window.state != WindowState::Closed);
        open.map(|(index, window)| (index, self.receivers[window.first_flow].from, window.class))
    }

    pub(crate) fn open_windows(&self) -> impl Iterator<Item = &WindowMemory> {
        self.windows.iter().filter(|window| window.state != WindowState::Closed)
    }

    /// The numbers of the flows from this rank: for each window of a peer, the first number and the class.
    pub(super) fn speaks(&self) -> impl Iterator<Item = (usize, WindowClass)> {
        let windows = self.outgoing.iter().flat_map(|first| WindowClass::ALL.map(|class| (first, class)));
        windows.filter_map(|(first, class)| {
            let first = self.senders.get(first[class.index()] as usize)?;
            Some((first.reply, class))
        })
    }

    /// The sending end of a flow, if the window it goes to is known.
    #[inline]
    pub(crate) fn sender(&self, to: Rank, class: WindowClass, lane: usize) -> Option<usize> {
        let first = self.outgoing.get(to)?[class.index()];
        (first != NONE).then_some(first as usize + lane)
    }

    /// The receiving end of a flow, if its window is open.
    #[inline]
    pub(crate) fn receiver(&self, from: Rank, class: WindowClass, lane: usize) -> Option<usize> {
        let first = self.incoming.get(from)?[class.index()];
        (first != NONE).then_some(first as usize + lane)
    }

    /// Either receiving end of a flow.
    pub(super) fn incoming(&mut self, receiver: usize, way: FlowWay) -> &mut IncomingFlow {
        match way {
            FlowWay::Slots => &mut self.receivers[receiver],
            FlowWay::Direct => &mut self.landings[receiver],
        }
    }

    /// The region and the offset of the elements in a slot of a receiver.
    pub(crate) fn slot(&self, receiver: usize, slot: usize) -> (&Region, usize) {
        let flow = &self.receivers[receiver];
        let window = &self.windows[flow.window];
        (&window.region, flow.first + slot * stride(window.slot_bytes) + PAYLOAD)
    }

    /// The bytes of elements in a slot of a receiver.
    pub(crate) fn slot_bytes(&self, receiver: usize) -> usize {
        self.windows[self.receivers[receiver].window].slot_bytes
    }

    /// The header of the message that landed in a slot, or the beginning of it.
    pub(crate) fn header<T: Pod>(&self, receiver: usize, slot: usize) -> Result<T, Error> {
        let (region, at) = self.slot(receiver, slot);
        access::load(region, at - HEADER)
    }

    /// True if a flow is for messages from point to point.
    pub(super) fn is_message(&self, flow: &IncomingFlow) -> bool {
        self.windows[flow.window].class == WindowClass::Message
    }

    /// Messages of collectives that have landed and were not taken: sender and operation.
    pub(crate) fn untaken(&self) -> impl Iterator<Item = (Rank, Signature)> {
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

    /// Messages of a flow were freed or have landed. Returns the sender if its credit is to be sent at once, since all slots are free.
    /// Other credit that is due waits: if the last one was sent in a header or a clear to send, so is the next.
    pub(super) fn owe(&mut self, receiver: usize, way: FlowWay) -> Option<Rank> {
        let flow = self.incoming(receiver, way);
        let (from, exhausted, due) = (flow.from, flow.exhausted(), flow.owes() || flow.stalls());
        if exhausted {
            return Some(from);
        }
        if due && !self.debts.contains(&(receiver, way)) {
            self.debts.push((receiver, way));
        }
        None
    }

    /// Hands out credit that is due: if this rank is `idle`, all of it; else only the credit that is not sent in a header or a clear to send.
    pub(super) fn settle_debts(&mut self, idle: bool, mut send: impl FnMut(Rank, usize, FlowWay)) {
        let mut debts = std::mem::take(&mut self.debts);
        debts.retain(|&(receiver, way)| {
            let flow = self.incoming(receiver, way);
            let (from, stalls, now) = (flow.from, flow.stalls(), flow.owes() || idle && flow.stalls());
            if now {
                send(from, receiver, way);
            }
            stalls && !now
        });
        self.debts = debts;
    }

    /// True if a sender is to get credit when there is time.
    #[inline]
    pub(crate) fn has_debts(&self) -> bool {
        !self.debts.is_empty()
    }

    /// The senders of these flows need no credit any more.
    pub(super) fn forgive(&mut self, flows: &std::ops::Range<usize>) {
        self.debts.retain(|(receiver, _)| !flows.contains(receiver));
    }
}
