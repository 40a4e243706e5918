//! Memory that the transport has not made: a part of a memfd, mapped here.
//!
//! A process that touches a page beyond the end of a file, or one that the system cannot give, is killed (SIGBUS). So a memfd is taken only
//! if it is sealed against shrinking, or can be; and all pages of the part are there before it is used. Files in directories have
//! no seals, not even in /dev/shm. Pages of hugetlbfs can be taken away again, and then there may be no others.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use memmap2::{MmapOptions, MmapRaw};
use rustix::{
    fs::{
        FallocateFlags, Mode, OFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fcntl_getfl,
        fstat, fstatfs, open,
    },
    io::{Errno, retry_on_intr},
    param::page_size,
};

use crate::Error;

/// The kind of file system of huge pages (`HUGETLBFS_MAGIC` of linux/magic.h).
const HUGETLBFS: u64 = 0x9584_58f6;

/// A part of a memfd that peers may map, and its descriptor for them.
#[derive(Debug)]
pub(crate) struct Memfd {
    pub(crate) file: OwnedFd,
    pub(crate) offset: u64,
}

/// Maps `len` bytes of a memfd from `offset` on, and returns the part for peers, who cannot write to it, if there can be a descriptor for that.
///
/// # Errors
/// [`Error::Memfd`] with the reason, and what to do.
pub(crate) fn map(file: BorrowedFd<'_>, offset: u64, len: usize) -> Result<(MmapRaw, Option<Memfd>), Error> {
    let refused = |reason| Error::Memfd { offset, len, reason };
    check_file(file).map_err(refused)?;
    check_part(file, offset, len).map_err(refused)?;
    let system = |call: &'static str| move |error: Errno| refused(format!("{call}: {error}"));
    fcntl_add_seals(file, SealFlags::SHRINK).or_else(|error| {
        // Another process may have sealed it meanwhile.
        let sealed = fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        if sealed { Ok(()) } else { Err(system("sealing it against shrinking")(error)) }
    })?;
    // It is sealed here, so that it cannot shrink.
    check_part(file, offset, len).map_err(refused)?;
    retry_on_intr(|| fallocate(file, FallocateFlags::KEEP_SIZE, offset, len as u64))
        .map_err(system("fallocate, which gets all its pages"))?;
    let mapping = MmapOptions::new().offset(offset).len(len).map_raw(&file);
    let mapping = mapping.map_err(|error| refused(format!("mmap: {error}")))?;
    let for_peers = reopen(file).inspect_err(|error| {
        crate::log::debug!(%error, "a memfd is not for peers: it cannot be opened for reading by /proc/self/fd");
    });
    Ok((mapping, for_peers.ok().map(|file| Memfd { file, offset })))
}

/// The reason why a file is refused, if it is.
fn check_file(file: BorrowedFd<'_>) -> Result<(), String> {
    let seals = fcntl_get_seals(file).map_err(|error| {
        format!(
            "it is not memory: a descriptor of memfd_create is wanted, and this one has no seals ({error})"
        )
    })?;
    if is_huge(file) {
        return Err("it lies in huge pages (MFD_HUGETLB), which can be taken away while they are used: \
                    create it without that flag"
            .into());
    }
    let opened = fcntl_getfl(file).map_err(|error| format!("its flags cannot be read: {error}"))?;
    if opened & OFlags::RWMODE != OFlags::RDWR {
        return Err("the descriptor is not open for reading and writing".into());
    }
    if seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
        return Err("it is sealed against writing".into());
    }
    if seals.contains(SealFlags::SEAL) && !seals.contains(SealFlags::SHRINK) {
        return Err("it can shrink, which would kill a process that uses it (SIGBUS), and takes no seal against that; shm_open makes \
                    such files: create it by memfd_create with MFD_ALLOW_SEALING, or seal it with F_SEAL_SHRINK"
            .into());
    }
    Ok(())
}

/// The reason why these bytes are refused, if they are.
fn check_part(file: BorrowedFd<'_>, offset: u64, len: usize) -> Result<(), String> {
    if len == 0 {
        return Err("there is no byte in it".into());
    }
    let page = page_size();
    if !offset.is_multiple_of(page as u64) {
        return Err(format!("the offset is no multiple of the size of a page, {page} bytes"));
    }
    let size = fstat(file).map_err(|error| format!("its size cannot be read: {error}"))?.st_size;
    let size = u64::try_from(size).unwrap_or(0);
    if offset.checked_add(len as u64).is_none_or(|end| end > size) {
        return Err(format!("it has {size} bytes (ftruncate makes it longer)"));
    }
    Ok(())
}

/// True if a file lies in huge pages, which can be taken away.
pub(crate) fn is_huge(file: impl AsFd) -> bool {
    fstatfs(file).is_ok_and(|about| u64::try_from(about.f_type) == Ok(HUGETLBFS))
}

/// Another descriptor of the same file, for reading only.
fn reopen(file: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let again = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let which = |file: BorrowedFd<'_>| fstat(file).map(|about| (about.st_dev, about.st_ino));
    // A mount at this path may belong to another process.
    if which(file)? == which(again.as_fd())? { Ok(again) } else { Err(Errno::NOENT) }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, path::Path};

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    const SEALING: MemfdFlags = MemfdFlags::ALLOW_SEALING;

    fn memfd(len: usize, flags: MemfdFlags, seals: SealFlags) -> OwnedFd {
        let file = memfd_create("test", flags).unwrap();
        ftruncate(&file, len as u64).unwrap();
        if !seals.is_empty() {
            fcntl_add_seals(&file, seals).unwrap();
        }
        file
    }

    fn refusal(file: impl AsFd, offset: u64, len: usize) -> String {
        map(file.as_fd(), offset, len).map(drop).unwrap_err().to_string()
    }

    #[test]
    fn what_is_no_memory_that_stays_is_refused_with_words() {
        let none = SealFlags::empty();
        let read_only = |file: OwnedFd| reopen(file.as_fd()).unwrap();
        let cases: [(OwnedFd, &str); 7] = [
            (
                File::open(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml")).unwrap().into(),
                "a descriptor of memfd_create is wanted",
            ),
            (std::io::pipe().unwrap().0.into(), "a descriptor of memfd_create is wanted"),
            (read_only(memfd(8192, SEALING, none)), "not open for reading and writing"),
            (memfd(8192, SEALING, SealFlags::WRITE), "sealed against writing"),
            (memfd(8192, SEALING, SealFlags::FUTURE_WRITE), "sealed against writing"),
            (memfd(8192, SEALING, SealFlags::SEAL), "create it by memfd_create with MFD_ALLOW_SEALING"),
            (memfd(8192, MemfdFlags::empty(), none), "create it by memfd_create with MFD_ALLOW_SEALING"),
        ];
        for (file, words) in cases {
            let message = refusal(&file, 4096, 100);
            assert!(message.contains("100 bytes from offset 4096") && message.contains(words), "{message}");
        }
        // A file as shm_open makes it.
        match open("/dev/shm", OFlags::TMPFILE | OFlags::RDWR, Mode::RWXU) {
            Ok(file) => {
                ftruncate(&file, 8192).unwrap();
                let message = refusal(&file, 0, 100);
                assert!(message.contains("shm_open makes such files"), "{message}");
            }
            Err(error) => println!("SKIPPED: a file of shm_open: none can be made in /dev/shm: {error}"),
        }
        match memfd_create("test", SEALING | MemfdFlags::HUGETLB) {
            Ok(file) => assert!(refusal(&file, 0, 100).contains("without that flag")),
            Err(error) => println!("SKIPPED: a memfd of huge pages: there is no hugetlbfs: {error}"),
        }
    }

    #[test]
    fn a_part_that_is_not_there_is_refused_and_the_file_is_left_as_it_was() {
        let (page, file) = (page_size(), memfd(3 * page_size(), SEALING, SealFlags::empty()));
        for (offset, len, words) in [
            (0, 3 * page + 1, "it has 12288 bytes"),
            (page, 2 * page + 1, "it has 12288 bytes"),
            (3 * page, 1, "it has 12288 bytes"),
            (0, usize::MAX, "it has 12288 bytes"),
            (1, 8, "no multiple of the size of a page, 4096 bytes"),
            (page - 8, 8, "no multiple of the size of a page, 4096 bytes"),
            (page, 0, "there is no byte in it"),
        ] {
            let message = refusal(&file, offset as u64, len);
            assert!(page != 4096 || message.contains(words), "{message}");
        }
        let vast = refusal(&file, u64::MAX - page as u64 + 1, page);
        assert!(vast.contains("ftruncate makes it longer"), "{vast}");
        assert!(fcntl_get_seals(&file).unwrap().is_empty());
    }

    #[test]
    fn what_is_mapped_cannot_shrink_has_its_pages_and_is_read_only_for_peers() {
        let (page, file) = (page_size(), memfd(5 * page_size(), SEALING, SealFlags::empty()));
        let (mapping, for_peers) = map(file.as_fd(), page as u64, 2 * page + 1).unwrap();
        assert_eq!(mapping.len(), 2 * page + 1);
        assert!(ftruncate(&file, 4 * page as u64).is_err() && ftruncate(&file, 6 * page as u64).is_ok());
        assert_eq!(usize::try_from(fstat(&file).unwrap().st_blocks).unwrap() * 512, 3 * page);
        let Memfd { file: theirs, offset } = for_peers.expect("/proc is mounted");
        assert_eq!(offset, page as u64);
        let mut options = MmapOptions::new();
        assert!(options.len(page).map_raw(&theirs).is_err() && options.map_raw_read_only(&theirs).is_ok());
        // The same works for a file that is sealed already.
        let sealed = memfd(page, SEALING, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL);
        assert!(map(sealed.as_fd(), 0, page).is_ok() && map(file.as_fd(), 0, page).is_ok());
    }
}
