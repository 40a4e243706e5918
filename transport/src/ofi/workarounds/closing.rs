//! Endpoints that crash, or whose peers crash, if they are closed while something is under way.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::{Peer, Posted, Transport};

/// An endpoint is closed when nothing has arrived for this long ...
const QUIET: Duration = Duration::from_millis(50);
/// ... or after this time. Without credit, peers soon stop sending.
const RESTLESS: Duration = Duration::from_secs(1);
/// The sleep between polls.
const NAP: Duration = Duration::from_millis(1);

/// Polls, and drops the events, until nothing more arrives.
pub(in crate::ofi) fn drain(endpoint: &mut impl Transport) {
    let began = Instant::now();
    let mut last = began;
    let mut events = Vec::new();
    while last.elapsed() < QUIET && began.elapsed() < RESTLESS {
        // A put that has failed has ended, too.
        if endpoint.poll(&mut events).is_err() || !events.is_empty() {
            last = Instant::now();
            events.clear();
        } else {
            thread::sleep(NAP);
        }
    }
}

/// The state of the first put to each peer, for providers with which a peer crashes if it answers that put after this endpoint is
/// closed.
#[derive(Debug)]
pub(in crate::ofi) struct FirstPuts(Option<Vec<First>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum First {
    Untried,
    /// The peer was asked, and has not answered.
    Asked,
    Taken,
}

impl FirstPuts {
    /// Records no peer yet, and never any if `matter` is false.
    pub(in crate::ofi) fn new(matter: bool) -> Self {
        Self(matter.then(Vec::new))
    }

    /// Adds a peer.
    pub(in crate::ofi) fn add(&mut self) {
        self.0.iter_mut().for_each(|all| all.push(First::Untried));
    }

    /// Forgets all peers.
    pub(in crate::ofi) fn clear(&mut self) {
        self.0.iter_mut().for_each(Vec::clear);
    }

    /// Records that a put to this peer was begun, or that the provider had no room for it: the provider asks the peer first.
    pub(in crate::ofi) fn posted(&mut self, peer: Peer, posted: Posted) {
        if let Some(first) = self.0.as_mut().and_then(|all| all.get_mut(peer.0 as usize)) {
            match posted {
                Posted::Yes => *first = First::Taken,
                Posted::Full if *first == First::Untried => *first = First::Asked,
                Posted::Full => {}
            }
        }
    }

    /// True if a peer has been asked, and may yet answer.
    pub(in crate::ofi) fn unanswered(&self) -> bool {
        self.0.as_ref().is_some_and(|all| all.contains(&First::Asked))
    }
}
