//! What providers need whose endpoints look into one another's memory within a process (`provider.rs`).
//!
//! Calls are serialised over the whole process. And an endpoint that is dropped retires, with the puts it
//! has under way, and is closed together with the last one of this process; it is not driven any more, so
//! nothing lands in its memory.

use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use super::Live;

/// Endpoints in use, and those that wait for them.
struct House {
    in_use: usize,
    retired: Vec<Live>,
}

static HOUSE: Mutex<House> = Mutex::new(House { in_use: 0, retired: Vec::new() });

/// What calls into domains of such providers are serialised by.
pub(super) fn serial() -> Arc<Mutex<()>> {
    static SERIAL: LazyLock<Arc<Mutex<()>>> = LazyLock::new(Arc::default);
    Arc::clone(&SERIAL)
}

/// An endpoint is opened.
pub(super) fn enter() {
    HOUSE.lock().unwrap_or_else(PoisonError::into_inner).in_use += 1;
}

/// An endpoint that entered is no longer used.
pub(super) fn retire(live: Live) {
    let mut house = HOUSE.lock().unwrap_or_else(PoisonError::into_inner);
    house.retired.push(live);
    house.in_use = house.in_use.saturating_sub(1);
    let closing = if house.in_use == 0 { std::mem::take(&mut house.retired) } else { Vec::new() };
    // Closing drops regions, which is no business of the lock's.
    drop(house);
    drop(closing);
}
