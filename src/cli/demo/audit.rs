//! The end of a demo: waits until every win is booked, then checks the invariants as `seckill-gate audit` does.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::Context;
use reqwest::Url;

use crate::cli::admin_client::AdminClient;
use crate::cli::audit::{check::check, describe, gather};
use crate::config::Loaded;
use crate::gate::ledger::client::LedgerClient;

/// What was found.
pub struct Audited {
    /// Units sold, by the ledger.
    pub sold: i64,
    /// Orders that stand.
    pub orders: usize,
    /// Users that have one.
    pub distinct_users: usize,
    /// Violations of any invariant.
    pub violations: usize,
    /// The table to print.
    pub table: String,
}

/// Clients of the demo's gate and order service.
pub fn clients(loaded: &Loaded) -> anyhow::Result<(AdminClient, LedgerClient)> {
    let config = &loaded.config;
    let token = loaded.secret(&config.gate.admin_token)?.expose_text()?.to_owned();
    let admin = AdminClient::new(format!("http://{}", config.gate.admin).parse()?, token).map_err(|e| e.error)?;
    let source = config.orders.api_token.as_ref().context("orders.api_token is missing")?;
    let token = loaded.secret(source)?.expose_text()?.to_owned();
    let ledger = LedgerClient::new(&Url::parse(&config.orders.url)?, token, Duration::from_secs(20))?;
    Ok((admin, ledger))
}

/// Waits until nothing is unsettled, at most so long, then checks.
pub async fn after_booking(
    admin: &AdminClient,
    ledger: &LedgerClient,
    activity: &str,
    within: Duration,
) -> anyhow::Result<Audited> {
    let settled = async {
        loop {
            let shown = admin.get(&["activities", activity], &[]).await;
            if shown.is_ok_and(|shown| shown["unsettled"] == 0) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    // Should it not settle in time, the audit names what is missing.
    _ = tokio::time::timeout(within, settled).await;
    let facts = gather(admin, Some(ledger), activity).await.map_err(|e| e.error)?;
    let checks = check(&facts);
    let ledger = facts.ledger.as_ref().context("the order service told nothing")?;
    let standing: Vec<_> = ledger.orders.iter().filter(|order| order.stands()).collect();
    Ok(Audited {
        sold: ledger.skus.values().map(|sku| sku.sold).sum(),
        orders: standing.len(),
        distinct_users: standing.iter().map(|order| &order.user).collect::<HashSet<_>>().len(),
        violations: checks.iter().map(|check| check.violations.len()).sum(),
        table: describe(activity, &checks),
    })
}
