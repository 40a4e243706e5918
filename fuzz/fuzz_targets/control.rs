//! Control messages of peers over shared memory.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| unisono_transport::fuzz::control(bytes));
