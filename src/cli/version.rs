//! `version`: what this program is.

use serde_json::json;

use super::{Outcome, exit, print};

/// Flags of `version`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Prints the version.
pub fn run(args: Args) -> Outcome {
    let version = env!("CARGO_PKG_VERSION");
    let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
    let target = format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS);
    if args.json {
        print(json!({ "name": "seckill-gate", "version": version, "profile": profile, "target": target }))?;
    } else {
        print(format!("seckill-gate {version} ({profile}, {target})"))?;
    }
    Ok(exit::DONE)
}
