//! `seckill-gate stop-sku`: no attempt for this SKU wins until `start-sku`.

use clap::Args;

use super::admin_client::Failure;
use super::change::SkuArgs;

/// Arguments.
#[derive(Debug, Args)]
pub struct StopSku {
    #[command(flatten)]
    change: SkuArgs,
}

impl StopSku {
    /// Runs it.
    pub async fn run(self) -> Result<u8, Failure> {
        self.change.make("stop-sku").await
    }
}
