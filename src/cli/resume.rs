//! `seckill-gate resume`: lifts an operator's pause, nothing else.

use clap::Args;
use serde_json::json;

use super::admin_client::Failure;
use super::change::ChangeArgs;

/// Arguments.
#[derive(Debug, Args)]
pub struct Resume {
    #[command(flatten)]
    change: ChangeArgs,
}

impl Resume {
    /// Runs it.
    pub async fn run(self) -> Result<u8, Failure> {
        self.change.make("resume", json!({})).await
    }
}
