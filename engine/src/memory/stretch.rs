//! Contiguous memory of an operand or of a message.

use unisono_transport::{Region, RemoteRegion};

use super::bytes::{Bytes, SpanError};

/// Contiguous memory: a part of a region, which is the memory itself or a registered buffer.
#[derive(Clone, Debug)]
pub struct Stretch {
    /// The region that it lies in.
    pub region: Region,
    /// Its first byte there.
    pub offset: usize,
    /// Its bytes.
    pub len: usize,
    /// True if the region is registered.
    pub registered: bool,
}

impl From<Region> for Stretch {
    #[inline]
    fn from(region: Region) -> Self {
        let len = region.len();
        Self { region, offset: 0, len, registered: false }
    }
}

impl Stretch {
    /// The address of its first byte.
    pub(crate) fn base(&self) -> *mut u8 {
        self.region.base().wrapping_add(self.offset)
    }

    /// `len` bytes from byte `at` on.
    #[inline]
    pub(crate) fn bytes(&self, at: usize, len: usize) -> Result<Bytes<'_>, SpanError> {
        match at.checked_add(len) {
            Some(end) if end <= self.len => Bytes::new(&self.region, self.offset + at, len),
            _ => Err(SpanError::Bounds { offset: at, len, place: self.len }),
        }
    }

    /// The same memory from byte `at` on, `len` bytes of it.
    pub(super) fn part(&self, at: usize, len: usize) -> Self {
        Self { offset: self.offset + at, len, ..self.clone() }
    }

    /// The information that peers need to write there, and the region, if it is registered.
    pub(crate) fn remote(&self) -> Option<(RemoteRegion, Region)> {
        let remote = self.region.remote()?;
        let part = RemoteRegion { base: remote.base + self.offset as u64, len: self.len as u64, ..remote };
        Some((part, self.region.clone()))
    }
}
