//! libfabric: endpoints of reliable datagrams, written to by one-sided writes with immediate data.
//!
//! [`Ofi::open`] chooses a provider by the capabilities that it reports (`select.rs`; `info.rs` asks for them), opens it (`open.rs`),
//! and has the endpoint write to itself before it is used (`self_test.rs`; efa and opx do that through shared memory, not by the NIC).
//! The endpoint (`endpoint.rs`) posts puts (`post.rs`), reads completions (`completion.rs`) and registers memory (`memory.rs`). Facts
//! about a provider that it does not report are a row in `provider.rs`; code that exists only because of a bug is in `workarounds/`.
//! `handle.rs` owns libfabric's objects, and `call.rs` judges what its functions return.
//!
//! ```no_run
//! use unisono_transport::{Transport, ofi::{Ofi, Options}};
//!
//! # fn main() -> Result<(), unisono_transport::Error> {
//! let towards = Some([10, 0, 0, 5].into());
//! let ofi = Ofi::open(&Options { provider: Some("tcp".into()), towards, ..Options::default() })?;
//! println!("{} on {}", ofi.limits().provider, ofi.limits().device);
//! # Ok(()) }
//! ```
#![allow(unsafe_code)]

mod address;
mod call;
mod completion;
mod endpoint;
mod handle;
mod info;
mod interface;
mod keepalive;
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

#[doc(hidden)]
pub use self::select::routed_from;
pub use self::{
    endpoint::Ofi,
    interface::Interfaces,
    select::{Candidate, Options, survey},
    variables::LAUNCH_WITH,
    version::{headers_version, library_version},
};
