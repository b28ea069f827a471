//! `seckill-gate pause`: no attempt wins until `resume`.

use clap::Args;
use serde_json::json;

use super::admin_client::Failure;
use super::change::ChangeArgs;

/// Arguments.
#[derive(Debug, Args)]
pub struct Pause {
    #[command(flatten)]
    change: ChangeArgs,
}

impl Pause {
    /// Runs it.
    pub async fn run(self) -> Result<u8, Failure> {
        self.change.make("pause", json!({})).await
    }
}
