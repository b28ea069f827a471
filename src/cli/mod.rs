//! The command line: one file per subcommand, this one to choose between them.

pub mod admin_client;
pub mod audit;
mod change;
pub mod keygen;
pub mod local_config;
mod pause;
mod preheat;
mod resume;
mod start_sku;
mod status;
mod stop_sku;
mod table;
mod totals;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

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
    /// Registers an activity in the ledger, then fills its store.
    Preheat(preheat::Preheat),
    /// Lets no attempt win until `resume`.
    Pause(pause::Pause),
    /// Lifts an operator's pause, nothing else.
    Resume(resume::Resume),
    /// Changes how many units of a SKU are offered.
    Totals(totals::Totals),
    /// Lets no attempt for a SKU win until `start-sku`.
    StopSku(stop_sku::StopSku),
    /// Lifts a stop, if store and ledger agree.
    StartSku(start_sku::StartSku),
    /// Shows how activities stand, with stock as a sum that adds up.
    Status(status::Status),
    /// Checks the named invariants across gate and ledger.
    Audit(audit::Audit),
    /// Makes the keys and secrets of a new deployment.
    Keygen(keygen::Keygen),
    /// Prints the version.
    Version,
}

/// Runs the command that was asked for.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    match cli.command {
        Command::Preheat(command) => admin_client::run(command.run()),
        Command::Pause(command) => admin_client::run(command.run()),
        Command::Resume(command) => admin_client::run(command.run()),
        Command::Totals(command) => admin_client::run(command.run()),
        Command::StopSku(command) => admin_client::run(command.run()),
        Command::StartSku(command) => admin_client::run(command.run()),
        Command::Status(command) => admin_client::run(command.run()),
        Command::Audit(command) => admin_client::run(command.run()),
        Command::Keygen(command) => admin_client::run(command.run()),
        Command::Version => {
            println!("seckill-gate {}", env!("CARGO_PKG_VERSION"));
            ExitCode::from(exit::DONE)
        }
    }
}
