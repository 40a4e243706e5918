//! Code that exists only because of a bug in a provider. It can be deleted with the last supported version that has the bug.
//!
//! | what | whose bug |
//! |---|---|
//! | `shm_names.rs`: random names and locks for shared memory, and what killed processes leave | shm names memory by process number |
//! | `shm_process.rs`: endpoints of one process are closed together, and not connected | shm, two endpoints in one process |
//! | `closing.rs`: an endpoint drains before it is closed | shm and efa before 2.0; ofi_rxm over soft-RoCE |
//! | `stuck_descriptor.rs`: waits on what a queue's descriptor watches | net |
//! | `signed_immediate.rs`: takes immediates whose sign was extended | efa 1.18.0 to 1.19.0 |
//! | `withdrawn_puts.rs`: what is fetched from memory that its owner has back is no arrival | shm |
//! | `lost_writes.rs`: refuses versions and settings that lose writes | efa 1.18 and 1.19; verbs with shared receives |
//!
//! Which provider has which is a fact in `provider.rs`.

mod closing;
pub(super) mod lost_writes;
pub(super) mod shm_names;
pub(super) mod shm_process;
pub(super) mod signed_immediate;
pub(super) mod stuck_descriptor;
pub(super) mod withdrawn_puts;

pub(super) use closing::{FirstPuts, drain};
