//! Immediates, headers, and requests and clears to send.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| unisono_engine::fuzz::wire(bytes));
