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

/// What came of one activity.
enum Audited {
    /// Everything that could be looked at.
    Checked(Vec<Check>),
    /// Neither store nor ledger know it yet.
    NotPreheated,
    /// Nothing is known: not even whether there is anything to audit.
    Failed(String),
}

impl Audited {
    fn checks(&self) -> &[Check] {
        match self {
            Audited::Checked(checks) => checks,
            Audited::NotPreheated | Audited::Failed(_) => &[],
        }
    }

    /// Why there are no checks.
    fn reason(&self) -> Option<String> {
        match self {
            Audited::Checked(_) => None,
            Audited::NotPreheated => Some("not preheated".to_owned()),
            Audited::Failed(why) => Some(why.clone()),
        }
    }
}

impl Audit {
    /// Runs it. Exit 3 on any violation; else 1 if something that could have been checked was not: no news is not good
    /// news.
    pub async fn run(self) -> Result<u8, Failure> {
        let client = self.gate.client()?;
        let (ledger, unnamed) = match self.orders.ledger(&self.gate)? {
            Ledger::Ours(client) => (Some(client), false),
            Ledger::ShopsOwn => (None, false),
            Ledger::NotNamed => (None, true),
        };
        let names = match &self.activity {
            Some(name) => vec![name.to_string()],
            None => items(&client.get(&["activities"], &[]).await?, "activities")
                .iter()
                .map(|activity| text(activity, "activity"))
                .collect(),
        };
        let mut audited = Vec::new();
        for name in names {
            let of_one = match audit(&client, ledger.as_deref(), &name).await {
                Ok(of_one) => of_one,
                Err(failure) if self.activity.is_some() => return Err(failure),
                Err(failure) => Audited::Failed(format!("{:#}", failure.error)),
            };
            audited.push((name, of_one));
        }
        let checks = || audited.iter().flat_map(|(_, of_one)| of_one.checks());
        let violations = checks().map(|check| check.violations.len()).sum::<usize>();
        let not_made = checks().filter(|check| check.checked.is_none()).count();
        if self.json {
            let activities: Vec<Value> = audited
                .iter()
                .map(|(name, of_one)| json!({ "activity": name, "checks": of_one.checks(), "not_audited": of_one.reason() }))
                .collect();
            print(json!({ "activities": activities, "violations": violations, "checks_not_made": not_made }))?;
        } else {
            for (name, of_one) in &audited {
                print(match of_one.reason() {
                    None => describe(name, of_one.checks()).trim_end().to_owned(),
                    Some(why) => format!("{name}\n  not audited: {why}"),
                })?;
            }
            print(format_args!("{violations} violations, {not_made} checks not made"))?;
        }
        if unnamed {
            eprintln!(
                "The ledger was not asked: name the order service with -c FILE, or --orders and SECKILL_ORDERS_TOKEN."
            );
        }
        let failed = audited.iter().any(|(_, of_one)| matches!(of_one, Audited::Failed(_)));
        Ok(match violations {
            0 if failed || unnamed => exit::FAILED,
            0 => exit::DONE,
            _ => exit::FOUND,
        })
    }
}

async fn audit(client: &AdminClient, ledger: Option<&LedgerClient>, name: &str) -> Result<Audited, Failure> {
    let shown = client.get(&["activities", name], &[]).await?;
    if shown["preheated"] == true || shown["barred"] == "fenced" {
        return gather(client, ledger, name).await.map(|facts| Audited::Checked(check(&facts)));
    }
    if shown.get("store_error").is_some() {
        return Ok(Audited::Failed(text(&shown, "store_error")));
    }
    // What this gate never saw may be lost all the same.
    let Some(ledger) = ledger else { return Ok(Audited::NotPreheated) };
    match ledger.call(Method::GET, &["activities", name], &[], None).await.map_err(anyhow::Error::from)? {
        (StatusCode::NOT_FOUND, _) => Ok(Audited::NotPreheated),
        (StatusCode::OK, _) => Ok(Audited::Checked(vec![check::store_is_lost()])),
        (status, _) => Err(anyhow!("the order service answers {status}").into()),
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
