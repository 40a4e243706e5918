//! Looks at an endpoint's sockets: new connections, requests of writers, answers of readers, ends of connections.

use std::time::Duration;

use super::{
    Endpoint, Known, LOOK_IDLE,
    address::Name,
    descriptor::Owner,
    error::{self, Stop},
    incoming::Incoming,
    outgoing::{Connecting, PeerState},
    socket::{self, Accepted},
};
use crate::{Error, Peer, local::Failure};

impl Endpoint {
    /// Looks at sockets, for at most this time. True if there was something.
    pub(super) fn look(&mut self, timeout: Duration, parked: bool) -> Result<bool, Error> {
        self.polls = [0; 2];
        let ready = self.poller.wait(timeout)?;
        let any = !ready.is_empty();
        self.patience = if any { LOOK_IDLE[0] } else { (2 * self.patience).min(LOOK_IDLE[1]) };
        for number in ready {
            match Owner::of(number) {
                // What woke this endpoint while it did not sleep must end its next sleep.
                Owner::Waker if parked => self.waker.reset()?,
                Owner::Waker => {}
                Owner::Listener => self.accept()?,
                Owner::Outgoing(peer) => self.receive_answers(peer)?,
                Owner::Incoming(connection) => self.receive_requests(connection)?,
            }
        }
        for (number, incoming) in self.incoming.iter_mut().enumerate() {
            if let Some(incoming) = incoming {
                self.busy |= !incoming.answer(&self.sleeper.file, &self.table, number);
            }
        }
        for (region, connections) in self.table.gone() {
            for connection in connections {
                if let Some(Some(incoming)) = self.incoming.get(connection) {
                    // A peer that does not receive this sees it in the memory when it writes there.
                    let _ = incoming.forget(region.key, region.base);
                }
            }
        }
        Ok(any)
    }

    /// Accepts the connections of peers.
    fn accept(&mut self) -> Result<(), Error> {
        for _ in 0..socket::BATCH {
            let (from, link) = match self.listener.accept()? {
                Accepted::From(from, link) => (from, link),
                Accepted::Refused(why) => {
                    self.refused += 1;
                    if self.refused == 1 {
                        crate::log::warn!(?why, "a connection is refused, and those that follow are counted");
                    }
                    continue;
                }
                Accepted::Nothing => break,
            };
            let free = self.incoming.iter().position(Option::is_none);
            let connection = free.unwrap_or_else(|| {
                self.incoming.push(None);
                self.incoming.len() - 1
            });
            self.poller.add(&link, Owner::Incoming(connection).number())?;
            self.incoming[connection] = Some(Incoming::new(from, link));
        }
        Ok(())
    }

    /// Receives what a writer has sent.
    fn receive_requests(&mut self, connection: usize) -> Result<(), Error> {
        let Some(Some(incoming)) = self.incoming.get_mut(connection) else { return Ok(()) };
        let received = incoming.receive();
        if incoming.ended.is_some() {
            // Nothing more comes, and what the ring holds is read by the next poll.
            self.poller.remove(&incoming.link);
        }
        let Err(stop) = received else { return Ok(()) };
        self.poller.remove(&incoming.link);
        incoming.say_dropped();
        let from = self.incoming[connection].take().map(|ended| ended.from);
        match stop {
            Stop::Error(error) => return Err(error),
            Stop::Peer(failure) => {
                crate::log::debug!(?failure, "a connection is dropped");
                latch(&mut self.failing, &self.peers, from, Some(failure));
            }
        }
        Ok(())
    }

    /// Receives what a reader has sent.
    fn receive_answers(&mut self, peer: usize) -> Result<(), Error> {
        let Some(known) = self.peers.get_mut(peer) else { return Ok(()) };
        let received = match (&mut known.outgoing, &mut known.connecting) {
            (Some(outgoing), _) => outgoing.receive(),
            (None, Some(connecting)) => connecting.receive(),
            (None, None) => return Ok(()),
        };
        let ended = match received {
            Ok(PeerState::Open) => return self.hand_over(peer),
            Ok(PeerState::Died) => Some(error::died()),
            Ok(PeerState::Closed) => {
                known.outgoing.as_ref().is_some_and(|it| it.has_pending()).then(Failure::gone)
            }
            Err(Stop::Peer(failure)) => {
                known.outgoing.iter().for_each(|outgoing| outgoing.say_dropped());
                known.connecting.iter().for_each(Connecting::say_dropped);
                Some(failure)
            }
            Err(Stop::Error(error)) => return Err(error),
        };
        self.lose(peer);
        ended.map_or(Ok(()), |failure| self.fail(peer, Stop::Peer(failure)))
    }

    /// Hands the ring over to a peer that has answered.
    fn hand_over(&mut self, peer: usize) -> Result<(), Error> {
        let known = &mut self.peers[peer];
        let opened = match known.connecting.take().map(Connecting::open) {
            None => return Ok(()),
            Some(Ok(Ok(opened))) => {
                known.outgoing = Some(opened);
                self.opened = true;
                return Ok(());
            }
            Some(Ok(Err(connecting))) => {
                self.busy |= connecting.has_answered();
                known.connecting = Some(connecting);
                return Ok(());
            }
            Some(Err(stop)) => stop,
        };
        known.gone = true;
        self.fail(peer, opened)
    }

    /// Stops writing to this peer.
    fn lose(&mut self, peer: usize) {
        let known = &mut self.peers[peer];
        if let Some(outgoing) = known.outgoing.take() {
            self.poller.remove(&outgoing.link);
        }
        if let Some(connecting) = known.connecting.take() {
            self.poller.remove(&connecting.link);
        }
        known.gone = true;
    }

    /// Connects to a peer, unless that was begun before, and looks for its answer. Returns an error if this cannot succeed.
    #[cold]
    pub(super) fn connect_to(&mut self, peer: Peer) -> Result<(), Error> {
        let index = peer.0 as usize;
        let Some(known) = self.peers.get_mut(index) else {
            return Err(Error::BadPut { reason: format!("peer {} is unknown", peer.0) });
        };
        if known.gone {
            return Err(Failure::gone().to(peer).into());
        }
        if known.connecting.is_none() {
            let connecting =
                Connecting::begin(&known.place, self.place.name()).map_err(|stop| stop.of(peer))?;
            let Some(connecting) = connecting else {
                self.busy = true;
                return Ok(());
            };
            self.poller.add(&connecting.link, Owner::Outgoing(index).number())?;
            known.connecting = Some(connecting);
        }
        self.receive_answers(index)
    }
}

/// Latches a failure of the peer whose listening socket has this name, if this endpoint knows that peer.
pub(super) fn latch(
    failing: &mut Option<Failure>,
    peers: &[Known],
    from: Option<Name>,
    failure: Option<Failure>,
) {
    let known = peers.iter().position(|peer| Some(peer.place.name()) == from);
    let known = known.and_then(|peer| u32::try_from(peer).ok());
    if let (Some(failure), Some(peer)) = (failure, known) {
        failing.get_or_insert_with(|| failure.to(Peer(peer)));
    }
}
