//! What a store's server does among frames that no client sends.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| unisono_rendezvous::fuzz::server(bytes));
