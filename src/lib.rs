//! Collective communication by one-sided RDMA writes over libfabric: the operations of `torch.distributed`, for CPU memory, on
//! every fabric that libfabric supports. In the repository, README.md describes the program `unisono` and how to start,
//! docs/performance.md has measurements, ARCHITECTURE.md and docs/decisions describe the design.
//!
//! A program first joins a [`ProcessGroup`]. The launcher's environment variables (`unisono run`, torchrun, srun, mpirun) give
//! its rank and the world size:
//!
//! ```no_run
//! use unisono::{ProcessGroup, ReduceOp};
//!
//! # fn main() -> unisono::Result<()> {
//! let group = ProcessGroup::from_env()?;
//! // Any slice of `half::f16`, `half::bf16`, f32, f64, i8 to i64 or u8 to u64. Every rank gets the average over all ranks.
//! let mut gradients = vec![group.rank() as f32; 1_000_000];
//! group.all_reduce(&mut gradients, ReduceOp::Avg)?;
//! # Ok(()) }
//! ```
//!
//! A world of one rank needs no environment and no other process:
//!
//! ```
//! use unisono::{Config, ProcessGroup, ReduceOp};
//!
//! # fn main() -> unisono::Result<()> {
//! let group = ProcessGroup::join(Config::default())?;
//! let mut data = [1.0_f32, 2.0];
//! group.all_reduce(&mut data, ReduceOp::Sum)?;
//! assert_eq!(data, [1.0, 2.0]);
//! # Ok(()) }
//! ```
//!
//! Bindings to other languages call [`ProcessGroup::collective`] and [`ProcessGroup::message`], which take the type of the elements as a
//! value and [memory](Foreign) from outside.
//!
//! The modules: [`group`] has the calls, and [`work`] the asynchronous ones; [`config`] has the settings, [`launch`] reads the
//! variables of launchers, and [`rendezvous`] is the store at which ranks meet. [`tensor`] has data of any type and shape,
//! [`object`] encodes values of any serde type, [`dtype`] and [`reduce`] have the element types and reductions, [`schedule`]
//! the algorithms, and [`hardware`] describes a host. The crate `unisono-files` copies files and directories from one rank to all others.
//!
//! Features: `hwloc`, on by default, places shared memory on NUMA nodes and describes the host, by the library hwloc; `ndarray` and
//! `safetensors` convert tensors from and to the types of those crates.

/// Compiles the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod buffer;
mod call;
pub mod config;
pub mod dtype;
mod engine;
pub mod error;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
pub mod group;
pub mod hardware;
pub mod launch;
pub mod object;
mod outside;
mod position;
mod program;
#[cfg(test)]
#[path = "../tests/random/mod.rs"]
mod random;
pub mod reduce;
pub mod rendezvous;
mod runtime;
mod signals;
pub mod tensor;
pub mod work;

pub use buffer::{Buffer, Foreign, Memory};
pub use config::{Config, ThreadCores};
pub use error::{Error, Failure, Result};
pub use group::{Direction, GradientBuckets, Message, MessageRequest, ProcessGroup, Request, Source};
pub use program::main;
pub use reduce::{ReduceOp, Reduction};
pub use runtime::late_failure;
pub use tensor::{Tensor, TensorView, TensorViewMut};
pub use unisono_schedule as schedule;
#[doc(hidden)]
pub use unisono_transport::log;
pub use work::Work;
