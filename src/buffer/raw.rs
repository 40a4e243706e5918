//! Regions of raw memory that another owner keeps alive.
#![allow(unsafe_code)]

use std::{ptr::NonNull, sync::LazyLock};

use unisono_transport::{Memory, Region};

/// # Safety
/// As [`Memory::borrowed`].
pub(super) unsafe fn borrow_raw(base: *mut u8, len: usize) -> Region {
    /// The region of all empty memory, so that a barrier, or a call with only an input or an output, allocates nothing.
    static NOTHING: LazyLock<Region> = LazyLock::new(|| {
        let nowhere = NonNull::<u128>::dangling().as_ptr().cast();
        // SAFETY: there is no byte that could be accessed.
        Region::unregistered(unsafe { Memory::borrowed(nowhere, 0) })
    });
    if len == 0 {
        return NOTHING.clone();
    }
    // SAFETY: by the caller's promise.
    Region::unregistered(unsafe { Memory::borrowed(base, len) })
}
