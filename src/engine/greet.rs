//! How ranks greet each other before the first call: a test of the connections between this rank and some others.

use std::time::{Duration, Instant};

use crate::engine::{
    access,
    comm::{Awaited, Core, Greetings},
    endpoint::control_token,
    progress::{Engine, Until, WORLD},
    stop::Stop,
    supervisor::Supervisor,
    wire::{ControlKind, Immediate},
};
use unisono_schedule::Rank;
use unisono_transport::{Error, Memory, Notify, Posted, Put, Source, Target};

impl Engine {
    /// Makes room for large greetings of so many bytes. Where that cannot be registered, none come.
    pub(crate) fn take_large_greetings(&mut self, bytes: usize) -> Result<(), Error> {
        let bytes = bytes.min(self.net.port.limits.max_put);
        match self.net.port.transport.register(Memory::map(2 * bytes, false)?) {
            Ok(area) => self.greetings.area = Some(area),
            Err(error @ Error::Register { .. }) => {
                tracing::debug!(%error, "no large message is exchanged when ranks meet");
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Begins to greet neighbours; to those of them that are `far` a large message goes too, and one comes from each.
    pub(crate) fn greet(&mut self, neighbours: &[Rank], far: &[Rank]) -> Result<(), Stop> {
        let able = |rank: &&Rank| self.greetings.areas.get(**rank).is_some_and(|area| area.len > 0);
        let far: Vec<Rank> =
            far.iter().filter(|_| self.greetings.area.is_some()).filter(able).copied().collect();
        let mut core = self.net.core(WORLD)?;
        for &rank in neighbours {
            core.greet(rank)?;
            core.comm.await_greeting(rank, far.contains(&rank));
        }
        self.greetings.neighbours = neighbours.to_vec();
        self.greetings.unsent = far;
        Ok(())
    }

    /// Waits for the greetings of all neighbours, until nothing has come for `patience`, or for the deadline.
    pub(crate) fn greeted(
        &mut self,
        supervisor: &dyn Supervisor,
        patience: Duration,
        deadline: Instant,
    ) -> Result<(), Stop> {
        let (mut missing, mut until) = (usize::MAX, deadline);
        self.greetings.deadline = Some(deadline);
        let mut over = |engine: &mut Self, moved: bool| {
            // The large ones count apart.
            let count = engine.awaited().iter().map(|awaited| 2 - usize::from(awaited.heard)).sum();
            if count < missing {
                (missing, until) = (count, deadline.min(Instant::now() + patience));
            }
            match count {
                0 => Ok(true),
                _ if !moved && Instant::now() >= until => Err(Stop::Deadline),
                _ => Ok(false),
            }
        };
        let until = Until { over: &mut over, at: Some(deadline), attends: true };
        self.progress(until, supervisor).map_err(|halt| halt.stop)
    }

    /// Goes on with what neighbours may be waiting for, until `over` says so; whoever makes it say so wakes the transport.
    pub(crate) fn attend_until(
        &mut self,
        over: &dyn Fn() -> bool,
        supervisor: &dyn Supervisor,
    ) -> Result<(), Stop> {
        let until = Until { over: &mut |_, _| Ok(over()), at: None, attends: true };
        self.progress(until, supervisor).map_err(|halt| halt.stop)?;
        // What is still read from goes with the engine.
        if self.net.core(WORLD)?.comm.control_completed() {
            self.greetings = Greetings::default();
        }
        Ok(())
    }

    /// Whose greetings have not all come.
    pub(crate) fn awaited(&mut self) -> Vec<Awaited> {
        let Ok(Core { comm, .. }) = self.net.core(WORLD) else { return Vec::new() };
        let neighbours = self.greetings.neighbours.iter();
        neighbours.filter_map(|&rank| comm.awaits(rank).map(|heard| Awaited { rank, heard })).collect()
    }

    /// Sends large messages, as many as the transport takes. True if any went.
    pub(super) fn send_greetings(&mut self) -> Result<bool, Stop> {
        let mut sent = false;
        for _ in 0..self.greetings.unsent.len() {
            sent |= self.send_large()?;
        }
        Ok(sent)
    }

    /// Sends the next large message, if the transport takes it.
    fn send_large(&mut self) -> Result<bool, Stop> {
        let Greetings { area: Some(area), areas, unsent, .. } = &mut self.greetings else { return Ok(false) };
        let Some(to) = unsent.pop() else { return Ok(false) };
        let Core { port, comm } = self.net.core(WORLD)?;
        let room = areas.get(to).copied().unwrap_or_default();
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
