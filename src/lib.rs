//! Collective communication by one-sided RDMA writes over libfabric: the operations of `torch.distributed`, for CPU memory, on
//! every fabric that libfabric supports.
//!
//! A program joins a [`ProcessGroup`] and calls its methods. Started by a launcher (`unisono run`, torchrun, srun, mpirun) it is one of
//! many ranks; started by itself it is the only one. This is a whole program:
//!
//! ```
//! use unisono::{ProcessGroup, ReduceOp};
//!
//! fn main() -> std::process::ExitCode {
//!     unisono::main(program)
//! }
//!
//! fn program(group: &ProcessGroup) -> unisono::Result<()> {
//!     // Any slice of f16, bf16, f32, f64, i8 to i64, u8 to u64, isize or usize. Every rank gets the average over all ranks.
//!     let mut gradients = vec![group.rank() as f32; 1_000_000];
//!     group.all_reduce(&mut gradients, ReduceOp::Avg)?;
//!     println!("rank {} of {}: {}", group.rank(), group.size(), gradients[0]);
//!     Ok(())
//! }
//! ```
//!
//! Everything about a call but its operands is said in the same way for all calls:
//!
//! | wanted | said by |
//! |---|---|
//! | the result in place | `group.all_reduce(&mut data, op)` |
//! | the result in other memory | `group.all_reduce((&input, &mut output), op)` |
//! | several slices as one operand | `group.all_reduce(&mut [&mut one[..], &mut other[..]], op)` |
//! | blocks of several lengths | `group.all_gather(uneven(&mut data, &counts))` |
//! | not to wait | `group.begin().all_reduce(data, op)`, which returns a [`Work`] to wait for or to await |
//! | a tag | `group.send(&data, (rank, tag))` |
//! | another timeout | `group.with_timeout(timeout)?.all_reduce(&mut data, op)` |
//!
//! A slice that is a variable is passed on as `&mut *slice`, because a call takes its operands by value.
//!
//! Where to read on: [`ProcessGroup`] has a table of what a program has and wants, [`tensor`] and [`object`] what travels besides slices,
//! [`config`] the settings, [`launch`] the variables of launchers, and [`schedule`] the algorithms. The crate `unisono-files` copies
//! files and directories from one rank to all others.
//!
//! Features: `hwloc`, on by default, places shared memory on NUMA nodes and describes the host, by the library hwloc; `ndarray` and
//! `safetensors` convert tensors from and to the types of those crates.

/// Compiles the examples of the README and of papers for users.
#[cfg(doctest)]
mod papers {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../docs/from-gloo.md")]
    struct FromGloo;
    #[doc = include_str!("../docs/from-nccl.md")]
    struct FromNccl;
    #[doc = include_str!("../docs/from-rsmpi.md")]
    struct FromRsmpi;
}

pub mod buffer;
pub mod dtype;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
pub mod group;
pub mod hardware;
#[cfg(test)]
#[path = "../transport/tests/observed/mod.rs"]
mod observed;
mod program;
#[cfg(test)]
#[path = "../tests/random/mod.rs"]
mod random;
pub mod rendezvous;
mod runtime;
mod signals;
#[cfg(test)]
#[path = "../transport/tests/sim/mod.rs"]
mod sim;
pub mod work;

pub use buffer::{Buffer, Foreign, Memory};
pub use config::{Config, ThreadCores};
pub use error::{Error, Failure, Result};
pub use group::{
    Direction, GradientBuckets, Message, MessageRequest, Pipeline, ProcessGroup, Receiver, Request, Sender,
    Source, uneven,
};
pub use program::main;
pub use reduce::{ReduceOp, Reduction};
pub use runtime::late_failure;
pub use tensor::{Tensor, TensorView, TensorViewMut};
pub use unisono_core::{error, object, reduce, tensor};
use unisono_core::{outside, position};
pub use unisono_rendezvous::{config, launch};
pub use unisono_schedule as schedule;
#[doc(hidden)]
pub use unisono_transport::log;
pub use work::Work;
