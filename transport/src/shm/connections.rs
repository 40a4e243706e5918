//! Looks at an endpoint's sockets: new connections, requests of writers, answers of readers, ends of connections.

use std::{mem, time::Duration};

use super::{
    Endpoint, Known, LOOK_IDLE,
    control::ConnectionMessage,
    descriptor::Owner,
    error::StopCause,
    incoming::Incoming,
    outgoing::ConnectionState,
    socket::{self, Accepted, PeerState},
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
            self.incoming[connection] = Some(Incoming::new(from, link, self.memory.permit()));
        }
        Ok(())
    }

    /// Receives what a writer has sent.
    fn receive_requests(&mut self, connection: usize) -> Result<(), Error> {
        let Some(Some(incoming)) = self.incoming.get_mut(connection) else { return Ok(()) };
        let (result, failure) = match incoming.receive() {
            Ok(()) => {
                if incoming.ended.is_some() {
                    // Nothing more comes, and what the ring holds is read by the next poll.
                    self.poller.remove(&incoming.link);
                }
                return Ok(());
            }
            Err(StopCause::Peer(failure)) => (Ok(()), Some(failure)),
            Err(StopCause::Error(error)) => (Err(error), None),
        };
        self.drop_incoming(connection, failure);
        result
    }

    /// Drops the connection of a writer, and latches its failure if this endpoint knows that peer.
    pub(super) fn drop_incoming(&mut self, connection: usize, failure: Option<Failure>) {
        let Some(incoming) = self.incoming[connection].take() else { return };
        if incoming.ended.is_none() {
            crate::log::debug!(?failure, "a connection is dropped");
            self.poller.remove(&incoming.link);
            incoming.link.say(&ConnectionMessage::Dropped);
        }
        let known = self.peers.iter().position(|peer| peer.place.name == incoming.from);
        if let (Some(failure), Some(peer)) = (failure, known) {
            self.latch(peer, failure);
        }
    }

    /// Latches the failure of a peer, unless there is one.
    fn latch(&mut self, peer: usize, failure: Failure) {
        let peer = u32::try_from(peer).map(Peer).unwrap_or_default();
        self.failing.get_or_insert_with(|| failure.to(peer));
    }

    /// Latches a peer's failure, or returns an error of this endpoint.
    pub(super) fn fail(&mut self, peer: usize, stop: StopCause) -> Result<(), Error> {
        match stop {
            StopCause::Error(error) => Err(error),
            StopCause::Peer(failure) => {
                self.latch(peer, failure);
                Ok(())
            }
        }
    }

    /// Receives what a reader has sent.
    fn receive_answers(&mut self, peer: usize) -> Result<(), Error> {
        let Some(Known { state, .. }) = self.peers.get_mut(peer) else { return Ok(()) };
        let ended = match state.receive() {
            Ok(PeerState::Open) => return self.hand_over(peer),
            Ok(PeerState::Died) => Some(Failure::died()),
            Ok(PeerState::Closed) => match state.open().map_or(Ok(()), |it| it.end(&mut self.sent)) {
                Ok(()) => None,
                Err(StopCause::Peer(failure)) => Some(failure),
                Err(StopCause::Error(error)) => return Err(error),
            },
            Err(StopCause::Peer(failure)) => {
                state.link().into_iter().for_each(|link| link.say(&ConnectionMessage::Dropped));
                Some(failure)
            }
            Err(StopCause::Error(error)) => return Err(error),
        };
        state.link().into_iter().for_each(|link| self.poller.remove(link));
        state.withdraw();
        *state = ConnectionState::Gone;
        ended.into_iter().for_each(|failure| self.latch(peer, failure));
        Ok(())
    }

    /// Hands the ring over to a peer that has answered.
    fn hand_over(&mut self, peer: usize) -> Result<(), Error> {
        let Known { state, .. } = &mut self.peers[peer];
        if matches!(state, ConnectionState::Connecting(..)) {
            match mem::replace(state, ConnectionState::Gone).hand_over(self.memory.permit()) {
                Ok(next) => *state = next,
                Err(stop) => return self.fail(peer, stop),
            }
            self.opened |= state.open().is_some();
            self.busy |= matches!(state, ConnectionState::Connecting(_, Some(_)));
        }
        Ok(())
    }

    /// Connects to a peer, unless that was begun before, and looks for its answer. Returns an error if this cannot succeed.
    #[cold]
    pub(super) fn connect_to(&mut self, peer: Peer) -> Result<(), Error> {
        let index = peer.0 as usize;
        let Some(known) = self.peers.get_mut(index) else {
            return Err(Error::BadPut { reason: format!("peer {} is unknown", peer.0) });
        };
        match known.state {
            ConnectionState::Gone => return Err(Failure::gone().to(peer).into()),
            ConnectionState::None => {
                let link = socket::connect_to(&known.place, self.place.name);
                let Some(link) = link.map_err(|stop| stop.of(peer))? else {
                    self.busy = true;
                    return Ok(());
                };
                self.poller.add(&link, Owner::Outgoing(index).number())?;
                known.state = ConnectionState::Connecting(link, None);
            }
            ConnectionState::Connecting(..) | ConnectionState::Open(_) => {}
        }
        self.receive_answers(index)
    }
}
