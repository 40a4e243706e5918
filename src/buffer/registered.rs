//! Buffers in memory that is registered with the transport.
#![allow(unsafe_code)]

use std::{
    fmt,
    marker::PhantomData,
    ops::{Deref, DerefMut},
    slice,
    sync::Arc,
};

use unisono_engine::Registry;
use unisono_transport::Region;

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
        self.registry.remove(&self.region);
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
