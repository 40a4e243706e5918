//! What a host writes to its standard output once its ranks run: frames with their output, and one for a rank that has failed.
//!
//! A frame begins with the number of its bytes, in 8 bytes with the lowest first. A frame without bytes says that a rank has failed:
//! the status with which the job will end follows, in 4 bytes.

use std::{
    io::{self, BufReader, Read},
    os::fd::{AsFd, BorrowedFd},
};

/// A frame of output, which is not empty.
pub(super) fn frame(output: &[u8]) -> Vec<u8> {
    [&(output.len() as u64).to_le_bytes(), output].concat()
}

/// The frame that says that a rank has failed, and with which status the job will end.
pub(super) fn failure(status: i32) -> Vec<u8> {
    [&0_u64.to_le_bytes()[..], &status.to_le_bytes()].concat()
}

/// Reads a host's output from its frames.
pub(super) struct FramedOutput<R> {
    source: R,
    /// How many bytes of the present frame have not been read.
    left: u64,
    failed: Box<dyn FnMut(i32) + Send>,
}

impl<R: Read> FramedOutput<R> {
    /// `failed` is called if a rank has failed.
    pub(super) fn new(source: R, failed: impl FnMut(i32) + Send + 'static) -> Self {
        Self { source, left: 0, failed: Box::new(failed) }
    }
}

impl<R: Read> Read for FramedOutput<R> {
    /// Fails with [`io::ErrorKind::UnexpectedEof`] after the last frame.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.left == 0 {
            let (mut length, mut status) = ([0; 8], [0; 4]);
            self.source.read_exact(&mut length)?;
            self.left = u64::from_le_bytes(length);
            if self.left == 0 {
                self.source.read_exact(&mut status)?;
                (self.failed)(i32::from_le_bytes(status));
            }
        }
        let count = self.source.by_ref().take(self.left).read(buffer)?;
        self.left -= count as u64;
        Ok(count)
    }
}

impl<R: AsFd> AsFd for FramedOutput<BufReader<R>> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.source.get_ref().as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use proptest::prelude::*;

    use super::*;

    /// Hands out pieces, one at each read.
    struct Pieces(Vec<Vec<u8>>);

    impl Read for Pieces {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() {
                return Ok(0);
            }
            let mut piece = self.0.remove(0);
            let count = piece.len().min(buffer.len());
            buffer[..count].copy_from_slice(&piece[..count]);
            if count < piece.len() {
                self.0.insert(0, piece.split_off(count));
            }
            Ok(count)
        }
    }

    proptest! {
        /// Output comes through and failures are told, however the frames are cut; a host that is lost within a frame is no error of
        /// what has come.
        #[test]
        fn frames_are_taken_off_and_all_else_is_kept(
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..9), 0..8),
            cut in 1_usize..12,
            lost in 0_usize..8,
        ) {
            let mut all = Vec::new();
            for part in &parts {
                all.extend(frame(part));
                all.extend(failure(7));
            }
            all.extend(frame(&[1; 8]));
            all.truncate(all.len() - lost);
            let failed = Arc::new(Mutex::new(Vec::new()));
            let statuses = Arc::clone(&failed);
            let pieces = Pieces(all.chunks(cut).map(<[u8]>::to_vec).collect());
            let mut output = FramedOutput::new(pieces, move |status| statuses.lock().unwrap().push(status));
            let mut read = Vec::new();
            let mut buffer = [0; 5];
            while let Ok(count @ 1..) = output.read(&mut buffer) {
                read.extend_from_slice(&buffer[..count]);
            }
            prop_assert_eq!(read, [parts.concat(), vec![1; 8 - lost]].concat());
            prop_assert_eq!(&*failed.lock().unwrap(), &vec![7; parts.len()]);
        }
    }
}
