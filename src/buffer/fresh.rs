//! New memory for messages whose length only the sender knows.
#![allow(unsafe_code)]

use unisono_transport::Region;

use super::raw::borrow_raw;
use crate::{dtype::Dtype, tensor::Tensor};

/// Memory of its own for a message whose place is not known when it comes.
///
/// Bytes are zeros before anybody may write there: nothing but what peers say tells whether they have written what
/// they were to write, and what they have not must be bytes all the same. [`Fresh::provide`] makes them, a piece at a
/// time, so that it is done while others are under way.
///
/// The engine drops every clone of its region before it drops this or takes its bytes.
pub(crate) struct Fresh {
    region: Region,
    /// Its room is borrowed to `region`.
    elements: Tensor,
}

impl Fresh {
    /// For so many elements; `None` where so much memory is not to be had. None is there yet.
    pub(crate) fn new(dtype: Dtype, count: usize) -> Option<Self> {
        let mut elements = Tensor::room(dtype, count)?;
        let (start, bytes) = (elements.start(), count * dtype.size());
        // SAFETY: a tensor's room stays where it is when it moves or grows within it. Of the region only that is
        // touched which is there: the engine reads and writes what it has provided, and tells peers of no more. What is
        // there is not touched through the tensor before the region and its clones are gone, by the duty above.
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

    /// Makes zeros of what is not there yet of the first so many bytes, or of all if there are fewer.
    pub(crate) fn provide(&mut self, bytes: usize) {
        let count = bytes.min(self.region.len()).div_ceil(self.dtype().size());
        if count > self.elements.len() {
            self.elements.grow(count);
        }
    }

    /// The elements, after the last clone of the region has gone.
    pub(crate) fn into_elements(mut self) -> Tensor {
        self.provide(usize::MAX);
        self.elements
    }
}

/// From so many bytes on memory is worth huge pages: one of them, and what lies beside it.
const HUGE: usize = 4 << 20;

/// Asks for huge pages, where there is much memory and nobody has touched it: with small ones its first touch costs more than
/// twice what a message costs that comes there.
fn advise(memory: &Region) {
    let page = rustix::param::page_size();
    let start = (memory.base() as usize).next_multiple_of(page);
    let end = (memory.base() as usize + memory.len()) / page * page;
    if memory.len() >= HUGE && start < end {
        let start = memory.base().with_addr(start).cast();
        // SAFETY: whole pages of memory that is borrowed to us; advice changes no byte of it. Where the system has no huge pages
        // to give, it stays as it is.
        let _ = unsafe { rustix::mm::madvise(start, end - start.addr(), rustix::mm::Advice::LinuxHugepage) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fresh_memory_is_there_as_far_as_it_was_provided() {
        for dtype in Dtype::ALL {
            let (size, count) = (dtype.size(), HUGE / dtype.size() + 5);
            let mut fresh = Fresh::new(dtype, count).unwrap();
            let base = fresh.region().base();
            assert_eq!((fresh.region().len(), fresh.elements.len()), (count * size, 0));
            fresh.provide(size * 99 + 1);
            // SAFETY: no put is under way.
            unsafe { fresh.region().write(0, &vec![7; size * 100]).unwrap() };
            // What has come stays, and where it is.
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
