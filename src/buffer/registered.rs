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

use unisono_transport::Region;

use crate::dtype::Element;

/// Elements in memory that is registered with the transport, so that every provider sends them without a copy. It dereferences to a
/// slice, so that every call that takes a slice takes it, or a part of it.
///
/// [`crate::ProcessGroup::buffer`] allocates it, and [`crate::ProcessGroup::buffer_from`] makes it of memory that is there. It may
/// outlive the group.
pub struct Buffer<T> {
    region: Region,
    len: usize,
    registry: Arc<Registry>,
    element: PhantomData<T>,
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        self.registry.lock().remove(&(self.region.base() as usize));
    }
}

/// The registered buffers of a group, by address, so that a slice of one is recognized.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    regions: Mutex<BTreeMap<usize, Region>>,
    /// Whether there ever was a buffer; if not, a search need not take the lock.
    used: AtomicBool,
}

impl Registry {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, Region>> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(&self, region: &Region) {
        self.lock().insert(region.base() as usize, region.clone());
        self.used.store(true, Ordering::Release);
    }

    /// Whether there ever was a buffer.
    pub(super) fn is_used(&self) -> bool {
        self.used.load(Ordering::Acquire)
    }

    /// The registered region that contains borrowed memory, and the offset in it.
    pub(crate) fn find(&self, borrowed: &Region) -> Option<(Region, usize)> {
        if !self.is_used() {
            return None;
        }
        let start = borrowed.base() as usize;
        let regions = self.lock();
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
        // the memory too, whoever made the `Memory` has promised that they keep to that.
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
