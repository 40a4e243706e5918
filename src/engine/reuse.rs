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
    Stop, access,
    circle::{Circle, NONE, WindowMemory, WindowState},
    core::Core,
    flow::Incoming,
    letters::Letter,
    net::Net,
    port::Port,
    wire::{self, About, Channel, Class, Close, Entry, MAX_FLOWS},
};

/// The low 32 bits.
fn low(number: u64) -> u32 {
    (number & 0xffff_ffff) as u32
}

impl Circle {
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
            && self.letters_landed()
            && self.members[self.receivers[window.first_flow].from].ended.is_none()
            && flows.all(at_rest)
    }
}

impl WindowMemory {
    fn flows(&self) -> std::ops::Range<usize> {
        self.first_flow..self.first_flow + self.lanes
    }
}

impl Core<'_> {
    /// Opens the windows through which `from` sends messages of this class, unless they are open.
    pub(crate) fn listen(&mut self, from: Rank, class: Class) -> Result<(), Stop> {
        let Self { port, circle } = self;
        port.clock += 1;
        let first = circle.members[from].incoming[class.index()];
        if first == NONE {
            return self.open(from, class);
        }
        let window = &mut circle.windows[circle.receivers[first as usize].window];
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
    pub(super) fn open(&mut self, from: Rank, class: Class) -> Result<(), Stop> {
        let Self { port, circle } = self;
        let (lanes, slots, slot_bytes) = circle.settings.window(class);
        let lane_bytes = slots * stride(slot_bytes);
        let known = circle.members[from].incoming[class.index()];
        let (first_flow, index) = match known {
            NONE => (circle.receivers.len(), circle.windows.len()),
            first => (first as usize, circle.receivers[first as usize].window),
        };
        let (world, writes) = (circle.world(from), circle.settings.writes());
        let flows = (0..lanes).map(|lane| {
            (Incoming::new(from, index, lane * lane_bytes, slots), Incoming::new(from, index, 0, writes))
        });
        if known == NONE {
            let (receivers, landings): (Vec<_>, Vec<_>) = flows.unzip();
            circle.receivers.extend(receivers);
            circle.landings.extend(landings);
            // Where there is no region, nothing can come.
            let region = circle.letters.clone();
            let (number, used) = (0, port.clock);
            let state = WindowState::Closed;
            circle.windows.push(WindowMemory {
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
            circle.members[from].incoming[class.index()] = narrow(first_flow);
            circle.meets(from)?;
        } else {
            for (lane, (receiver, landing)) in flows.enumerate() {
                circle.receivers[first_flow + lane] = receiver;
                circle.landings[first_flow + lane] = landing;
            }
        }
        let arrivals = circle.settings.arrivals(class);
        let room = port.has_room(arrivals).then(|| port.incoming.take(circle.channel, first_flow, lanes));
        let Some(number) = room.flatten() else {
            circle.windows[index].wanted = true;
            // A message may be asked for by both sides.
            if !port.wanting.contains(&(circle.channel, index)) {
                port.wanting.push((circle.channel, index));
            }
            return Ok(());
        };
        let region = match port.spare[class.index()].pop() {
            Some(region) => region,
            None => {
                let memory = Memory::map(lanes * lane_bytes, circle.settings.huge_pages)?;
                port.transport.register(memory)?
            }
        };
        let Some(remote) = region.remote() else {
            return Err(port.stop("a registered region has no key".to_owned()));
        };
        port.expect(world, (circle.channel, index), arrivals);
        let window = &mut circle.windows[index];
        (window.number, window.region, window.credits) = (number, region, 0);
        (window.state, window.wanted) = (WindowState::Open, false);
        let told = wire::Window {
            magic: wire::Window::MAGIC,
            first_flow: narrow(number),
            lanes: narrow(lanes),
            slots: narrow(slots),
            slot_bytes: narrow(slot_bytes),
            reserved: 0,
            base: remote.base,
            key: remote.key,
            len: remote.len,
        };
        let at = from * size_of::<Entry>() + About::Window(class).place();
        access::store(&circle.letters, at, &told)?;
        circle.post_box.push_back((from, Letter::Window(class)));
        Ok(())
    }

    /// Asks a window's peer whether it may be closed.
    fn ask_to_close(&mut self, index: usize) -> Result<(), Stop> {
        let circle = &mut *self.circle;
        let window = &mut circle.windows[index];
        let (flows, class) = (window.flows(), window.class);
        window.state = WindowState::Closing;
        let from = circle.receivers[flows.start].from;
        let come = flows.clone().map(|flow| circle.receivers[flow].taken() + circle.landings[flow].taken());
        let close = Close { come: low(come.sum()), credits: window.credits };
        circle.debts.retain(|(receiver, _)| !flows.contains(receiver));
        let at = from * size_of::<Entry>() + About::Close(class).place();
        access::store(&circle.letters, at, &close)?;
        circle.post_box.push_back((from, Letter::Close(class)));
        self.send_letters().map(drop)
    }

    /// A peer would close a window that this rank sends through.
    pub(super) fn close_arrived(&mut self, from: Rank, class: Class, close: Close) -> Result<(), Stop> {
        let Self { port, circle } = self;
        // Who parts, or has left the group, says no more.
        if port.parting || circle.left {
            return Ok(());
        }
        let first = circle.members[from].outgoing[class.index()];
        let lanes = circle.settings.window(class).0;
        let ends = circle.senders.get(first as usize..).and_then(|ends| ends.get(..lanes));
        let agreed = ends.filter(|_| circle.is_idle(class)).is_some_and(|ends| {
            let sent = ends.iter().map(|end| end.flow.sent() + end.writes.sent()).sum();
            let credits = ends.iter().fold(0_u32, |sum, end| sum.wrapping_add(end.credits));
            (low(sent), credits) == (close.come, close.credits)
        });
        if let Some(ends) = ends.filter(|_| agreed) {
            for end in ends {
                port.fly(circle.world(from), 0, end.bytes());
            }
            port.outgoing.give_back(ends[0].reply, lanes);
            let member = &mut circle.members[from];
            (member.outgoing[class.index()], member.knocked[class.index()]) = (NONE, None);
            circle.spare_senders.push((class, first as usize));
        }
        let at = from * size_of::<Entry>() + About::Answer(class).place();
        access::store(&circle.letters, at, &u64::from(agreed))?;
        circle.post_box.push_back((from, Letter::Answer(class)));
        self.send_letters().map(drop)
    }

    /// A peer says whether a window is closed.
    pub(super) fn answer_arrived(&mut self, from: Rank, class: Class, answer: u64) -> Result<(), Stop> {
        let Self { port, circle } = self;
        let first = circle.members[from].incoming[class.index()];
        let index = circle.receivers.get(first as usize).map(|flow| flow.window);
        let asked = index.filter(|&index| circle.windows[index].state == WindowState::Closing);
        let Some(index) = asked.filter(|_| answer <= 1) else {
            let what =
                format!("the answer {answer} about a window of class {class:?} that was not to be closed");
            return Err(self.port.forged(what));
        };
        let (world, arrivals) = (circle.world(from), circle.settings.arrivals(class));
        let placeholder = circle.letters.clone();
        let window = &mut circle.windows[index];
        let wanted = mem::take(&mut window.wanted);
        if answer == 0 {
            window.state = WindowState::Open;
            for flow in window.flows() {
                self.circle.owe(flow, wire::Way::Slots);
                self.circle.owe(flow, wire::Way::Direct);
            }
            return Ok(());
        }
        window.state = WindowState::Closed;
        let region = mem::replace(&mut window.region, placeholder);
        port.incoming.give_back(window.number, window.lanes);
        port.expect_no_more(world, (circle.channel, index), arrivals);
        port.keep(class, region);
        if wanted { self.open(from, class) } else { Ok(()) }
    }
}

impl Port {
    /// Keeps the memory of a window for the next of its class.
    fn keep(&mut self, class: Class, region: unisono_transport::Region) {
        /// More than are closed at once, for one operation's peers.
        const SPARE: usize = 64;
        let spare = &mut self.spare[class.index()];
        if spare.len() < SPARE {
            spare.push(region);
        }
    }
}

impl Net {
    /// Has windows closed where a peer has more than its share, and opens those that wait for room.
    pub(super) fn give_back(&mut self) -> Result<(), Stop> {
        for world in mem::take(&mut self.port.crowded) {
            let excess = self.port.excess(world);
            let windows = self.port.windows(world).to_vec();
            self.close_some(windows, excess)?;
        }
        for (channel, index) in mem::take(&mut self.port.wanting) {
            // A group may have ended meanwhile.
            let Ok(mut core) = self.core(channel) else { continue };
            let window = &core.circle.windows[index];
            // Or it has been opened when another was closed.
            if window.state != WindowState::Closed {
                continue;
            }
            let (from, class) = (core.circle.receivers[window.first_flow].from, window.class);
            let arrivals = core.circle.settings.arrivals(class);
            core.open(from, class)?;
            if core.circle.windows[index].state == WindowState::Closed {
                self.make_room(arrivals)?;
            }
        }
        Ok(())
    }

    /// Has those of these windows closed that were used longest ago, until so many arrivals come free or none can be. True
    /// if some will.
    fn close_some(&mut self, windows: Vec<(Channel, usize)>, arrivals: usize) -> Result<bool, Stop> {
        let (mut coming, mut idle) = (0, Vec::new());
        for (channel, index) in windows {
            let circle = self.core(channel)?.circle;
            let window = &circle.windows[index];
            match window.state {
                WindowState::Closing => coming += circle.settings.arrivals(window.class),
                _ if circle.may_close(window) => idle.push((window.used, channel, index)),
                _ => {}
            }
        }
        idle.sort_unstable();
        for (_, channel, index) in idle {
            if coming >= arrivals || self.port.parting {
                break;
            }
            let mut core = self.core(channel)?;
            coming += core.circle.settings.arrivals(core.circle.windows[index].class);
            core.ask_to_close(index)?;
        }
        Ok(coming > 0)
    }

    /// Has windows of any peers closed; an error if none can be, now or when what goes on has ended.
    fn make_room(&mut self, arrivals: usize) -> Result<(), Stop> {
        let all = self.port.all_windows();
        // A group whose control messages are on their way is idle in a moment.
        let mut idle = self.circles.iter().flatten().filter(|circle| !circle.busy);
        let landing = idle.any(|circle| !circle.letters_landed());
        let busy = self.circles.iter().flatten().filter(|circle| circle.busy).count();
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
