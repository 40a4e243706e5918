//! Windows of groups that are idle are given back, so that any number of groups can do with the flows, arrivals and memory
//! that a process has.
//!
//! Every peer has a share of the arrivals. Where the windows that it may send through come to more, the one that was used
//! longest ago is closed, if its group is idle: this rank tells the peer what has come through it ([`Close`]), and the peer
//! agrees if it has sent no more and got all credits, and is idle too. Then nothing is under way on account of the
//! window, and its flows' numbers and its memory serve for another. The next operation that needs it opens it again. The
//! peers of an operation are in its group, so whoever waits for room waits for ranks that take part.

use std::mem;

use unisono_schedule::{Rank, windows::stride};
use unisono_transport::Memory;

use super::{
    communicator::{Comm, ControlMessage},
    core::Core,
    flow::Incoming,
    member::NONE,
    net::Net,
    window::{WindowMemory, WindowState},
};
use crate::engine::{
    access,
    stop::Stop,
    wire::{Class, Close, CommId, ControlKind, Entry, MAX_FLOWS, Way, Window},
};

/// The low 32 bits.
fn low(number: u64) -> u32 {
    (number & 0xffff_ffff) as u32
}

impl Comm {
    /// Whether a window could be closed: nothing goes on in the group that may need it.
    fn is_idle(&self, class: Class) -> bool {
        let calm = !self.busy && self.tasks.is_empty() && self.under_way == 0;
        calm && (class != Class::Message || self.talk.over())
    }

    /// Whether this rank may ask for a window to be closed.
    fn may_close(&self, window: &WindowMemory) -> bool {
        let mut flows = window.flows();
        let at_rest = |flow: usize| self.receivers[flow].at_rest() && self.landings[flow].at_rest();
        window.state == WindowState::Open
            && self.is_idle(window.class)
            && !self.left
            && self.control_completed()
            && self.members[self.receivers[window.first_flow].from].ended.is_none()
            && flows.all(at_rest)
    }
}

impl Core<'_> {
    /// Opens the windows through which `from` sends messages of this class, unless they are open.
    pub(crate) fn listen(&mut self, from: Rank, class: Class) -> Result<(), Stop> {
        let Self { port, comm } = self;
        port.clock += 1;
        let first = comm.members[from].incoming[class.index()];
        if first == NONE {
            return self.open(from, class);
        }
        let window = &mut comm.windows[comm.receivers[first as usize].window];
        window.used = port.clock;
        match window.state {
            WindowState::Open => Ok(()),
            // If the peer agrees, it is opened again at once.
            WindowState::Closing => {
                window.wanted = true;
                Ok(())
            }
            WindowState::Closed => self.open(from, class),
        }
    }

    /// Opens a window, or remembers that it is wanted where there is no room.
    pub(crate) fn open(&mut self, from: Rank, class: Class) -> Result<(), Stop> {
        let Self { port, comm } = self;
        let (lanes, slots, slot_bytes) = comm.settings.window(class);
        let lane_bytes = slots * stride(slot_bytes);
        let known = comm.members[from].incoming[class.index()];
        let (first_flow, index) = match known {
            NONE => (comm.receivers.len(), comm.windows.len()),
            first => (first as usize, comm.receivers[first as usize].window),
        };
        let (world, writes) = (comm.world(from), comm.settings.writes());
        let flows = (0..lanes).map(|lane| {
            (Incoming::new(from, index, lane * lane_bytes, slots), Incoming::new(from, index, 0, writes))
        });
        if known == NONE {
            let (receivers, landings): (Vec<_>, Vec<_>) = flows.unzip();
            comm.receivers.extend(receivers);
            comm.landings.extend(landings);
            // Where there is no region, nothing can come.
            let region = comm.control.clone();
            let (number, used) = (0, port.clock);
            let state = WindowState::Closed;
            comm.windows.push(WindowMemory {
                number,
                lanes,
                region,
                slot_bytes,
                class,
                first_flow,
                state,
                wanted: false,
                used,
                credits: 0,
            });
            comm.members[from].incoming[class.index()] = narrow(first_flow);
            comm.meets(from)?;
        } else {
            for (lane, (receiver, landing)) in flows.enumerate() {
                comm.receivers[first_flow + lane] = receiver;
                comm.landings[first_flow + lane] = landing;
            }
        }
        let arrivals = comm.settings.arrivals(class);
        let room = port.has_room(arrivals).then(|| port.incoming.take(comm.comm_id, first_flow, lanes));
        let Some(number) = room.flatten() else {
            comm.windows[index].wanted = true;
            // A message may be asked for by both sides.
            if !port.wanting.contains(&(comm.comm_id, index)) {
                port.wanting.push((comm.comm_id, index));
            }
            return Ok(());
        };
        let region = match port.spare[class.index()].pop() {
            Some(region) => region,
            None => {
                let memory = Memory::map(lanes * lane_bytes, comm.settings.huge_pages)?;
                port.transport.register(memory)?
            }
        };
        let Some(remote) = region.remote() else {
            return Err(port.stop("a registered region has no key".to_owned()));
        };
        port.expect(world, (comm.comm_id, index), arrivals);
        let window = &mut comm.windows[index];
        (window.number, window.region, window.credits) = (number, region, 0);
        (window.state, window.wanted) = (WindowState::Open, false);
        let told = Window {
            magic: Window::MAGIC,
            first_flow: narrow(number),
            lanes: narrow(lanes),
            slots: narrow(slots),
            slot_bytes: narrow(slot_bytes),
            reserved: 0,
            base: remote.base,
            key: remote.key,
            len: remote.len,
        };
        let at = from * size_of::<Entry>() + ControlKind::Window(class).place();
        access::store(&comm.control, at, &told)?;
        comm.control_queue.push_back((from, ControlMessage::Window(class)));
        Ok(())
    }

    /// Asks a window's peer whether it may be closed.
    fn ask_to_close(&mut self, index: usize) -> Result<(), Stop> {
        let comm = &mut *self.comm;
        let window = &mut comm.windows[index];
        let (flows, class) = (window.flows(), window.class);
        window.state = WindowState::Closing;
        let from = comm.receivers[flows.start].from;
        let come = flows.clone().map(|flow| comm.receivers[flow].taken() + comm.landings[flow].taken());
        let close = Close { come: low(come.sum()), credits: window.credits };
        comm.debts.retain(|(receiver, _)| !flows.contains(receiver));
        let at = from * size_of::<Entry>() + ControlKind::Close(class).place();
        access::store(&comm.control, at, &close)?;
        comm.control_queue.push_back((from, ControlMessage::Close(class)));
        self.send_control().map(drop)
    }

    /// A peer would close a window that this rank sends through.
    pub(crate) fn close_arrived(&mut self, from: Rank, class: Class, close: Close) -> Result<(), Stop> {
        let Self { port, comm } = self;
        // Who parts, or has left the group, says no more.
        if port.shutting_down || comm.left {
            return Ok(());
        }
        let first = comm.members[from].outgoing[class.index()];
        let lanes = comm.settings.window(class).0;
        let ends = comm.senders.get(first as usize..).and_then(|ends| ends.get(..lanes));
        let agreed = ends.filter(|_| comm.is_idle(class)).is_some_and(|ends| {
            let sent = ends.iter().map(|end| end.flow.sent() + end.writes.sent()).sum();
            let credits = ends.iter().fold(0_u32, |sum, end| sum.wrapping_add(end.credits));
            (low(sent), credits) == (close.come, close.credits)
        });
        if let Some(ends) = ends.filter(|_| agreed) {
            for end in ends {
                port.fly(comm.world(from), 0, end.bytes());
            }
            port.outgoing.give_back(ends[0].reply, lanes);
            let member = &mut comm.members[from];
            (member.outgoing[class.index()], member.probed_classes[class.index()]) = (NONE, None);
            comm.spare_senders.push((class, first as usize));
        }
        let at = from * size_of::<Entry>() + ControlKind::Answer(class).place();
        access::store(&comm.control, at, &u64::from(agreed))?;
        comm.control_queue.push_back((from, ControlMessage::Answer(class)));
        self.send_control().map(drop)
    }

    /// A peer says whether a window is closed.
    pub(crate) fn answer_arrived(&mut self, from: Rank, class: Class, answer: u64) -> Result<(), Stop> {
        let Self { port, comm } = self;
        let first = comm.members[from].incoming[class.index()];
        let index = comm.receivers.get(first as usize).map(|flow| flow.window);
        let asked = index.filter(|&index| comm.windows[index].state == WindowState::Closing);
        let Some(index) = asked.filter(|_| answer <= 1) else {
            let what =
                format!("the answer {answer} about a window of class {class:?} that was not to be closed");
            return Err(self.port.forged(what));
        };
        let (world, arrivals) = (comm.world(from), comm.settings.arrivals(class));
        let placeholder = comm.control.clone();
        let window = &mut comm.windows[index];
        let wanted = mem::take(&mut window.wanted);
        if answer == 0 {
            window.state = WindowState::Open;
            for flow in window.flows() {
                self.comm.owe(flow, Way::Slots);
                self.comm.owe(flow, Way::Direct);
            }
            return Ok(());
        }
        window.state = WindowState::Closed;
        let region = mem::replace(&mut window.region, placeholder);
        port.incoming.give_back(window.number, window.lanes);
        port.expect_no_more(world, (comm.comm_id, index), arrivals);
        port.keep(class, region);
        if wanted { self.open(from, class) } else { Ok(()) }
    }
}

impl Net {
    /// Has windows closed where a peer has more than its share, and opens those that wait for room.
    pub(crate) fn give_back(&mut self) -> Result<(), Stop> {
        for world in mem::take(&mut self.port.crowded) {
            let excess = self.port.excess(world);
            let windows = self.port.windows(world).to_vec();
            self.close_some(windows, excess)?;
        }
        for (comm_id, index) in mem::take(&mut self.port.wanting) {
            // A group may have ended meanwhile.
            let Ok(mut core) = self.core(comm_id) else { continue };
            let window = &core.comm.windows[index];
            // Or it has been opened when another was closed.
            if window.state != WindowState::Closed {
                continue;
            }
            let (from, class) = (core.comm.receivers[window.first_flow].from, window.class);
            let arrivals = core.comm.settings.arrivals(class);
            core.open(from, class)?;
            if core.comm.windows[index].state == WindowState::Closed {
                self.make_room(arrivals)?;
            }
        }
        Ok(())
    }

    /// Has those of these windows closed that were used longest ago, until so many arrivals come free or none can be. True
    /// if some will.
    fn close_some(&mut self, windows: Vec<(CommId, usize)>, arrivals: usize) -> Result<bool, Stop> {
        let (mut coming, mut idle) = (0, Vec::new());
        for (comm_id, index) in windows {
            let comm = self.core(comm_id)?.comm;
            let window = &comm.windows[index];
            match window.state {
                WindowState::Closing => coming += comm.settings.arrivals(window.class),
                _ if comm.may_close(window) => idle.push((window.used, comm_id, index)),
                _ => {}
            }
        }
        idle.sort_unstable();
        for (_, comm_id, index) in idle {
            if coming >= arrivals || self.port.shutting_down {
                break;
            }
            let mut core = self.core(comm_id)?;
            coming += core.comm.settings.arrivals(core.comm.windows[index].class);
            core.ask_to_close(index)?;
        }
        Ok(coming > 0)
    }

    /// Has windows of any peers closed; an error if none can be, now or when what goes on has ended.
    fn make_room(&mut self, arrivals: usize) -> Result<(), Stop> {
        let all = self.port.all_windows();
        // A group whose control messages are on their way is idle in a moment.
        let mut idle = self.comms.iter().flatten().filter(|comm| !comm.busy);
        let landing = idle.any(|comm| !comm.control_completed());
        let busy = self.comms.iter().flatten().filter(|comm| comm.busy).count();
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

fn narrow(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
