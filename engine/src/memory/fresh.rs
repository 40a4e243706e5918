//! New memory for messages whose receive gives none.
#![allow(unsafe_code)]

use unisono_core::{dtype::Dtype, tensor::Tensor};
use unisono_transport::Region;

use super::raw::borrow_raw;

/// New memory for a message.
///
/// Its bytes are zeroed before a peer may write there: that a peer has written a piece is known only from the peer, and bytes that it
/// did not write must be initialized too. `Fresh::provide` zeroes them a piece at a time, while other pieces are in flight.
///
/// The engine drops every clone of its region before it drops this or takes its elements.
pub struct Fresh {
    region: Region,
    /// The owner of the memory, which `region` borrows.
    elements: Tensor,
}

impl Fresh {
    /// Memory for this many elements, none of which is zeroed yet; `None` if it cannot be allocated.
    pub(crate) fn new(dtype: Dtype, count: usize) -> Option<Self> {
        let mut elements = Tensor::room(dtype, count)?;
        let (start, bytes) = (elements.start(), count * dtype.size());
        // SAFETY: a tensor's room does not move when the tensor moves or grows within it. The engine accesses only the part of the
        // region that it has provided, and lets peers write only there. The elements are not accessed through the tensor before the
        // region and its clones are dropped, by the duty above.
        let region = unsafe { borrow_raw(start, bytes) };
        advise(&region);
        Some(Self { region, elements })
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    pub(crate) fn dtype(&self) -> Dtype {
        self.elements.dtype()
    }

    /// Provides the first this many bytes, or all if there are fewer: zeroes those that were not provided before.
    pub(crate) fn provide(&mut self, bytes: usize) {
        let count = bytes.min(self.region.len()).div_ceil(self.dtype().size());
        if count > self.elements.len() {
            self.elements.grow(count);
        }
    }

    /// The elements, after the last clone of the region was dropped.
    pub fn into_elements(mut self) -> Tensor {
        self.provide(usize::MAX);
        self.elements
    }
}

/// Memory of at least this many bytes contains a whole huge page wherever it begins.
const HUGE: usize = 4 << 20;

/// Asks the system for huge pages if the memory is large; it was not accessed yet. With small pages the first access costs more than twice
/// as much as a message.
fn advise(memory: &Region) {
    let page = rustix::param::page_size();
    let start = (memory.base() as usize).next_multiple_of(page);
    let end = (memory.base() as usize + memory.len()) / page * page;
    if memory.len() >= HUGE && start < end {
        let start = memory.base().with_addr(start).cast();
        // SAFETY: whole pages of borrowed memory; the advice changes no byte. If the system has no huge pages, nothing changes.
        let _ = unsafe { rustix::mm::madvise(start, end - start.addr(), rustix::mm::Advice::LinuxHugepage) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fresh_memory_is_initialized_as_far_as_it_was_provided() {
        for dtype in Dtype::ALL {
            let (size, count) = (dtype.size(), HUGE / dtype.size() + 5);
            let mut fresh = Fresh::new(dtype, count).unwrap();
            let base = fresh.region().base();
            assert_eq!((fresh.region().len(), fresh.elements.len()), (count * size, 0));
            fresh.provide(size * 99 + 1);
            // SAFETY: no put is under way.
            unsafe { fresh.region().write(0, &vec![7; size * 100]).unwrap() };
            // Written bytes keep their values and their place.
            for bytes in [0, 500, size * 1000, HUGE] {
                fresh.provide(bytes);
                assert_eq!(fresh.elements.len(), count.min(100.max(bytes.div_ceil(size))));
            }
            let elements = fresh.into_elements();
            assert_eq!((elements.dtype(), elements.shape()), (dtype, &[count][..]));
            let (come, zeros) = elements.bytes().split_at(size * 100);
            assert!(come.iter().all(|&byte| byte == 7) && zeros.iter().all(|&byte| byte == 0));
            assert!(elements.bytes().as_ptr() == base && zeros.len() == (count - 100) * size);
        }
        assert!(Fresh::new(Dtype::F64, usize::MAX / 8).is_none());
    }
}
