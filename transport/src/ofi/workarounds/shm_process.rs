//! Providers whose endpoints of one process share a mapping (`shares_mapping` in `provider.rs`).
//!
//! Calls are serialised over the whole process. An endpoint that is dropped is not closed at once: it is kept, with its puts under
//! way, until the last endpoint of this process is dropped. It is not driven any more, so that nothing lands in its memory.

use std::{
    any::Any,
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError},
};

use crate::Address;

/// The last version with which two endpoints of one process were seen to work. In 2.5.1 an endpoint answers another's first put
/// before it has mapped that one's memory, and the other follows a bad pointer
/// (prov/shm/src/smr_av.c, smr_map_to_region skips smr_map_to_endpoint for regions of the same process).
const LAST_GOOD: (u32, u32) = (1, 17);

/// Endpoints in use, and those that are closed when none is in use.
struct Endpoints {
    in_use: Vec<Address>,
    retired: Vec<Box<dyn Any + Send>>,
}

fn endpoints() -> MutexGuard<'static, Endpoints> {
    static ALL: Mutex<Endpoints> = Mutex::new(Endpoints { in_use: Vec::new(), retired: Vec::new() });
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The lock that serialises calls into all domains of such providers.
pub(in crate::ofi) fn serial() -> Arc<Mutex<()>> {
    static SERIAL: LazyLock<Arc<Mutex<()>>> = LazyLock::new(Arc::default);
    Arc::clone(&SERIAL)
}

/// An endpoint with this address is opened.
pub(in crate::ofi) fn enter(address: &Address) {
    endpoints().in_use.push(address.clone());
}

/// Whether this is the address of an endpoint of this process that others cannot reach.
pub(in crate::ofi) fn unreachable(address: &Address, version: (u32, u32)) -> bool {
    version > LAST_GOOD && endpoints().in_use.contains(address)
}

/// An endpoint that entered is no longer used.
pub(in crate::ofi) fn retire(address: &Address, live: impl Any + Send) {
    let mut all = endpoints();
    all.retired.push(Box::new(live));
    all.in_use.retain(|in_use| in_use != address);
    let closing = if all.in_use.is_empty() { std::mem::take(&mut all.retired) } else { Vec::new() };
    // Closing drops regions, which must happen outside the lock.
    drop(all);
    drop(closing);
}
