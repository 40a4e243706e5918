//! The store at which ranks meet, and the watch by which each learns if another fails. The crate `unisono-rendezvous` says how it works.

pub use unisono_rendezvous::{
    CallRecord, FailureLatch, GroupPosition, LINGER, MAX_KEY, MAX_VALUE, MessagePosition, Position,
    PositionSource, Running, Stage, Store, StoreServer, Traffic, Watch, exchange, report,
};
#[doc(hidden)]
pub use unisono_rendezvous::{FIRST_REPORT, NEXT_REPORT, decide, entry_of};
