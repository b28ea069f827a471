//! `seckill-gate why`: what became of one attempt, from store, outbox and ledger.

use anyhow::anyhow;
use chrono::{DateTime, SecondsFormat, Utc};
use clap::Args;
use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::admin_client::{AdminArgs, AdminClient, Failure, Ledger, LookedUp, OrdersArgs, Refusal, usage};
use super::status::{items, number, text};
use super::{exit, print};
use crate::domain::{ActivityId, IdempotencyKey, RequestId, UserId};
use crate::gate::ledger::client::LedgerClient;

/// Arguments.
#[derive(Debug, Args)]
pub struct Why {
    /// The attempt, as refusals, results and logs name it.
    #[arg(required_unless_present = "key")]
    request_id: Option<RequestId>,
    /// The activity; all of the gate's are searched without it.
    #[arg(long)]
    activity: Option<ActivityId>,
    /// Instead of the request id: whose attempt it was, with --key and --activity.
    #[arg(long, requires = "key", conflicts_with = "request_id")]
    user: Option<UserId>,
    /// The attempt's Idempotency-Key.
    #[arg(long, requires_all = ["user", "activity"])]
    key: Option<IdempotencyKey>,
    #[command(flatten)]
    gate: AdminArgs,
    #[command(flatten)]
    orders: OrdersArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What store and ledger say.
struct Found {
    request_id: RequestId,
    activity: Option<String>,
    /// The gate's reply; `null` if no store of its activities knows the id.
    win: Value,
    /// A store that does not know the id has lost something.
    store_lost: bool,
    /// What went wrong instead, so that a win may be there all the same.
    store_not_answered: Option<String>,
    /// The order service's reply; `null` if it knows no order.
    order: Value,
    /// Why the ledger was not asked.
    ledger_not_asked: Option<&'static str>,
    /// What went wrong when it was.
    ledger_not_answered: Option<String>,
}

impl Why {
    /// Runs it. Exit 3 if store and ledger contradict each other, 1 if neither knows the id or the store does not answer.
    pub async fn run(self) -> Result<u8, Failure> {
        let client = self.gate.client()?;
        let request_id = match (self.request_id, &self.activity, &self.user, &self.key) {
            (Some(id), ..) => id,
            (None, Some(activity), Some(user), Some(key)) => RequestId::derive(activity, user, key),
            _ => return Err(usage(anyhow!("name the request id, or --activity, --user and --key"))),
        };
        let ledger = self.orders.ledger(&self.gate)?;
        let look = async || look(&client, &ledger, self.activity.as_ref(), request_id).await;
        let mut found = look().await?;
        // The attempt may have moved between the two questions; a contradiction that is one stays.
        if found.verdict().1 == exit::FOUND {
            found = look().await?;
        }
        let (verdict, code) = found.verdict();
        if self.json {
            print(json!({
                "request_id": found.request_id, "activity": found.activity, "win": found.win, "order": found.order,
                "store_lost": found.store_lost, "store_not_answered": found.store_not_answered,
                "ledger_not_asked": found.ledger_not_asked, "ledger_not_answered": found.ledger_not_answered,
                "verdict": verdict, "sound": code != exit::FOUND,
            }))?;
        } else {
            print(found.describe(&verdict).trim_end())?;
        }
        Ok(code)
    }
}

async fn look(
    client: &AdminClient,
    ledger: &Ledger,
    activity: Option<&ActivityId>,
    request_id: RequestId,
) -> Result<Found, Failure> {
    let mut found = Found { activity: activity.map(ToString::to_string), ..Found::nothing(request_id) };
    // A store that is silent is when the ledger's word is wanted most.
    let silent = match find(client, activity, request_id).await {
        Ok(InStores::Found(name, win)) => {
            (found.activity, found.win) = (Some(name), win);
            None
        }
        Ok(InStores::NotFound { lost }) => {
            found.store_lost = lost;
            None
        }
        Err(failure) if is_silence(&failure) => Some(failure),
        Err(failure) => return Err(failure),
    };
    match ledger {
        Ledger::Ours(ledger) => match ask(ledger, request_id).await {
            Ok(order) => found.order = order,
            Err(error) => found.ledger_not_answered = Some(format!("{error:#}")),
        },
        Ledger::ShopsOwn => found.ledger_not_asked = Some("the order service is the shop's own"),
        Ledger::NotNamed => {
            found.ledger_not_asked = Some("it is not named; use -c FILE, or --orders with SECKILL_ORDERS_TOKEN");
        }
    }
    match silent {
        // Then nothing at all is known.
        Some(failure) if !found.ledger_answered() => Err(failure),
        silent => {
            found.store_not_answered = silent.map(|failure| format!("{:#}", failure.error));
            Ok(found)
        }
    }
}

/// Whether it is the gate or its store that does not answer, rather than the question that was wrong.
fn is_silence(failure: &Failure) -> bool {
    let refusal = failure.error.downcast_ref::<Refusal>();
    failure.code == exit::FAILED && refusal.is_none_or(|refusal| refusal.status.is_server_error())
}

/// What the stores of a gate's activities know of an id.
enum InStores {
    /// The activity, and the win.
    Found(String, Value),
    /// None knows it; whether one of them has lost something.
    NotFound { lost: bool },
}

/// Looks into the stores. An error if none knows the id, but not all could say so.
async fn find(client: &AdminClient, activity: Option<&ActivityId>, id: RequestId) -> Result<InStores, Failure> {
    let names = match activity {
        Some(name) => vec![name.to_string()],
        None => items(&client.get(&["activities"], &[]).await?, "activities")
            .iter()
            .map(|activity| text(activity, "activity"))
            .collect(),
    };
    let (mut silent, mut lost) = (None, false);
    for name in names {
        match client.find(&["activities", &name, "wins", id.hex().as_str()]).await {
            Ok(LookedUp::Found(win)) => return Ok(InStores::Found(name, win)),
            Ok(LookedUp::None) => {}
            Ok(LookedUp::Lost) => lost = true,
            // Another sale may have its own troubles, or none.
            Err(failure) if failure.error.is::<Refusal>() && is_silence(&failure) => silent = Some(failure),
            Err(failure) => return Err(failure),
        }
    }
    silent.map_or(Ok(InStores::NotFound { lost }), Err)
}

async fn ask(ledger: &LedgerClient, id: RequestId) -> anyhow::Result<Value> {
    match ledger.call(Method::GET, &["orders", id.hex().as_str()], &[], None).await? {
        (StatusCode::OK, order) => Ok(order),
        (StatusCode::NOT_FOUND, _) => Ok(Value::Null),
        (status, _) => Err(anyhow!("the order service answers {status}")),
    }
}

impl Found {
    /// Before anybody was asked.
    fn nothing(request_id: RequestId) -> Found {
        Found {
            request_id,
            activity: None,
            win: Value::Null,
            store_lost: false,
            store_not_answered: None,
            order: Value::Null,
            ledger_not_asked: None,
            ledger_not_answered: None,
        }
    }

    fn ledger_answered(&self) -> bool {
        self.ledger_not_asked.is_none() && self.ledger_not_answered.is_none()
    }

    /// What it means, and the exit code.
    fn verdict(&self) -> (String, u8) {
        let state = text(&self.win, "state");
        let order = text(&self.order, "state");
        let stands = matches!(order.as_str(), "pending" | "paid");
        let asked = self.ledger_answered();
        if self.store_not_answered.is_some() {
            let verdict = match order.as_str() {
                "" => "Not known: no order is booked, and the store, which knows who won, does not answer. Ask again.",
                _ if stands => "Booked: the order stands. What the store says of the win is not known; ask again.",
                _ => "No order stands. What the store says of the win is not known; ask again.",
            };
            return (verdict.to_owned(), exit::FAILED);
        }
        let (verdict, code) = match (state.as_str(), order.as_str()) {
            ("", "") if self.store_lost => {
                ("Not known. A store of this gate is fenced: it has lost something, perhaps this win.", exit::FAILED)
            }
            ("", _) if self.store_lost => (
                "The order service knows it; a store of this gate is fenced, and has perhaps lost the win.",
                exit::DONE,
            ),
            ("", "") => (
                "Not known. It never won (losses are not recorded), or it is older than the sale's retention, or another \
                 gate's store holds it.",
                exit::FAILED,
            ),
            ("", _) if stands => ("CONTRADICTION: an order stands for which the store knows no win.", exit::FOUND),
            ("", _) => ("No win is known, and no order stands.", exit::DONE),
            ("held", "") if self.win["dead_since_ms"].is_u64() => (
                "Won, and undelivered for too long: it is a dead letter. It is tried again slowly; see `seckill-gate \
                 dead-letters`.",
                exit::DONE,
            ),
            ("held", "") if asked => {
                ("Won. The order service has not booked it yet; it is delivered until it has.", exit::DONE)
            }
            ("held", "") => ("Won. The order service has not given a final word yet.", exit::DONE),
            ("held", _) if stands => (
                "Won and booked. The store learns of it at the next delivery, and the buyer then hears WON.",
                exit::DONE,
            ),
            ("held", _) => {
                ("Won, and refused by the order service: the units come back at the next delivery.", exit::DONE)
            }
            ("accepted", _) if stands => ("Won, booked, told WON.", exit::DONE),
            ("accepted", "") if !asked => ("Won and accepted by the order service.", exit::DONE),
            ("accepted", "expired" | "cancelled") => {
                ("Booked, and the order ended: its units come back when the order service says so.", exit::DONE)
            }
            ("accepted", _) => ("CONTRADICTION: accepted, but the ledger has no order that was booked.", exit::FOUND),
            ("released", _) if stands => {
                ("CONTRADICTION: the units were given back, but the order stands.", exit::FOUND)
            }
            ("released", _) => ("Won once, and ended: the units went back on sale.", exit::DONE),
            _ => ("The gate says a state that this release does not know.", exit::FOUND),
        };
        (verdict.to_owned(), code)
    }

    fn describe(&self, verdict: &str) -> String {
        let mut lines = format!("{}\n", self.request_id);
        let win = &self.win;
        if let Some(error) = &self.store_not_answered {
            lines += &format!("  store    not answered: {error}\n");
        } else if win.is_null() && self.store_lost {
            lines += "  store    FENCED: it has lost something, perhaps this win\n";
        } else if win.is_null() {
            lines += "  store    no win under this id\n";
        } else {
            lines += &format!(
                "  store    {}: {} x {} for {}, key {}\n           won {}, {}{}\n",
                self.activity.as_deref().unwrap_or_default(),
                number(win, "qty"),
                text(win, "sku"),
                text(win, "user"),
                text(win, "key"),
                moment(win, "won_at_ms"),
                text(win, "state"),
                ended(win),
            );
            lines += &outbox(win);
        }
        match (self.ledger_not_asked, &self.ledger_not_answered) {
            (Some(why), _) => lines += &format!("  ledger   not asked: {why}\n"),
            (None, Some(error)) => lines += &format!("  ledger   not answered: {error}\n"),
            (None, None) if self.order.is_null() => lines += "  ledger   no order under this id\n",
            (None, None) => {
                lines += &format!(
                    "  ledger   order {}: {}{}, since {}\n",
                    text(&self.order, "order_id"),
                    text(&self.order, "state"),
                    Some(text(&self.order, "reason"))
                        .filter(|r| !r.is_empty())
                        .map_or(String::new(), |r| format!(" ({r})")),
                    moment(&self.order, "created_at_ms"),
                );
            }
        }
        lines + &format!("  {verdict}\n")
    }
}

fn ended(win: &Value) -> String {
    match text(win, "cause") {
        cause if cause.is_empty() => String::new(),
        cause => format!(" ({cause}: {})", text(win, "reason")),
    }
}

fn outbox(win: &Value) -> String {
    let tries = number(win, "tries");
    let mut line = match text(win, "state").as_str() {
        "held" => format!("  outbox   delivered until the order service's final word; {tries} tries so far"),
        _ => format!("  outbox   nothing to deliver; {tries} tries ended without a final word"),
    };
    if win["first_delivery_at_ms"].is_u64() {
        line += &format!(", the first at {}", moment(win, "first_delivery_at_ms"));
    }
    if win["dead_since_ms"].is_u64() {
        line += &format!("; dead since {}", moment(win, "dead_since_ms"));
    }
    if let Some(status) = win["reply_status"].as_u64() {
        line += &format!("; the order service's reply that is kept: {status}");
    }
    line + "\n"
}

/// A moment as people read it, in UTC.
fn moment(value: &Value, field: &str) -> String {
    let at = value[field].as_i64().and_then(DateTime::<Utc>::from_timestamp_millis);
    at.map_or_else(|| "?".into(), |at| at.to_rfc3339_opts(SecondsFormat::Millis, true))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing() -> Found {
        Found::nothing("0123456789abcdef0123456789abcdef".parse().unwrap())
    }

    #[test]
    fn store_and_ledger_make_one_verdict() {
        const NONE: &str = "";
        // State in the store, state in the ledger, whether the ledger was asked, exit code, a part of the verdict.
        let rows = [
            (NONE, NONE, true, exit::FAILED, "Not known"),
            (NONE, "pending", true, exit::FOUND, "CONTRADICTION"),
            (NONE, "void", true, exit::DONE, "no order stands"),
            ("held", NONE, true, exit::DONE, "has not booked it yet"),
            ("held", NONE, false, exit::DONE, "given a final word"),
            ("held", "pending", true, exit::DONE, "next delivery"),
            ("held", "refused", true, exit::DONE, "refused"),
            ("accepted", "paid", true, exit::DONE, "told WON"),
            ("accepted", NONE, false, exit::DONE, "accepted by"),
            ("accepted", NONE, true, exit::FOUND, "CONTRADICTION"),
            ("accepted", "void", true, exit::FOUND, "CONTRADICTION"),
            ("accepted", "expired", true, exit::DONE, "come back"),
            ("released", "refused", true, exit::DONE, "went back"),
            ("released", "pending", true, exit::FOUND, "CONTRADICTION"),
        ];
        let silent = |order: Value| Found { order, store_not_answered: Some("down".into()), ..nothing() }.verdict();
        for (order, part) in [
            (Value::Null, "Not known"),
            (json!({ "state": "paid" }), "Booked"),
            (json!({ "state": "void" }), "No order"),
        ] {
            let (verdict, code) = silent(order);
            assert!(code == exit::FAILED && verdict.starts_with(part), "{code} {verdict}");
        }
        for (state, order, asked, code, part) in rows {
            let told = |state: &str| if state.is_empty() { Value::Null } else { json!({ "state": state }) };
            let found = Found {
                win: told(state),
                order: told(order),
                ledger_not_answered: (!asked).then(|| "down".into()),
                ..nothing()
            };
            let (verdict, exit) = found.verdict();
            assert!(exit == code && verdict.contains(part), "{state}/{order}: {exit} {verdict}");
            // Of a win that the store knows it has not lost anything.
            let (verdict, exit) = Found { store_lost: true, ..found }.verdict();
            assert_eq!(verdict.contains("fenced"), state.is_empty(), "{verdict}");
            assert_ne!((state.is_empty(), exit), (true, exit::FOUND), "lost is no contradiction");
        }
    }

    #[test]
    fn it_reads_like_a_story() {
        let found = Found {
            activity: Some("launch".into()),
            win: json!({
                "state": "held", "user": "ann", "key": "k1", "sku": "phone", "qty": 1, "won_at_ms": 1_796_083_200_123_u64,
                "tries": 3, "first_delivery_at_ms": 1_796_083_200_500_u64,
            }),
            ..nothing()
        };
        let expected = "\
0123456789abcdef0123456789abcdef
  store    launch: 1 x phone for ann, key k1
           won 2026-12-01T00:00:00.123Z, held
  outbox   delivered until the order service's final word; 3 tries so far, the first at 2026-12-01T00:00:00.500Z
  ledger   no order under this id
  Won. The order service has not booked it yet; it is delivered until it has.
";
        assert_eq!(found.describe(&found.verdict().0), expected);
    }
}
