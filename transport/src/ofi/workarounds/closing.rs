//! Endpoints that crash, or whose peers crash, if they are closed while something is under way.

use std::{
    collections::HashMap,
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
/// By peer, whether the provider has taken it; a peer that was only asked has not answered.
#[derive(Debug)]
pub(in crate::ofi) struct FirstPuts(Option<HashMap<Peer, bool>>);

impl FirstPuts {
    /// Records no put yet, and never any if `matter` is false.
    pub(in crate::ofi) fn new(matter: bool) -> Self {
        Self(matter.then(HashMap::new))
    }

    /// Forgets all puts.
    pub(in crate::ofi) fn clear(&mut self) {
        self.0.iter_mut().for_each(HashMap::clear);
    }

    /// Records that a put to this peer was begun, or that the provider had no room for it: the provider asks the peer first.
    #[inline]
    pub(in crate::ofi) fn posted(&mut self, peer: Peer, posted: Posted) {
        if let Some(all) = &mut self.0 {
            *all.entry(peer).or_default() |= posted == Posted::Yes;
        }
    }

    /// True if a peer has been asked, and may yet answer.
    pub(in crate::ofi) fn unanswered(&self) -> bool {
        self.0.as_ref().is_some_and(|all| all.values().any(|taken| !taken))
    }
}
