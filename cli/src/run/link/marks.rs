//! The words of a host to the launcher within its ranks' output: that a rank has failed, and how the job ended there. They stand
//! between bytes of ranks, behind a mark that no rank knows, and are taken out.

use std::{
    io::{self, BufReader, Read},
    os::fd::{AsFd, BorrowedFd},
};

/// The mark before a host's words: a zero byte and a random text.
#[derive(Clone, Debug)]
pub(in crate::run) struct HostMark(String);

/// The longest word, with its line end.
const LONGEST: usize = 32;

impl HostMark {
    pub(in crate::run) fn new(random: String) -> Self {
        Self(random)
    }

    /// Says that a rank has failed, and with which status the job will end.
    pub(in crate::run) fn failed(&self, status: i32) -> Vec<u8> {
        format!("\0{} failed {status}\n", self.0).into_bytes()
    }

    /// Says how the job ended.
    pub(in crate::run) fn end(&self, status: i32) -> Vec<u8> {
        format!("\0{} end {status}\n", self.0).into_bytes()
    }
}

/// Reads a host's output, without its words.
pub(in crate::run) struct MarkedOutput<R> {
    source: R,
    mark: Vec<u8>,
    /// What was read and may be the beginning of a word.
    held: Vec<u8>,
    /// The output that was read and is not returned yet.
    clean: Vec<u8>,
    failed: Box<dyn FnMut(i32) + Send>,
    end: Option<i32>,
}

impl<R: Read> MarkedOutput<R> {
    /// `failed` is called if a rank has failed.
    pub(in crate::run) fn new(source: R, mark: &HostMark, failed: impl FnMut(i32) + Send + 'static) -> Self {
        let mark = format!("\0{} ", mark.0).into_bytes();
        Self { source, mark, held: Vec::new(), clean: Vec::new(), failed: Box::new(failed), end: None }
    }

    /// How the job ended there; `None` if the host did not say it.
    pub(in crate::run) const fn end(&self) -> Option<i32> {
        self.end
    }

    /// Moves to `clean` what is known to be output.
    fn sort(&mut self) {
        let mark = self.mark.len();
        while let Some(at) = self.held.windows(mark).position(|bytes| bytes == self.mark) {
            self.clean.extend(self.held.drain(..at));
            let word = &self.held[mark..];
            match word.iter().take(LONGEST).position(|&byte| byte == b'\n') {
                Some(length) => {
                    let text = String::from_utf8_lossy(&word[..length]).into_owned();
                    self.held.drain(..=mark + length);
                    match text.split_once(' ').map(|(what, status)| (what, status.parse())) {
                        Some(("failed", Ok(status))) => (self.failed)(status),
                        Some(("end", Ok(status))) => self.end = Some(status),
                        _ => {}
                    }
                }
                None if word.len() < LONGEST => return,
                None => self.clean.extend(self.held.drain(..mark)),
            }
        }
        // The last bytes may be the beginning of a mark.
        let begun = (0..mark).rev().find(|&length| self.held.ends_with(&self.mark[..length]));
        self.clean.extend(self.held.drain(..self.held.len() - begun.unwrap_or(0)));
    }
}

impl<R: Read> Read for MarkedOutput<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.clean.is_empty() {
            let count = self.source.read(buffer)?;
            if count == 0 {
                self.clean.append(&mut self.held);
                break;
            }
            self.held.extend_from_slice(&buffer[..count]);
            self.sort();
        }
        let count = self.clean.len().min(buffer.len());
        buffer[..count].copy_from_slice(&self.clean[..count]);
        self.clean.drain(..count);
        Ok(count)
    }
}

impl<R: AsFd> AsFd for MarkedOutput<BufReader<R>> {
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
        /// Words are taken out however the pieces are cut, and all other bytes come through, even if they begin like a word.
        #[test]
        fn words_are_taken_out_and_all_else_is_kept(
            parts in prop::collection::vec(
                prop_oneof![
                    prop::collection::vec(any::<u8>(), 1..9),
                    Just(b"\0ab".to_vec()), Just(b"\0abc x".to_vec()), Just(vec![0; 3]),
                ],
                0..8,
            ),
            cut in 1_usize..12,
        ) {
            let mark = HostMark::new("abcdef".into());
            let mut all = Vec::new();
            for part in &parts {
                all.extend_from_slice(part);
                all.extend(mark.failed(7));
            }
            all.extend(mark.end(137));
            let pieces = Pieces(all.chunks(cut).map(<[u8]>::to_vec).collect());
            let failed = Arc::new(Mutex::new(0));
            let count = Arc::clone(&failed);
            let mut marked = MarkedOutput::new(pieces, &mark, move |status| {
                assert_eq!(status, 7);
                *count.lock().unwrap() += 1;
            });
            let mut read = Vec::new();
            marked.read_to_end(&mut read).unwrap();
            prop_assert_eq!(read, parts.concat());
            prop_assert_eq!((marked.end(), *failed.lock().unwrap()), (Some(137), parts.len()));
        }
    }
}
