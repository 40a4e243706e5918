//! The program `unisono`.

use std::process::ExitCode;

fn main() -> ExitCode {
    unisono_cli::main(unisono_cli::Invocation::default())
}
