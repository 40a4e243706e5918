//! Syncs a file to the disk while the rest of it is still arriving, so that little is left for the sync of the whole.

use std::{
    fs::OpenOptions,
    os::unix::fs::OpenOptionsExt,
    path::Path,
    sync::{
        atomic::{AtomicU64, Ordering},
        mpsc::{self, SyncSender},
    },
    thread,
};

use super::own::GUARDED;

/// After how many bytes a file is synced again.
pub(super) const STRIDE: u64 = 64 << 20;

/// A thread that syncs a file again and again. When this is dropped, the thread ends after the sync in progress.
#[derive(Debug)]
pub(super) struct Flusher {
    stride: u64,
    written: AtomicU64,
    due: SyncSender<()>,
}

impl Flusher {
    /// Of a file of `len` bytes, to be synced after every `stride`; none for one too short to need it, and where there is no
    /// thread to be had.
    pub(super) fn start(path: &Path, len: u64, stride: u64) -> Option<Self> {
        if len <= stride {
            return None;
        }
        // Opened by itself, so that a lock lasts no longer than its holder, and that the sync of the whole returns an error
        // of this one again: the system reports it once for each descriptor.
        let file = OpenOptions::new().read(true).custom_flags(GUARDED).open(path).ok()?;
        let (due, told) = mpsc::sync_channel(1);
        let flush = move || {
            for () in told {
                if file.sync_data().is_err() {
                    return;
                }
            }
        };
        // It is not joined: on a slow disk a sync may take longer than the timeout.
        thread::Builder::new().name("unisono-flush".to_owned()).spawn(flush).ok()?;
        Some(Self { stride, written: AtomicU64::new(0), due })
    }

    /// Notes that so many bytes more have been written.
    pub(super) fn wrote(&self, bytes: u64) {
        let before = self.written.fetch_add(bytes, Ordering::Relaxed);
        if before / self.stride != (before + bytes) / self.stride {
            // During a sync one request is queued; more would not change anything.
            let _ = self.due.try_send(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_due_after_every_stride() {
        let (due, told) = mpsc::sync_channel(1);
        let flusher = Flusher { stride: 256, written: AtomicU64::new(0), due };
        let mut is_due = |bytes| {
            flusher.wrote(bytes);
            told.try_recv().is_ok()
        };
        assert_eq!(
            [255, 1, 255, 300, 1, 211, 1].map(&mut is_due),
            [false, true, false, true, false, false, true]
        );
        // Requests during a sync become one.
        (0..3).for_each(|_| flusher.wrote(256));
        assert_eq!(told.try_iter().count(), 1);
    }

    #[test]
    fn only_long_files_have_one() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(Flusher::start(file.path(), 256, 256).is_none());
        let flusher = Flusher::start(file.path(), 257, 256).unwrap();
        (0..100).for_each(|_| flusher.wrote(256));
    }
}
