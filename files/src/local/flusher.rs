//! Syncs a file to the disk while the rest of it is still arriving, so that little is left for the last sync.

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

/// The bytes after which a file is synced again.
pub(super) const STRIDE: u64 = 64 << 20;

/// A thread that syncs a file again and again. When this is dropped, the thread ends after the sync in progress.
#[derive(Debug)]
pub(super) struct Flusher {
    stride: u64,
    written: AtomicU64,
    due: SyncSender<()>,
}

impl Flusher {
    /// Starts a thread that syncs a file of `len` bytes after every `stride` bytes; `None` if the file is not longer than that, or no
    /// thread can be started.
    pub(super) fn start(path: &Path, len: u64, stride: u64) -> Option<Self> {
        if len <= stride {
            return None;
        }
        // The thread has its own open file, so that it does not prolong the lock on the caller's. And since the system reports an
        // error of a sync once for each open file, the caller's last sync reports it too.
        let file = OpenOptions::new().read(true).custom_flags(GUARDED).open(path).ok()?;
        let (due, requests) = mpsc::sync_channel(1);
        let flush = move || {
            for () in requests {
                if file.sync_data().is_err() {
                    return;
                }
            }
        };
        // It is not joined: on a slow disk a sync may take longer than the timeout.
        thread::Builder::new().name("unisono-flush".to_owned()).spawn(flush).ok()?;
        Some(Self { stride, written: AtomicU64::new(0), due })
    }

    /// Notes that this many bytes more have been written.
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
        let (due, requests) = mpsc::sync_channel(1);
        let flusher = Flusher { stride: 256, written: AtomicU64::new(0), due };
        let mut is_due = |bytes| {
            flusher.wrote(bytes);
            requests.try_recv().is_ok()
        };
        assert_eq!(
            [255, 1, 255, 300, 1, 211, 1].map(&mut is_due),
            [false, true, false, true, false, false, true]
        );
        // Requests during a sync become one.
        (0..3).for_each(|_| flusher.wrote(256));
        assert_eq!(requests.try_iter().count(), 1);
    }

    #[test]
    fn only_long_files_have_one() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(Flusher::start(file.path(), 256, 256).is_none());
        let flusher = Flusher::start(file.path(), 257, 256).unwrap();
        (0..100).for_each(|_| flusher.wrote(256));
    }
}
