//! Registers memory, honouring each bit of the provider's `mr_mode`.
#![allow(unsafe_code)]

use std::{
    ffi::c_void,
    ptr,
    sync::{
        Arc,
        atomic::{AtomicPtr, Ordering},
    },
};

use super::{
    call::{self, judge},
    handle::{Domain, Endpoint},
    sys,
};
use crate::{Error, LibraryCall, Memory, Region, Registration, RemoteRegion};

/// A registration; closing it twice does nothing.
#[derive(Debug)]
struct Mr {
    object: AtomicPtr<sys::fid_mr>,
    domain: Arc<Domain>,
}

impl Mr {
    fn close(&self) {
        // The card knows one registration, which is the parent's; and the lock may be held by a thread that is not there.
        if !self.domain.is_ours() {
            return;
        }
        // Taken out under the lock, so that it is closed for whoever finds it gone.
        let _serial = self.domain.enter(LibraryCall::Close);
        let object = self.object.swap(ptr::null_mut(), Ordering::AcqRel);
        if object.is_null() {
            return;
        }
        // SAFETY: open until here, and taken out by exactly one caller; the domain is owned.
        let result = unsafe { sys::fi_close(&raw mut (*object).fid) };
        if result != 0 {
            let reason = call::reason(i64::from(result).saturating_neg());
            tracing::warn!(result, reason, "libfabric refuses to take a registration back");
        }
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        self.close();
    }
}

/// What a region keeps of its registration.
#[derive(Debug)]
struct Guard(Arc<Mr>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Registers memory with one domain.
#[derive(Debug)]
pub(super) struct Registrar {
    domain: Arc<Domain>,
    mode: u64,
    next_key: u64,
    /// With `FI_MR_ENDPOINT`: what must be closed before the endpoint is.
    bound: Vec<Arc<Mr>>,
}

impl Registrar {
    pub(super) fn new(domain: &Arc<Domain>, mode: u64) -> Self {
        Self { domain: Arc::clone(domain), mode, next_key: 1, bound: Vec::new() }
    }

    /// Whether this registrar made the region's registration.
    pub(super) fn made(&self, region: &Region) -> bool {
        region.guard::<Guard>().is_some_and(|guard| Arc::ptr_eq(&guard.0.domain, &self.domain))
    }

    pub(super) fn register(&mut self, memory: Memory, endpoint: &Endpoint) -> Result<Region, Error> {
        if memory.is_empty() {
            // Nothing to reach and nothing to pin; libfabric has no registration of nothing.
            let remote = RemoteRegion::default();
            let registration = Registration { remote, descriptor: ptr::null_mut(), guard: Box::new(()) };
            return Ok(Region::registered(memory, registration));
        }
        let bytes = memory.len();
        // Ignored where the provider chooses the keys itself.
        let wanted_key = self.next_key;
        self.next_key += 1;
        let mut object = ptr::null_mut();
        let serial = self.domain.enter(LibraryCall::Register);
        // SAFETY: the memory is valid for `bytes` until the region is gone, and the region closes the
        // registration before it frees the memory.
        let result = unsafe {
            sys::fi_mr_reg(
                self.domain.as_ptr(),
                memory.base().cast::<c_void>(),
                bytes,
                sys::FI_WRITE | sys::FI_REMOTE_WRITE,
                0,
                wanted_key,
                0,
                &raw mut object,
                ptr::null_mut(),
            )
        };
        drop(serial);
        if result != 0 || object.is_null() {
            let reason = call::reason(i64::from(result).saturating_neg());
            return Err(Error::Register { bytes, reason, limit: locked_memory_limit() });
        }
        let mr = Arc::new(Mr { object: AtomicPtr::new(object), domain: Arc::clone(&self.domain) });
        if self.mode & sys::FI_MR_ENDPOINT != 0 {
            let serial = self.domain.enter(LibraryCall::Register);
            // SAFETY: registration and endpoint are open.
            let (bound, enabled) =
                unsafe { (sys::fi_mr_bind(object, endpoint.fid(), 0), sys::fi_mr_enable(object)) };
            drop(serial);
            judge("fi_mr_bind", bound)?;
            judge("fi_mr_enable", enabled)?;
            self.bound.retain(|mr| !mr.object.load(Ordering::Acquire).is_null());
            self.bound.push(Arc::clone(&mr));
        }
        let serial = self.domain.enter(LibraryCall::Register);
        // SAFETY: the registration is open.
        let (key, descriptor) = unsafe { (sys::fi_mr_key(object), sys::fi_mr_desc(object)) };
        drop(serial);
        if key == u64::MAX {
            return Err(Error::Unexpected { call: "fi_mr_key", value: "no key (FI_KEY_NOTAVAIL)".into() });
        }
        let base = if self.mode & sys::FI_MR_VIRT_ADDR == 0 { 0 } else { memory.base().addr() as u64 };
        let remote = RemoteRegion { base, key, len: bytes as u64 };
        Ok(Region::registered(memory, Registration { remote, descriptor, guard: Box::new(Guard(mr)) }))
    }

    /// Closes registrations that are bound to the endpoint, which is about to be closed.
    pub(super) fn unbind(&mut self) {
        self.bound.drain(..).for_each(|mr| mr.close());
    }
}

/// The limit on locked memory, in words.
fn locked_memory_limit() -> String {
    match rustix::process::getrlimit(rustix::process::Resource::Memlock).current {
        Some(bytes) => format!("{} KiB", bytes / 1024),
        None => "unlimited".into(),
    }
}
