//! What a store's client reads.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| unisono::fuzz::run("client", bytes));
