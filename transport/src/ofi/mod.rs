//! libfabric: endpoints of reliable datagrams, written to by one-sided writes with immediate data.
//!
//! [`Ofi::open`] chooses a provider by what it says it can do (`select.rs`, by what `info.rs` asks), opens it (`open.rs`), and has it
//! write to itself once before it is trusted (`self_test.rs`; efa and opx do that through shared memory, not by the NIC). The
//! endpoint (`endpoint.rs`) posts puts (`post.rs`), reads completions (`completion.rs`) and registers memory (`memory.rs`). What is
//! known of a provider beyond what it says is a row in `provider.rs`; what exists only because of a bug is in `workarounds/`.
//! Objects of libfabric are owned in `handle.rs`, and what its functions return is judged in `call.rs`.
#![allow(unsafe_code)]

mod address;
mod call;
mod completion;
mod endpoint;
mod eventfd;
mod handle;
mod info;
mod interface;
mod kernel_file;
mod locality;
mod memory;
mod open;
mod post;
mod provider;
mod select;
mod self_test;
mod variables;
mod version;
mod workarounds;

pub use self::{
    address::socket_address,
    endpoint::Ofi,
    interface::Interfaces,
    select::{Candidate, Options, survey},
    variables::LAUNCH_WITH,
    version::{headers_version, library_version},
    workarounds::shm_names::sweep,
};
