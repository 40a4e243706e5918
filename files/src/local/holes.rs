//! Holes: ranges of a file that were never written, read as zeros and occupy no room on the disk.

use std::{fs::File, io};

use rustix::{
    fs::{FallocateFlags, SeekFrom, fallocate, seek},
    io::Errno,
};
use std::os::unix::fs::FileExt;

use crate::checksum::{BLOCK, Checksum};

/// The unit of allocation in most file systems: a cell of zeros becomes a hole.
const CELL: usize = 4 << 10;
static ZEROS: [u8; CELL] = [0; CELL];

/// The next range of data in a file, between `from` and `end`. A file system that does not know holes has data everywhere.
pub(super) fn data(file: &File, from: u64, end: u64) -> Option<(u64, u64)> {
    let start = match seek(file, SeekFrom::Data(from)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return None,
        Err(_) => from,
    };
    let stop = seek(file, SeekFrom::Hole(start)).unwrap_or(end);
    // If the file changes between the two calls, the results may contradict each other.
    (start < end).then(|| (start.max(from), stop.clamp(start + 1, end)))
}

/// Makes a hole of a range of a file, or writes zeros if the file system has no holes.
pub(super) fn clear(file: &File, from: u64, len: u64) -> io::Result<()> {
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match fallocate(file, punch, from, len) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {}
        punched => return Ok(punched?),
    }
    let end = from.saturating_add(len);
    for at in (from..end).step_by(CELL) {
        let zeros = ZEROS.get(..usize::try_from(end - at).unwrap_or(CELL).min(CELL)).unwrap_or_default();
        file.write_all_at(zeros, at)?;
    }
    Ok(())
}

/// Divides bytes, which are at position `at` in a file, into runs of zeros and of other bytes. Yields the position, the bytes and
/// whether they are zeros.
pub(super) fn runs(bytes: &[u8], at: u64) -> impl Iterator<Item = (u64, &[u8], bool)> {
    let is_zero = |cell: &[u8]| Some(cell) == ZEROS.get(..cell.len());
    let (mut at, mut rest) = (at, bytes);
    std::iter::from_fn(move || {
        // The first cell may begin before the bytes.
        let first = CELL - usize::try_from(at % CELL as u64).unwrap_or_default();
        let (head, behind) = rest.split_at(first.min(rest.len()));
        let zero = is_zero(head);
        let same = behind.chunks(CELL).take_while(|cell| is_zero(cell) == zero);
        let (run, behind) = rest.split_at(head.len() + same.map(<[u8]>::len).sum::<usize>());
        let start = at;
        (at, rest) = (at + run.len() as u64, behind);
        (!run.is_empty()).then_some((start, run, zero))
    })
}

/// The [`digest`](crate::checksum::digest) of zeros, computed once for pieces of one length.
#[derive(Default)]
pub(super) struct Zeros {
    len: usize,
    sum: u128,
}

impl Zeros {
    pub(super) fn sum(&mut self, len: usize) -> u128 {
        if self.sum == 0 || self.len != len {
            let (zeros, mut sum) = (vec![0; BLOCK.min(len)], Checksum::new());
            (0..len).step_by(BLOCK).for_each(|at| sum.add(&zeros[..BLOCK.min(len - at)]));
            *self = Self { len, sum: sum.end() };
        }
        self.sum
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::checksum::digest;

    #[test]
    fn zeros_have_the_sum_of_zeros() {
        let mut zeros = Zeros::default();
        for len in [0, 1, BLOCK, BLOCK + 1, 10 * BLOCK - 1, 10 * BLOCK - 1, 3] {
            assert_eq!(zeros.sum(len), digest(&vec![0; len]), "{len}");
        }
    }

    proptest! {
        #[test]
        fn runs_are_the_bytes(at in 0_u64..10_000, cells in prop::collection::vec((any::<bool>(), 1_usize..5000), 0..6)) {
            let bytes: Vec<u8> = cells.iter().flat_map(|&(zero, len)| vec![u8::from(!zero); len]).collect();
            let (mut next, mut all, mut before) = (at, Vec::new(), None);
            for (at, run, zero) in runs(&bytes, at) {
                prop_assert!(at == next && !run.is_empty() && before != Some(zero));
                prop_assert!(!zero || run.iter().all(|&byte| byte == 0));
                (next, before) = (at + run.len() as u64, Some(zero));
                all.extend_from_slice(run);
            }
            prop_assert_eq!(&all, &bytes);
            // Every whole cell of zeros is in a run of zeros.
            let whole = |start: u64| usize::try_from(start - at).is_ok_and(|from| {
                bytes.get(from..from + CELL).is_some_and(|cell| cell.iter().all(|&byte| byte == 0))
            });
            let starts = (at.next_multiple_of(CELL as u64)..next).step_by(CELL);
            for start in starts.filter(|&start| whole(start)) {
                let within = |&(at, run, zero): &(u64, &[u8], bool)| {
                    zero && at <= start && start < at + run.len() as u64
                };
                prop_assert!(runs(&bytes, at).any(|run| within(&run)));
            }
        }
    }
}
