//! `seckill-gate preheat`: registers an activity in the ledger, then fills its store.

use clap::Args;
use serde_json::json;

use super::admin_client::Failure;
use super::change::ChangeArgs;

/// Arguments.
#[derive(Debug, Args)]
pub struct Preheat {
    #[command(flatten)]
    change: ChangeArgs,
}

impl Preheat {
    /// Runs it.
    pub async fn run(self) -> Result<u8, Failure> {
        self.change.make("preheat", json!({})).await
    }
}
