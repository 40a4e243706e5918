//! Records the library call that a transport is in, for a watchdog on another thread.

use std::sync::atomic::{AtomicU64, Ordering};

/// The number of bits of [`Activity`] that identify the call; the others count calls.
const BITS: u32 = 8;

/// A call into the library under a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LibraryCall {
    /// Asks for providers and their capabilities.
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
    /// Reads completions, and makes progress.
    Poll,
    /// Asks whether the caller may sleep.
    TryWait,
    /// Closes an object or a registration.
    Close,
}

impl LibraryCall {
    /// All calls, each with the name of libfabric's function.
    const ALL: [(Self, &str); 10] = [
        (Self::Find, "fi_getinfo"),
        (Self::Domain, "fi_fabric or fi_domain"),
        (Self::Open, "fi_endpoint or what belongs to it"),
        (Self::Connect, "fi_av_insert"),
        (Self::Register, "fi_mr_reg"),
        (Self::Inject, "fi_inject_writedata"),
        (Self::Write, "fi_writemsg or fi_writedata"),
        (Self::Poll, "fi_cq_read"),
        (Self::TryWait, "fi_trywait"),
        (Self::Close, "fi_close"),
    ];

    /// True if it is made only while an endpoint is opened.
    #[must_use]
    pub const fn opens(self) -> bool {
        matches!(self, Self::Find | Self::Domain | Self::Open)
    }

    /// The name of libfabric's function.
    #[must_use]
    pub const fn name(self) -> &'static str {
        Self::ALL[self as usize - 1].1
    }
}

/// One call of the library that has not returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stay {
    /// The kind of call.
    pub call: LibraryCall,
    /// The number of calls before it.
    pub number: u64,
}

/// The library call that a transport is in. The thread that drives the transport writes it, with two relaxed stores for each call; any
/// thread may read it.
#[derive(Debug, Default)]
pub struct Activity(AtomicU64);

impl Activity {
    /// A call of the library begins. Calls do not nest.
    #[inline]
    pub fn enter(&self, call: LibraryCall) {
        let number = (self.0.load(Ordering::Relaxed) >> BITS).wrapping_add(1);
        self.0.store(number << BITS | call as u64, Ordering::Relaxed);
    }

    /// The call has returned.
    #[inline]
    pub fn leave(&self) {
        self.0.store(self.0.load(Ordering::Relaxed) >> BITS << BITS, Ordering::Relaxed);
    }

    /// Runs `calls`, which calls the library, between [`Self::enter`] and [`Self::leave`].
    pub fn during<R>(&self, call: LibraryCall, calls: impl FnOnce() -> R) -> R {
        self.enter(call);
        let result = calls();
        self.leave();
        result
    }

    /// The call that has not returned, if there is one. If two reads give the same [`Stay`], the call has lasted all the time between
    /// them.
    #[must_use]
    pub fn stay(&self) -> Option<Stay> {
        let word = self.0.load(Ordering::Relaxed);
        let place = (word & ((1 << BITS) - 1)).checked_sub(1)?;
        let (call, _) = *LibraryCall::ALL.get(usize::try_from(place).ok()?)?;
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
        for call in LibraryCall::ALL.map(|(call, _)| call).into_iter().chain([LibraryCall::Poll]) {
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
