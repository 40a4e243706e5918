//! Objects of any kind of type.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| unisono_core::fuzz::object(bytes));
