//! Registers memory, honouring each bit of the provider's `mr_mode`, under keys that cannot be guessed.
#![allow(unsafe_code)]

use std::{
    ffi::c_void,
    ptr,
    sync::{
        Arc,
        atomic::{AtomicPtr, Ordering},
    },
};

use unisono_libfabric_sys as sys;

use super::{
    call::{self, judge},
    handle::{Domain, Endpoint, close},
};
use crate::{Error, LibraryCall, Memory, Region, Registration, RemoteRegion, keys::Keys};

/// A registration; closing it twice does nothing.
#[derive(Debug)]
struct Mr {
    object: AtomicPtr<sys::fid_mr>,
    domain: Arc<Domain>,
}

impl Mr {
    fn close(&self) {
        // In a forked child, the registration is the parent's, and the lock may be held by a thread that the child does not have.
        if !self.domain.is_ours() {
            return;
        }
        // Taken under the lock, so that the registration is closed once another thread finds none.
        let _serial = self.domain.enter(LibraryCall::Close);
        let object = self.object.swap(ptr::null_mut(), Ordering::AcqRel);
        if object.is_null() {
            return;
        }
        // SAFETY: open until here, and taken out by exactly one caller; the domain is owned.
        unsafe { close("registration", &raw mut (*object).fid) };
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        self.close();
    }
}

/// The registration of a region, which is closed when this is dropped.
#[derive(Debug)]
struct Guard(Arc<Mr>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// The most attempts to register under different keys, if keys are taken.
const DRAWS: usize = 4;

/// Registers memory with one domain.
#[derive(Debug)]
pub(super) struct Registrar {
    domain: Arc<Domain>,
    mode: u64,
    keys: Keys,
    /// With `FI_MR_ENDPOINT`: the registrations that must be closed before the endpoint.
    bound: Vec<Arc<Mr>>,
}

impl Registrar {
    /// `key_size` is how many bytes the provider's keys have.
    pub(super) fn new(domain: &Arc<Domain>, mode: u64, key_size: usize) -> Self {
        Self { domain: Arc::clone(domain), mode, keys: Keys::new(key_size), bound: Vec::new() }
    }

    /// True if this registrar made the region's registration.
    pub(super) fn made(&self, region: &Region) -> bool {
        region.guard::<Guard>().is_some_and(|guard| Arc::ptr_eq(&guard.0.domain, &self.domain))
    }

    pub(super) fn register(&mut self, memory: Memory, endpoint: &Endpoint) -> Result<Region, Error> {
        if memory.is_empty() {
            // There is nothing to reach and nothing to pin; libfabric cannot register zero bytes.
            let remote = RemoteRegion::default();
            let registration = Registration { remote, descriptor: ptr::null_mut(), guard: Box::new(()) };
            return Ok(Region::registered(memory, registration));
        }
        let bytes = memory.len();
        let mut object: *mut sys::fid_mr = ptr::null_mut();
        let (mut result, mut draws) = (0, 0);
        while draws < DRAWS && (draws == 0 || i64::from(result) == -call::KEY_TAKEN) {
            draws += 1;
            // The provider ignores the key if it chooses keys itself.
            let wanted_key = self.keys.next(|_| false)?;
            let (domain, start) = (self.domain.as_ptr(), memory.base().cast::<c_void>());
            let (access, context) = (sys::FI_WRITE | sys::FI_REMOTE_WRITE, ptr::null_mut());
            result = self.domain.during(LibraryCall::Register, || {
                // SAFETY: the memory is valid for `bytes` until the region is gone, and the region closes the registration before it
                // frees the memory.
                unsafe {
                    sys::fi_mr_reg(domain, start, bytes, access, 0, wanted_key, 0, &raw mut object, context)
                }
            });
        }
        if result != 0 || object.is_null() {
            let reason = call::reason(i64::from(result).saturating_neg());
            return Err(Error::Register { bytes, reason, limit: locked_memory_limit() });
        }
        let mr = Arc::new(Mr { object: AtomicPtr::new(object), domain: Arc::clone(&self.domain) });
        if self.mode & sys::FI_MR_ENDPOINT != 0 {
            let (bound, enabled) = self.domain.during(LibraryCall::Register, || {
                // SAFETY: registration and endpoint are open.
                unsafe { (sys::fi_mr_bind(object, endpoint.fid(), 0), sys::fi_mr_enable(object)) }
            });
            judge("fi_mr_bind", bound)?;
            judge("fi_mr_enable", enabled)?;
            self.bound.retain(|mr| !mr.object.load(Ordering::Acquire).is_null());
            self.bound.push(Arc::clone(&mr));
        }
        let (key, descriptor) = self.domain.during(LibraryCall::Register, || {
            // SAFETY: the registration is open.
            unsafe { (sys::fi_mr_key(object), sys::fi_mr_desc(object)) }
        });
        if key == u64::MAX {
            return Err(Error::Unexpected { call: "fi_mr_key", value: "no key (FI_KEY_NOTAVAIL)".into() });
        }
        let base = if self.mode & sys::FI_MR_VIRT_ADDR == 0 { 0 } else { memory.base().addr() as u64 };
        let remote = RemoteRegion { base, key, len: bytes as u64, mappable: false };
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

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::{
        Transport,
        ofi::{Ofi, Options},
    };

    #[test]
    fn a_key_that_is_taken_is_drawn_again() {
        let towards = Some(Ipv4Addr::LOCALHOST.into());
        let options = Options { provider: Some("tcp".into()), towards, ..Options::default() };
        let mut ofi = Ofi::open(&options).unwrap();
        let mut register = |draws: [u64; 2]| {
            ofi.registrar.keys.drawn = draws.into_iter().rev().collect();
            ofi.register(Memory::map(64).unwrap()).unwrap()
        };
        let first = register([7, 8]);
        let second = register([7, 9]);
        assert_eq!([&first, &second].map(|region| region.remote().unwrap().key), [7, 9]);
        drop((first, second));
    }
}
