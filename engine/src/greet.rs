//! Connection checks: before the first call, ranks that will exchange messages exchange greetings.

use std::time::{Duration, Instant};

use unisono_schedule::Rank;
use unisono_transport::{Error, Notify, Posted, Put, RemoteRegion, Source, Target};

use crate::{
    access,
    comm::{Awaited, Comm, Core, Greetings, Member},
    endpoint::control_token,
    progress::{Engine, WORLD},
    stop::Stop,
    supervisor::Supervisor,
    wire::{ControlKind, Hello, Immediate},
};

impl Engine {
    /// Registers memory for large greetings of this many bytes. If it cannot be registered, this rank exchanges none.
    pub fn take_large_greetings(&mut self, bytes: usize) -> Result<(), Error> {
        let bytes = bytes.min(self.net.port.limits.max_put);
        match self.net.port.transport.allocate(2 * bytes) {
            Ok(area) => self.greetings.area = Some(area),
            Err(error @ Error::Register { .. }) => {
                unisono_transport::log::debug!(%error, "no large message is exchanged when ranks meet");
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Begins to greet neighbours. With those of them that are `far` (on other hosts) it also exchanges large greetings.
    pub fn greet(&mut self, neighbours: &[Rank], far: &[Rank]) -> Result<(), Stop> {
        let area = self.greetings.remote().words();
        let able = self.greetings.area.is_some();
        let comm = self.net.core(WORLD)?.comm;
        for &rank in neighbours {
            // The rank may have greeted this one before.
            let takes = !comm.members[rank].greeted || large_room(comm, rank)?.len > 0;
            comm.members[rank].large_due = able && takes && far.contains(&rank);
            comm.queue_control(rank, ControlKind::Hello, Hello::new(comm.me, rank, area, [0; 3]))?;
        }
        self.greetings.neighbours = neighbours.to_vec();
        self.greetings.unsent = if able { far.to_vec() } else { Vec::new() };
        Ok(())
    }

    /// Waits until the greetings of all neighbours have arrived and the transport has taken those of this rank; at most until the deadline,
    /// or until none has arrived for `patience`.
    pub fn greeted(
        &mut self,
        supervisor: &dyn Supervisor,
        patience: Duration,
        deadline: Instant,
    ) -> Result<(), Stop> {
        let (mut missing, mut until) = (usize::MAX, deadline);
        self.greetings.deadline = Some(deadline);
        let mut done = |engine: &mut Self, moved: bool| {
            // A neighbour whose pattern is missing may also owe a large greeting.
            let count = engine.awaited().map(|awaited| 2 - usize::from(awaited.heard)).sum();
            if count < missing {
                (missing, until) = (count, deadline.min(Instant::now() + patience));
            }
            let comm = engine.net.core(WORLD)?.comm;
            match count {
                0 if engine.greetings.unsent.is_empty() && comm.control_queue.is_empty() => Ok(true),
                _ if !moved && Instant::now() >= until => Err(Stop::Deadline),
                _ => Ok(false),
            }
        };
        self.join_or_leave(&mut done, Some(deadline), supervisor).map_err(|halt| halt.stop)
    }

    /// Sends messages that neighbours may wait for, until `done` is true. The thread that makes `done` true wakes the transport.
    pub fn attend_until(&mut self, done: &dyn Fn() -> bool, supervisor: &dyn Supervisor) -> Result<(), Stop> {
        self.join_or_leave(&mut |_, _| Ok(done()), None, supervisor).map_err(|halt| halt.stop)?;
        // Otherwise a put may still read from the area, so it stays as long as the engine.
        if self.net.core(WORLD)?.comm.control_completed() {
            self.greetings = Greetings::default();
        }
        Ok(())
    }

    /// The neighbours whose greetings have not all arrived.
    pub fn awaited(&self) -> impl Iterator<Item = Awaited> {
        let world = self.net.comm(WORLD);
        let neighbours = self.greetings.neighbours.iter();
        neighbours.filter_map(move |&rank| {
            let &Member { greeted: heard, large_due, .. } = world?.members.get(rank)?;
            (!heard || large_due).then_some(Awaited { rank, heard })
        })
    }

    /// Sends large greetings, as many as the transport takes. True if any went.
    pub(super) fn send_greetings(&mut self) -> Result<bool, Stop> {
        let mut sent = false;
        for _ in 0..self.greetings.unsent.len() {
            sent |= self.send_large()?;
        }
        Ok(sent)
    }

    /// Sends the next large greeting, if the transport takes it.
    fn send_large(&mut self) -> Result<bool, Stop> {
        let Greetings { area: Some(area), unsent, .. } = &mut self.greetings else { return Ok(false) };
        let Some(to) = unsent.pop() else { return Ok(false) };
        let Core { port, comm } = self.net.core(WORLD)?;
        if !comm.members[to].greeted {
            // The rank's greeting will say where the large one goes.
            unsent.insert(0, to);
            return Ok(false);
        }
        let room = large_room(comm, to)?;
        if room.len == 0 {
            return Ok(false);
        }
        let half = area.len() / 2;
        let len = usize::try_from(room.len).unwrap_or(half).min(half);
        let immediate =
            Immediate::ControlMessage { comm_id: WORLD, from: comm.me, about: ControlKind::Hello };
        let (peer, immediate) = port.to(to, immediate)?;
        let put = Put {
            to: peer,
            sources: &[Source::new(area, half, len)?],
            target: Target { region: room, offset: 0 },
            immediate,
            token: control_token(WORLD, false),
            notify: Notify::Always,
        };
        let posted = access::put(&mut *port.transport, &put);
        if posted.map_err(|error| port.broken(error))? == Posted::Full {
            unsent.insert(0, to);
            return Ok(false);
        }
        port.sent(to);
        comm.control_in_flight += 1;
        Ok(true)
    }
}

/// The place where a rank that has greeted this one takes a large greeting.
fn large_room(comm: &Comm, rank: Rank) -> Result<RemoteRegion, Error> {
    let hello: Hello = comm.received_part(rank, ControlKind::Hello)?;
    Ok(RemoteRegion::from_words(hello.area))
}
