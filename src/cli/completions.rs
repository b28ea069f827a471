//! `completions`: a completion script for a shell.

use std::io::Write;

use clap::CommandFactory;
use clap_complete::Shell;

use super::{Cli, Outcome, exit};

/// Flags of `completions`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// For which shell
    shell: Shell,
}

/// Prints the script.
pub fn run(args: Args) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "seckill-gate", &mut script);
    std::io::stdout().lock().write_all(&script)?;
    Ok(exit::DONE)
}
