//! Raw bindings to [libfabric](https://ofiwg.github.io/libfabric/): endpoints of reliable datagrams, memory registration, one-sided
//! writes with immediate data. Only the functions that `unisono-transport` calls are bound.
//!
//! The build script makes them with bindgen from the headers of the libfabric that is installed (1.17 or later, by pkg-config), since
//! structures differ between versions. Functions that the headers define (`static inline`) are compiled into a small library of C.
//! Where pkg-config, libfabric, libclang or a C compiler is missing, the build says which package to install. Documentation on
//! docs.rs is built from `src/docs_rs.inc` instead, without any of these.
//!
//! Build scripts of crates that depend on this one directly find libfabric's directory in `DEP_FABRIC_RPATH`, if the
//! loader would not look there by itself.
#![allow(
    unsafe_code,
    missing_docs,
    non_camel_case_types,
    non_upper_case_globals,
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::pedantic,
    clippy::nursery,
    clippy::restriction,
    reason = "generated"
)]

include!(env!("LIBFABRIC_BINDINGS"));
