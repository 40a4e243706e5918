//! The plan of a transfer: the file, its length and its pieces. The root makes it; all others check it.

use std::{ffi::OsString, os::unix::ffi::OsStringExt};

use serde::{Deserialize, Serialize};

use crate::{
    checksum::digest,
    error::{FileResult, Problem},
};

/// The largest piece, so that four fit in memory anywhere.
const MAX_PIECE: u64 = 256 << 20;
/// The most pieces, for each of which every rank keeps a checksum.
const MAX_PIECES: u64 = 1 << 20;
/// The longest name that known systems allow.
pub(crate) const MAX_NAME: usize = 255;

/// The plan of a transfer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FilePlan {
    /// The name in the receivers' directories, in the system's bytes.
    name: Vec<u8>,
    /// The file's length in bytes.
    pub len: u64,
    /// The bytes of each piece except the last.
    pub piece: u64,
    /// The permissions, at most 0o777.
    pub mode: u32,
    /// The source's modification time: seconds and nanoseconds.
    pub modified: (i64, i64),
    /// The bytes of the source that are not in holes.
    pub data: u64,
}

impl FilePlan {
    pub(crate) fn new(name: OsString, len: u64, piece: u64) -> FileResult<Self> {
        let given = piece;
        let piece = piece.max(len.div_ceil(MAX_PIECES));
        if given == 0 || piece > MAX_PIECE {
            return Err(Problem::Piece { given: piece.min(given), most: MAX_PIECE });
        }
        Self { name: name.into_vec(), len, piece, mode: 0o644, modified: (0, 0), data: len }.check()
    }

    /// Checks a plan from another rank: the name stays within the directory, pieces fit in memory, and the mode has no set-user-id
    /// bits, so that no peer can create a file that runs with its owner's rights.
    pub(crate) fn check(self) -> FileResult<Self> {
        let name = &*self.name;
        let odd = name.is_empty() || name.len() > MAX_NAME || name == b"." || name == b"..";
        if odd || name.iter().any(|byte| [b'/', 0].contains(byte)) {
            return Err(Problem::Name { name: String::from_utf8_lossy(name).into_owned() });
        }
        if !(1..=MAX_PIECE).contains(&self.piece) || self.pieces() > MAX_PIECES {
            return Err(Problem::Piece { given: self.piece, most: MAX_PIECE });
        }
        Ok(Self { mode: self.mode & 0o777, data: self.data.min(self.len), ..self })
    }

    pub(crate) fn name(&self) -> OsString {
        OsString::from_vec(self.name.clone())
    }

    /// True if the source has holes.
    pub(crate) const fn is_sparse(&self) -> bool {
        self.data < self.len
    }

    pub(crate) const fn pieces(&self) -> u64 {
        self.len.div_ceil(self.piece)
    }

    /// The position and the length of a piece.
    pub(crate) fn range(&self, piece: u64) -> (u64, usize) {
        let start = piece.saturating_mul(self.piece).min(self.len);
        (start, usize::try_from((self.len - start).min(self.piece)).unwrap_or(usize::MAX))
    }

    /// The bytes of the longest piece.
    pub(crate) fn longest(&self) -> usize {
        self.range(0).1
    }

    /// Identifies the journal of this file with these pieces. It does not depend on the contents, which the checksums cover.
    pub(crate) fn identity(&self) -> u128 {
        let mut bytes = self.name.clone();
        bytes.extend(self.len.to_le_bytes());
        bytes.extend(self.piece.to_le_bytes());
        digest(&bytes)
    }
}

/// A set of pieces, as the bits that ranks combine by a reduction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PieceSet {
    /// A bit for each piece; the bits after the last piece are set.
    pub words: Vec<u64>,
    count: u64,
}

impl PieceSet {
    /// The pieces out of `count` for which a predicate is true.
    pub(crate) fn of(count: u64, has: impl Fn(u64) -> bool) -> Self {
        let words = (0..count.div_ceil(64))
            .map(|word| {
                let bits = (0..64).filter(|bit| word * 64 + bit >= count || has(word * 64 + bit));
                bits.fold(0, |bits, bit| bits | 1 << bit)
            })
            .collect();
        Self { words, count }
    }

    pub(crate) fn has(&self, piece: u64) -> bool {
        of_piece(&self.words, piece / 64) & 1 << (piece % 64) != 0
    }

    pub(crate) fn remove(&mut self, piece: u64) {
        if let Some(word) = usize::try_from(piece / 64).ok().and_then(|word| self.words.get_mut(word)) {
            *word &= !(1 << (piece % 64));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        (0..self.count).all(|piece| !self.has(piece))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.count).filter(|&piece| self.has(piece))
    }

    /// The complement.
    pub(crate) fn missing(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.count).filter(|&piece| !self.has(piece))
    }
}

/// The value of a piece; 0 if there is none.
pub(crate) fn of_piece<T: Copy + Default>(all: &[T], piece: u64) -> T {
    usize::try_from(piece).ok().and_then(|piece| all.get(piece)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn plan(name: &str, len: u64, piece: u64) -> FilePlan {
        FilePlan::new(name.into(), len, piece).unwrap()
    }

    #[test]
    fn names_that_lead_out_are_none() {
        for name in ["", ".", "..", "/", "a/b", "../a", "/etc/passwd", "a\0b", &"x".repeat(256)] {
            let refused = FilePlan::new(name.into(), 1, 1);
            assert!(matches!(refused, Err(Problem::Name { .. })), "{name:?}: {refused:?}");
        }
        for name in ["a", "...", "-", "ä b", ".a", &"x".repeat(255)] {
            assert_eq!(plan(name, 1, 1).name(), name);
        }
    }

    #[test]
    fn pieces_have_limits() {
        for piece in [0, (256 << 20) + 1, u64::MAX] {
            assert!(matches!(FilePlan::new("a".into(), 1, piece), Err(Problem::Piece { .. })), "{piece}");
        }
        assert!(matches!(FilePlan::new("a".into(), u64::MAX, 1), Err(Problem::Piece { .. })));
        let large = plan("a", 1 << 40, 1);
        assert_eq!((large.pieces(), large.piece), (1 << 20, 1 << 20));
        // A plan that this process has not made.
        let given = |len: u64, piece: u64| {
            let bytes = postcard::to_allocvec(&(b"a", len, piece, 0o644_u32, (0_i64, 0_i64), len)).unwrap();
            // An array has no length on the wire, a name has.
            let bytes = [&[1][..], &bytes].concat();
            postcard::from_bytes::<FilePlan>(&bytes).unwrap().check()
        };
        assert!(given(5, 1).is_ok());
        for (len, piece) in [(5, 0), (5, u64::MAX), (u64::MAX, 1), (u64::MAX, 256 << 20)] {
            assert!(given(len, piece).is_err(), "{len} {piece}");
        }
    }

    proptest! {
        #[test]
        fn pieces_cover_the_file(len in 0_u64..10_000, piece in 1_u64..3000) {
            let plan = plan("a", len, piece);
            let mut end = 0;
            for piece in 0..plan.pieces() {
                let (start, bytes) = plan.range(piece);
                prop_assert!(start == end && bytes > 0 && bytes <= plan.longest());
                end += bytes as u64;
            }
            prop_assert_eq!(end, len);
        }

        #[test]
        fn sets_of_pieces_are_sets(has in prop::collection::vec(any::<bool>(), 0..200)) {
            let pieces = PieceSet::of(has.len() as u64, |piece| has[usize::try_from(piece).unwrap()]);
            let missing: Vec<_> = (0..).zip(&has).filter(|(_, has)| !**has).map(|(piece, _)| piece).collect();
            prop_assert_eq!(pieces.missing().collect::<Vec<u64>>(), missing);
            prop_assert_eq!(pieces.is_empty(), !has.contains(&true));
            prop_assert!(!pieces.has(has.len() as u64 + 64));
        }
    }
}
