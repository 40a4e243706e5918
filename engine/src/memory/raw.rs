//! Regions of raw memory that another owner keeps alive.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use unisono_transport::{Memory, Region};

/// # Safety
/// As [`Memory::borrowed`].
#[inline]
pub unsafe fn borrow_raw(base: *mut u8, len: usize) -> Region {
    // If there are no bytes, the address may be anything.
    let base = if len == 0 { NonNull::<u128>::dangling().as_ptr().cast() } else { base };
    // SAFETY: by the caller's promise.
    Region::unregistered(unsafe { Memory::borrowed(base, len) })
}
