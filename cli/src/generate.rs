//! `unisono completions` and `unisono man`: shell completions and manual pages, generated from the command line's definition.

use std::{
    fs,
    io::{self, Write},
    path::PathBuf,
};

use clap::Command;
use clap_complete::Shell;

/// Examples in the help: where shells look for the scripts.
const EXAMPLES: &str = "\
Examples:
  unisono completions bash > ~/.local/share/bash-completion/completions/unisono
  unisono completions zsh > \"${fpath[1]}/_unisono\"
  unisono completions fish > ~/.config/fish/completions/unisono.fish";

/// Writes a script that completes subcommands and options in a shell.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Completions {
    /// The shell that reads the script
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(self, mut program: Command) -> io::Result<()> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut program, "unisono", &mut script);
        io::stdout().write_all(&script)
    }
}

/// Writes the manual pages: unisono.1, and one for each subcommand.
#[derive(clap::Args)]
pub(crate) struct Man {
    /// The directory to write them to, for instance ~/.local/share/man/man1; it is created if it does not exist
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

impl Man {
    pub(crate) fn run(self, program: Command) -> Result<(), String> {
        let written = fs::create_dir_all(&self.directory)
            .and_then(|()| clap_mangen::generate_to(program, &self.directory));
        written.map_err(|error| format!("{}: {error}", self.directory.display()))
    }
}
