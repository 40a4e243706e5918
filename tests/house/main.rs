//! The rules of this repository, which no compiler holds: how rooms import each other and which words are used, what papers say, what
//! scripts print, and the files of `deploy/`. `cargo test -p unisono --test house` answers within seconds of an edit.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

mod deploy;
mod layering;
mod papers;
mod scripts;
