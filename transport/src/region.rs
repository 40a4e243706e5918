//! Memory that puts read and write.
//!
//! A [`Region`] is a reference-counted handle (that of borrowed memory counts nothing). A transport keeps a clone of it while a put is
//! under way, so that the memory is not freed before the put has ended. Dropping the last clone closes the registration first, and
//! then frees the memory.
#![allow(unsafe_code)]

use std::{
    any::Any,
    os::fd::AsFd,
    ptr,
    sync::{Arc, OnceLock, Weak},
};

use rustix::mm::{Advice, madvise};

use crate::{
    Error, Source,
    file::{self, Memfd},
};

/// Memory before it is registered: an anonymous mapping, a part of a memfd, or memory that has another owner.
#[derive(Debug)]
pub struct Memory {
    base: *mut u8,
    len: usize,
    owner: Option<Box<dyn Any + Send + Sync>>,
    memfd: Option<Arc<Memfd>>,
}

// SAFETY: `Memory` is a pointer to memory that either belongs to it (the mapping) or was promised to stay
// valid by the caller of `borrowed`; nothing in it is tied to a thread.
unsafe impl Send for Memory {}
// SAFETY: as above; all access through a shared reference goes through the methods of `Region`, whose
// contracts say which thread may touch which bytes when.
unsafe impl Sync for Memory {}

impl Memory {
    /// A zeroed anonymous mapping of `len` bytes, page-aligned.
    ///
    /// # Errors
    /// [`Error::Map`] if the system refuses.
    pub fn map(len: usize) -> Result<Self, Error> {
        let failed = |error: std::io::Error| Error::Map { bytes: len, reason: error.to_string() };
        let mut mapping = memmap2::MmapMut::map_anon(len.max(1)).map_err(failed)?;
        Ok(Self { base: mapping.as_mut_ptr(), len, owner: Some(Box::new(mapping)), memfd: None })
    }

    /// `len` bytes of a memfd from `offset` on, a multiple of the size of a page. This process may have made it by memfd_create with
    /// MFD_ALLOW_SEALING, or another, which has handed over its descriptor. The memfd is sealed against shrinking (F_SEAL_SHRINK), and
    /// all pages of this part are there afterwards: those that were missing are zeros.
    ///
    /// Its mapping lasts as long as this memory, and the descriptor is not kept. Once it is [registered](crate::Transport::register)
    /// with a transport that [maps](crate::Limits::maps), peers of this host read it in place. They do not write to it: this process
    /// copies the bytes that they put there.
    ///
    /// ```
    /// # use std::os::fd::OwnedFd;
    /// # use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    /// # use unisono_transport::{Transport, inproc::Hub, Memory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let file: OwnedFd = memfd_create("tensors", MemfdFlags::ALLOW_SEALING)?;
    /// ftruncate(&file, 3 << 20)?;
    /// // SAFETY: nobody else has it.
    /// let memory = unsafe { Memory::of_memfd(&file, 1 << 20, 2 << 20)? };
    /// let region = Hub::new().open().register(memory)?;
    /// assert!(region.remote().is_some_and(|remote| remote.mappable));
    /// # Ok(()) }
    /// ```
    ///
    /// # Safety
    /// Until every [`Region`] made of it is gone, all processes that have mapped these bytes follow Rust's rules for references: none
    /// writes to bytes to which there is a reference, or which a put or a peer reads; and none touches bytes to which there is an
    /// exclusive reference, or to which a put writes. None takes pages away (FALLOC_FL_PUNCH_HOLE).
    ///
    /// # Errors
    /// [`Error::Memfd`] if it is no memfd, or one of huge pages (MFD_HUGETLB), is not open for reading and writing, can shrink and not
    /// be sealed against that, or does not have these bytes.
    pub unsafe fn of_memfd(file: impl AsFd, offset: u64, len: usize) -> Result<Self, Error> {
        let (mapping, memfd) = file::map(file.as_fd(), offset, len)?;
        let memfd = memfd.map(Arc::new);
        Ok(Self { base: mapping.as_mut_ptr(), len, owner: Some(Box::new(mapping)), memfd })
    }

    /// `len` bytes from `base` on, which have another owner.
    ///
    /// # Safety
    /// From now until every [`Region`] made of it is gone, `base` must be valid for reads of `len` bytes,
    /// and for writes too if it is registered and its remote region is given to a peer or if it is written
    /// through [`Region`]; and nothing may touch, in the meantime, bytes that a put reads or writes.
    #[must_use]
    pub unsafe fn borrowed(base: *mut u8, len: usize) -> Self {
        Self { base, len, owner: None, memfd: None }
    }

    /// `len` bytes from `base` on, which are freed when `owner` is dropped.
    ///
    /// # Safety
    /// They are valid for reads and writes, and have no other owner, until `owner` is dropped.
    pub(crate) unsafe fn owned(base: *mut u8, len: usize, owner: impl Any + Send + Sync) -> Self {
        Self { base, len, owner: Some(Box::new(owner)), memfd: None }
    }

    /// The part of a memfd that peers may map to read it in place.
    pub(crate) fn memfd(&self) -> Option<&Arc<Memfd>> {
        self.memfd.as_ref()
    }

    /// The address of the first byte.
    #[must_use]
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if it has no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// A transport's registration of a region's memory. Dropping `guard` closes it.
#[derive(Debug)]
pub struct Registration {
    /// What peers need in order to write to the region.
    pub remote: RemoteRegion,
    /// libfabric's memory descriptor for local puts; null if none is needed.
    pub descriptor: *mut std::ffi::c_void,
    /// Closes the registration when it is dropped, which is before the memory is freed.
    pub guard: Box<dyn Any + Send + Sync>,
}

// SAFETY: the descriptor is an opaque token that is only ever handed back to the library it came from.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

/// A registered region as its peers know it: what a put needs to write to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RemoteRegion {
    /// Added to a put's offset: the region's virtual address, or 0 where the provider counts from the
    /// region's beginning.
    pub base: u64,
    /// The registration's key.
    pub key: u64,
    /// The region's length in bytes.
    pub len: u64,
    /// True if peers of its host can map its memory ([`crate::shm`]).
    pub mappable: bool,
}

impl RemoteRegion {
    /// The bit of the word of the length that says [`Self::mappable`]. No memory is that long.
    const MAPPABLE: u64 = 1 << 63;

    /// The region as three words, to be handed to peers: base, key, and the length with a bit for [`Self::mappable`].
    #[must_use]
    pub fn words(&self) -> [u64; 3] {
        [self.base, self.key, self.len | if self.mappable { Self::MAPPABLE } else { 0 }]
    }

    /// The region of these [words](Self::words). Any words make one: it is a peer's claim, which each put checks.
    #[must_use]
    pub fn from_words([base, key, len]: [u64; 3]) -> Self {
        Self { base, key, len: len & !Self::MAPPABLE, mappable: len & Self::MAPPABLE != 0 }
    }
}

/// Memory that puts read from and, when registered, peers write to. Cloning copies a handle.
#[derive(Clone, Debug)]
pub struct Region {
    base: *mut u8,
    len: usize,
    /// The memory and its registrations; `None` for memory that is not registered and has another owner, so that a call that
    /// borrows memory allocates nothing.
    kept: Option<Arc<Inner>>,
}

// SAFETY: a region refers to `Memory`, for which the same was said above.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

#[derive(Debug)]
struct Inner {
    // Order matters: registrations go before the memory does. The second one has the key of the first, so it goes before that key is
    // free.
    second: OnceLock<Second>,
    registration: Option<Registration>,
    #[expect(dead_code, reason = "frees the memory when it is dropped; regions know where it lies")]
    memory: Memory,
}

/// Another transport's registration of a region, under the key of the first.
#[derive(Debug)]
struct Second {
    mappable: bool,
    #[expect(dead_code, reason = "closes the registration when it is dropped; it is never read")]
    guard: Box<dyn Any + Send + Sync>,
}

/// Identifies a region, and does not keep its memory.
#[derive(Clone, Debug)]
pub struct WeakRegion(Weak<Inner>);

impl WeakRegion {
    /// True if it is this region.
    #[must_use]
    pub fn is(&self, region: &Region) -> bool {
        region.kept.as_ref().is_some_and(|kept| ptr::eq(self.0.as_ptr(), Arc::as_ptr(kept)))
    }

    /// True if the region is still there.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.0.strong_count() > 0
    }
}

impl Region {
    /// A weak reference that identifies this region.
    #[must_use]
    pub fn downgrade(&self) -> WeakRegion {
        WeakRegion(self.kept.as_ref().map(Arc::downgrade).unwrap_or_default())
    }

    /// Memory that is not registered. It can be a source on transports without [`crate::Limits::local_registration`], and scratch.
    #[inline]
    #[must_use]
    pub fn unregistered(memory: Memory) -> Self {
        let borrowed = memory.owner.is_none() && memory.memfd.is_none();
        if borrowed {
            Self { base: memory.base, len: memory.len, kept: None }
        } else {
            Self::kept(memory, None)
        }
    }

    /// Memory with the registration that a transport made for it.
    #[must_use]
    pub fn registered(memory: Memory, registration: Registration) -> Self {
        Self::kept(memory, Some(registration))
    }

    fn kept(memory: Memory, registration: Option<Registration>) -> Self {
        let (base, len) = (memory.base, memory.len);
        Self { base, len, kept: Some(Arc::new(Inner { second: OnceLock::new(), registration, memory })) }
    }

    fn registration(&self) -> Option<&Registration> {
        self.kept.as_ref()?.registration.as_ref()
    }

    /// Another transport has registered the region too, under the same key; `guard` closes that registration when it is dropped,
    /// before the first is closed. `mappable` says whether peers can map the memory.
    ///
    /// # Errors
    /// [`Error::Unexpected`] if it has a second registration already.
    pub(crate) fn registered_again(
        self,
        mappable: bool,
        guard: impl Any + Send + Sync,
    ) -> Result<Self, Error> {
        let second = Second { mappable, guard: Box::new(guard) };
        let set = self.kept.as_ref().is_some_and(|kept| kept.second.set(second).is_ok());
        let twice = || "a region that shared memory has registered already, or nobody has".into();
        if set { Ok(self) } else { Err(Error::Unexpected { call: "register", value: twice() }) }
    }

    /// What peers need to write here, if it is registered.
    #[must_use]
    pub fn remote(&self) -> Option<RemoteRegion> {
        let mappable = self.kept.as_ref()?.second.get().is_some_and(|second| second.mappable);
        let remote = self.registration()?.remote;
        Some(RemoteRegion { mappable: remote.mappable || mappable, ..remote })
    }

    /// The local descriptor; null if it is not registered or none is needed.
    #[must_use]
    pub fn descriptor(&self) -> *mut std::ffi::c_void {
        self.registration().map_or(ptr::null_mut(), |registration| registration.descriptor)
    }

    /// The registration's guard, if it is of this type. A transport recognises its regions by it.
    pub(crate) fn guard<T: Any>(&self) -> Option<&T> {
        self.registration().and_then(|registration| registration.guard.downcast_ref())
    }

    /// Where the memory begins.
    #[must_use]
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if it has no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Asks the system for all its pages at once, which takes less time than one after the other when they are first written, or read
    /// if it is mapped from a peer. Does nothing where the system cannot (before Linux 5.14), or has too few pages.
    pub fn populate(&self, for_writes: bool) {
        let page = rustix::param::page_size();
        let (start, end) = (self.base().addr().next_multiple_of(page), self.base().addr() + self.len());
        let Some(len) = end.checked_sub(start).map(|len| len / page * page) else { return };
        let advice = if for_writes { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
        // SAFETY: whole pages of this memory, which lives as long as `self`; the advice changes no byte.
        let _ = unsafe { madvise(self.base().with_addr(start).cast(), len, advice) };
    }

    /// Copies bytes out of the region, from `offset` on.
    ///
    /// # Safety
    /// Nothing writes to these bytes meanwhile: no other clone of the region, and no put. A caller that has been notified of the
    /// last put's arrival, and has not yet allowed the next, may read.
    ///
    /// # Errors
    /// [`Error::Bounds`] if they do not lie within the region.
    ///
    /// Without that promise two threads would race:
    ///
    /// ```compile_fail,E0133
    /// # use unisono_transport::{Memory, Region};
    /// # fn main() -> Result<(), unisono_transport::Error> {
    /// let region = Region::unregistered(Memory::map(4096)?);
    /// std::thread::scope(|threads| {
    ///     threads.spawn(|| region.write(0, &[1; 4096]));
    ///     threads.spawn(|| region.read(0, &mut [0; 4096]));
    /// });
    /// # Ok(()) }
    /// ```
    pub unsafe fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), Error> {
        self.check(offset, into.len())?;
        // SAFETY: in bounds by the check; `into` is exclusively borrowed and so does not overlap the region; the region's memory is
        // valid while `self` lives; and at rest by the caller's promise.
        unsafe { ptr::copy_nonoverlapping(self.base().add(offset), into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Copies bytes into the region, from `offset` on.
    ///
    /// # Safety
    /// Nothing reads or writes these bytes meanwhile: no other clone of the region, and no put.
    ///
    /// # Errors
    /// [`Error::Bounds`] if they do not lie within the region.
    pub unsafe fn write(&self, offset: usize, from: &[u8]) -> Result<(), Error> {
        self.check(offset, from.len())?;
        // SAFETY: in bounds by the check, and the caller's alone by its promise; `copy` allows `from` to overlap.
        unsafe { ptr::copy(from.as_ptr(), self.base().add(offset), from.len()) };
        Ok(())
    }

    /// Checks that these bytes lie within the region.
    pub(crate) fn check(&self, offset: usize, len: usize) -> Result<(), Error> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len() => Ok(()),
            _ => Err(Error::Bounds { offset, len, region: self.len() }),
        }
    }
}

/// Where a source begins, and how many bytes it has.
pub(crate) fn bytes(source: &Source<'_>) -> (*const u8, usize) {
    let region = source.region();
    // SAFETY: `Source` is in bounds of its region, which it borrows.
    (unsafe { region.base().add(source.offset()) }.cast_const(), source.len())
}

/// Copies `from`, joined, to `base`.
///
/// # Safety
/// `base` must be valid for writes of all the bytes together, and nothing else may read or write these bytes meanwhile; the sources
/// must be at rest.
pub(crate) unsafe fn gather(from: impl Iterator<Item = (*const u8, usize)>, mut base: *mut u8) {
    for (start, len) in from {
        // SAFETY: by the caller's promise; `copy` allows a put from a region to itself.
        unsafe {
            ptr::copy(start, base, len);
            base = base.add(len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_what_its_words_say() {
        for mappable in [false, true] {
            let region = RemoteRegion { base: u64::MAX, key: 1 << 63, len: u64::MAX >> 1, mappable };
            assert_eq!(RemoteRegion::from_words(region.words()), region);
            let short = RemoteRegion { len: 3, ..region };
            assert_eq!(RemoteRegion::from_words(short.words()), short);
            assert_ne!(short.words(), RemoteRegion { mappable: !mappable, ..short }.words());
        }
    }
}
