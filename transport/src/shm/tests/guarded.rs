//! For tests: a value to which C writes, and which shows a write beyond its end. It lies directly before a page that cannot be
//! accessed: the system answers such a write with EFAULT, C gets SIGSEGV. The bytes before the value are checked afterwards.
#![allow(unsafe_code)]

use std::{ffi::c_void, ptr};

use rustix::{
    mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap},
    param::page_size,
};

const CANARY: u8 = 0xA5;

/// A value of a type without padding at its end, before a guard page.
pub(crate) struct Guarded<T: Copy> {
    pages: *mut u8,
    value: *mut T,
}

impl<T: Copy> Guarded<T> {
    pub(crate) fn new(value: T) -> Self {
        let page = page_size();
        let len = size_of::<T>().next_multiple_of(page) + page;
        let at = len - page - size_of::<T>();
        // SAFETY: new pages, of which all but the last can be written. The value's place is inside, and aligned, since it ends with
        // a page and its size is a multiple of its alignment.
        unsafe {
            let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
            let pages = mmap_anonymous(ptr::null_mut(), len, protection, flags).unwrap().cast::<u8>();
            mprotect(pages.add(len - page).cast::<c_void>(), page, MprotectFlags::empty()).unwrap();
            ptr::write_bytes(pages, CANARY, at);
            let place = pages.add(at).cast::<T>();
            place.write(value);
            Self { pages, value: place }
        }
    }

    pub(crate) fn value(&mut self) -> &mut T {
        // SAFETY: written when it was made, and borrowed as long as `self`.
        unsafe { &mut *self.value }
    }

    /// True if nothing before the value was written.
    pub(crate) fn is_intact(&self) -> bool {
        // SAFETY: these bytes were written when it was made; no reference to them exists.
        unsafe { std::slice::from_raw_parts(self.pages, self.before()) }.iter().all(|byte| *byte == CANARY)
    }

    fn before(&self) -> usize {
        self.value.addr() - self.pages.addr()
    }
}

impl<T: Copy> Drop for Guarded<T> {
    fn drop(&mut self) {
        let len = self.before() + size_of::<T>() + page_size();
        // SAFETY: its own pages, to which no reference exists any more.
        if let Err(error) = unsafe { munmap(self.pages.cast::<c_void>(), len) } {
            println!("munmap: {error}");
        }
    }
}
