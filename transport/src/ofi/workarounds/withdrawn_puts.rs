//! Puts that are withdrawn: their endpoint is dropped while they are under way, and their sources go back to their owners.
//!
//! A target of `shm` fetches a long write from the sender's memory when it polls, whether the sender's endpoint is open or not
//! (process_vm_readv; prov/shm/src/smr_progress.c, smr_progress_iov, 1.17 to 2.6). So it may fetch what the memory's next owner wrote,
//! and report it as an arrival. To find that out, the file beside each endpoint's shared memory has a word that peers map. It is set
//! before an endpoint with puts under way is dropped. Whoever has fetched reads the words of its peers before it reports anything.
//! (A process that has ended has no memory to be fetched: the write fails.)
#![allow(unsafe_code)]

use std::{
    fs, io,
    path::Path,
    sync::atomic::{AtomicU32, Ordering, fence},
};

use memmap2::{MmapMut, MmapOptions};

use crate::{Error, Peer};

/// The word of an endpoint: not 0 once its puts are withdrawn.
#[derive(Debug)]
pub(in crate::ofi) struct Word(MmapMut);

impl Word {
    /// The bytes of the file of an endpoint whose puts are not withdrawn.
    pub(super) const UNSET: [u8; 4] = [0; 4];

    /// The word in an endpoint's file.
    pub(super) fn map(file: &fs::File) -> io::Result<Self> {
        let len = Self::UNSET.len();
        if file.metadata()?.len() < len as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the file has no word"));
        }
        // SAFETY: the file is of this user and holds the word; nobody makes it shorter; and all access is atomic.
        Ok(Self(unsafe { MmapOptions::new().len(len).map_mut(file)? }))
    }

    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Self::map(&fs::OpenOptions::new().read(true).write(true).open(path)?)
    }

    fn get(&self) -> &AtomicU32 {
        // SAFETY: the mapping is as long as the word, begins a page, and lives as long as `self`; all processes access it by this.
        unsafe { AtomicU32::from_ptr(self.0.as_ptr().cast_mut().cast()) }
    }

    /// Withdraws the puts of this endpoint. Afterwards their sources may change.
    pub(in crate::ofi) fn withdraw(&self) {
        self.get().store(1, Ordering::Relaxed);
        // Whoever fetches what is written to the sources from now on finds the word set.
        fence(Ordering::SeqCst);
    }
}

/// The words of all peers, for providers with which targets fetch.
#[derive(Debug)]
pub(in crate::ofi) struct Withdrawals(Option<Vec<Word>>);

impl Withdrawals {
    /// For no peer yet. If targets do not `fetch`, nothing is recorded.
    pub(in crate::ofi) fn new(fetch: bool) -> Self {
        Self(fetch.then(Vec::new))
    }

    /// One more peer is known. `open` maps its word.
    pub(in crate::ofi) fn add(&mut self, open: impl FnOnce() -> Result<Word, Error>) -> Result<(), Error> {
        if let Some(words) = &mut self.0 {
            words.push(open()?);
        }
        Ok(())
    }

    /// All peers are forgotten.
    pub(in crate::ofi) fn clear(&mut self) {
        self.0.iter_mut().for_each(Vec::clear);
    }

    /// A peer that has withdrawn its puts. Ask after a write was fetched and before that is reported.
    pub(in crate::ofi) fn find(&self) -> Option<Peer> {
        // What was fetched is read before the words are.
        fence(Ordering::SeqCst);
        let withdrawn = |word: &Word| word.get().load(Ordering::Relaxed) != 0;
        let at = self.0.as_ref()?.iter().position(withdrawn)?;
        u32::try_from(at).ok().map(Peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_see_that_puts_are_withdrawn() {
        let files: Vec<_> = (0..3).map(|_| tempfile::NamedTempFile::new().unwrap()).collect();
        files.iter().for_each(|file| fs::write(file, Word::UNSET).unwrap());
        let mut peers = Withdrawals::new(true);
        files.iter().for_each(|file| peers.add(|| Ok(Word::open(file.path()).unwrap())).unwrap());
        assert_eq!(peers.find(), None);
        Word::map(&fs::File::options().read(true).write(true).open(&files[1]).unwrap()).unwrap().withdraw();
        assert_eq!(peers.find(), Some(Peer(1)));
        peers.clear();
        assert_eq!(peers.find(), None);
    }

    #[test]
    fn a_file_without_a_word_is_refused() {
        assert!(Word::map(&tempfile::tempfile().unwrap()).is_err());
        assert!(Withdrawals::new(false).add(|| panic!("nobody needs it")).is_ok());
    }
}
