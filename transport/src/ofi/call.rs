//! Judges what libfabric's functions return; no return value of C goes on from here unjudged.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};

use super::sys;
use crate::Error;

/// "Try again", as libfabric's functions give it (negated).
pub(super) const AGAIN: i64 = sys::FI_EAGAIN;
/// "An error completion waits to be read".
#[allow(clippy::unnecessary_cast, reason = "its type differs between versions of the headers")]
pub(super) const ERROR_AVAILABLE: i64 = sys::FI_EAVAIL as i64;
/// "There is no such function here".
pub(super) const NOT_THERE: i64 = sys::FI_ENOSYS;
/// "Nothing matches", from `fi_getinfo`.
pub(super) const NO_DATA: i64 = sys::FI_ENODATA;

/// Zero is success; anything else becomes an error of `call`.
pub(super) fn judge(call: &'static str, result: c_int) -> Result<(), Error> {
    judge_for(call, result, String::new)
}

/// As [`judge`], saying what the call was for.
pub(super) fn judge_for(
    call: &'static str,
    result: c_int,
    context: impl FnOnce() -> String,
) -> Result<(), Error> {
    match i64::from(result) {
        0 => Ok(()),
        code if code < 0 => Err(failure(call, code, context())),
        value => Err(Error::Unexpected { call, value: value.to_string() }),
    }
}

/// The error for a negative result.
pub(super) fn failure(call: &'static str, result: i64, context: String) -> Error {
    let code = result.saturating_neg();
    Error::Call { call, context, code, reason: reason(code) }
}

/// What libfabric says of a positive code.
pub(super) fn reason(code: i64) -> String {
    let Ok(code) = c_int::try_from(code) else { return format!("code {code}") };
    // SAFETY: takes any number; the text it gives is static or null.
    unsafe { text(sys::fi_strerror(code)) }
}

/// A text of C's; empty if there is none.
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
