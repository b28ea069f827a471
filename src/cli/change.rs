//! What all changes have in common: an activity, `--dry-run`, one POST, one line that says what came of it.

use clap::Args;
use serde_json::{Value, json};

use super::admin_client::{AdminArgs, Failure};
use super::{exit, print};
use crate::domain::{ActivityId, SkuId};

/// Which activity, on which gate.
#[derive(Debug, Args)]
pub struct ChangeArgs {
    /// The activity.
    pub activity: ActivityId,
    #[command(flatten)]
    gate: AdminArgs,
    /// Say what would happen; change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Print the answer as JSON.
    #[arg(long)]
    json: bool,
}

/// An activity and one of its SKUs.
#[derive(Debug, Args)]
pub struct SkuArgs {
    #[command(flatten)]
    change: ChangeArgs,
    /// The SKU.
    sku: SkuId,
}

impl ChangeArgs {
    /// Asks for the change and prints what came of it.
    pub async fn make(self, action: &str, body: Value) -> Result<u8, Failure> {
        self.make_at(&[action], body).await
    }

    /// The same for a change whose route has several parts, e.g. `dead-letters/{request_id}/retry`.
    pub async fn make_at(self, action: &[&str], mut body: Value) -> Result<u8, Failure> {
        if self.dry_run {
            body["dry_run"] = true.into();
        }
        let path: Vec<&str> = ["activities", self.activity.as_str()].iter().chain(action).copied().collect();
        let answer = self.gate.client()?.post(&path, &body).await?;
        if self.json {
            print(&answer)?;
        } else {
            let outcome = answer.get("outcome").and_then(Value::as_str).unwrap_or("done").replace('_', " ");
            let count = answer.get("count").map(|count| format!(" ({count})")).unwrap_or_default();
            print(format_args!("{} {}: {outcome}{count}", self.activity, action.join(" ")))?;
        }
        Ok(exit::DONE)
    }
}

impl SkuArgs {
    /// Asks for a change of one SKU.
    pub async fn make(self, action: &str) -> Result<u8, Failure> {
        self.change.make(action, json!({ "sku": self.sku })).await
    }
}
