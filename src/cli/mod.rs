//! The command line: one file per subcommand, this one to choose between them.

mod orders;

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
    /// Runs the order service with its consumer.
    Orders(orders::OrdersArgs),
    /// Prints the version.
    Version,
}

/// Runs the command that was asked for.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    match cli.command {
        Command::Orders(args) => match orders::main(&args) {
            Ok(()) => ExitCode::from(exit::DONE),
            Err(error) => {
                eprintln!("seckill-gate orders: {error:#}");
                ExitCode::from(exit::FAILED)
            }
        },
        Command::Version => {
            println!("seckill-gate {}", env!("CARGO_PKG_VERSION"));
            ExitCode::from(exit::DONE)
        }
    }
}
