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

/// After how many bytes it begins again.
const STRIDE: u64 = if cfg!(test) { 256 } else { 64 << 20 };

/// A thread that syncs a file again and again. It ends after this is dropped, when what it is at is on the disk.
#[derive(Debug)]
pub(super) struct Flusher {
    written: AtomicU64,
    due: SyncSender<()>,
}

impl Flusher {
    /// None for a file too short to need one, and where there is no thread to be had.
    pub(super) fn start(path: &Path, len: u64) -> Option<Self> {
        if len <= STRIDE {
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
        Some(Self { written: AtomicU64::new(0), due })
    }

    /// Notes that so many bytes more have been written.
    pub(super) fn wrote(&self, bytes: u64) {
        let before = self.written.fetch_add(bytes, Ordering::Relaxed);
        if before / STRIDE != (before + bytes) / STRIDE {
            // While it is at work one word waits for it; more would not tell more.
            let _ = self.due.try_send(());
        }
    }
}
