//! `seckill-gate dead-letters`: wins without the order service's final word for longer than `orders.dead_after`.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::admin_client::{AdminArgs, AdminClient, Failure};
use super::change::ChangeArgs;
use super::status::{items, number, span, text};
use super::table::table;
use super::{exit, print};
use crate::domain::{ActivityId, RequestId};

/// Arguments.
#[derive(Debug, Args)]
pub struct DeadLetters {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Lists them, the oldest mark first; exit 3 if there are any
    List(List),
    /// Makes one win due for delivery now
    Retry(One),
    /// Makes all dead letters due for delivery now; they go at the relay's rate
    RetryAll(All),
    /// Gives one win up: the order service voids its id, then its units go back on sale. Refused if there is an order
    Release(One),
}

/// Which activity to list.
#[derive(Debug, Args)]
struct List {
    /// The activity.
    activity: ActivityId,
    #[command(flatten)]
    gate: AdminArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct One {
    #[command(flatten)]
    change: ChangeArgs,
    /// The win's request id: 32 hex digits, as `list` and the log show it.
    request_id: RequestId,
}

#[derive(Debug, Args)]
struct All {
    #[command(flatten)]
    change: ChangeArgs,
}

impl DeadLetters {
    /// Runs it.
    pub async fn run(self) -> Result<u8, Failure> {
        match self.action {
            Action::List(list) => list.run().await,
            Action::Retry(one) => one.make("retry").await,
            Action::RetryAll(all) => all.change.make_at(&["dead-letters", "retry-all"], json!({})).await,
            Action::Release(one) => one.make("release").await,
        }
    }
}

impl One {
    async fn make(self, action: &str) -> Result<u8, Failure> {
        self.change.make_at(&["dead-letters", self.request_id.hex().as_str(), action], json!({})).await
    }
}

impl List {
    async fn run(self) -> Result<u8, Failure> {
        let client = self.gate.client()?;
        let letters = all(&client, &self.activity).await?;
        if self.json {
            print(json!({ "dead_letters": letters }))?;
        } else if letters.is_empty() {
            print(format_args!("{}: no dead letters", self.activity))?;
        } else {
            print(describe(&letters).trim_end())?;
        }
        Ok(if letters.is_empty() { exit::DONE } else { exit::FOUND })
    }
}

/// Every page.
async fn all(client: &AdminClient, activity: &ActivityId) -> Result<Vec<Value>, Failure> {
    let mut letters = Vec::new();
    let mut after = String::new();
    loop {
        let page = client.get(&["activities", activity.as_str(), "dead-letters"], &[("after", &after)]).await?;
        letters.extend_from_slice(items(&page, "dead_letters"));
        after = text(&page, "next");
        if after.is_empty() {
            return Ok(letters);
        }
    }
}

/// Times are shown as they lie to each other: a list needs no clock.
fn describe(letters: &[Value]) -> String {
    let rows: Vec<Vec<String>> = letters
        .iter()
        .map(|letter| {
            // Of a win that was never delivered the wait began when it was won.
            let began = if letter["first_delivery_at_ms"].is_null() { "won_at_ms" } else { "first_delivery_at_ms" };
            let waited = number(letter, "dead_since_ms") - number(letter, began);
            let mut row: Vec<String> =
                ["request_id", "user", "sku", "qty", "tries"].map(|field| text(letter, field)).into();
            row.extend([text(letter, "last_word"), at(letter, "won_at_ms"), at(letter, "dead_since_ms"), span(waited)]);
            row
        })
        .collect();
    table(&["request id", "user", "sku", "qty", "tries", "last word", "won", "dead since", "after"], &rows)
}

fn at(letter: &Value, field: &str) -> String {
    let moment = chrono::DateTime::from_timestamp_millis(number(letter, field));
    moment.map(|moment| moment.format("%Y-%m-%dT%H:%M:%SZ").to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_letter_is_a_line() {
        let letter = json!({
            "request_id": "0123456789abcdef0123456789abcdef", "user": "ann", "sku": "phone", "qty": 1, "tries": 71,
            "last_word": "unknown", "won_at_ms": 1_000, "first_delivery_at_ms": 2_000, "dead_since_ms": 604_000,
        });
        let expected = "\
request id                        user  sku    qty  tries  last word  won                   dead since            after
0123456789abcdef0123456789abcdef  ann   phone    1     71  unknown    1970-01-01T00:00:01Z  1970-01-01T00:10:04Z  10 min 2 s
";
        assert_eq!(describe(&[letter]), expected);
    }
}
