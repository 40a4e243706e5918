//! Counts the threads of the program that call this library, and how many of them wait in it.
//!
//! If all of them wait, this rank is blocked until a peer acts. A thread counts from its first call, of any kind, until it ends, because a
//! thread that computes now may call again. A thread that has not called yet does not count.

use std::{
    cell::{Cell, RefCell},
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

/// The number of the latest [`Callers`].
static LAST: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The number of the [`Callers`] that this thread called last. It is a shortcut, because a thread usually calls the same one again.
    static LATEST: Cell<u64> = const { Cell::new(0) };
    static COUNTED: RefCell<Counted> = const { RefCell::new(Counted(Vec::new())) };
}

/// The [`Callers`] that count a thread until it ends, by number.
struct Counted(Vec<(u64, Weak<AtomicUsize>)>);

impl Drop for Counted {
    fn drop(&mut self) {
        for known in self.0.drain(..).filter_map(|(_, known)| known.upgrade()) {
            known.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// The threads that call one runtime.
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
    /// Counts this thread.
    pub(crate) fn enter(&self) {
        if LATEST.get() != self.number {
            self.count();
        }
    }

    #[cold]
    fn count(&self) {
        // This fails in a thread that is ending and calls from a destructor: such a thread need not count.
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

    /// Counts this thread as waiting until the guard is dropped.
    pub(crate) fn wait(&self) -> Waiting<'_> {
        self.enter();
        self.waiting.fetch_add(1, Ordering::SeqCst);
        Waiting(self)
    }

    /// True if all counted threads wait.
    pub(crate) fn all_wait(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) >= self.known.load(Ordering::SeqCst)
    }
}

/// Counts a thread as waiting.
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
