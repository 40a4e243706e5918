//! Code that exists only because of a bug in a provider. It can be deleted with the last supported version that has the bug.
//!
//! | what | whose bug |
//! |---|---|
//! | `closing.rs`: an endpoint drains before it is closed | efa before 2.0; ofi_rxm over soft-RoCE |
//! | `stuck_descriptor.rs`: waits on what a queue's descriptor watches | net |
//! | `signed_immediate.rs`: takes immediates whose sign was extended | efa 1.18.0 to 1.19.0 |
//! | `lost_writes.rs`: refuses versions and settings that lose writes | efa 1.18 and 1.19; verbs with shared receives |
//!
//! `provider.rs` says which provider has which bug.

mod closing;
pub(super) mod lost_writes;
pub(super) mod signed_immediate;
pub(super) mod stuck_descriptor;

pub(super) use closing::{FirstPuts, drain};
