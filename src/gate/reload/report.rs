//! What came of a reload, as it is logged and told.

use serde_json::{Map, Value, json};

use crate::config::Faults;
use crate::config::compare::Edit;

/// What a reload does with one edit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It is in effect.
    Applied,
    /// It waits for this gate's next start.
    NeedsRestart,
    /// It is the order service's, which reads it at its start.
    OrderService,
    /// It may not be made this way; what to do instead.
    Refused(String),
}

impl Verdict {
    /// Its name in replies and logs.
    pub fn name(&self) -> &'static str {
        match self {
            Verdict::Applied => "applied",
            Verdict::NeedsRestart => "needs_restart",
            Verdict::OrderService => "order_service",
            Verdict::Refused(_) => "refused",
        }
    }
}

/// One edit, and what a reload does with it.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// The edit.
    pub edit: Edit,
    /// What becomes of it.
    pub verdict: Verdict,
}

impl Change {
    /// `{"key","from","to","effect","instead"?}`; `from` and `to` are `null` for what was or is not there, and absent where
    /// there is nothing to show.
    pub fn to_json(&self) -> Value {
        let mut shown = json!({ "key": self.edit.key, "effect": self.verdict.name() });
        if !self.edit.hidden {
            shown["from"] = self.edit.from.clone().into();
            shown["to"] = self.edit.to.clone().into();
        }
        if let Verdict::Refused(instead) = &self.verdict {
            shown["instead"] = instead.as_str().into();
        }
        shown
    }

    fn log(&self, dry_run: bool) {
        let text = |value: &Option<Value>| match value {
            None => "-".to_owned(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        };
        let Edit { key, from, to, hidden } = &self.edit;
        let (from, to) = if *hidden { ("?".into(), "?".into()) } else { (text(from), text(to)) };
        match &self.verdict {
            Verdict::Refused(instead) if dry_run => {
                tracing::info!(dry_run, key, from, to, instead, "configuration edit would be refused");
            }
            Verdict::Refused(instead) => tracing::error!(key, from, to, instead, "configuration edit refused"),
            taken => tracing::info!(key, from, to, effect = taken.name(), "configuration edit"),
        }
    }
}

/// A reload that was taken, or would be.
#[derive(Debug, Clone, PartialEq)]
pub struct Reloaded {
    /// Every edit since the last one.
    pub changes: Vec<Change>,
    /// Whether it was only asked what would happen.
    pub dry_run: bool,
}

impl Reloaded {
    /// `unchanged`, `applied` (or `would_apply`), or `needs_restart` if nothing else was edited.
    pub fn outcome(&self) -> &'static str {
        let any = |verdict: Verdict| self.changes.iter().any(|change| change.verdict == verdict);
        if any(Verdict::Applied) {
            if self.dry_run { "would_apply" } else { "applied" }
        } else if any(Verdict::NeedsRestart) || any(Verdict::OrderService) {
            "needs_restart"
        } else {
            "unchanged"
        }
    }

    /// `{"outcome","changes",…}`
    pub fn to_json(&self) -> Value {
        let mut told = json!({ "outcome": self.outcome(), "changes": list(&self.changes) });
        if self.dry_run {
            told["dry_run"] = true.into();
        }
        told
    }

    pub(super) fn log(&self) {
        if !self.dry_run {
            self.changes.iter().for_each(|change| change.log(false));
        }
        tracing::info!(
            outcome = self.outcome(),
            dry_run = self.dry_run,
            changes = self.changes.len(),
            "configuration reload"
        );
    }
}

/// A reload that was refused as a whole.
#[derive(Debug)]
pub enum Refused {
    /// The file has faults.
    Faults(Faults),
    /// The edits that could be applied do not fit to those that need a restart.
    Halves(Faults),
    /// Among these edits are some that may not be made this way.
    Dangerous(Vec<Change>),
    /// A part could not be made.
    Failed(String),
}

impl Refused {
    /// Its name.
    pub fn code(&self) -> &'static str {
        match self {
            Refused::Faults(_) => "CONFIG_FAULTS",
            Refused::Halves(_) => "RESTART_FIRST",
            Refused::Dangerous(_) => "EDIT_REFUSED",
            Refused::Failed(_) => "RELOAD_FAILED",
        }
    }

    /// What happened, and what to do.
    pub fn detail(&self) -> String {
        match self {
            Refused::Faults(faults) => {
                format!("the file has {} fault(s); the configuration in use stays", faults.len())
            }
            Refused::Halves(faults) => {
                let faults: Vec<String> = faults.iter().map(|fault| fault.problem.to_string()).collect();
                let faults = faults.join("; ");
                format!("the edits need a restart together, since without it: {faults}. The configuration in use stays")
            }
            Refused::Dangerous(changes) => {
                let refused = changes.iter().filter(|change| matches!(change.verdict, Verdict::Refused(_)));
                let keys: Vec<&str> = refused.map(|change| change.edit.key.as_str()).collect();
                format!("not by a reload: {}; the configuration in use stays, all of it", keys.join(", "))
            }
            Refused::Failed(why) => format!("{why}; the configuration in use stays"),
        }
    }

    /// What a reply holds beyond code and detail: `faults` or `changes`.
    pub fn more(&self) -> Map<String, Value> {
        let mut more = Map::new();
        match self {
            Refused::Faults(faults) => {
                if let Value::Object(told) = faults.to_json() {
                    more.extend(told);
                }
            }
            Refused::Dangerous(changes) => drop(more.insert("changes".into(), list(changes))),
            Refused::Halves(_) | Refused::Failed(_) => {}
        }
        more
    }

    /// Errors, which somebody may be woken by, unless it was only asked what would happen: that is what a dry run is for.
    pub(super) fn log(&self, dry_run: bool) {
        match self {
            Refused::Faults(faults) => faults.iter().for_each(|fault| {
                let (line, column, fault) = (fault.line, fault.column, &fault.problem);
                match dry_run {
                    true => tracing::info!(dry_run, line, column, %fault, "configuration fault"),
                    false => tracing::error!(line, column, %fault, "configuration fault"),
                }
            }),
            Refused::Dangerous(changes) => {
                let refused = changes.iter().filter(|change| matches!(change.verdict, Verdict::Refused(_)));
                refused.for_each(|change| change.log(dry_run));
            }
            Refused::Halves(_) | Refused::Failed(_) => {}
        }
        let (code, why) = (self.code(), self.detail());
        match dry_run {
            true => tracing::info!(dry_run, code, why, "configuration reload would be refused"),
            false => tracing::error!(code, why, "configuration reload refused"),
        }
    }
}

fn list(changes: &[Change]) -> Value {
    changes.iter().map(Change::to_json).collect()
}
