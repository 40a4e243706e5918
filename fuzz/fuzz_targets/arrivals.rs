//! An engine among arrivals that no rank sent.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| unisono_engine::fuzz::arrivals(bytes));
