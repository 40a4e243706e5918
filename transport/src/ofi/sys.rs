//! libfabric's C interface as bindgen reads it from the installed headers (see `build.rs`).
#![allow(
    unsafe_code,
    missing_docs,
    non_camel_case_types,
    non_upper_case_globals,
    unreachable_pub,
    unused_qualifications,
    dead_code,
    clippy::all,
    clippy::pedantic,
    clippy::nursery,
    clippy::restriction,
    reason = "generated"
)]

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
