//! The program `unisono`.

fn main() {}
