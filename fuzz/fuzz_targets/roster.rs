//! What rank 0 tells every rank of all ranks.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| unisono::fuzz::run("roster", bytes));
