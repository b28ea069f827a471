//! `seckill-gate reload`: has a gate read its file again, and tells what came of it.

use std::path::Path;

use clap::Args;
use http::StatusCode;
use serde_json::{Value, json};

use super::admin_client::{AdminArgs, Failure};
use super::status::{items, number, text};
use super::{exit, print};

/// Has a running gate read its file again, as SIGHUP does.
///
/// The whole file is checked and then swapped in at once, or refused and the one in use kept. Told is every edit since the
/// last reading, secrets by name only: what is in effect now, and what waits for a restart. Edits that would contradict what
/// was preheated are refused, each with what to do instead. The gate reads the file that it was started with; the answer
/// names both. Exit 1 if an edit was refused, 2 if the file has faults.
#[derive(Debug, Args)]
pub struct Reload {
    #[command(flatten)]
    gate: AdminArgs,
    /// Say what would happen; change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Print the answer as JSON.
    #[arg(long)]
    json: bool,
}

impl Reload {
    /// Runs it.
    pub async fn run(self) -> Result<u8, Failure> {
        let client = self.gate.client()?;
        let (status, told) = client.ask(&["reload"], &json!({ "dry_run": self.dry_run })).await?;
        let code = match status {
            _ if status.is_success() => exit::DONE,
            StatusCode::UNPROCESSABLE_ENTITY => exit::USAGE,
            _ => exit::FAILED,
        };
        if let Some(warning) = self.gate.config.as_deref().and_then(|named| other_file(named, &told)) {
            eprintln!("{warning}");
        }
        if self.json {
            print(&told)?;
            return Ok(code);
        }
        if status.is_success() {
            print(format_args!("{}{}", reader(&told), describe(&told).trim_end()))?;
            return Ok(code);
        }
        eprint!("{}", reader(&told));
        for fault in items(&told, "faults") {
            let (line, column) = (number(fault, "line"), number(fault, "column"));
            eprintln!("{}:{line}:{column}: {}", text(&told, "file"), text(fault, "message"));
        }
        for change in items(&told, "changes").iter().filter(|change| text(change, "effect") == "refused") {
            eprintln!("{}: {}", edit(change), text(change, "instead"));
        }
        Err(Failure { code, ..client.refused(status, &told) })
    }
}

/// Which gate read which file; nothing if it does not say.
fn reader(told: &Value) -> String {
    match (text(told, "gate"), text(told, "file")) {
        (gate, file) if gate.is_empty() || file.is_empty() => String::new(),
        (gate, file) => format!("{gate} read {file}\n"),
    }
}

/// A warning if the gate did not read the file that was named to this command: edits of that one have no effect on it.
fn other_file(named: &Path, told: &Value) -> Option<String> {
    let read = text(told, "file");
    let resolved = |path: &Path| path.canonicalize().or_else(|_| std::path::absolute(path)).ok();
    let same = read.is_empty() || resolved(named) == resolved(Path::new(&read));
    (!same).then(|| {
        format!("warning: the gate was started with {read}, and reads that one again, not {}", named.display())
    })
}

fn describe(told: &Value) -> String {
    let mut lines = match text(told, "outcome").as_str() {
        "unchanged" => "nothing changed\n".to_owned(),
        "needs_restart" => "nothing to apply without a restart\n".to_owned(),
        outcome => format!("{}:\n", outcome.replace('_', " ")),
    };
    for (effect, heading) in [
        ("applied", ""),
        ("needs_restart", "not applied; needs a restart of this gate:\n"),
        ("order_service", "not the gate's; the order services read it when they are restarted:\n"),
    ] {
        let mut edits = items(told, "changes").iter().filter(|change| text(change, "effect") == effect).peekable();
        if edits.peek().is_some() {
            lines += heading;
        }
        edits.for_each(|change| lines += &format!("  {}\n", edit(change)));
    }
    lines
}

/// `key: from → to`
fn edit(change: &Value) -> String {
    let key = text(change, "key");
    match (change.get("from"), change.get("to")) {
        (None, None) => format!("{key}: changed"),
        (Some(Value::Null), Some(to)) if to.is_object() => format!("{key}: added"),
        (Some(from), Some(Value::Null)) if from.is_object() => format!("{key}: removed"),
        (from, to) => {
            let shown = |value: Option<&Value>| match value {
                None | Some(Value::Null) => "none".to_owned(),
                Some(Value::String(text)) => text.clone(),
                Some(other) => other.to_string(),
            };
            format!("{key}: {} → {}", shown(from), shown(to))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_told_by_what_becomes_of_them() {
        let told = json!({ "outcome": "applied", "changes": [
            { "key": "activities.encore", "effect": "applied", "from": null, "to": { "skus": {} } },
            { "key": "gate.threads", "effect": "needs_restart", "from": 0, "to": 4 },
            { "key": "limits.attempts.user.burst", "effect": "applied", "from": 3, "to": null },
            { "key": "order_service.consumer.rate", "effect": "order_service", "from": "1/s", "to": "2/s" },
            { "key": "tokens.keys[one].key", "effect": "applied" },
        ]});
        let expected = "\
applied:
  activities.encore: added
  limits.attempts.user.burst: 3 → none
  tokens.keys[one].key: changed
not applied; needs a restart of this gate:
  gate.threads: 0 → 4
not the gate's; the order services read it when they are restarted:
  order_service.consumer.rate: 1/s → 2/s
";
        assert_eq!(describe(&told), expected);
        assert_eq!(describe(&json!({ "outcome": "unchanged", "changes": [] })), "nothing changed\n");
    }

    #[test]
    fn another_file_than_the_gates_is_warned_of() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link, other) = (folder.path().join("a"), folder.path().join("b"), folder.path().join("c"));
        std::fs::write(&file, "").unwrap();
        std::fs::write(&other, "").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let told = json!({ "file": file.display().to_string(), "gate": "gate-1" });
        assert_eq!(
            (other_file(&file, &told), other_file(&link, &told), other_file(&other, &json!({}))),
            (None, None, None)
        );
        let warning = other_file(&other, &told).unwrap();
        assert!(warning.contains(other.to_str().unwrap()) && warning.contains(file.to_str().unwrap()), "{warning}");
        assert_eq!(reader(&told), format!("gate-1 read {}\n", file.display()));
    }
}
