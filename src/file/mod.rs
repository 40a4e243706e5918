//! What handing over a file is on one rank: the plan of its pieces, the source that is read, the partial file that
//! grows beside a journal of what has come, and the rename that makes it the file. Knows nothing of other ranks.

mod flusher;
mod holes;
mod journal;
mod marker;
mod options;
mod own;
mod plan;
mod problem;
#[cfg(feature = "safetensors")]
mod select;
mod source;
mod target;
#[cfg(test)]
mod tests;

pub(crate) use self::{
    marker::Marker,
    plan::{Pieces, Plan},
    source::{Origin, Source},
    target::{Target, sums},
};
pub use self::{
    options::{Delivered, FileOptions, FileProgress, PIECE},
    problem::FileProblem,
};

/// What went well, or what is wrong with a file.
pub(crate) type Result<T> = std::result::Result<T, FileProblem>;

/// The checksum of a piece, by XXH3 with 128 bits: it finds what wires, disks and other programs do to a file, not what
/// somebody does who wants it not to be found. Never 0, which stands for none.
pub(crate) fn digest(bytes: &[u8]) -> u128 {
    twox_hash::XxHash3_128::oneshot(bytes).max(1)
}

/// Bytes of a piece that are read and summed, or summed and written, before the next: few enough to lie in a core's own
/// cache from one to the other.
const BLOCK: usize = if cfg!(test) { 64 } else { 256 << 10 };

/// The [`digest`] of bytes that come one block after another.
struct Sum(twox_hash::XxHash3_128);

impl Sum {
    fn new() -> Self {
        Self(twox_hash::XxHash3_128::new())
    }

    fn add(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    fn end(&self) -> u128 {
        self.0.finish_128().max(1)
    }
}

/// Fills these bytes by `read`, which is told where each block begins, and gives their [`digest`].
fn summed<E>(
    from: u64,
    into: &mut [u8],
    mut read: impl FnMut(u64, &mut [u8]) -> std::result::Result<(), E>,
) -> std::result::Result<u128, E> {
    let (mut at, mut sum) = (from, Sum::new());
    for block in into.chunks_mut(BLOCK) {
        read(at, block)?;
        sum.add(block);
        at += block.len() as u64;
    }
    Ok(sum.end())
}

/// What another rank says of a file, in any bytes, and then any bytes of a journal.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(bytes: &[u8]) {
    let Ok((plan, rest)) = postcard::take_from_bytes::<Plan>(bytes) else { return };
    let Ok(plan) = plan.check() else { return };
    let name = plan.name();
    assert!(name.len() <= 255 && std::path::Path::new(&name).file_name() == Some(&name), "{name:?}");
    assert!(plan.mode <= 0o777 && plan.data <= plan.len && plan.pieces() <= 1 << 20);
    let mut end = 0;
    for piece in [0, 1, plan.pieces() / 2, plan.pieces().saturating_sub(1), plan.pieces(), u64::MAX] {
        let (start, len) = plan.range(piece);
        end = start + len as u64;
        assert!(end <= plan.len && len <= plan.longest() && len <= 256 << 20);
    }
    assert_eq!(end, plan.len);
    if let Some(sums) = journal::sums(rest, &plan) {
        assert_eq!(sums.len() as u64, plan.pieces());
    }
}
