//! libfabric's objects. Each owns its parent, so that they can be dropped in any order.
//!
//! The domain is opened with `FI_THREAD_DOMAIN`: the library takes no locks, and all calls into one domain
//! must be serialised. [`Domain::enter`] does that, because a region may be dropped by another thread than
//! the one that drives the endpoint.
#![allow(unsafe_code)]

use std::{
    ffi::{c_int, c_void},
    os::fd::{BorrowedFd, RawFd},
    ptr::{self, NonNull},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use unisono_libfabric_sys as sys;

use super::{
    call::{self, judge, made},
    info::Info,
    workarounds::stuck_descriptor,
};
use crate::{Activity, Error, LibraryCall, fork::Process};

/// Closes an object; a failure is logged.
///
/// # Safety
/// `object` must be open and not be used again.
pub(super) unsafe fn close(what: &'static str, object: *mut sys::fid) {
    // SAFETY: by the caller's promise.
    let result = unsafe { sys::fi_close(object) };
    if result != 0 {
        let reason = call::reason(i64::from(result).saturating_neg());
        crate::log::warn!(what, result, reason, "libfabric refuses to close");
    }
}

/// A domain and its fabric.
#[derive(Debug)]
pub(super) struct Domain {
    fabric: NonNull<sys::fid_fabric>,
    /// Null until it is open.
    object: *mut sys::fid_domain,
    serial: Mutex<()>,
    activity: Arc<Activity>,
    /// The process that opened it: its children by `fork` may close nothing.
    process: Process,
}

/// A call into a domain; while it lives, no other thread can make one.
pub(super) struct Entered<'d> {
    activity: &'d Activity,
    _serial: MutexGuard<'d, ()>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.activity.leave();
    }
}

// SAFETY: libfabric's objects are not tied to a thread; calls are serialised by `enter` or by the exclusive ownership of the opener.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    /// `activity` tells a watchdog which call of the library is made, for the domain or its fabric.
    pub(super) fn open(info: &Info, activity: &Arc<Activity>) -> Result<Arc<Self>, Error> {
        let (mut fabric, mut object) = (ptr::null_mut(), ptr::null_mut());
        let result = activity.during(LibraryCall::Domain, || {
            // SAFETY: the attributes belong to `info`, which lives through the call.
            unsafe { sys::fi_fabric(info.raw().fabric_attr, &raw mut fabric, ptr::null_mut()) }
        });
        judge("fi_fabric", result)?;
        let fabric = made("fi_fabric", fabric)?;
        let (serial, activity) = (Mutex::default(), Arc::clone(activity));
        let mut domain = Self { fabric, object, serial, activity, process: Process::this() };
        let result = domain.during(LibraryCall::Domain, || {
            // SAFETY: the fabric is open; `info` lives through the call.
            unsafe { sys::fi_domain(fabric.as_ptr(), info.pointer(), &raw mut object, ptr::null_mut()) }
        });
        judge("fi_domain", result)?;
        domain.object = made("fi_domain", object)?.as_ptr();
        Ok(Arc::new(domain))
    }

    /// Begins a call into this domain or one of its objects: waits for the calls of other threads, and tells a watchdog. Not
    /// reentrant: no handle and no region may be dropped while the result lives.
    pub(super) fn enter(&self, call: LibraryCall) -> Entered<'_> {
        let serial = self.serial.lock().unwrap_or_else(PoisonError::into_inner);
        self.activity.enter(call);
        Entered { activity: &self.activity, _serial: serial }
    }

    /// Makes a call into this domain or one of its objects, as between [`Self::enter`] and the end of what that returns.
    #[inline]
    pub(super) fn during<R>(&self, call: LibraryCall, calls: impl FnOnce() -> R) -> R {
        let _entered = self.enter(call);
        calls()
    }

    /// True if it was opened by this process, and not by one from which this process was forked.
    pub(super) fn is_ours(&self) -> bool {
        self.process.is_this()
    }

    /// The call of the library that is being made.
    pub(super) fn activity(&self) -> Arc<Activity> {
        Arc::clone(&self.activity)
    }

    pub(super) fn as_ptr(&self) -> *mut sys::fid_domain {
        self.object
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        let _serial = self.enter(LibraryCall::Close);
        // All objects of libfabric begin with their `fid`.
        if !self.object.is_null() {
            // SAFETY: open, and dropped once; its children own it, so none is left.
            unsafe { close("domain", self.object.cast()) };
        }
        // SAFETY: open, and dropped once; its domain is closed.
        unsafe { close("fabric", self.fabric.as_ptr().cast()) };
    }
}

/// An object of a domain, closed when this is dropped.
#[derive(Debug)]
struct Object<T> {
    pointer: NonNull<T>,
    /// What it is, for the log.
    what: &'static str,
    domain: Arc<Domain>,
}

// SAFETY: see `Domain`.
unsafe impl<T> Send for Object<T> {}
// SAFETY: see `Domain`.
unsafe impl<T> Sync for Object<T> {}

impl<T> Object<T> {
    /// Makes an object: `open` calls the library's function `call`, which writes the object's address to the given place.
    fn open(
        domain: &Arc<Domain>,
        what: &'static str,
        call: &'static str,
        open: impl FnOnce(*mut *mut T) -> c_int,
    ) -> Result<Self, Error> {
        let mut object: *mut T = ptr::null_mut();
        judge(call, domain.during(LibraryCall::Open, || open(&raw mut object)))?;
        Ok(Self { pointer: made(call, object)?, what, domain: Arc::clone(domain) })
    }

    fn as_ptr(&self) -> *mut T {
        self.pointer.as_ptr()
    }

    /// The part with which all objects of libfabric begin.
    fn fid(&self) -> *mut sys::fid {
        self.pointer.as_ptr().cast()
    }
}

impl<T> Drop for Object<T> {
    fn drop(&mut self) {
        let _serial = self.domain.enter(LibraryCall::Close);
        // SAFETY: open, and dropped once; an endpoint that is bound to it owns it, and so is closed.
        unsafe { close(self.what, self.fid()) };
    }
}

/// An address vector.
#[derive(Debug)]
pub(super) struct Av(Object<sys::fid_av>);

impl Av {
    pub(super) fn open(domain: &Arc<Domain>, info: &Info) -> Result<Arc<Self>, Error> {
        // SAFETY: an attribute struct is numbers and pointers, for which zero means the default.
        let mut attributes: sys::fi_av_attr = unsafe { std::mem::zeroed() };
        attributes.type_ = match info.domain().av_type {
            sys::FI_AV_MAP => sys::FI_AV_MAP,
            _ => sys::FI_AV_TABLE,
        };
        let object = Object::open(domain, "address vector", "fi_av_open", |object| {
            // SAFETY: `domain` is open.
            unsafe { sys::fi_av_open(domain.as_ptr(), &raw mut attributes, object, ptr::null_mut()) }
        })?;
        Ok(Arc::new(Self(object)))
    }

    /// Makes an address known. `name` must be a whole name of this provider's format.
    pub(super) fn insert(&self, name: &[u8]) -> Result<sys::fi_addr_t, Error> {
        let mut address: sys::fi_addr_t = sys::fi_addr_t::MAX;
        let (vector, name) = (self.0.as_ptr(), name.as_ptr().cast::<c_void>());
        let result = self.0.domain.during(LibraryCall::Connect, || {
            // SAFETY: the vector is open; `name` holds one whole address, as the caller checked.
            unsafe { sys::fi_av_insert(vector, name, 1, &raw mut address, 0, ptr::null_mut()) }
        });
        match result {
            1 => Ok(address),
            failed if failed < 0 => Err(call::failure("fi_av_insert", failed.into(), "", None)),
            other => Err(Error::Unexpected {
                call: "fi_av_insert",
                value: format!("{other} addresses taken, not 1"),
            }),
        }
    }
}

/// A completion queue.
#[derive(Debug)]
pub(super) struct Cq {
    object: Object<sys::fid_cq>,
    wait: Option<RawFd>,
}

impl Cq {
    /// A queue of at least `size` entries, with a file descriptor to wait on where the provider has one.
    /// `stuck`: its own descriptor does not signal arrivals (see `provider.rs`).
    pub(super) fn open(domain: &Arc<Domain>, size: usize, stuck: bool) -> Result<Arc<Self>, Error> {
        match Self::open_with(domain, size, sys::FI_WAIT_FD) {
            Ok(mut queue) => {
                if stuck {
                    queue.wait = queue.wait.and_then(stuck_descriptor::inner_epoll);
                }
                // Without `fi_trywait` it is unknown when a descriptor can be waited on.
                if matches!(queue.may_sleep(), Err(Error::Call { code: call::NOT_THERE, .. })) {
                    queue.wait = None;
                }
                Ok(Arc::new(queue))
            }
            // A queue without a descriptor may work, whatever the reason is.
            Err(error) => {
                crate::log::debug!(%error, "no completion queue with a file descriptor; waiting by timer");
                Self::open_with(domain, size, sys::FI_WAIT_NONE).map(Arc::new)
            }
        }
    }

    fn open_with(domain: &Arc<Domain>, size: usize, wait_obj: sys::fi_wait_obj) -> Result<Self, Error> {
        // SAFETY: an attribute struct is numbers and pointers, for which zero means the default.
        let mut attributes: sys::fi_cq_attr = unsafe { std::mem::zeroed() };
        attributes.size = size;
        attributes.format = sys::FI_CQ_FORMAT_DATA;
        attributes.wait_obj = wait_obj;
        attributes.wait_cond = sys::FI_CQ_COND_NONE;
        let object = Object::open(domain, "completion queue", "fi_cq_open", |object| {
            // SAFETY: `domain` is open.
            unsafe { sys::fi_cq_open(domain.as_ptr(), &raw mut attributes, object, ptr::null_mut()) }
        })?;
        let mut queue = Self { object, wait: None };
        if wait_obj == sys::FI_WAIT_FD {
            let mut fd: c_int = -1;
            let command = c_int::try_from(sys::FI_GETWAIT).unwrap_or(-1);
            let result = domain.during(LibraryCall::Open, || {
                // SAFETY: the queue is open, and FI_GETWAIT writes one int for FI_WAIT_FD.
                unsafe { sys::fi_control(queue.object.fid(), command, (&raw mut fd).cast::<c_void>()) }
            });
            judge("fi_control(FI_GETWAIT)", result)?;
            if fd < 0 {
                return Err(Error::Unexpected { call: "fi_control(FI_GETWAIT)", value: fd.to_string() });
            }
            queue.wait = Some(fd);
        }
        Ok(queue)
    }

    pub(super) fn as_ptr(&self) -> *mut sys::fid_cq {
        self.object.as_ptr()
    }

    /// The descriptor to wait on, if there is one.
    pub(super) fn wait(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the descriptor belongs to the queue and stays open as long as it.
        self.wait.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// True if the caller may sleep on the descriptor now; if not, it must read the queue first.
    pub(super) fn may_sleep(&self) -> Result<bool, Error> {
        let domain = &self.object.domain;
        let mut fids: [*mut sys::fid; 1] = [self.object.fid()];
        let result = domain.during(LibraryCall::TryWait, || {
            // SAFETY: fabric and queue are open; one object is passed.
            unsafe { sys::fi_trywait(domain.fabric.as_ptr(), fids.as_mut_ptr(), 1) }
        });
        if i64::from(result) == -call::AGAIN {
            return Ok(false);
        }
        judge("fi_trywait", result).map(|()| true)
    }
}

#[derive(Debug)]
pub(super) struct Endpoint {
    object: Object<sys::fid_ep>,
    // They are owned, so that they outlive the endpoint.
    _av: Arc<Av>,
    _cq: Arc<Cq>,
}

impl Endpoint {
    /// An enabled endpoint bound to both.
    pub(super) fn open(domain: &Arc<Domain>, info: &Info, av: &Arc<Av>, cq: &Arc<Cq>) -> Result<Self, Error> {
        let object = Object::open(domain, "endpoint", "fi_endpoint", |object| {
            // SAFETY: `domain` is open; `info` lives through the call.
            unsafe { sys::fi_endpoint(domain.as_ptr(), info.pointer(), object, ptr::null_mut()) }
        })?;
        let endpoint = Self { object, _av: Arc::clone(av), _cq: Arc::clone(cq) };
        let (own, both) = (endpoint.as_ptr(), sys::FI_TRANSMIT | sys::FI_RECV);
        // SAFETY: all three are open, and the endpoint owns the others.
        let results = domain.during(LibraryCall::Open, || unsafe {
            [
                ("fi_ep_bind(av)", sys::fi_ep_bind(own, av.0.fid(), 0)),
                ("fi_ep_bind(cq)", sys::fi_ep_bind(own, cq.object.fid(), both)),
                ("fi_enable", sys::fi_enable(own)),
            ]
        });
        results.into_iter().try_for_each(|(call, result)| judge(call, result))?;
        Ok(endpoint)
    }

    pub(super) fn as_ptr(&self) -> *mut sys::fid_ep {
        self.object.as_ptr()
    }

    pub(super) fn fid(&self) -> *mut sys::fid {
        self.object.fid()
    }

    /// The endpoint's own name, in the provider's format.
    pub(super) fn name(&self) -> Result<Vec<u8>, Error> {
        let mut name: Vec<u8> = vec![0; 1024];
        let mut len: usize = name.len();
        let result = self.object.domain.during(LibraryCall::Open, || {
            // SAFETY: the endpoint is open; at most `len` bytes are written.
            unsafe { sys::fi_getname(self.fid(), name.as_mut_ptr().cast::<c_void>(), &raw mut len) }
        });
        judge("fi_getname", result)?;
        if len == 0 || len > name.len() {
            return Err(Error::Unexpected { call: "fi_getname", value: format!("{len} bytes") });
        }
        name.truncate(len);
        Ok(name)
    }
}
