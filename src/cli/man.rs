//! `man`: the manual page, or one per command.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use clap::CommandFactory;

use super::{Cli, Outcome, exit};

/// Flags of `man`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Write one page per command into this directory instead
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
}

/// Prints or writes the pages.
pub fn run(args: Args) -> Outcome {
    match args.directory {
        Some(directory) => {
            std::fs::create_dir_all(&directory)
                .and_then(|()| clap_mangen::generate_to(Cli::command(), &directory))
                .with_context(|| format!("cannot write manual pages into {}", directory.display()))?;
        }
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(Cli::command()).render(&mut page)?;
            std::io::stdout().lock().write_all(&page)?;
        }
    }
    Ok(exit::DONE)
}
