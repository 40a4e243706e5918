//! Which threads of the program call this library, and how many of them wait in it.
//!
//! A rank can do nothing by itself when all of them wait. A thread counts from its first call, of whatever kind, until it
//! ends: so whoever has made groups and works for itself now may call again. A thread that has not called yet is not known.

use std::{
    cell::{Cell, RefCell},
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

/// The last number of a [`Callers`].
static LAST: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Where this thread counted last: mostly, where it calls again.
    static LATEST: Cell<u64> = const { Cell::new(0) };
    static COUNTED: RefCell<Counted> = const { RefCell::new(Counted(Vec::new())) };
}

/// Where a thread counts, until it ends.
struct Counted(Vec<(u64, Weak<AtomicUsize>)>);

impl Drop for Counted {
    fn drop(&mut self) {
        for known in self.0.drain(..).filter_map(|(_, known)| known.upgrade()) {
            known.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// The threads that call one node.
pub(crate) struct Callers {
    number: u64,
    known: Arc<AtomicUsize>,
    waiting: AtomicUsize,
}

impl Default for Callers {
    fn default() -> Self {
        let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        Self { number, known: Arc::default(), waiting: AtomicUsize::new(0) }
    }
}

impl Callers {
    /// This thread calls.
    pub(crate) fn enter(&self) {
        if LATEST.get() != self.number {
            self.count();
        }
    }

    #[cold]
    fn count(&self) {
        // A thread that ends and calls from the drop of something is soon no thread any more.
        let counted = COUNTED.try_with(|counted| {
            let mut counted = counted.borrow_mut();
            counted.0.retain(|(_, known)| known.strong_count() > 0);
            if !counted.0.iter().any(|(number, _)| *number == self.number) {
                self.known.fetch_add(1, Ordering::SeqCst);
                counted.0.push((self.number, Arc::downgrade(&self.known)));
            }
        });
        if counted.is_ok() {
            LATEST.set(self.number);
        }
    }

    /// This thread waits, until what comes of this is dropped, and goes on only when something has moved.
    pub(crate) fn wait(&self) -> Waiting<'_> {
        self.enter();
        self.waiting.fetch_add(1, Ordering::SeqCst);
        Waiting(self)
    }

    /// Whether all of them wait.
    pub(crate) fn all_wait(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) >= self.known.load(Ordering::SeqCst)
    }
}

/// A thread that waits.
pub(crate) struct Waiting<'c>(&'c Callers);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_thread_counts_from_its_first_call_until_it_ends() {
        let (callers, other) = (Callers::default(), Callers::default());
        callers.enter();
        callers.enter();
        assert!(!callers.all_wait() && other.all_wait());
        let waits = callers.wait();
        assert!(callers.all_wait());
        thread::scope(|scope| {
            let ended = scope.spawn(|| {
                other.enter();
                callers.enter();
                assert!(!callers.all_wait());
                drop(callers.wait());
                assert!(!callers.all_wait());
            });
            ended.join().unwrap();
        });
        assert!(callers.all_wait() && other.all_wait(), "it has ended");
        drop(waits);
        assert!(!callers.all_wait());
    }
}
