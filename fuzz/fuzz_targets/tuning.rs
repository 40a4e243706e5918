//! Tuning files.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| unisono::fuzz::run("tuning", bytes));
