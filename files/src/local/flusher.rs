//! Brings a file to the disk while the rest of it is still coming, so that little is left for whoever syncs the whole.

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

/// A thread that syncs a file again and again. It ends after this is dropped, when what it is at is on the disk.
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
        // Opened by itself, so that a lock lasts no longer than whoever took it, and that what goes wrong here is told
        // once more when the whole is synced: the system tells everyone who has opened the file.
        let file = OpenOptions::new().read(true).custom_flags(GUARDED).open(path).ok()?;
        let (due, told) = mpsc::sync_channel(1);
        let flush = move || {
            for () in told {
                if file.sync_data().is_err() {
                    return;
                }
            }
        };
        // Nobody waits for it: on a slow disk it may be at it for longer than other ranks have patience.
        thread::Builder::new().name("unisono-flush".to_owned()).spawn(flush).ok()?;
        Some(Self { stride, written: AtomicU64::new(0), due })
    }

    /// Notes that so many bytes more have been written.
    pub(super) fn wrote(&self, bytes: u64) {
        let before = self.written.fetch_add(bytes, Ordering::Relaxed);
        if before / self.stride != (before + bytes) / self.stride {
            // While it is at work one word waits for it; more would not tell more.
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
        // What it has not come to is asked for once.
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
