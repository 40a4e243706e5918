//! Turns the return values of libfabric's functions into results. No return value of C is used without it.
#![allow(unsafe_code)]

use std::{
    ffi::{CStr, c_char, c_int},
    ptr::NonNull,
};

use rustix::process::{Resource, getrlimit};

use unisono_libfabric_sys as sys;

use super::version::library_version;
use crate::{Error, Peer};

/// "Try again", as libfabric's functions give it (negated).
pub(super) const AGAIN: i64 = sys::FI_EAGAIN;
/// "An error completion waits to be read".
#[allow(clippy::unnecessary_cast, reason = "its type differs between versions of the headers")]
pub(super) const ERROR_AVAILABLE: i64 = sys::FI_EAVAIL as i64;
/// "There is no such function here".
pub(super) const NOT_THERE: i64 = sys::FI_ENOSYS;
/// "Another registration has this key".
#[allow(clippy::unnecessary_cast, reason = "its type differs between versions of the headers")]
pub(super) const KEY_TAKEN: i64 = sys::FI_ENOKEY as i64;
/// "Nothing matches", from `fi_getinfo`.
pub(super) const NO_DATA: i64 = sys::FI_ENODATA;

/// Zero is success; anything else becomes an error of `call`.
pub(super) fn judge(call: &'static str, result: c_int) -> Result<(), Error> {
    match i64::from(result) {
        0 => Ok(()),
        code if code < 0 => Err(failure(call, code, "", None)),
        value => Err(Error::Unexpected { call, value: value.to_string() }),
    }
}

/// The object that libfabric made, or an error if it made none.
pub(super) fn made<T>(call: &'static str, object: *mut T) -> Result<NonNull<T>, Error> {
    NonNull::new(object).ok_or_else(|| Error::Unexpected { call, value: "no object".into() })
}

/// The error for a negative result of a call for this purpose, which may be empty, and the peer that it concerns, if any.
pub(super) fn failure(call: &'static str, result: i64, context: &str, peer: Option<Peer>) -> Error {
    let code = result.saturating_neg();
    Error::Call { call, context: context.to_owned(), peer, code, reason: reason(code) }
}

/// The error with which opening an endpoint failed. If fewer file descriptors are left than [`DESCRIPTORS`], the error says so, because
/// providers have several codes for that.
pub(super) fn opening(mut error: Error) -> Error {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let taken = std::fs::read_dir("/proc/self/fd").map_or(limit, |all| all.count() as u64);
    if limit.saturating_sub(taken) < DESCRIPTORS
        && let Error::Call { reason, .. } | Error::System { reason, .. } | Error::SelfTest { reason, .. } =
            &mut error
    {
        reason.push_str("; ");
        reason.push_str(&more_descriptors());
    }
    error
}

/// The file descriptors that a rank needs over TCP, beside one for each rank to which it has a connection: counted in processes of 2
/// to 8 ranks (libfabric 1.17; three fewer in 2.5).
const DESCRIPTORS: u64 = 20;

/// What to do if file descriptors have run out.
fn more_descriptors() -> String {
    let limit =
        getrlimit(Resource::Nofile).current.map_or_else(|| "no".to_owned(), |limit| limit.to_string());
    let (major, minor) = library_version();
    format!(
        "this process may have {limit} file descriptors; raise that limit (ulimit -n): over TCP a rank takes {DESCRIPTORS} in libfabric \
         1.17 and 17 in 2.5, and one more for each rank that it speaks to, several with `tcp;ofi_rxm`; this is libfabric \
         {major}.{minor}"
    )
}

/// libfabric's text for a positive code.
pub(super) fn reason(code: i64) -> String {
    let Ok(code) = c_int::try_from(code) else { return format!("code {code}") };
    // SAFETY: takes any number; the text it gives is static or null.
    unsafe { text(sys::fi_strerror(code)) }
}

/// A string of C as text; empty if there is none.
///
/// # Safety
/// `text` must be null or point to a terminated string.
pub(super) unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: by the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
