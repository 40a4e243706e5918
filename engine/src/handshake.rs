//! Verifies connections: before the first call, ranks that will exchange messages exchange handshakes.

use std::time::{Duration, Instant};

use unisono_schedule::Rank;
use unisono_transport::{Error, Notify, Posted, Put, RemoteRegion, Source, Target};

use crate::{
    access,
    comm::{Comm, CommMember, Core, Handshakes, PendingHandshake},
    endpoint::control_token,
    progress::{DrivenEngine, Engine, WORLD},
    stop::{Result, Stop},
    wire::{ControlKind, Handshake},
};

impl Engine {
    /// Registers memory for large handshakes of this many bytes. If it cannot be registered, this rank exchanges none.
    pub fn allocate_large_handshakes(&mut self, bytes: usize) -> Result<(), Error> {
        let bytes = bytes.min(self.net.port.limits.max_put);
        match self.net.port.transport.allocate(2 * bytes) {
            Ok(area) => self.handshakes.area = Some(area),
            Err(error @ Error::Register { .. }) => {
                unisono_transport::log::debug!(%error, "no large message is exchanged in handshakes");
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Begins handshakes with neighbours. With those of them that are on other hosts (`remote`) it also exchanges large handshakes.
    pub fn begin_handshakes(&mut self, neighbours: &[Rank], remote: &[Rank]) -> Result<()> {
        let area = self.handshakes.remote().words();
        let able = self.handshakes.area.is_some();
        let comm = self.net.core(WORLD)?.comm;
        for &rank in neighbours {
            // The rank's handshake may have arrived before.
            let takes = !comm.identity.members[rank].handshake_arrived || large_target(comm, rank)?.len > 0;
            comm.identity.members[rank].large_due = able && takes && remote.contains(&rank);
            let handshake = Handshake::new(comm.identity.me, rank, area, [0; 3]);
            comm.mailbox.send(rank, ControlKind::Handshake, handshake)?;
        }
        self.handshakes.neighbours = neighbours.to_vec();
        self.handshakes.unsent = if able { remote.to_vec() } else { Vec::new() };
        Ok(())
    }

    /// The neighbours whose handshakes have not all arrived.
    pub fn pending_handshakes(&self) -> impl Iterator<Item = PendingHandshake> {
        let world = self.net.comm(WORLD);
        let neighbours = self.handshakes.neighbours.iter();
        neighbours.filter_map(move |&rank| {
            let &CommMember { handshake_arrived: small_arrived, large_due, .. } =
                world?.identity.members.get(rank)?;
            (!small_arrived || large_due).then_some(PendingHandshake { rank, small_arrived })
        })
    }

    /// Sends large handshakes, as many as the transport takes. True if any went.
    pub(super) fn send_large_handshakes(&mut self) -> Result<bool> {
        let Handshakes { area: Some(area), unsent, .. } = &mut self.handshakes else { return Ok(false) };
        let (half, mut sent) = (area.len() / 2, false);
        for to in std::mem::take(unsent) {
            let Core { port, comm } = self.net.core(WORLD)?;
            if !comm.identity.members[to].handshake_arrived {
                // The rank's handshake will say where the large one goes.
                unsent.push(to);
                continue;
            }
            let target = large_target(comm, to)?;
            if target.len == 0 {
                continue;
            }
            let len = usize::try_from(target.len).unwrap_or(half).min(half);
            let (peer, immediate) = port.to(to, comm.identity.immediate(ControlKind::Handshake))?;
            let (sources, target) = (&[Source::new(area, half, len)?], Target { region: target, offset: 0 });
            let (token, notify) = (control_token(WORLD, false), Notify::Always);
            let put = Put { to: peer, sources, target, immediate, token, notify, fetch: false };
            let posted = access::put(&mut *port.transport, &put);
            if posted.map_err(|error| port.broken(error))? == Posted::Full {
                unsent.push(to);
                continue;
            }
            port.sent(to);
            comm.mailbox.in_flight += 1;
            sent = true;
        }
        Ok(sent)
    }
}

impl DrivenEngine<'_> {
    /// Waits until the handshakes of all neighbours have arrived and the transport has taken those of this rank; at most until the deadline,
    /// or until none has arrived for `patience`.
    pub fn finish_handshakes(&mut self, patience: Duration, deadline: Instant) -> Result<()> {
        let (mut missing, mut until) = (usize::MAX, deadline);
        self.engine.handshakes.deadline = Some(deadline);
        let mut done = |engine: &mut Engine, moved: bool| {
            // A neighbour whose pattern is missing may also owe a large handshake.
            let count =
                engine.pending_handshakes().map(|pending| 2 - usize::from(pending.small_arrived)).sum();
            if count < missing {
                (missing, until) = (count, deadline.min(Instant::now() + patience));
            }
            let comm = engine.net.core(WORLD)?.comm;
            match count {
                0 if engine.handshakes.unsent.is_empty() && comm.mailbox.queue.is_empty() => Ok(true),
                _ if !moved && Instant::now() >= until => Err(Stop::Deadline),
                _ => Ok(false),
            }
        };
        self.join_or_leave(&mut done, Some(deadline)).map_err(|halt| halt.stop)
    }

    /// Sends messages that neighbours may wait for, until `done` is true. The thread that makes `done` true wakes the transport.
    pub fn progress_until(&mut self, done: &dyn Fn() -> bool) -> Result<()> {
        self.join_or_leave(&mut |_, _| Ok(done()), None).map_err(|halt| halt.stop)?;
        // Otherwise a put may still read from the area, so it stays as long as the engine.
        if self.engine.net.core(WORLD)?.comm.mailbox.is_completed() {
            self.engine.handshakes = Handshakes::default();
        }
        Ok(())
    }
}

/// The region to which a rank accepts a large handshake, as its small one says.
fn large_target(comm: &Comm, rank: Rank) -> Result<RemoteRegion, Error> {
    let handshake: Handshake = comm.mailbox.received_part(rank, ControlKind::Handshake)?;
    Ok(RemoteRegion::from_words(handshake.area))
}
