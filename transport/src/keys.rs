//! Random keys of registrations, which no process can guess.

use rustix::{
    io::Errno,
    rand::{GetRandomFlags, getrandom},
};

use crate::Error;

/// Random bytes of the system, at most 256.
///
/// # Errors
/// That of getrandom.
pub fn random_bytes<const N: usize>() -> Result<[u8; N], Errno> {
    let mut bytes = [0; N];
    // The system gives this number of bytes at once or none.
    match getrandom(&mut bytes, GetRandomFlags::empty())? {
        given if given == N => Ok(bytes),
        _ => Err(Errno::AGAIN),
    }
}

pub(crate) fn random<const N: usize>() -> Result<[u8; N], Error> {
    random_bytes().map_err(|error| Error::system("getrandom", "for names and keys", error))
}

/// A source of random keys. It gets many random bytes of the system at a time, because every call may register its output.
#[derive(Debug)]
pub(crate) struct Keys {
    /// The next keys, the last one first.
    pub(crate) drawn: Vec<u64>,
    /// A mask of the bits that a key may have.
    mask: u64,
    /// The latest key, if keys are shorter than 8 bytes. Random ones would soon repeat, so keys are counted from a random one on.
    latest: Option<u64>,
}

impl Keys {
    /// Keys of this many bytes.
    pub(crate) fn new(size: usize) -> Self {
        let mask = if size < 8 { (1 << (8 * size.max(1))) - 1 } else { u64::MAX };
        Self { drawn: Vec::new(), mask, latest: None }
    }

    /// A key that is not taken.
    pub(crate) fn next(&mut self, is_taken: impl Fn(u64) -> bool) -> Result<u64, Error> {
        loop {
            let key = match self.latest {
                Some(latest) => latest.wrapping_add(1),
                None => self.draw()?,
            } & self.mask;
            if self.mask != u64::MAX {
                self.latest = Some(key);
            }
            if !is_taken(key) {
                return Ok(key);
            }
        }
    }

    fn draw(&mut self) -> Result<u64, Error> {
        if self.drawn.is_empty() {
            let bytes = random::<256>()?;
            self.drawn.extend(bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)));
        }
        Ok(self.drawn.pop().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn keys_are_as_long_as_is_asked_and_no_two_alike() {
        for size in [1, 2, 4, 8, 16] {
            let mut keys = Keys::new(size);
            let drawn: Vec<u64> = (0..100).map(|_| keys.next(|_| false).unwrap()).collect();
            assert!(drawn.iter().all(|key| size >= 8 || *key < 1 << (8 * size)), "{size}: {drawn:x?}");
            let different: HashSet<_> = drawn.iter().collect();
            assert_eq!(different.len(), drawn.len(), "{size}: {drawn:x?}");
            // Of 100 random keys none is small, except where there are few keys.
            assert!(size < 8 || drawn.iter().all(|key| *key > 1 << 32), "{drawn:x?}");
        }
        let [ours, theirs] =
            [Keys::new(4), Keys::new(4)].map(|mut keys| [0; 2].map(|_| keys.next(|_| false).unwrap()));
        assert_ne!(ours, theirs);
        let mut keys = Keys { drawn: vec![9, 8, 7], ..Keys::new(8) };
        assert_eq!(keys.next(|key| key < 9).unwrap(), 9);
    }
}
