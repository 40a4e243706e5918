//! What an engine keeps from operation to operation: the transport, the peers, the windows and the flows.

use std::collections::VecDeque;

use bytemuck::Zeroable;
use unisono_transport::{Address, Error, Event, Limits, Memory, Peer, Region, RemoteRegion, Transport};

use super::{
    Settings, Stop,
    flow::{Incoming, Outgoing, Violation},
    letters::Letter,
    post::{NOTHING, Posts},
    wire::{self, Class, Entry, Grant, Header, Immediate, MAX_FLOWS, MAX_SLOTS, Way, Window},
};
use crate::{error::Failure, schedule::Rank};

/// What a rank must know of another before it can put to it; exchanged at join.
#[derive(Clone, Debug)]
pub(crate) struct Contact {
    pub address: Address,
    /// The mailbox: one [`Entry`] for every rank of the group.
    pub mailbox: RemoteRegion,
}

/// The index of a flow that does not exist yet.
const NONE: u32 = u32::MAX;

/// Another rank, or this one.
#[derive(Debug)]
pub(super) struct PeerState {
    pub(super) contact: Contact,
    handle: Option<Peer>,
    /// The first flow of each class to and from it; [`NONE`] while there is none.
    outgoing: [u32; 2],
    incoming: [u32; 2],
    pub(super) greeted: bool,
    /// The latest operation in which it was told, for each class, of a message that waits.
    pub(super) knocked: [Option<u32>; 2],
}

/// The sending end of a flow and where its window is.
#[derive(Debug)]
pub(crate) struct Sender {
    pub flow: Outgoing,
    pub region: RemoteRegion,
    pub slot_bytes: usize,
    /// What goes straight into the receiver's output.
    pub writes: Outgoing,
}

#[derive(Debug)]
struct WindowMemory {
    region: Region,
    slot_bytes: usize,
    class: Class,
    /// The flow of its first lane.
    first_flow: usize,
}

/// The engine without its operation.
pub(crate) struct Core {
    pub transport: Box<dyn Transport>,
    pub limits: Limits,
    pub me: Rank,
    pub settings: Settings,
    pub posts: Posts,
    /// What schedules may keep things in; as much as any has needed so far.
    pub scratch: Option<Region>,
    pub senders: Vec<Sender>,
    pub receivers: Vec<Incoming>,
    /// For each of them, what comes straight into this rank's output.
    pub landings: Vec<Incoming>,
    /// Puts under way that read the caller's memory, by lane.
    pub outstanding: Vec<usize>,
    pub(super) peers: Vec<PeerState>,
    windows: Vec<WindowMemory>,
    /// Written by peers, read when an immediate says so.
    mailbox: Region,
    /// What this rank writes to the others' mailboxes: kept here until it has left.
    pub(super) letters: Region,
    pub(super) post_box: VecDeque<(Rank, Letter)>,
    /// Receivers whose senders should hear of their credit when there is time.
    pub(super) debts: Vec<(usize, Way)>,
    /// Letters that the transport has not reported as sent.
    pub(super) letters_under_way: usize,
    /// Headers of messages that peers cannot send yet, until this rank comes to their operation.
    pub knocks: Vec<(Rank, Header)>,
    /// What peers allow, until the end of the operation for which they do.
    pub grants: Vec<(Rank, Grant)>,
    /// Whether peers may write into this rank's output now.
    pub exposed: bool,
    /// Arrivals that may be under way at once: what the completion queue must hold.
    expected: usize,
    events: Vec<Event>,
}

impl Core {
    /// Registers the mailbox of rank `me` of `ranks`.
    pub(crate) fn new(
        mut transport: Box<dyn Transport>,
        me: Rank,
        ranks: usize,
        settings: Settings,
    ) -> Result<Self, Error> {
        let limits = transport.limits().clone();
        let bytes = ranks * size_of::<Entry>();
        let mailbox = transport.register(Memory::map(bytes, false)?)?;
        let letters = transport.register(Memory::map(bytes, false)?)?;
        let staging_bytes = settings.chunk_bytes.max(settings.eager_bytes);
        let posts = Posts::new(&mut *transport, settings.staging(), staging_bytes)?;
        Ok(Self {
            transport,
            limits,
            me,
            settings,
            posts,
            scratch: None,
            senders: Vec::new(),
            receivers: Vec::new(),
            landings: Vec::new(),
            outstanding: vec![0; settings.lanes.max(1)],
            peers: Vec::new(),
            windows: Vec::new(),
            mailbox,
            letters,
            post_box: VecDeque::new(),
            debts: Vec::new(),
            letters_under_way: 0,
            knocks: Vec::new(),
            grants: Vec::new(),
            exposed: false,
            expected: 2 * ranks.min(64),
            events: Vec::with_capacity(64),
        })
    }

    /// What the others must know of this rank.
    pub(crate) fn contact(&self) -> Contact {
        let mailbox = self.mailbox.remote().unwrap_or_default();
        Contact { address: self.transport.address().clone(), mailbox }
    }

    /// What this rank must know of the others, by rank.
    pub(crate) fn meet(&mut self, contacts: Vec<Contact>) {
        let state = |contact| PeerState {
            contact,
            handle: None,
            outgoing: [NONE; 2],
            incoming: [NONE; 2],
            greeted: false,
            knocked: [None; 2],
        };
        self.peers = contacts.into_iter().map(state).collect();
    }

    /// Bytes of registered memory: windows, mailbox, letters, headers, staging, scratch.
    pub(crate) fn memory(&self) -> usize {
        let windows: usize = self.windows.iter().map(|window| window.region.len()).sum();
        let scratch = self.scratch.as_ref().map_or(0, |scratch| scratch.len());
        windows + self.mailbox.len() + self.letters.len() + self.posts.memory() + scratch
    }

    /// Makes sure that there is so much scratch. Only between operations, when no put reads from it.
    pub(crate) fn provide_scratch(&mut self, bytes: usize) -> Result<(), Stop> {
        if self.scratch.as_ref().map_or(0, |scratch| scratch.len()) < bytes {
            self.scratch = None;
            let memory = Memory::map(bytes.next_power_of_two(), self.settings.huge_pages)?;
            self.scratch = Some(self.transport.register(memory)?);
        }
        Ok(())
    }

    /// The sending end of a flow, if the window it goes to is known.
    pub(crate) fn sender(&self, to: Rank, class: Class, lane: usize) -> Option<usize> {
        let first = self.peers.get(to)?.outgoing[class.index()];
        (first != NONE).then_some(first as usize + lane)
    }

    /// The receiving end of a flow, if its window is open.
    pub(crate) fn receiver(&self, from: Rank, class: Class, lane: usize) -> Option<usize> {
        let first = self.peers.get(from)?.incoming[class.index()];
        (first != NONE).then_some(first as usize + lane)
    }

    /// The region of a receiver's slots, and where the elements in `slot` begin.
    pub(crate) fn slot(&self, receiver: usize, slot: usize) -> (&Region, usize) {
        let flow = &self.receivers[receiver];
        let window = &self.windows[flow.window];
        (&window.region, flow.first + slot * wire::stride(window.slot_bytes) + wire::PAYLOAD)
    }

    /// The handle of a peer, connecting on first use.
    pub(crate) fn handle(&mut self, rank: Rank) -> Result<Peer, Stop> {
        let peer = &mut self.peers[rank];
        if let Some(handle) = peer.handle {
            return Ok(handle);
        }
        let handle = self.transport.connect(&peer.contact.address)?;
        peer.handle = Some(handle);
        Ok(handle)
    }

    /// Opens the windows through which `from` sends messages of this class, unless they are open.
    pub(crate) fn listen(&mut self, from: Rank, class: Class) -> Result<(), Stop> {
        if self.peers[from].incoming[class.index()] != NONE {
            return Ok(());
        }
        let (lanes, slots, slot_bytes) = self.settings.window(class);
        let lane_bytes = slots * wire::stride(slot_bytes);
        let first_flow = self.receivers.len();
        // Messages; at most two credits for each flow the other way; the announcement of its window. In bulk also
        // writes, their credits, a grant, and a knock for one.
        self.expected += lanes * slots + 2 * lanes + 1;
        if class == Class::Bulk {
            self.expected += lanes * self.settings.writes() + 2 * lanes + 2;
        }
        if first_flow + lanes > MAX_FLOWS || self.expected > self.limits.arrivals {
            return Err(self.stop(format!(
                "opening a window for rank {from}: {} flows and {} arrivals under way would be more than the {} and \
                 {} this process can have; use fewer lanes or slots",
                first_flow + lanes,
                self.expected,
                MAX_FLOWS,
                self.limits.arrivals
            )));
        }
        let memory = Memory::map(lanes * lane_bytes, self.settings.huge_pages)?;
        let region = self.transport.register(memory)?;
        let Some(remote) = region.remote() else {
            return Err(self.stop("a registered region has no key".to_owned()));
        };
        let narrow = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let window = Window {
            magic: Window::MAGIC,
            first_flow: narrow(first_flow),
            lanes: narrow(lanes),
            slots: narrow(slots),
            slot_bytes: narrow(slot_bytes),
            reserved: 0,
            base: remote.base,
            key: remote.key,
            len: remote.len,
        };
        for lane in 0..lanes {
            self.receivers.push(Incoming::new(from, self.windows.len(), lane * lane_bytes, slots));
            self.landings.push(Incoming::new(from, self.windows.len(), 0, self.settings.writes()));
        }
        self.windows.push(WindowMemory { region, slot_bytes, class, first_flow });
        self.peers[from].incoming[class.index()] = narrow(first_flow);
        let at = from * size_of::<Entry>() + class.index() * size_of::<Window>();
        self.letters.write(at, bytemuck::bytes_of(&window))?;
        self.post_box.push_back((from, Letter::Window(class)));
        Ok(())
    }

    /// What a peer allows in the operation of this number (its low 32 bits), if that is known yet.
    pub(crate) fn granted(&self, to: Rank, op: u32) -> Option<&Grant> {
        let granted = self.grants.iter().find(|(from, grant)| *from == to && grant.header.op == op);
        granted.map(|(_, grant)| grant)
    }

    /// The headers of messages that have landed and were not taken, and who sent them.
    pub(crate) fn untaken(&self) -> impl Iterator<Item = (Rank, Header)> {
        self.receivers.iter().enumerate().filter_map(|(index, flow)| {
            let header = self.header(index, flow.ready_slot()?).ok()?;
            Some((flow.from, header))
        })
    }

    /// Who has written what no lane awaited.
    pub(crate) fn unawaited(&self) -> Option<Rank> {
        self.landings.iter().find(|landing| landing.ready()).map(|landing| landing.from)
    }

    /// Makes progress; true if anything happened.
    pub(crate) fn poll(&mut self) -> Result<bool, Stop> {
        let mut events = std::mem::take(&mut self.events);
        let result = self.transport.poll(&mut events);
        let any = !events.is_empty();
        for event in events.drain(..) {
            match event {
                Event::Arrived { immediate, .. } => self.arrived(Immediate::decode(immediate))?,
                Event::Sent { token: NOTHING } => {
                    self.letters_under_way = self.letters_under_way.saturating_sub(1);
                }
                Event::Sent { token } => self.sent(token)?,
            }
        }
        self.events = events;
        result?;
        Ok(any)
    }

    fn sent(&mut self, token: u64) -> Result<(), Stop> {
        let Some(record) = self.posts.end(token) else {
            return Err(self.stop(format!("the transport ended a put that was never begun (token {token})")));
        };
        if let Some(lane) = record.lane {
            self.outstanding[lane] = self.outstanding[lane].saturating_sub(1);
        }
        if let Some((receiver, slot)) = record.hold {
            self.receivers[receiver].release(slot);
            self.owe(receiver, Way::Slots);
        }
        Ok(())
    }

    fn arrived(&mut self, immediate: Immediate) -> Result<(), Stop> {
        match immediate {
            Immediate::Data { flow, way: Way::Slots, number } => self.message_arrived(flow as usize, number),
            Immediate::Data { flow, way: Way::Direct, number } => self.write_arrived(flow as usize, number),
            Immediate::Credit { flow, way, freed } => match self.senders.get_mut(flow as usize) {
                Some(sender) => {
                    let flow = if way == Way::Slots { &mut sender.flow } else { &mut sender.writes };
                    let to = flow.to;
                    flow.credit(freed).map_err(|violation| self.violation(to, violation))
                }
                None => Err(self.stop(format!("a credit for flow {flow}, which does not exist"))),
            },
            Immediate::Window { from, class } => self.window_arrived(from, class),
            Immediate::Hello { from } => self.hello_arrived(from),
            Immediate::Grant { from } => {
                let grant = self.entry(from)?.grant;
                if grant.granted > 1 {
                    let what = format!("neither leave to write nor refusal, but {}", grant.granted);
                    return Err(self.violation(from, Violation(what)));
                }
                self.grants.push((from, grant));
                // Nothing was written yet to a peer whose window is unknown.
                let Some(sender) = self.sender(from, Class::Bulk, 0) else { return Ok(()) };
                let credit = self.senders[sender].writes.credit((grant.header.freed & 0xffff) as u16);
                credit.map_err(|violation| self.violation(from, violation))
            }
            Immediate::Knock { from, class } => {
                let header = self.entry(from)?.knocks[class.index()];
                self.knocks.push((from, header));
                Ok(())
            }
        }
    }

    /// A message landed. The credit in its header counts at once, not only when a lane takes the message:
    /// the lane may be waiting for just that credit.
    fn message_arrived(&mut self, flow: usize, number: u16) -> Result<(), Stop> {
        let Some(receiver) = self.receivers.get_mut(flow) else {
            return Err(self.stop(format!("a message on flow {flow}, which does not exist")));
        };
        let from = receiver.from;
        let slot = match receiver.arrive(number) {
            Ok(slot) => slot,
            Err(violation) => return Err(self.violation(from, violation)),
        };
        let window = &self.windows[receiver.window];
        let sender = self.sender(from, window.class, flow - window.first_flow);
        if let Some(sender) = sender {
            let freed = self.header(flow, slot)?.freed;
            let credit = self.senders[sender].flow.credit((freed & 0xffff) as u16);
            credit.map_err(|violation| self.violation(from, violation))?;
        }
        Ok(())
    }

    /// A message landed in this rank's output.
    fn write_arrived(&mut self, flow: usize, number: u16) -> Result<(), Stop> {
        let Some(landing) = self.landings.get_mut(flow) else {
            return Err(self.stop(format!("a write on flow {flow}, which does not exist")));
        };
        let from = landing.from;
        if !self.exposed {
            let what = "a write into an output that nobody was allowed to write to".to_owned();
            return Err(self.violation(from, Violation(what)));
        }
        landing.arrive(number).map(drop).map_err(|violation| self.violation(from, violation))
    }

    /// The header of the message that landed in a slot.
    pub(crate) fn header(&self, receiver: usize, slot: usize) -> Result<Header, Error> {
        let (region, at) = self.slot(receiver, slot);
        let mut header = Header::zeroed();
        region.read(at - wire::HEADER, bytemuck::bytes_of_mut(&mut header))?;
        Ok(header)
    }

    fn entry(&self, from: Rank) -> Result<Entry, Stop> {
        let mut entry = Entry::zeroed();
        if from >= self.peers.len() {
            return Err(self.stop(format!("a letter from rank {from} of {}", self.peers.len())));
        }
        self.mailbox.read(from * size_of::<Entry>(), bytemuck::bytes_of_mut(&mut entry))?;
        Ok(entry)
    }

    fn window_arrived(&mut self, from: Rank, class: Class) -> Result<(), Stop> {
        let window = self.entry(from)?.windows[class.index()];
        let (lanes, slots, slot_bytes) = self.settings.window(class);
        let stride = wire::stride(slot_bytes) as u64;
        let agreed = window.magic == Window::MAGIC
            && window.lanes as usize == lanes
            && window.slots as usize == slots
            && slots <= MAX_SLOTS
            && window.slot_bytes as usize == slot_bytes
            && window.first_flow as usize + lanes <= MAX_FLOWS
            && window.len >= (lanes * slots) as u64 * stride;
        let room = self.senders.len() + lanes <= MAX_FLOWS;
        if !agreed || !room || self.peers[from].outgoing[class.index()] != NONE {
            let what = format!("a window of class {class:?} that does not fit or came twice: {window:?}");
            return Err(self.violation(from, Violation(what)));
        }
        self.peers[from].outgoing[class.index()] = u32::try_from(self.senders.len()).unwrap_or(NONE);
        for lane in 0..lanes {
            let id = window.first_flow + u32::try_from(lane).unwrap_or(0);
            let first = (lane * slots) as u64 * stride;
            self.senders.push(Sender {
                flow: Outgoing::new(from, id, first, slots as u64),
                region: window.remote(),
                slot_bytes,
                writes: Outgoing::new(from, id, 0, self.settings.writes() as u64),
            });
        }
        Ok(())
    }

    fn hello_arrived(&mut self, from: Rank) -> Result<(), Stop> {
        let (seen, wanted) = (self.entry(from)?.hello, wire::hello(from, self.me));
        if seen != wanted {
            let what =
                format!("the greeting {seen:x?} where {wanted:x?} was due: the provider corrupts puts");
            return Err(self.violation(from, Violation(what)));
        }
        self.peers[from].greeted = true;
        Ok(())
    }

    pub(crate) fn violation(&self, from: Rank, violation: Violation) -> Stop {
        Stop::Failure(Failure::Protocol { rank: self.me, from, what: violation.0 })
    }

    pub(crate) fn stop(&self, reason: String) -> Stop {
        Stop::Failure(Failure::Transport {
            rank: self.me,
            doing: format!("driving {}", self.limits.provider),
            reason,
        })
    }
}
