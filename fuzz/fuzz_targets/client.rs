//! What a store's client reads.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| unisono_rendezvous::fuzz::client(bytes));
