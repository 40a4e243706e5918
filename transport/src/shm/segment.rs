//! Memory that processes share: sealed memfds and their mappings. A memfd has no name in any file system and ends with its last
//! descriptor and mapping, so nothing is left when a process is killed.
//!
//! A peer can change mapped memory at any time. It is therefore accessed by atomics and by copies between raw pointers only; no
//! reference to its bytes is made.
//!
//! An access never raises SIGBUS. A mapped memfd is sealed against shrinking. The system charges a page when it is first touched
//! (`shmem_acct_blocks` in mm/shmem.c), which it refuses only where it keeps strict account of memory (vm.overcommit_memory=2). So
//! the memory that every endpoint needs has all its pages from the beginning, and regions are not shared there.
#![allow(unsafe_code)]

use std::{
    fs,
    os::fd::OwnedFd,
    slice,
    sync::{
        LazyLock,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
};

use memmap2::{MmapOptions, MmapRaw};
use rustix::{
    fs::{
        FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate,
        memfd_create,
    },
    io::{Errno, retry_on_intr},
    mm::{Advice, MapFlags, ProtFlags, madvise, mmap},
    process::{Resource, getrlimit},
};

use super::error::{Nonsense, StopCause};
use crate::{Error, file};

/// The size of a page; mappings are multiples of it.
const PAGE: usize = 4 << 10;

/// How a mapping may be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    ReadWrite,
}

/// A mapping of a memfd. It is made and ended by libc, where libfabric watches for memory that is unmapped, so that its cache of
/// registrations forgets it (prov/util/src/util_mem_hooks.c).
#[derive(Debug)]
pub(super) struct Segment {
    mapping: MmapRaw,
}

fn no_memory(bytes: usize, call: &str, error: Errno) -> Error {
    let advice = match error {
        Errno::FBIG => "; raise the limit on file sizes (ulimit -f), which holds for this memory too",
        Errno::NOSYS | Errno::PERM | Errno::ACCESS => "; this system or container forbids memfd_create",
        Errno::NOSPC => {
            "; the system keeps strict account of memory (vm.overcommit_memory), and all is promised"
        }
        _ => Error::advice(error),
    };
    Error::SharedMemory { reason: format!("{call} of {bytes} bytes: {error}{advice}") }
}

/// A new memfd of at least `len` zeroed bytes that can neither shrink nor grow, with all its pages, mapped by this process. Peers have
/// this access to it, if the system has such seals (Linux 5.1).
pub(super) fn create(len: usize, access: Access) -> Result<(OwnedFd, Segment), Error> {
    create_with(len, access, true)
}

/// The same for a region. It has only the pages that are touched.
pub(super) fn create_for_region(len: usize, access: Access) -> Result<(OwnedFd, Segment), Error> {
    check_accounting(OVERCOMMIT.as_deref())?;
    create_with(len, access, false)
}

fn create_with(len: usize, access: Access, all_pages: bool) -> Result<(OwnedFd, Segment), Error> {
    let failed = |call| move |error| no_memory(len, call, error);
    let whole = whole(len).ok_or_else(|| no_memory(len, "memfd_create", Errno::NOMEM))?;
    check_limit(whole)?;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("unisono", flags).map_err(failed("memfd_create"))?;
    ftruncate(&file, whole as u64).map_err(failed("ftruncate"))?;
    if all_pages {
        let allocate = || fallocate(&file, FallocateFlags::empty(), 0, whole as u64);
        retry_on_intr(allocate).map_err(failed("fallocate"))?;
    }
    // Mapped before it is sealed, because this process writes to what peers only read.
    let segment = Segment::own(&file, whole)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    let sealed = match access {
        Access::ReadWrite => fcntl_add_seals(&file, seals),
        Access::Read => fcntl_add_seals(&file, seals | SealFlags::FUTURE_WRITE).or_else(|error| {
            crate::log::debug!(%error, "what peers only read is not sealed against their writing");
            fcntl_add_seals(&file, seals)
        }),
    };
    sealed.map_err(failed("sealing"))?;
    Ok((file, segment))
}

static OVERCOMMIT: LazyLock<Option<String>> =
    LazyLock::new(|| fs::read_to_string("/proc/sys/vm/overcommit_memory").ok());

/// True if regions may be shared: not where the system may refuse a page when it is touched.
pub(super) fn may_share() -> bool {
    check_accounting(OVERCOMMIT.as_deref()).is_ok()
}

/// An error if the system may refuse a page when it is touched, as it does with vm.overcommit_memory=2, rather than beforehand.
fn check_accounting(overcommit: Option<&str>) -> Result<(), Error> {
    let overcommit = overcommit.map_or("unknown", str::trim);
    if ["0", "1"].contains(&overcommit) {
        return Ok(());
    }
    Err(Error::SharedMemory {
        reason: format!(
            "vm.overcommit_memory is {overcommit}: with strict accounting of memory, touching what is shared may end the process"
        ),
    })
}

/// The length of a memfd for this many bytes.
pub(super) fn whole(len: usize) -> Option<usize> {
    len.max(1).checked_next_multiple_of(PAGE)
}

/// An error if this process may have no memfd of this many bytes: the system would not refuse it, but kill the process (SIGXFSZ).
pub(super) fn check_limit(len: usize) -> Result<(), Error> {
    within(len, getrlimit(Resource::Fsize).current)
}

fn within(len: usize, limit: Option<u64>) -> Result<(), Error> {
    match limit {
        Some(limit) if len as u64 > limit => Err(no_memory(len, "memfd_create", Errno::FBIG)),
        _ => Ok(()),
    }
}

impl Segment {
    /// Maps the first `len` bytes of a memfd of this process.
    pub(super) fn own(file: &OwnedFd, len: usize) -> Result<Self, Error> {
        Self::map(file, 0, len, Access::ReadWrite).map_err(|error| no_memory(len, "mmap", error))
    }

    /// Maps the pages of `len` bytes of a peer's memfd, from `offset` on. It must have these bytes, and keep them.
    pub(super) fn of_peer(
        file: &OwnedFd,
        offset: u64,
        len: usize,
        access: Access,
    ) -> Result<Self, StopCause> {
        let seals = fcntl_get_seals(file).map_err(|_| Nonsense("a descriptor that is not a memfd"))?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(Nonsense("memory that can shrink").into());
        }
        if file::is_huge(file) {
            return Err(Nonsense("memory that can be taken away").into());
        }
        let size = fstat(file).ok().and_then(|stat| u64::try_from(stat.st_size).ok());
        let end = offset.checked_add(len as u64).filter(|_| offset.is_multiple_of(PAGE as u64) && len > 0);
        let whole = whole(len).filter(|_| end.is_some_and(|end| size.is_some_and(|size| end <= size)));
        let whole = whole.ok_or(Nonsense("memory of another length"))?;
        Self::map(file, offset, whole, access).map_err(|error| match error {
            Errno::NOMEM | Errno::AGAIN => no_memory(len, "mmap", error).into(),
            _ => Nonsense("memory that cannot be mapped").into(),
        })
    }

    fn map(file: &OwnedFd, offset: u64, len: usize, access: Access) -> Result<Self, Errno> {
        let mut options = MmapOptions::new();
        options.offset(offset).len(len);
        let mapping = match access {
            Access::Read => options.map_raw_read_only(file),
            Access::ReadWrite => options.map_raw(file),
        };
        let mapping = mapping.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::NOMEM))?;
        Ok(Self { mapping })
    }

    pub(super) fn base(&self) -> *mut u8 {
        self.mapping.as_mut_ptr()
    }

    pub(super) fn len(&self) -> usize {
        self.mapping.len()
    }

    /// The address of `len` bytes from `offset` on, if they lie in the segment.
    pub(super) fn at(&self, offset: usize, len: usize) -> Option<*mut u8> {
        let end = offset.checked_add(len)?;
        // SAFETY: within the mapping, or one past it, as is checked.
        (end <= self.len()).then(|| unsafe { self.base().add(offset) })
    }

    /// All of it as atomics. They may only be loaded where the mapping is for reading.
    pub(super) fn words(&self) -> &[AtomicU64] {
        // SAFETY: mapped as long as `self` lives, page-aligned, and a multiple of a page long; peers change it as atomics may change.
        unsafe { slice::from_raw_parts(self.base().cast(), self.len() / size_of::<AtomicU64>()) }
    }

    /// Ends the sharing: the bytes stay where they are, but are private to this process from now on. Other threads may read and
    /// write them meanwhile.
    pub(super) fn make_private(&self, file: &OwnedFd) -> Result<(), Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // Without a reservation, which could be refused when the old mapping is gone already. Where accounting is strict there is
        // always one, and no memory of a region.
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: replaces exactly this segment's pages by the same file's, with the same bytes; the system does that at once for
        // all threads.
        unsafe { mmap(self.base().cast(), self.len(), protection, flags, file, 0)? };
        // A page that was not written yet still shows what peers write to the file: each is copied now.
        // SAFETY: changes no byte.
        if unsafe { madvise(self.base().cast(), self.len(), Advice::LinuxPopulateWrite) }.is_err() {
            for page in (0..self.len()).step_by(PAGE) {
                // SAFETY: within the mapping; a write that changes nothing, and is atomic in the machine.
                let byte = unsafe { AtomicU8::from_ptr(self.base().add(page)) };
                byte.fetch_or(0, Ordering::Relaxed);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_would_kill_for_is_refused() {
        assert!(within(PAGE, None).is_ok() && within(PAGE, Some(PAGE as u64)).is_ok());
        let message = within(PAGE, Some(PAGE as u64 - 1)).unwrap_err().to_string();
        assert!(message.contains("of 4096 bytes") && message.contains("ulimit -f"), "{message}");
    }

    #[test]
    fn a_segment_is_seen_by_both_and_cannot_shrink() {
        let (file, ours) = create(5000, Access::ReadWrite).unwrap();
        assert_eq!(ours.len(), 8192);
        let theirs = Segment::of_peer(&file, 0, 8192, Access::ReadWrite).unwrap();
        ours.words()[1023].store(7, Ordering::Relaxed);
        assert_eq!(theirs.words()[1023].load(Ordering::Relaxed), 7);
        assert!(ftruncate(&file, 0).is_err());
        assert!(ours.at(8192, 0).is_some() && ours.at(8192, 1).is_none() && ours.at(usize::MAX, 2).is_none());
    }

    #[test]
    fn what_every_endpoint_needs_has_all_its_pages() {
        let pages = |file: &OwnedFd| usize::try_from(fstat(file).unwrap().st_blocks).unwrap() * 512 / PAGE;
        for len in [1, 5000, 65 * PAGE] {
            for access in [Access::Read, Access::ReadWrite] {
                let (file, segment) = create(len, access).unwrap();
                assert_eq!(pages(&file), segment.len() / PAGE);
                assert_eq!(pages(&create_for_region(len, access).unwrap().0), 0);
            }
        }
    }

    #[test]
    fn regions_are_not_shared_where_the_system_refuses_pages_that_are_touched() {
        assert!(check_accounting(Some("0\n")).is_ok() && check_accounting(Some("1")).is_ok());
        for (overcommit, word) in [(Some("2\n"), "2"), (Some(""), ""), (None, "unknown")] {
            let message = check_accounting(overcommit).unwrap_err().to_string();
            assert!(message.contains(&format!("vm.overcommit_memory is {word}: ")), "{message}");
        }
    }

    #[test]
    fn a_peers_descriptor_is_checked() {
        let refused = |mapped: Result<Segment, StopCause>| match mapped.unwrap_err() {
            StopCause::Peer(failure) => format!("{failure:?}"),
            StopCause::Error(error) => panic!("{error}"),
        };
        let (file, ours) = create(5000, Access::ReadWrite).unwrap();
        let len = ours.len();
        assert!(
            refused(Segment::of_peer(&file, 0, len + PAGE, Access::Read))
                .contains("memory of another length")
        );
        for (offset, len) in [(1, 8), (2 * PAGE as u64, 8), (0, 0), (PAGE as u64, len), (u64::MAX - 4095, 8)]
        {
            let message = refused(Segment::of_peer(&file, offset, len, Access::Read));
            assert!(message.contains("memory of another length"), "{message}");
        }
        assert_eq!(Segment::of_peer(&file, PAGE as u64, 8, Access::Read).unwrap().len(), PAGE);
        let unsealed = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&unsealed, 8192).unwrap();
        assert!(
            refused(Segment::of_peer(&unsealed, 0, len, Access::Read)).contains("memory that can shrink")
        );
        let null = fs::File::open("/dev/null").unwrap().into();
        assert!(
            refused(Segment::of_peer(&null, 0, len, Access::Read))
                .contains("a descriptor that is not a memfd")
        );
        let (file, segment) = create(8, Access::Read).unwrap();
        assert!(Segment::of_peer(&file, 0, segment.len(), Access::ReadWrite).is_err());
        let theirs = Segment::of_peer(&file, 0, segment.len(), Access::Read).unwrap();
        segment.words()[0].store(3, Ordering::Relaxed);
        assert_eq!(theirs.words()[0].load(Ordering::Relaxed), 3);
    }

    #[test]
    fn what_was_made_private_is_not_written_by_peers() {
        let (file, ours) = create(4 * PAGE, Access::ReadWrite).unwrap();
        let theirs = Segment::of_peer(&file, 0, ours.len(), Access::ReadWrite).unwrap();
        ours.words().iter().for_each(|word| word.store(1, Ordering::Relaxed));
        ours.make_private(&file).unwrap();
        theirs.words().iter().for_each(|word| word.store(2, Ordering::Relaxed));
        assert!(ours.words().iter().all(|word| word.load(Ordering::Relaxed) == 1));
    }
}
