//! `seckill-gate status`: how activities stand, with stock as a sum that adds up.

use clap::Args;
use serde_json::{Value, json};

use super::admin_client::{AdminArgs, Failure};
use super::table::table;
use super::{exit, print};
use crate::domain::ActivityId;

/// Arguments.
#[derive(Debug, Args)]
pub struct Status {
    /// Just this activity.
    activity: Option<ActivityId>,
    #[command(flatten)]
    gate: AdminArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Status {
    /// Runs it. Exit 3 if anything needs somebody: see [`is_sound`].
    pub async fn run(self) -> Result<u8, Failure> {
        let client = self.gate.client()?;
        let names: Vec<String> = match self.activity {
            Some(name) => vec![name.to_string()],
            None => items(&client.get(&["activities"], &[]).await?, "activities")
                .iter()
                .map(|activity| text(activity, "activity"))
                .collect(),
        };
        let mut activities = Vec::with_capacity(names.len());
        for name in names {
            activities.push(client.get(&["activities", &name], &[]).await?);
        }
        let sound = activities.iter().all(is_sound);
        if self.json {
            print(json!({ "activities": activities }))?;
        } else if activities.is_empty() {
            print(format_args!("no activities are configured"))?;
        } else {
            print(activities.iter().map(describe).collect::<Vec<_>>().join("\n").trim_end())?;
        }
        Ok(if sound { exit::DONE } else { exit::FOUND })
    }
}

/// A field that holds a list; empty if it is not there.
pub fn items<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value.get(field).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// A field as people read it; empty if it is not there.
pub fn text(value: &Value, field: &str) -> String {
    match value.get(field) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

/// A field that holds a whole number; 0 if it is not there.
pub fn number(value: &Value, field: &str) -> i64 {
    value.get(field).and_then(Value::as_i64).unwrap_or(0)
}

/// Whether nobody needs to look: the store answers, has lost nothing and adds up, no win is a dead letter, and a sale whose
/// time has come is preheated.
fn is_sound(activity: &Value) -> bool {
    let barred = text(activity, "barred");
    let started = number(activity, "server_time_ms") >= number(activity, "starts_at_ms");
    let lost = matches!(barred.as_str(), "suspect" | "fenced") || (barred == "not_preheated" && started);
    if activity.get("store_error").is_some() || lost || number(activity, "dead_letters") > 0 {
        return false;
    }
    let invariants = activity.get("invariants").and_then(Value::as_object);
    invariants.is_none_or(|all| all.values().all(|holds| *holds == Value::Bool(true)))
}

const FENCED: &str =
    "takes no wins: FENCED, the store has lost the sale or a part of it; do not preheat it (docs: When Redis fails)";
const SUSPECT: &str =
    "takes no wins: SUSPECT, the store's server restarted and may have lost writes (docs: When Redis fails)";

fn describe(activity: &Value) -> String {
    let mut lines = format!("{}: {}", text(activity, "activity"), text(activity, "phase"));
    let now = number(activity, "server_time_ms");
    for (field, word) in [("starts_at_ms", "starts"), ("ends_at_ms", "ends")] {
        lines += &format!(", {word} {}", relative(number(activity, field) - now));
    }
    lines.push('\n');
    if activity.get("store_error").is_some() {
        let error = text(activity, "store_error");
        lines += &format!("  {error}\n");
        if activity["preheated"] != true {
            lines += "  the store has not answered this gate yet: whether the sale is preheated is not known\n";
            return lines;
        }
        lines += "  the figures are those of the last poll\n";
    }
    if activity.get("preheated") != Some(&Value::Bool(true)) {
        lines += &match text(activity, "barred").as_str() {
            "fenced" => format!("  {FENCED}\n"),
            _ => format!("  not preheated: run `seckill-gate preheat {}`\n", text(activity, "activity")),
        };
        return lines;
    }
    if !text(activity, "barred").is_empty() {
        lines += &match text(activity, "barred").as_str() {
            "fenced" => format!("  {FENCED}\n"),
            "suspect" => format!("  {SUSPECT}\n"),
            other => format!("  takes no wins: the store is {}\n", other.replace('_', " ")),
        };
    }
    let differs: Vec<_> = items(activity, "file_differs").iter().filter_map(Value::as_str).collect();
    if !differs.is_empty() {
        lines += &format!("  this gate's file differs from what was preheated, which counts: {}\n", differs.join(" "));
    }
    let wins = &activity["wins"];
    lines += &format!(
        "  epoch {}, {} per user, gates {}\n  wins: {} held, {} accepted, {} released; {} unsettled{}\n",
        text(activity, "epoch"),
        text(activity, "per_user_limit"),
        items(activity, "gates").iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" "),
        number(wins, "held"),
        number(wins, "accepted"),
        number(wins, "released"),
        number(activity, "unsettled"),
        match activity.get("oldest_unsettled_age_ms").and_then(Value::as_i64) {
            Some(age) => format!(", the oldest for {}", span(age)),
            None => String::new(),
        },
    );
    let rows: Vec<Vec<String>> = items(activity, "skus").iter().map(sku_row).collect();
    let head = ["sku", "total", "=", "left", "+ returning", "+ withheld", "+ held", "+ accepted", ""];
    for line in table(&head, &rows).lines() {
        lines += &format!("  {line}\n");
    }
    if number(activity, "dead_letters") > 0 {
        let (dead, name) = (number(activity, "dead_letters"), text(activity, "activity"));
        lines += &format!("  {dead} dead letters: see `seckill-gate dead-letters list {name}`\n");
    }
    lines
}

fn sku_row(sku: &Value) -> Vec<String> {
    let mut row = vec![text(sku, "sku"), text(sku, "total"), "=".to_owned()];
    row.extend(["left", "returning", "withheld", "held", "accepted"].map(|field| number(sku, field).to_string()));
    let mut notes = Vec::new();
    if sku.get("stopped") == Some(&Value::Bool(true)) {
        notes.push("stopped");
    }
    if sku.get("adds_up") == Some(&Value::Bool(false)) {
        notes.push("DOES NOT ADD UP");
    }
    row.push(notes.join(", "));
    row
}

fn relative(ms: i64) -> String {
    if ms >= 0 { format!("in {}", span(ms)) } else { format!("{} ago", span(-ms)) }
}

/// A length of time in its two largest units.
pub fn span(ms: i64) -> String {
    let seconds = ms / 1_000;
    match seconds {
        ..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stock_is_shown_as_a_sum() {
        let activity = json!({
            "activity": "sale", "phase": "open", "preheated": true, "epoch": 1, "per_user_limit": 1, "gates": ["gate-1"],
            "server_time_ms": 10_000, "starts_at_ms": 5_000, "ends_at_ms": 3_700_000, "unsettled": 3,
            "dead_letters": 2, "wins": { "held": 3, "accepted": 6, "released": 1 }, "invariants": { "INV-2": false },
            "skus": [{ "sku": "phone", "total": 10, "left": 1, "returning": 0, "withheld": 0, "held": 3,
                       "accepted": 6, "released": 1, "stopped": true, "adds_up": true }],
        });
        let expected = "\
sale: open, starts 5 s ago, ends in 1 h 1 min
  epoch 1, 1 per user, gates gate-1
  wins: 3 held, 6 accepted, 1 released; 3 unsettled
  sku    total  =  left  + returning  + withheld  + held  + accepted
  phone     10  =     1            0           0       3           6  stopped
  2 dead letters: see `seckill-gate dead-letters list sale`
";
        assert_eq!(describe(&activity), expected);
        assert!(!is_sound(&activity));
        // What was damaged is not what was never filled: preheating it would sell it twice.
        let hint = |barred| describe(&json!({ "activity": "sale", "preheated": false, "barred": barred }));
        assert!(
            hint("fenced").contains("do not preheat") && hint("not_preheated").contains("run `seckill-gate preheat")
        );
        // A store that never answered may hold a sale that is half sold.
        let unknown = describe(&json!({ "activity": "sale", "store_error": "refused", "barred": "not_preheated" }));
        assert!(unknown.contains("not known") && !unknown.contains("run"), "{unknown}");
    }

    #[test]
    fn whatever_needs_somebody_is_not_sound() {
        let sound =
            json!({ "server_time_ms": 5, "starts_at_ms": 9, "dead_letters": 0, "invariants": { "INV-2": true } });
        let with = |field: &str, value: Value| {
            let mut activity = sound.clone();
            activity[field] = value;
            activity
        };
        assert!(is_sound(&sound) && is_sound(&with("barred", "not_preheated".into())), "there is time");
        let mut unprepared = with("barred", "not_preheated".into());
        unprepared["starts_at_ms"] = 5.into();
        for activity in [
            with("barred", "suspect".into()),
            with("barred", "fenced".into()),
            unprepared,
            with("dead_letters", 1.into()),
            with("store_error", "refused".into()),
            with("invariants", json!({ "INV-2": false })),
        ] {
            assert!(!is_sound(&activity), "{activity}");
        }
    }
}
