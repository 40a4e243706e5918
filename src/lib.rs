//! Collective communication by one-sided RDMA writes over libfabric: what `torch.distributed` offers, for memory on the
//! CPU, on any fabric that libfabric reaches. The repository's README.md has the program `unisono` and how to begin;
//! docs/performance.md how fast it is; ARCHITECTURE.md and docs/decisions how it is built, and why.
//!
//! Everything begins with a [`ProcessGroup`], which knows from the environment who this process is (`unisono run`,
//! torchrun, srun, mpirun):
//!
//! ```no_run
//! use unisono::{ProcessGroup, ReduceOp};
//!
//! # fn main() -> unisono::Result<()> {
//! let group = ProcessGroup::from_env()?;
//! // Any slice of `half::f16`, `half::bf16`, f32, f64 or an integer; every rank gets the average of all.
//! let mut gradients = vec![group.rank() as f32; 1_000_000];
//! group.all_reduce(&mut gradients, ReduceOp::Avg)?;
//! # Ok(()) }
//! ```
//!
//! A world of one needs no environment and no other process:
//!
//! ```
//! use unisono::{Config, ProcessGroup, ReduceOp};
//! use unisono_transport::inproc::Hub;
//!
//! # fn main() -> unisono::Result<()> {
//! let group = ProcessGroup::with(Config::default(), Box::new(Hub::new().open()), None)?;
//! let mut data = [1.0_f32, 2.0];
//! group.all_reduce(&mut data, ReduceOp::Sum)?;
//! assert_eq!(data, [1.0, 2.0]);
//! # Ok(()) }
//! ```
//!
//! Below it lie, from the top down: [`schedule`]s, which algorithms yield; the engine, which runs them;
//! [`reduce`] and [`dtype`]; and beside it [`rendezvous`], [`launch`] and [`config`]. A [`tensor`] is data
//! of any shape, to be split, packed and put together; an [`object`] is a value of any serde type; [`Work`] is an operation
//! that nobody waits for yet. The crate `unisono-files` hands over files.
//!
//! Features, off unless asked for: `ndarray` and `safetensors` convert tensors from and to those crates' types, `hwloc` finds a
//! core for each rank's thread ([`ThreadCores`]).

/// Its example is compiled too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod buffer;
pub mod config;
pub mod dtype;
#[doc(hidden)]
pub mod engine;
pub mod error;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
pub mod group;
pub mod launch;
pub mod object;
mod outside;
mod position;
pub mod reduce;
pub mod rendezvous;
mod runtime;
mod signals;
pub mod tensor;
pub mod work;

pub use buffer::Buffer;
pub use config::{Config, ThreadCores};
pub use error::{Error, Failure, Result};
pub use group::{GradientBuckets, Message, ProcessGroup, Source};
pub use reduce::{ReduceOp, Reduction};
pub use tensor::{Tensor, TensorView, TensorViewMut};
pub use unisono_schedule as schedule;
pub use work::Work;
