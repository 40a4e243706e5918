//! Begins puts, and keeps the context, token, peer and source regions of each until it has ended.
#![allow(unsafe_code)]

use std::{cell::UnsafeCell, ffi::c_void, ptr};

use crate::{Peer, Put, Region, Source, region::bytes};
use unisono_libfabric_sys as sys;

/// The most sources of one put ([`crate::Limits::max_sources`]).
pub(super) const MAX_SOURCES: usize = 4;

/// Memory that libfabric may write to while a put is under way (`fi_context2` has 64 bytes).
#[repr(C, align(64))]
#[derive(Debug)]
struct Context(UnsafeCell<[u64; 8]>);

// SAFETY: only the library writes to it, in calls that `Domain::enter` serialises; this crate uses only its address.
unsafe impl Sync for Context {}

/// A put under way.
#[derive(Debug, Default)]
pub(super) struct UnderWay {
    /// The token of the event that reports its end.
    pub(super) token: u64,
    pub(super) peer: Peer,
    #[expect(dead_code, reason = "keeps the sources' memory; it is never read")]
    regions: [Option<Region>; MAX_SOURCES],
}

impl UnderWay {
    /// A put whose sources are kept until its end.
    pub(super) fn new(put: &Put<'_>) -> Self {
        let mut regions = [const { None }; MAX_SOURCES];
        for (region, source) in regions.iter_mut().zip(put.sources) {
            *region = Some(source.region().clone());
        }
        Self { token: put.token, peer: put.to, regions }
    }
}

/// A fixed number of puts that may be under way, with contexts that never move.
#[derive(Debug)]
pub(super) struct Pool {
    contexts: Box<[Context]>,
    under_way: Vec<Option<UnderWay>>,
    free: Vec<u32>,
}

impl Pool {
    pub(super) fn new(size: usize) -> Self {
        let size = u32::try_from(size).unwrap_or(1);
        Self {
            contexts: (0..size).map(|_| Context(UnsafeCell::new([0; 8]))).collect(),
            under_way: (0..size).map(|_| None).collect(),
            free: (0..size).rev().collect(),
        }
    }

    /// Reserves a place for a put, if one is free: returns its number, and its context for libfabric.
    pub(super) fn reserve(&mut self) -> Option<(u32, *mut c_void)> {
        let number = self.free.pop()?;
        Some((number, self.contexts.get(number as usize)?.0.get().cast()))
    }

    /// Keeps a put that was begun.
    pub(super) fn keep(&mut self, number: u32, put: UnderWay) {
        if let Some(place) = self.under_way.get_mut(number as usize) {
            *place = Some(put);
        }
    }

    /// Frees the place of a put that was not begun.
    pub(super) fn release(&mut self, number: u32) {
        self.free.push(number);
    }

    /// Ends the put to which this context belongs, and returns it; `None` if no put under way has the context.
    pub(super) fn done(&mut self, context: *mut c_void) -> Option<UnderWay> {
        let number = self.number(context)?;
        let put = self.under_way.get_mut(number as usize)?.take()?;
        self.free.push(number);
        Some(put)
    }

    /// The peer of the put to which this context belongs.
    pub(super) fn peer(&self, context: *mut c_void) -> Option<Peer> {
        self.under_way.get(self.number(context)? as usize)?.as_ref().map(|put| put.peer)
    }

    fn number(&self, context: *mut c_void) -> Option<u32> {
        let offset = context.addr().checked_sub(self.contexts.as_ptr().addr())?;
        let exact = offset.is_multiple_of(size_of::<Context>());
        let number = offset / size_of::<Context>();
        (exact && number < self.contexts.len()).then(|| u32::try_from(number).ok()).flatten()
    }
}

/// The sources of a put in libfabric's form; empty ones are left out.
pub(super) struct Vectors {
    pub(super) spans: [sys::iovec; MAX_SOURCES],
    pub(super) descriptors: [*mut c_void; MAX_SOURCES],
    pub(super) count: usize,
}

impl Vectors {
    pub(super) fn new(sources: &[Source<'_>], with_descriptors: bool) -> Self {
        let mut spans = [sys::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; MAX_SOURCES];
        let mut descriptors = [ptr::null_mut(); MAX_SOURCES];
        let mut count = 0;
        let places = spans.iter_mut().zip(&mut descriptors);
        for (source, (span, descriptor)) in sources.iter().filter(|source| !source.is_empty()).zip(places) {
            let (start, len) = bytes(source);
            *span = sys::iovec { iov_base: start.cast_mut().cast(), iov_len: len };
            if with_descriptors {
                *descriptor = source.region().descriptor();
            }
            count += 1;
        }
        Self { spans, descriptors, count }
    }

    /// Begins a write of all sources; returns the name of libfabric's function and its result. With `copied` the library copies them
    /// at once.
    ///
    /// # Safety
    /// The endpoint is open. The sources, unless they are copied, and the context stay where they are until the write's
    /// completion or the endpoint's end.
    pub(super) unsafe fn write_message(
        &mut self,
        endpoint: *mut sys::fid_ep,
        to: u64,
        remote: &sys::fi_rma_iov,
        immediate: u32,
        context: *mut c_void,
        copied: bool,
    ) -> (&'static str, isize) {
        let message = sys::fi_msg_rma {
            msg_iov: self.spans.as_ptr(),
            desc: self.descriptors.as_mut_ptr(),
            iov_count: self.count,
            addr: to,
            rma_iov: ptr::from_ref(remote),
            rma_iov_count: 1,
            context,
            data: immediate.into(),
        };
        let flags = sys::FI_REMOTE_CQ_DATA | sys::FI_COMPLETION | if copied { sys::FI_INJECT } else { 0 };
        // SAFETY: by this function's contract; the message's arrays live through the call.
        ("fi_writemsg", unsafe { sys::fi_writemsg(endpoint, &raw const message, flags) })
    }

    /// Begins a write of the first source, which is the only one, by `fi_writedata`, which all providers have.
    ///
    /// # Safety
    /// As for [`Self::write_message`].
    pub(super) unsafe fn write_data(
        &mut self,
        endpoint: *mut sys::fid_ep,
        to: u64,
        remote: &sys::fi_rma_iov,
        immediate: u32,
        context: *mut c_void,
    ) -> (&'static str, isize) {
        let ([sys::iovec { iov_base, iov_len }, ..], [descriptor, ..]) = (self.spans, self.descriptors);
        let (sys::fi_rma_iov { addr, key, .. }, data) = (*remote, immediate.into());
        // SAFETY: by this function's contract.
        let result = unsafe {
            sys::fi_writedata(endpoint, iov_base, iov_len, descriptor, data, to, addr, key, context)
        };
        ("fi_writedata", result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_names_its_put_and_no_other_pointer_does() {
        let mut pool = Pool::new(2);
        let (first, context) = pool.reserve().expect("room for two");
        let (second, other) = pool.reserve().expect("room for two");
        assert!(pool.reserve().is_none());
        pool.keep(first, UnderWay { token: 7, peer: Peer(3), ..UnderWay::default() });
        assert_eq!(pool.peer(context), Some(Peer(3)));
        assert!(pool.done(other).is_none(), "reserved but never begun");
        assert!(pool.done(ptr::null_mut()).is_none());
        assert!(pool.done(context.wrapping_byte_add(8)).is_none());
        assert!(pool.done(context.wrapping_byte_add(4096)).is_none());
        assert_eq!(pool.done(context).map(|put| put.token), Some(7));
        assert!(pool.done(context).is_none(), "a put is done once");
        pool.release(second);
        assert!(pool.reserve().is_some() && pool.reserve().is_some() && pool.reserve().is_none());
    }
}
