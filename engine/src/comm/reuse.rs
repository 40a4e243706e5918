//! Opens windows, and closes those of idle communicators, so that any number of communicators can share the flows, arrivals and
//! memory of a process.
//!
//! Every peer has a share of the arrivals. If the windows that it sends through exceed its share, this rank closes the one
//! that was used longest ago, if no operation under way needs it. It asks the peer with the counts of arrivals
//! ([`Close`]), and the peer agrees if it has sent no more, has received all credits, and does not need it either. Then nothing is
//! in flight for the window, and the numbers of its flows and its memory are used for another one. The next operation that needs the
//! window opens it again. Message numbers go on then, since messages of the opposite direction that take credit along may still be in
//! flight. The peers of an operation are members of its communicator, so an operation that waits for room waits for ranks that take
//! part in it.

use std::mem;

use unisono_schedule::Rank;

use super::{
    communicator::Comm,
    core::Core,
    flow::OutgoingFlow,
    flows::NONE,
    net::Net,
    window::{WindowMemory, WindowSender, WindowState},
};
use crate::{
    call::narrow,
    settings::WindowSize,
    stop::Result,
    wire::{Close, CommId, ControlKind, FlowWay, MAX_FLOWS, MAX_SLOTS, Window, WindowClass, low},
};

impl Comm {
    /// True if no operation under way needs a window of this class.
    fn is_idle(&self, class: WindowClass) -> bool {
        self.collectives.in_use != Some(class) && (class != WindowClass::Message || self.messages.is_over())
    }

    /// True if this rank may ask to close a window.
    fn may_close(&self, window: &WindowMemory) -> bool {
        let mut flows = window.flows();
        let at_rest =
            |flow: usize| self.flows.receivers[flow].at_rest() && self.flows.landings[flow].at_rest();
        window.state == WindowState::Open
            && self.is_idle(window.class)
            && !self.shutdown.has_left()
            && self.mailbox.is_completed()
            && self.identity.members[self.flows.receivers[window.first_flow].from].ended.is_none()
            && flows.all(at_rest)
    }
}

impl Core<'_> {
    /// Opens the windows through which `from` sends messages of this class, unless they are open.
    pub(crate) fn listen(&mut self, from: Rank, class: WindowClass) -> Result<()> {
        let Self { port, comm } = self;
        port.clock += 1;
        let first = comm.flows.incoming[from][class.index()];
        if first == NONE {
            return self.open(from, class);
        }
        let window = &mut comm.flows.windows[comm.flows.receivers[first as usize].window];
        window.used = port.clock;
        match window.state {
            WindowState::Open => Ok(()),
            // If the peer agrees to close the window, it is opened again at once.
            WindowState::Closing => {
                window.wanted = true;
                Ok(())
            }
            WindowState::Closed => self.open(from, class),
        }
    }

    /// Opens a window. If there is no room, the window opens later.
    pub(crate) fn open(&mut self, from: Rank, class: WindowClass) -> Result<()> {
        let Self { port, comm } = self;
        let WindowSize { lanes, slots, slot_bytes, lane_bytes } = comm.settings.window(class);
        if comm.flows.incoming[from][class.index()] == NONE {
            comm.flows.add_window(from, class, &comm.settings, comm.mailbox.sources.clone());
            comm.note_flow(from)?;
        }
        let world = comm.identity.world(from);
        let first_flow = comm.flows.incoming[from][class.index()] as usize;
        let index = comm.flows.receivers[first_flow].window;
        let arrivals = comm.settings.arrivals(class);
        let room =
            port.has_room(arrivals).then(|| port.incoming.take(comm.identity.comm_id, first_flow, lanes));
        let Some(number) = room.flatten() else {
            comm.flows.windows[index].wanted = true;
            // A send and a mismatch probe may both want the window.
            if !port.wanting.contains(&(comm.identity.comm_id, index)) {
                port.wanting.push((comm.identity.comm_id, index));
            }
            return Ok(());
        };
        let region = match port.spare[class.index()].pop() {
            Some(region) => region,
            None => port.transport.allocate(lanes * lane_bytes)?,
        };
        let Some(remote) = region.remote() else {
            return Err(port.stop("a registered region has no key"));
        };
        port.expect(world, (comm.identity.comm_id, index), arrivals);
        for flow in first_flow..first_flow + lanes {
            comm.flows.receivers[flow].reopen();
            comm.flows.landings[flow].reopen();
        }
        let window = &mut comm.flows.windows[index];
        (window.number, window.region, window.credits, window.used) = (number, region, 0, port.clock);
        (window.state, window.wanted) = (WindowState::Open, false);
        let [first_flow, lanes, slots, slot_bytes] = [number, lanes, slots, slot_bytes].map(narrow);
        let (magic, region) = (Window::MAGIC, remote.words());
        let description = Window { magic, first_flow, lanes, slots, slot_bytes, reserved: 0, region };
        Ok(comm.mailbox.send(from, ControlKind::Window(class), description)?)
    }

    /// A peer has described a window that this rank may send through.
    pub(super) fn window_arrived(&mut self, from: Rank, class: WindowClass, window: Window) -> Result<()> {
        let Self { port, comm } = self;
        let WindowSize { lanes, slots, slot_bytes, lane_bytes } = comm.settings.window(class);
        let agreed = window.magic == Window::MAGIC
            && window.lanes as usize == lanes
            && window.slots as usize == slots
            && slots <= MAX_SLOTS
            && window.slot_bytes as usize == slot_bytes
            && window.first_flow as usize + lanes <= MAX_FLOWS
            && window.remote().len >= (lanes * lane_bytes) as u64;
        if !agreed || comm.flows.outgoing[from][class.index()] != NONE {
            let what = format!("a window of class {class:?} that does not fit or came twice: {window:?}");
            return Err(self.violation(from, what));
        }
        let closed = comm.flows.closed_senders.iter().position(|(to, of, _)| (*to, *of) == (from, class));
        let closed = closed.map(|at| comm.flows.closed_senders.swap_remove(at).2);
        let sender = closed.unwrap_or(comm.flows.senders.len());
        let Some(reply) = port.outgoing.take(comm.identity.comm_id, sender, lanes) else {
            return Err(port.stop(format!(
                "a window of rank {}: its {lanes} flows would be more than the {MAX_FLOWS} that this process can send \
                 on; use fewer lanes",
                comm.identity.world(from)
            )));
        };
        comm.note_flow(from)?;
        comm.flows.outgoing[from][class.index()] = narrow(sender);
        let writes = comm.settings.writes() as u64;
        for lane in 0..lanes {
            let (id, first) = (window.first_flow + narrow(lane), (lane * lane_bytes) as u64);
            let (reply, region) = (reply + lane, window.remote());
            match comm.flows.senders.get_mut(sender + lane) {
                Some(end) => {
                    (end.flow.id, end.writes.id) = (id, id);
                    (end.reply, end.region, end.credits) = (reply, region, 0);
                }
                None => comm.flows.senders.push(WindowSender {
                    flow: OutgoingFlow::new(from, id, first, slots as u64),
                    reply,
                    region,
                    slot_bytes,
                    writes: OutgoingFlow::new(from, id, 0, writes),
                    credits: 0,
                }),
            }
        }
        Ok(())
    }

    /// Asks the peer of a window to agree to close it.
    fn ask_to_close(&mut self, index: usize) -> Result<()> {
        let comm = &mut *self.comm;
        let window = &mut comm.flows.windows[index];
        let (flows, class) = (window.flows(), window.class);
        window.state = WindowState::Closing;
        let from = comm.flows.receivers[flows.start].from;
        let arrived =
            flows.clone().map(|flow| comm.flows.receivers[flow].taken + comm.flows.landings[flow].taken);
        let close = Close { arrived: low(arrived.sum()), credits: window.credits };
        comm.flows.forgive(&flows);
        comm.mailbox.send(from, ControlKind::Close(class), close)?;
        self.send_control().map(drop)
    }

    /// A peer asks to close a window that this rank sends through.
    pub(crate) fn close_arrived(&mut self, from: Rank, class: WindowClass, close: Close) -> Result<()> {
        let Self { port, comm } = self;
        // A rank sends nothing more in the last barrier, or after it has left the communicator.
        if port.shutting_down || comm.shutdown.has_left() {
            return Ok(());
        }
        let first = comm.flows.outgoing[from][class.index()];
        let lanes = comm.settings.window(class).lanes;
        let ends = comm.flows.senders.get(first as usize..).and_then(|ends| ends.get(..lanes));
        let agreed = ends.filter(|_| comm.is_idle(class)).is_some_and(|ends| {
            let sent = ends.iter().map(|end| end.flow.sent + end.writes.sent).sum();
            let credits = ends.iter().fold(0_u32, |sum, end| sum.wrapping_add(end.credits));
            (low(sent), credits) == (close.arrived, close.credits)
        });
        if agreed {
            let (world, first) = (comm.identity.world(from), first as usize);
            port.outgoing.give_back(comm.flows.senders[first].reply, lanes);
            for end in &mut comm.flows.senders[first..first + lanes] {
                port.in_flight(world, 0, end.bytes());
                end.flow.close();
                end.writes.close();
            }
            comm.flows.outgoing[from][class.index()] = NONE;
            comm.mailbox.peers[from].probed_classes[class.index()] = None;
            comm.flows.closed_senders.push((from, class, first));
        }
        comm.mailbox.send(from, ControlKind::Answer(class), u64::from(agreed))?;
        self.send_control().map(drop)
    }

    /// A peer answers whether a window is closed.
    pub(crate) fn answer_arrived(&mut self, from: Rank, class: WindowClass, answer: u64) -> Result<()> {
        let Self { port, comm } = self;
        let first = comm.flows.incoming[from][class.index()];
        let index = comm.flows.receivers.get(first as usize).map(|flow| flow.window);
        let asked = index.filter(|&index| comm.flows.windows[index].state == WindowState::Closing);
        let Some(index) = asked.filter(|_| answer <= 1) else {
            let what =
                format!("the answer {answer} about a window of class {class:?} that was not to be closed");
            return Err(self.port.forged(what));
        };
        let (world, arrivals) = (comm.identity.world(from), comm.settings.arrivals(class));
        let placeholder = comm.mailbox.sources.clone();
        let window = &mut comm.flows.windows[index];
        let wanted = mem::take(&mut window.wanted);
        if answer == 0 {
            window.state = WindowState::Open;
            // Others are asked before it is asked again: its peer may be busy for long.
            port.clock += 1;
            window.used = port.clock;
            for flow in window.flows() {
                self.comm.owe(flow, FlowWay::Slots);
                self.comm.owe(flow, FlowWay::Direct);
            }
            return Ok(());
        }
        window.state = WindowState::Closed;
        let region = mem::replace(&mut window.region, placeholder);
        port.incoming.give_back(window.number, window.lanes);
        port.expect_no_more(world, (comm.identity.comm_id, index), arrivals);
        port.keep(class, region);
        if wanted { self.open(from, class) } else { Ok(()) }
    }
}

impl Net {
    /// Closes windows of peers that exceed their shares, and opens windows that wait for room.
    pub(crate) fn give_back(&mut self) -> Result<()> {
        for world in mem::take(&mut self.port.crowded) {
            let excess = self.port.excess(world);
            let windows = self.port.windows(world).to_vec();
            self.close_some(windows, excess)?;
        }
        for (comm_id, index) in mem::take(&mut self.port.wanting) {
            // The communicator may have ended meanwhile.
            let Ok(mut core) = self.core(comm_id) else { continue };
            let window = &core.comm.flows.windows[index];
            // The window may have been opened meanwhile.
            if window.state != WindowState::Closed {
                continue;
            }
            let (from, class) = (core.comm.flows.receivers[window.first_flow].from, window.class);
            let arrivals = core.comm.settings.arrivals(class);
            core.open(from, class)?;
            if core.comm.flows.windows[index].state == WindowState::Closed {
                self.make_room(arrivals)?;
            }
        }
        Ok(())
    }

    /// Asks to close those of these windows that were used longest ago, until this many arrivals will be free. True if any will.
    fn close_some(&mut self, windows: Vec<(CommId, usize)>, arrivals: usize) -> Result<bool> {
        let (mut closing, mut idle) = (0, Vec::new());
        for (comm_id, index) in windows {
            let comm = self.core(comm_id)?.comm;
            let window = &comm.flows.windows[index];
            match window.state {
                WindowState::Closing => closing += comm.settings.arrivals(window.class),
                _ if comm.may_close(window) => idle.push((window.used, comm_id, index)),
                _ => {}
            }
        }
        idle.sort_unstable();
        for (_, comm_id, index) in idle {
            if closing >= arrivals || self.port.shutting_down {
                break;
            }
            let mut core = self.core(comm_id)?;
            closing += core.comm.settings.arrivals(core.comm.flows.windows[index].class);
            core.ask_to_close(index)?;
        }
        Ok(closing > 0)
    }

    /// Closes windows of any peers. An error if no window can be closed, now or after the operations that are under way.
    fn make_room(&mut self, arrivals: usize) -> Result<()> {
        let all = self.port.all_windows();
        // While control messages of a communicator are in flight, its windows cannot be closed.
        let landing = self.comms.iter().flatten().any(|comm| !comm.mailbox.is_completed());
        let busy = self.comms.iter().flatten().filter(|comm| comm.collectives.busy).count();
        if self.close_some(all, arrivals)? || landing || busy > 1 {
            return Ok(());
        }
        let (most, more) = (self.port.limits.arrivals, self.port.limits.more_arrivals);
        Err(self.port.stop(format!(
            "a window for one more rank: its flows and what may arrive on them would be more than the {MAX_FLOWS} flows \
             and {most} arrivals under way this process can have; use fewer lanes or slots{}{more}",
            if more.is_empty() { "" } else { "; " },
        )))
    }
}
