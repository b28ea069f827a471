//! `seckill-gate audit`: checks the named invariants across gate and ledger.

pub mod check;

use anyhow::{Context, anyhow};
use clap::Args;
use http::StatusCode;
use reqwest::Method;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use self::check::{Check, Facts, LedgerFacts, OrderFacts, StoreFacts, WinFacts, check};
use super::admin_client::{AdminArgs, AdminClient, Failure, Ledger, OrdersArgs};
use super::status::{items, text};
use super::table::table;
use super::{exit, print};
use crate::domain::ActivityId;
use crate::gate::ledger::client::LedgerClient;

/// Violations printed per invariant; the JSON holds all of them.
const SHOWN: usize = 10;

/// Arguments.
#[derive(Debug, Args)]
pub struct Audit {
    /// Just this activity.
    activity: Option<ActivityId>,
    #[command(flatten)]
    gate: AdminArgs,
    #[command(flatten)]
    orders: OrdersArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Audit {
    /// Runs it. Exit 3 on any violation.
    pub async fn run(self) -> Result<u8, Failure> {
        let client = self.gate.client()?;
        let ledger = match self.orders.ledger(&self.gate)? {
            Ledger::Ours(client) => Some(client),
            Ledger::ShopsOwn | Ledger::NotNamed => None,
        };
        let names = match &self.activity {
            Some(name) => vec![name.to_string()],
            None => items(&client.get(&["activities"], &[]).await?, "activities")
                .iter()
                .filter(|activity| activity["preheated"] == true)
                .map(|activity| text(activity, "activity"))
                .collect(),
        };
        let mut audited = Vec::new();
        for name in names {
            let facts = gather(&client, ledger.as_deref(), &name).await?;
            audited.push((name, check(&facts)));
        }
        let violations =
            audited.iter().flat_map(|(_, checks)| checks).map(|check| check.violations.len()).sum::<usize>();
        if self.json {
            let activities: Vec<Value> =
                audited.iter().map(|(name, checks)| json!({ "activity": name, "checks": checks })).collect();
            print(json!({ "activities": activities, "violations": violations }))?;
        } else {
            for (name, checks) in &audited {
                print(describe(name, checks).trim_end())?;
            }
            print(format_args!("{violations} violations"))?;
        }
        Ok(if violations == 0 { exit::DONE } else { exit::FOUND })
    }
}

/// Reads the facts in the order that [`check`] relies on.
pub async fn gather(admin: &AdminClient, ledger: Option<&LedgerClient>, activity: &str) -> Result<Facts, Failure> {
    let wins_before = wins(admin, activity).await?;
    let ledger = match ledger {
        Some(client) => Some(ledger_facts(client, activity).await?),
        None => None,
    };
    let store_before = store_facts(admin, activity).await?;
    let wins_after = wins(admin, activity).await?;
    let store = store_facts(admin, activity).await?;
    // Wins only ever come, and end: equal sums mean that none did.
    let sums = |facts: &StoreFacts| facts.skus.iter().map(|s| (s.held, s.accepted, s.released)).collect::<Vec<_>>();
    let quiet = sums(&store_before) == sums(&store);
    Ok(Facts { wins_before, ledger, wins_after, store, quiet })
}

async fn store_facts(admin: &AdminClient, activity: &str) -> Result<StoreFacts, Failure> {
    read(admin.get(&["activities", activity], &[]).await?, "the gate's snapshot")
}

async fn wins(admin: &AdminClient, activity: &str) -> Result<Vec<WinFacts>, Failure> {
    let mut wins = Vec::new();
    let mut after = String::new();
    loop {
        let page = admin.get(&["activities", activity, "wins"], &[("after", &after)]).await?;
        let next = text(&page, "next");
        let more = page["more"] == true && next != after;
        wins.extend(read::<Vec<WinFacts>>(page["wins"].clone(), "a page of wins")?);
        if !more {
            return Ok(wins);
        }
        after = next;
    }
}

async fn ledger_facts(client: &LedgerClient, activity: &str) -> Result<LedgerFacts, Failure> {
    let report = ask(client, &["activities", activity], &[]).await?;
    let skus = read(report["skus"].clone(), "the order service's report")?;
    let mut orders: Vec<OrderFacts> = Vec::new();
    loop {
        let after = orders.last().map(|order| order.request_id.to_string()).unwrap_or_default();
        let query = [("after", after.as_str())];
        let query = if after.is_empty() { &query[..0] } else { &query[..] };
        let page = ask(client, &["activities", activity, "orders"], query).await?;
        let rows = if page.is_array() { page } else { page["orders"].clone() };
        let rows: Vec<OrderFacts> = read(rows, "a page of orders")?;
        if rows.is_empty() {
            return Ok(LedgerFacts { skus, orders });
        }
        orders.extend(rows);
    }
}

async fn ask(client: &LedgerClient, path: &[&str], query: &[(&str, &str)]) -> Result<Value, Failure> {
    match client.call(Method::GET, path, query, None).await.map_err(anyhow::Error::from)? {
        (StatusCode::OK, body) => Ok(body),
        (StatusCode::NOT_FOUND, _) => Err(anyhow!("the order service does not know {}", path.join("/")).into()),
        (status, _) => Err(anyhow!("the order service answers {status} to {}", path.join("/")).into()),
    }
}

fn read<T: DeserializeOwned>(value: Value, what: &str) -> Result<T, Failure> {
    Ok(serde_json::from_value(value).with_context(|| format!("{what} cannot be read"))?)
}

/// The checks of one activity as a table, with what breaks them.
pub fn describe(name: &str, checks: &[Check]) -> String {
    let rows: Vec<Vec<String>> = checks
        .iter()
        .map(|check| {
            let result = match (check.checked, check.violations.len()) {
                (None, _) => "not checked".to_owned(),
                (Some(_), 0) => "holds".to_owned(),
                (Some(_), count) => format!("BROKEN {count} times"),
            };
            let checked = check.checked.map_or("-".to_owned(), |checked| checked.to_string());
            vec![check.invariant.to_owned(), check.rule.to_owned(), checked, result]
        })
        .collect();
    let mut lines = format!("{name}\n{}", table(&["", "rule", "checked", "result"], &rows));
    for check in checks {
        for violation in check.violations.iter().take(SHOWN) {
            lines += &format!("  {} {violation}\n", check.invariant);
        }
        if check.violations.len() > SHOWN {
            lines += &format!("  {} and {} more\n", check.invariant, check.violations.len() - SHOWN);
        }
    }
    lines
}
