//! Buffers in memory that is registered with the transport.
#![allow(unsafe_code)]

use std::{
    collections::BTreeMap,
    fmt,
    marker::PhantomData,
    ops::{Deref, DerefMut},
    slice,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use unisono_transport::{Region, fork::Process};

use crate::dtype::Element;

/// Elements in memory that is registered with the transport, so that every provider sends them without a copy. It dereferences to a
/// slice, so that every call that takes a slice takes it, or a part of it.
///
/// [`crate::ProcessGroup::buffer`] allocates it, and [`Buffer::of`] makes it of existing memory. It may
/// outlive the group.
pub struct Buffer<T> {
    region: Region,
    len: usize,
    registry: Arc<Registry>,
    element: PhantomData<T>,
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        if let Some(mut regions) = self.registry.lock() {
            regions.remove(&(self.region.base() as usize));
        }
    }
}

/// The registered buffers of a group, by address, so that a slice of one is recognized.
#[derive(Debug)]
pub(crate) struct Registry {
    /// The process whose group it is.
    process: Process,
    regions: Mutex<BTreeMap<usize, Region>>,
    /// True if there ever was a buffer; if not, a search need not take the lock.
    used: AtomicBool,
}

impl Default for Registry {
    fn default() -> Self {
        Self { process: Process::this(), regions: Mutex::default(), used: AtomicBool::default() }
    }
}

impl Registry {
    /// `None` in a forked child: there, the lock may be held by a thread that the child does not have.
    fn lock(&self) -> Option<MutexGuard<'_, BTreeMap<usize, Region>>> {
        self.process.is_this().then(|| self.regions.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn insert(&self, region: &Region) {
        if let Some(mut regions) = self.lock() {
            regions.insert(region.base() as usize, region.clone());
        }
        self.used.store(true, Ordering::Release);
    }

    pub(super) fn is_used(&self) -> bool {
        self.used.load(Ordering::Acquire)
    }

    /// The registered region that contains borrowed memory, and the offset in it.
    pub(crate) fn find(&self, borrowed: &Region) -> Option<(Region, usize)> {
        if !self.is_used() {
            return None;
        }
        let start = borrowed.base() as usize;
        let regions = self.lock()?;
        let (base, region) = regions.range(..=start).next_back()?;
        let offset = start - base;
        (offset + borrowed.len() <= region.len()).then(|| (region.clone(), offset))
    }
}

impl<T: Element> Buffer<T> {
    /// The first `len` elements of a region that this buffer owns; `None` if they do not fit or are not aligned.
    pub(crate) fn new(region: Region, len: usize, registry: &Arc<Registry>) -> Option<Self> {
        let fits = len.checked_mul(size_of::<T>())? <= region.len();
        let aligned = (region.base() as usize).is_multiple_of(align_of::<T>());
        if !(fits && aligned) {
            return None;
        }
        registry.insert(&region);
        Some(Self { region, len, registry: Arc::clone(registry), element: PhantomData })
    }

    /// The address of the first element, for a [`Foreign`](super::Foreign) operand of this memory. Makes no reference to the
    /// elements.
    #[must_use]
    pub fn base(&self) -> *mut T {
        self.region.base().cast()
    }
}

impl<T: Element> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `new` checked length and alignment; the region is a mapping that lives as long as `self`; any bits are a `T`
        // (`Element: Pod`). It is written only through `deref_mut` and in calls that borrow this buffer exclusively: only these let
        // peers write to the region, and such a call ends only when all their writes have landed, or with the endpoint. If others have
        // the memory too, the code that made the `Memory` has promised that they keep to that.
        unsafe { slice::from_raw_parts(self.region.base().cast::<T>(), self.len) }
    }
}

impl<T: Element> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above; `&mut self` makes it exclusive.
        unsafe { slice::from_raw_parts_mut(self.region.base().cast::<T>(), self.len) }
    }
}

impl<T: Element + fmt::Debug> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        thread,
        time::{Duration, Instant},
    };

    use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
    use unisono_transport::{Transport, inproc::Hub};

    use super::*;

    /// In a forked child a missing thread may hold the lock for ever.
    #[test]
    fn a_buffer_is_dropped_in_a_forked_child_whatever_its_parent_holds() {
        let registry = Arc::new(Registry::default());
        let region = Hub::new().open().allocate(64).unwrap();
        let buffer = Buffer::<u8>::new(region, 64, &registry).unwrap();
        let held = registry.lock().unwrap();
        // SAFETY: the child runs this thread alone, which drops the buffer and ends without returning.
        let child = unsafe { libc::fork() };
        if child == 0 {
            drop(buffer);
            // SAFETY: ends the child, without what the test harness does at the end of a process.
            unsafe { libc::_exit(0) };
        }
        let child = Pid::from_raw(child).expect("no child was made");
        let begun = Instant::now();
        let status = loop {
            if let Some((_, status)) = waitpid(Some(child), WaitOptions::NOHANG).unwrap() {
                break status;
            }
            if begun.elapsed() > Duration::from_secs(20) {
                kill_process(child, Signal::KILL).unwrap();
            }
            thread::sleep(Duration::from_millis(5));
        };
        assert_eq!((status.exit_status(), status.terminating_signal()), (Some(0), None));
        drop(held);
        // The parent still has it.
        assert_eq!(registry.lock().unwrap().len(), 1);
        drop(buffer);
        assert_eq!(registry.lock().unwrap().len(), 0);
    }
}
