//! Notes whether a call has returned the failure of the world to the program. If none has, the drop of the last handle reports the failure:
//! by a line on standard error, to the store if a launcher serves it, and by [`late_failure`].

use std::sync::{Mutex, PoisonError, atomic::Ordering};

use super::Runtime;
use crate::error::{Error, Failure};

/// The first late failure of this process.
static LATE: Mutex<Option<Failure>> = Mutex::new(None);

/// The first failure of a world that this process found when it left that world, by [`leave`](crate::ProcessGroup::leave) or by dropping
/// the last handle, and that no call had returned before. So a program that ignores the result of `leave`, or drops its group, can end with
/// a status other than 0, as [`main`](crate::main) does.
///
/// Under `unisono run` the status of the job reports the failure in any case.
#[must_use]
pub fn late_failure() -> Option<Failure> {
    LATE.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

impl Runtime {
    /// Notes that a call returns this error to the program.
    pub(crate) fn returned(&self, error: Error) -> Error {
        if matches!(error, Error::Failed(_)) {
            self.knows.store(true, Ordering::Relaxed);
        }
        error
    }

    /// True if a call has returned the failure of the world.
    pub(crate) fn knows(&self) -> bool {
        self.knows.load(Ordering::Relaxed)
    }

    /// The failure that has ended the world.
    pub(crate) fn ended_by(&self) -> Option<Failure> {
        self.roles().failed.clone().or_else(|| self.monitor.latch.failure())
    }

    /// This rank leaves with a failure that no call had returned before.
    pub(crate) fn late(&self, failure: &Failure) {
        LATE.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| failure.clone());
        self.knows.store(true, Ordering::Relaxed);
        if let Some(watch) = &self.monitor.watch {
            watch.late(failure);
        }
    }
}
