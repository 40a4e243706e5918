//! The versions of the libfabric that is loaded and of the headers that were compiled against.

use unisono_libfabric_sys as sys;

/// The version of the loaded library: major, minor. It may differ from [`headers_version`].
#[must_use]
#[allow(unsafe_code)]
pub fn library_version() -> (u32, u32) {
    // SAFETY: takes nothing and gives a number.
    let version = unsafe { sys::fi_version() };
    (version >> 16, version & 0xffff)
}

/// The version of the headers that were compiled against: major, minor, revision.
#[must_use]
pub fn headers_version() -> (u64, u64, u64) {
    (sys::FI_MAJOR_VERSION, sys::FI_MINOR_VERSION, sys::FI_REVISION_VERSION)
}
