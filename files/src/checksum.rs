//! Checksums of pieces: XXH3 with 128 bits. They find damage by networks, disks and other programs, but no deliberate forgery.

use twox_hash::XxHash3_128;

/// The bytes that are read and summed, or summed and written, at a time: few enough to stay in a core's cache in between.
pub(crate) const BLOCK: usize = 256 << 10;

/// The checksum of these bytes. It is never 0, which means no checksum.
pub(crate) fn digest(bytes: &[u8]) -> u128 {
    XxHash3_128::oneshot(bytes).max(1)
}

/// Computes the [`digest`] of bytes that are given block by block.
pub(crate) struct Checksum(XxHash3_128);

impl Checksum {
    pub(crate) fn new() -> Self {
        Self(XxHash3_128::new())
    }

    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    pub(crate) fn end(&self) -> u128 {
        self.0.finish_128().max(1)
    }
}

/// Fills bytes block by block with `read`, which gets the position of each block, and returns their [`digest`].
pub(crate) fn summed<E>(
    from: u64,
    into: &mut [u8],
    mut read: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
) -> Result<u128, E> {
    let (mut at, mut sum) = (from, Checksum::new());
    for block in into.chunks_mut(BLOCK) {
        read(at, block)?;
        sum.add(block);
        at += block.len() as u64;
    }
    Ok(sum.end())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn blocks_have_the_sum_of_the_whole(from in 0_usize..500, len in prop_oneof![0_usize..1000, 0..3 * BLOCK]) {
            let all: Vec<u8> = (0..from + len).map(|at| u8::try_from((at / 7 + at % 251) % 256).unwrap()).collect();
            let mut into = vec![0; len];
            let sum = summed(from as u64, &mut into, |at, block| {
                let at = usize::try_from(at).unwrap();
                block.copy_from_slice(all.get(at..at + block.len()).ok_or(at)?);
                Ok(())
            });
            prop_assert_eq!(sum, Ok::<_, usize>(digest(&all[from..])));
            prop_assert_eq!(&into, &all[from..]);
        }
    }
}
