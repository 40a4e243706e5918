//! What another rank says of a file, and what lies in a journal.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| unisono_files::fuzz::file(bytes));
