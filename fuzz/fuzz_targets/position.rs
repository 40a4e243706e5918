//! Where ranks say that they stand.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| unisono_core::fuzz::position(bytes));
