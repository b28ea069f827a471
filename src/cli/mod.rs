//! The command line: one file per subcommand, this one to choose between them.
//!
//! A command is a file here with `pub struct Args` (clap) and `pub fn run(Args) -> Outcome`, a variant of [`Command`] and
//! an arm of [`run`].

pub mod admin_client;
pub mod audit;
mod change;
mod check;
mod completions;
mod dead_letters;
mod demo;
mod explain;
pub mod keygen;
pub mod listeners;
mod man;
mod orders;
mod pause;
mod preheat;
mod reload;
mod resume;
mod schema;
mod serve;
mod start_sku;
mod status;
mod stop_sku;
mod table;
mod token;
mod totals;
mod version;
mod why;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
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
    /// Runs the gate
    Serve(serve::Args),
    /// Runs the order service with its consumer
    Orders(orders::Args),
    /// Runs a whole sale in one process: shop, order service, gate, and a crowd beside you
    Demo(demo::Args),
    /// Reports every fault of a configuration, with line and column
    Check(check::Args),
    /// Prints the JSON Schema of the configuration file
    Schema(schema::Args),
    /// Registers an activity in the ledger, then fills its store
    Preheat(preheat::Preheat),
    /// Lets no attempt win until `resume`
    Pause(pause::Pause),
    /// Lifts an operator's pause, nothing else
    Resume(resume::Resume),
    /// Changes how many units of a SKU are offered
    Totals(totals::Totals),
    /// Lets no attempt for a SKU win until `start-sku`
    StopSku(stop_sku::StopSku),
    /// Lifts a stop, if store and ledger agree
    StartSku(start_sku::StartSku),
    /// Lists wins that wait too long for the order service; delivers them again, or gives them up
    DeadLetters(dead_letters::DeadLetters),
    /// Has a gate read its file again: what changed, and what of it needs a restart
    Reload(reload::Reload),
    /// Shows how activities stand, with stock as a sum that adds up
    Status(status::Status),
    /// Tells what became of one attempt, from store, outbox and ledger
    Why(why::Why),
    /// Checks the named invariants across gate and ledger
    Audit(audit::Audit),
    /// Makes the keys and secrets of a new deployment
    Keygen(keygen::Keygen),
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
        Command::Serve(args) => serve::run(args),
        Command::Orders(args) => orders::run(args),
        Command::Demo(args) => demo::run(args),
        Command::Check(args) => check::run(args),
        Command::Schema(args) => schema::run(args),
        Command::Preheat(command) => admin_client::run(command.run()),
        Command::Pause(command) => admin_client::run(command.run()),
        Command::Resume(command) => admin_client::run(command.run()),
        Command::Totals(command) => admin_client::run(command.run()),
        Command::StopSku(command) => admin_client::run(command.run()),
        Command::StartSku(command) => admin_client::run(command.run()),
        Command::DeadLetters(command) => admin_client::run(command.run()),
        Command::Reload(command) => admin_client::run(command.run()),
        Command::Status(command) => admin_client::run(command.run()),
        Command::Why(command) => admin_client::run(command.run()),
        Command::Audit(command) => admin_client::run(command.run()),
        Command::Keygen(command) => admin_client::run(command.run()),
        Command::Token(args) => token::run(args),
        Command::Explain(args) => explain::run(args),
        Command::Completions(args) => completions::run(args),
        Command::Man(args) => man::run(args),
        Command::Version(args) => version::run(args),
    }
}

/// A runtime with so many worker threads; 0 means one per core.
fn runtime(threads: usize) -> anyhow::Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if threads > 0 {
        builder.worker_threads(threads);
    }
    builder.enable_all().build().context("cannot start a runtime")
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
