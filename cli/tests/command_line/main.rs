//! The program `unisono` from the command line: each file tests one command, or a way to start the program.
//!
//! They are one program, because linking is most of what building a test takes. `cargo test -p unisono-cli --test command_line bench::`
//! runs one file of them.

#![allow(clippy::unwrap_used, clippy::panic)]

mod bench;
mod bench_table;
mod broadcast;
mod cost;
mod doctor;
mod ends;
mod examples;
mod first_words;
mod generate;
mod judges;
mod launchers;
mod leftovers;
mod plot;
mod real_hosts;
mod run;
mod run_hosts;
mod tune;
