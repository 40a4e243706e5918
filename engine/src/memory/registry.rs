//! The registered buffers of a group.
#![allow(unsafe_code)]

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use unisono_transport::{Region, fork::Process};

use super::stretch::Stretch;

/// The registered buffers of a group, by address, so that a slice of one is recognized.
#[derive(Debug)]
pub struct Registry {
    /// The process whose group it is.
    process: Process,
    regions: Mutex<BTreeMap<usize, Region>>,
    /// True if there ever was a buffer; if not, a search need not take the lock.
    used: AtomicBool,
}

impl Default for Registry {
    fn default() -> Self {
        Self { process: Process::this(), regions: Mutex::default(), used: AtomicBool::default() }
    }
}

impl Registry {
    /// `None` in a forked child: there, the lock may be held by a thread that the child does not have.
    fn lock(&self) -> Option<MutexGuard<'_, BTreeMap<usize, Region>>> {
        self.process.is_this().then(|| self.regions.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes up the region of a buffer.
    pub fn insert(&self, region: &Region) {
        if let Some(mut regions) = self.lock() {
            regions.insert(region.base() as usize, region.clone());
        }
        self.used.store(true, Ordering::Release);
    }

    /// Forgets the region of a buffer that is dropped.
    pub fn remove(&self, region: &Region) {
        if let Some(mut regions) = self.lock() {
            regions.remove(&(region.base() as usize));
        }
    }

    #[inline]
    pub(super) fn is_used(&self) -> bool {
        self.used.load(Ordering::Acquire)
    }

    /// Borrowed memory as a part of the registered region that contains it.
    pub fn find(&self, borrowed: &Stretch) -> Option<Stretch> {
        if !self.is_used() {
            return None;
        }
        let (start, len) = (borrowed.base() as usize, borrowed.len);
        let regions = self.lock()?;
        let (base, region) = regions.range(..=start).next_back()?;
        let offset = start - base;
        let fits = offset + len <= region.len();
        fits.then(|| Stretch { region: region.clone(), offset, len, registered: true })
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::Arc,
        thread,
        time::{Duration, Instant},
    };

    use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
    use unisono_transport::{Transport, inproc::Hub};

    use super::*;

    /// In a forked child a missing thread may hold the lock for ever.
    #[test]
    fn a_region_is_forgotten_in_a_forked_child_whatever_its_parent_holds() {
        let registry = Arc::new(Registry::default());
        let region = Hub::new().open().allocate(64).unwrap();
        registry.insert(&region);
        let held = registry.lock().unwrap();
        // SAFETY: the child runs this thread alone, which forgets the region and ends without returning.
        let child = unsafe { libc::fork() };
        if child == 0 {
            registry.remove(&region);
            // SAFETY: ends the child, without what the test harness does at the end of a process.
            unsafe { libc::_exit(0) };
        }
        let child = Pid::from_raw(child).expect("no child was made");
        let begun = Instant::now();
        let status = loop {
            if let Some((_, status)) = waitpid(Some(child), WaitOptions::NOHANG).unwrap() {
                break status;
            }
            if begun.elapsed() > Duration::from_secs(20) {
                kill_process(child, Signal::KILL).unwrap();
            }
            thread::sleep(Duration::from_millis(5));
        };
        assert_eq!((status.exit_status(), status.terminating_signal()), (Some(0), None));
        drop(held);
        // The parent still has it.
        assert_eq!(registry.lock().unwrap().len(), 1);
        registry.remove(&region);
        assert_eq!(registry.lock().unwrap().len(), 0);
    }
}
