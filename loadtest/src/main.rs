//! `loadtest`: the crowd, the audit of what it did, and the shop behind the gate.

mod rush;
mod stand_in;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The command line.
#[derive(Parser)]
#[command(version, about = "A crowd for seckill-gate, and the audit of what it did")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Sends a crowd to a running stack, waits for the bookings, audits store and ledger. Exit 3: something is wrong
    Rush(Box<rush::Args>),
    /// Serves a small shop, to stand behind the gate
    Shop(stand_in::Args),
}

/// The users' key, as the shop holds it.
#[derive(clap::Args)]
struct UserKey {
    /// File with the HS256 key that signs users in
    #[arg(long, value_name = "FILE")]
    user_key_file: std::path::PathBuf,
    /// Its name
    #[arg(long, default_value = "shop")]
    kid: String,
    /// `iss` of the user JWTs
    #[arg(long)]
    issuer: String,
    /// `aud` of the user JWTs
    #[arg(long)]
    audience: String,
}

impl UserKey {
    fn signer(&self) -> anyhow::Result<std::sync::Arc<loadtest::signer::Signer>> {
        let secret = secret(&self.user_key_file)?;
        let signer = loadtest::signer::Signer::hs256(secret.as_bytes(), &self.kid, &self.issuer, &self.audience)?;
        Ok(std::sync::Arc::new(signer))
    }
}

/// Reads a secret; one trailing newline is dropped, as the gate does it.
fn secret(file: &std::path::Path) -> anyhow::Result<String> {
    use anyhow::Context as _;
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(text.strip_suffix('\n').unwrap_or(&text).to_owned())
}

#[tokio::main]
async fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Rush(args) => rush::run(*args).await,
        Command::Shop(args) => stand_in::run(args).await.map(|()| 0),
    };
    ExitCode::from(outcome.unwrap_or_else(|error| {
        eprintln!("loadtest: {error:#}");
        1
    }))
}
