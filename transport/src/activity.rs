//! In which library call a transport is, for a watchdog on another thread.

use std::sync::atomic::{AtomicU64, Ordering};

/// How many bits of [`Activity`] name the call; the others count calls.
const BITS: u32 = 8;

/// A call into the library under a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LibraryCall {
    /// Looks for providers and what they offer.
    Find = 1,
    /// Opens a fabric or a domain.
    Domain,
    /// Opens another object: an endpoint, a queue, an address vector.
    Open,
    /// Makes an address known.
    Connect,
    /// Registers memory.
    Register,
    /// Begins a put that the library copies.
    Inject,
    /// Begins another put.
    Write,
    /// Looks for completions, and makes progress.
    Poll,
    /// Asks whether one may sleep.
    TryWait,
    /// Closes an object or takes a registration back.
    Close,
}

impl LibraryCall {
    const ALL: [Self; 10] = [
        Self::Find,
        Self::Domain,
        Self::Open,
        Self::Connect,
        Self::Register,
        Self::Inject,
        Self::Write,
        Self::Poll,
        Self::TryWait,
        Self::Close,
    ];

    /// Whether only who opens an endpoint makes it.
    #[must_use]
    pub const fn opens(self) -> bool {
        matches!(self, Self::Find | Self::Domain | Self::Open)
    }

    /// libfabric's name for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Find => "fi_getinfo",
            Self::Domain => "fi_fabric or fi_domain",
            Self::Open => "fi_endpoint or what belongs to it",
            Self::Connect => "fi_av_insert",
            Self::Register => "fi_mr_reg",
            Self::Inject => "fi_inject_writedata",
            Self::Write => "fi_writemsg or fi_writedata",
            Self::Poll => "fi_cq_read",
            Self::TryWait => "fi_trywait",
            Self::Close => "fi_close",
        }
    }
}

/// One stay in the library: the same call, entered once and not left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stay {
    /// Which call.
    pub call: LibraryCall,
    /// How many calls were made before.
    pub number: u64,
}

/// Where a transport is. Written by the thread that drives it, with two relaxed stores a call; read by any.
#[derive(Debug, Default)]
pub struct Activity(AtomicU64);

impl Activity {
    /// The library is called. Calls do not nest.
    #[inline]
    pub fn enter(&self, call: LibraryCall) {
        let number = (self.0.load(Ordering::Relaxed) >> BITS).wrapping_add(1);
        self.0.store(number << BITS | call as u64, Ordering::Relaxed);
    }

    /// It has returned.
    #[inline]
    pub fn leave(&self) {
        self.0.store(self.0.load(Ordering::Relaxed) >> BITS << BITS, Ordering::Relaxed);
    }

    /// Calls the library.
    pub fn during<R>(&self, call: LibraryCall, calls: impl FnOnce() -> R) -> R {
        self.enter(call);
        let result = calls();
        self.leave();
        result
    }

    /// The call that has been entered and not left. Who finds the same [`Stay`] again knows that it has lasted all the time
    /// between.
    #[must_use]
    pub fn stay(&self) -> Option<Stay> {
        let word = self.0.load(Ordering::Relaxed);
        let call = LibraryCall::ALL.into_iter().find(|&call| call as u64 == word & ((1 << BITS) - 1))?;
        Some(Stay { call, number: word >> BITS })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stay_is_one_call() {
        let activity = Activity::default();
        assert_eq!(activity.stay(), None);
        let mut seen = Vec::new();
        for call in LibraryCall::ALL.into_iter().chain([LibraryCall::Poll]) {
            activity.enter(call);
            let stay = activity.stay().unwrap();
            assert_eq!(stay.call, call);
            assert_eq!(activity.stay(), Some(stay));
            assert!(!seen.contains(&stay));
            seen.push(stay);
            activity.leave();
            assert_eq!(activity.stay(), None);
        }
    }
}
