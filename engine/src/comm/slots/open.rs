//! Opens the shared slots of a communicator, enters operations that share them, and compares the calls of ranks there.
//!
//! In the first operation that would share slots, each rank makes its slots, tells the others where they lie ([`Handshake`]) and maps the slots
//! of the others. All must agree on whether slots are shared, although any rank may fail because memory is short. A rank without memory
//! that can be mapped tells all others. A rank that cannot map the slots of another publishes that in its own slots; a rank that has mapped
//! all publishes that there too. Slots are shared if all ranks have mapped all.

use unisono_core::error::Failure;
use unisono_transport::{Mapping, Region, RemoteRegion};

use super::{Sharing, layout};
use crate::{
    access,
    call::Signature,
    comm::{Comm, Core},
    request::Operation,
    stop::Result,
    wire::{ControlKind, Handshake},
};

impl Core<'_> {
    /// Finds out whether the ranks share slots, as far as this is known now.
    pub(crate) fn open_shared(&mut self) -> Result<Sharing> {
        if self.comm.shared.sharing == Sharing::Opening {
            let sharing = self.find_sharing()?;
            self.comm.shared.sharing = sharing;
            if sharing == Sharing::No {
                // Memory of no further use is unmapped.
                self.comm.shared.views.clear();
            }
        }
        Ok(self.comm.shared.sharing)
    }

    fn find_sharing(&mut self) -> Result<Sharing> {
        if self.comm.shared.views.is_empty() {
            self.offer_slots()?;
        }
        let Self { port, comm } = self;
        let ranks = comm.identity.members.len();
        let (mut refused, mut left) = (false, false);
        for rank in 0..ranks {
            if rank == comm.identity.me || !comm.shared.is_near(rank) || comm.shared.views[rank].is_some() {
                continue;
            }
            let Some(slots) = comm.identity.members[rank].slots else {
                left = true;
                continue;
            };
            if slots.len != layout::LEN as u64 {
                // That rank tells all others the same.
                return Ok(Sharing::No);
            }
            let (peer, _) = port.peer(comm.identity.world(rank))?;
            match port.transport.map(peer, &slots).map_err(|error| port.broken(error))? {
                Mapping::Yes(view) => {
                    comm.shared.views[rank] = Some(view);
                    comm.shared.peers.push(peer);
                }
                Mapping::NotYet => left = true,
                Mapping::No => refused = true,
            }
        }
        if comm.shared.own.is_none() {
            return Ok(Sharing::No);
        }
        if refused {
            unisono_transport::log::warn!(
                rank = port.me,
                "memory of other ranks cannot be mapped: small collectives take messages"
            );
            self.tell_shared(layout::VERDICT, layout::REFUSED)?;
            return Ok(Sharing::No);
        }
        if left {
            return Ok(Sharing::Opening);
        }
        if !std::mem::replace(&mut comm.shared.published, true) {
            self.tell_mapped()?;
        }
        self.verdicts()
    }

    /// Tells the others that this rank has mapped their slots, and whether it can read all their memory.
    fn tell_mapped(&mut self) -> Result<()> {
        let (port, mut verdict) = (&mut *self.port, layout::READS);
        for &peer in &self.comm.shared.peers {
            if !port.transport.reads(peer).map_err(|error| port.broken(error))? {
                verdict = layout::MAPPED;
            }
        }
        self.tell_shared(layout::VERDICT, verdict)
    }

    /// Reads the verdicts of the other ranks. This one has mapped all.
    fn verdicts(&mut self) -> Result<Sharing> {
        let verdict = self.comm.shared.own.as_ref().map(|own| access::published(own, layout::VERDICT));
        let (mut sharing, mut reads) = (Sharing::Yes, verdict.transpose()? == Some(layout::READS));
        for (rank, view) in self.comm.shared.others() {
            let word = access::published(view, layout::VERDICT)?;
            match word {
                layout::READS => {}
                layout::MAPPED => reads = false,
                layout::REFUSED => return Ok(Sharing::No),
                0 => sharing = Sharing::Opening,
                _ => return Err(self.violation(rank, format!("a verdict {word:#x} on shared slots"))),
            }
        }
        self.comm.shared.reads = reads && sharing == Sharing::Yes;
        Ok(sharing)
    }

    /// Makes this rank's slots, and tells the others of them, or that there are none.
    fn offer_slots(&mut self) -> Result<()> {
        let Self { port, comm } = self;
        let made = port.transport.share(layout::LEN);
        let made = made.map_err(
            |error| unisono_transport::log::warn!(rank = port.me, %error, "no memory for shared slots"),
        );
        comm.shared.own = made.ok().filter(|own| own.remote().is_some_and(|remote| remote.mappable));
        // A region of length 0 says that there are none.
        let none = RemoteRegion { base: 1, ..RemoteRegion::default() };
        let slots = comm.shared.own.as_ref().and_then(Region::remote).unwrap_or(none).words();
        let ranks = comm.identity.members.len();
        comm.shared.views.resize_with(ranks, || None);
        let me = comm.identity.me;
        for rank in 0..ranks {
            if rank == me || !comm.shared.is_near(rank) {
                continue;
            }
            comm.note_flow(rank)?;
            // The area is as in the handshake, which this message may overwrite before the peer reads it.
            let Handshake { area, .. } = comm.mailbox.sent_part(rank, ControlKind::Handshake)?;
            comm.mailbox.send(rank, ControlKind::Handshake, Handshake::new(me, rank, area, slots))?;
        }
        Ok(())
    }

    /// Publishes a word of this rank's slots, and makes the other ranks look at what this one has published.
    #[inline]
    pub(crate) fn tell_shared(&mut self, at: usize, word: u64) -> Result<()> {
        let Self { port, comm } = self;
        if let Some(own) = &comm.shared.own {
            access::publish(own, at, word)?;
        }
        port.transport.notify(&comm.shared.peers).map_err(|error| port.broken(error))
    }

    /// Enters the next round of an operation that shares slots, which all others [are ready for](super::SharedSlots::any_behind).
    /// `unchecked`: true if it is not known yet that all ranks have called the same.
    #[inline]
    pub(crate) fn enter_shared(&mut self, operation: &Operation, unchecked: bool) -> Result<u64> {
        self.check_shared()?;
        let shared = &mut self.comm.shared;
        shared.number += 1;
        if unchecked {
            shared.unchecked = Some((operation.number, operation.plan.signature));
        }
        Ok(shared.number)
    }

    /// Publishes the operation that this rank has entered. The call and the number lie in one cache line, and are written one right after
    /// the other: others wait for this line, so it would come back to this rank for the second.
    #[inline]
    pub(crate) fn publish_shared(&mut self, call: &Signature) -> Result<()> {
        let number = self.comm.shared.number;
        if let Some(own) = &self.comm.shared.own {
            access::store(own, layout::slot(number) + size_of::<u64>(), call)?;
        }
        self.tell_shared(layout::slot(number), number)
    }

    /// If the latest operation that shared slots was not compared with those of all others when it ran, compares it. All have entered it,
    /// or called something else.
    #[inline]
    pub(crate) fn check_shared(&mut self) -> Result<()> {
        if self.comm.shared.unchecked.is_none() {
            return Ok(());
        }
        let unlike = self.comm.unlike_shared();
        self.comm.shared.unchecked = None;
        unlike.map_or(Ok(()), |failure| Err(failure.into()))
    }
}

impl Comm {
    /// The failure if another rank has called something else as the latest operation that shared slots, if that was not compared when
    /// it ran. A rank that has not entered it has called fewer operations, or is late.
    pub(in crate::comm) fn unlike_shared(&self) -> Option<Failure> {
        let (number, signature) = self.shared.unchecked?;
        let shared = self.shared.number;
        let entered = self.shared.others().filter(|(rank, _)| self.shared.has_published(*rank, shared));
        let at = layout::slot(shared) + size_of::<u64>();
        let mut calls = entered
            .filter_map(|(rank, view)| Some((rank, access::load::<Signature>(view, at).ok()?.unnumbered())));
        let (rank, theirs) = calls.find(|(_, theirs)| *theirs != signature)?;
        Some(self.differ(number, &signature.record(), (rank, &theirs.record())))
    }
}
