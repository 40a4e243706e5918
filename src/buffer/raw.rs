//! Regions of raw memory that somebody else owns.
#![allow(unsafe_code)]

use std::{ptr::NonNull, sync::LazyLock};

use unisono_transport::{Memory, Region};

/// # Safety
/// As [`Memory::borrowed`].
pub(super) unsafe fn borrow_raw(base: *mut u8, len: usize) -> Region {
    /// All of no bytes: a barrier, and whoever only gives or only gets, need no memory for a handle.
    static NOTHING: LazyLock<Region> = LazyLock::new(|| {
        let nowhere = NonNull::<u128>::dangling().as_ptr().cast();
        // SAFETY: there is no byte that could be touched.
        Region::unregistered(unsafe { Memory::borrowed(nowhere, 0) })
    });
    if len == 0 {
        return NOTHING.clone();
    }
    // SAFETY: by the caller's promise.
    Region::unregistered(unsafe { Memory::borrowed(base, len) })
}
