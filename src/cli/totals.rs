//! `seckill-gate totals`: changes how many units of a SKU are offered, in store and ledger.

use clap::Args;
use serde_json::json;

use super::admin_client::Failure;
use super::change::ChangeArgs;
use crate::domain::SkuId;

/// Arguments.
#[derive(Debug, Args)]
pub struct Totals {
    #[command(flatten)]
    change: ChangeArgs,
    /// The SKU.
    sku: SkuId,
    /// The total as `status` shows it now; another one refuses the change.
    #[arg(long)]
    from: u32,
    /// The total wanted.
    #[arg(long)]
    to: u32,
}

impl Totals {
    /// Runs it.
    pub async fn run(self) -> Result<u8, Failure> {
        let body = json!({ "sku": self.sku, "from": self.from, "to": self.to });
        self.change.make("totals", body).await
    }
}
