//! The command line: one file per subcommand, this one to choose between them.
//!
//! A command is a file here with `pub struct Args` (clap) and `pub fn run(Args) -> Outcome`, a variant of [`Command`] and
//! an arm of [`run`].

mod check;
mod completions;
mod explain;
mod man;
mod schema;
mod token;
mod version;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::config::{Faults, Loaded, Scope};

/// Exit codes, the same for every command.
pub mod exit {
    /// Done.
    pub const DONE: u8 = 0;
    /// Failed.
    pub const FAILED: u8 = 1;
    /// Bad usage or configuration.
    pub const USAGE: u8 = 2;
    /// Found something wrong.
    pub const FOUND: u8 = 3;
}

/// Flash-sale admission gateway: exactly as many winners as there is stock.
#[derive(Debug, Parser)]
#[command(name = "seckill-gate", version, about, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Reports every fault of a configuration, with line and column
    Check(check::Args),
    /// Prints the JSON Schema of the configuration file
    Schema(schema::Args),
    /// Signs a user JWT with the configured key, for trying things out
    Token(token::Args),
    /// Explains a refusal code; lists all of them without one
    Explain(explain::Args),
    /// Prints a completion script for a shell
    Completions(completions::Args),
    /// Prints the manual page, or writes one per command into a directory
    Man(man::Args),
    /// Prints the version
    Version(version::Args),
}

/// How a command ended: an exit code of [`exit`], or an error that is printed and exits with 1. Bad usage that only a
/// command can see is [`Usage`], and exits with 2.
pub type Outcome = anyhow::Result<u8>;

/// Bad usage or configuration.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// Runs the command that was asked for.
pub fn main() -> ExitCode {
    let outcome = run(Cli::parse().command);
    ExitCode::from(outcome.unwrap_or_else(|error| {
        // `… | head` closed the pipe: nobody is left to be told.
        if is_broken_pipe(&error) {
            return exit::DONE;
        }
        eprintln!("seckill-gate: {error:#}");
        if error.is::<Usage>() { exit::USAGE } else { exit::FAILED }
    }))
}

fn run(command: Command) -> Outcome {
    match command {
        Command::Check(args) => check::run(args),
        Command::Schema(args) => schema::run(args),
        Command::Token(args) => token::run(args),
        Command::Explain(args) => explain::run(args),
        Command::Completions(args) => completions::run(args),
        Command::Man(args) => man::run(args),
        Command::Version(args) => version::run(args),
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|io| io.kind() == std::io::ErrorKind::BrokenPipe)
    })
}

/// `-c FILE`, and which of its gates this process is: the flags of every command that reads the configuration.
#[derive(Debug, clap::Args)]
pub struct ConfigArgs {
    /// The configuration file
    #[arg(short = 'c', long = "config", value_name = "FILE", env = "SECKILL_CONFIG")]
    pub config: PathBuf,
    /// This gate's name, in place of `gate.id`
    #[arg(long, value_name = "ID", env = "SECKILL_GATE")]
    pub gate: Option<String>,
}

impl ConfigArgs {
    /// Loads the file; all faults are drawn on standard error, and the exit code is the error.
    pub fn load(&self) -> Result<Loaded, u8> {
        drawn(crate::config::load_as(&self.config, self.gate.as_deref()))
    }

    /// Like [`ConfigArgs::load`], and also looks at the secrets, keys and pages that this process needs.
    pub fn load_for(&self, scope: Scope) -> Result<Loaded, u8> {
        drawn(crate::config::check(&self.config, self.gate.as_deref(), scope))
    }
}

fn drawn(loaded: Result<Loaded, Faults>) -> Result<Loaded, u8> {
    loaded.map_err(|faults| {
        draw(&faults);
        exit::USAGE
    })
}

/// Draws faults on standard error, in colours on a terminal.
pub fn draw(faults: &Faults) {
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    eprint!("{}", faults.draw(colours));
}

/// Prints to standard output; a closed pipe is an error that ends the command quietly.
pub fn print(text: impl std::fmt::Display) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
