//! `seckill-gate start-sku`: lifts a stop, if store and ledger agree on the SKU.

use clap::Args;

use super::admin_client::Failure;
use super::change::SkuArgs;

/// Arguments.
#[derive(Debug, Args)]
pub struct StartSku {
    #[command(flatten)]
    change: SkuArgs,
}

impl StartSku {
    /// Runs it.
    pub async fn run(self) -> Result<u8, Failure> {
        self.change.make("start-sku").await
    }
}
