//! Collective communication by one-sided RDMA writes over libfabric.

pub mod algorithm;
pub mod buffer;
pub mod config;
pub mod dtype;
#[doc(hidden)]
pub mod engine;
pub mod error;
pub mod group;
pub mod launch;
pub mod partition;
pub mod reduce;
pub mod rendezvous;
pub mod schedule;

pub use buffer::Buffer;
pub use config::Config;
pub use error::{Error, Failure, Result};
pub use group::ProcessGroup;
pub use reduce::ReduceOp;
