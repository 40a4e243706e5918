//! An environment: launchers' variables and our own.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| unisono_rendezvous::fuzz::settings(bytes));
