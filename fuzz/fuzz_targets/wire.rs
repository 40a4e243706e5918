//! Immediates, headers, and requests and clears to send.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| unisono::fuzz::run("wire", bytes));
