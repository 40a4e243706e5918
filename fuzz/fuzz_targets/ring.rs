//! A ring in shared memory whose writer does what it wants.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| unisono_transport::fuzz::ring(bytes));
