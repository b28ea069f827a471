//! What became of every request of a crowd. Nothing is dropped: each request sent ends as one answer or one failure,
//! each by name, and [`Funnel::adds_up`] says whether that holds.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};

use crate::http::Failure;
use crate::latency::Latency;

/// How a request may end, other than by a code of the gate. First told wins are told apart from repeats.
pub mod outcome {
    /// The win was told for the first time, and is accepted.
    pub const WON: &str = "WON";
    /// The win was told for the first time, and is queued.
    pub const QUEUED: &str = "QUEUED";
    /// A win told before was told again.
    pub const WON_AGAIN: &str = "WON again";
    /// A win told before was told again, still queued.
    pub const QUEUED_AGAIN: &str = "QUEUED again";
    /// Any other success.
    pub const OK: &str = "OK";
}

/// Requests of one kind.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// Requests begun.
    pub sent: u64,
    /// Replies, by outcome: one of [`outcome`], a code of the gate, or `HTTP <status>`.
    pub answers: BTreeMap<String, u64>,
    /// Requests without a reply, by reason.
    pub failures: BTreeMap<Failure, u64>,
    /// Time from the first byte sent to the last received, connecting included.
    pub latency: Latency,
}

impl Tally {
    /// Adds a reply.
    pub fn answer(&mut self, outcome: &str, took: Duration) {
        self.latency.record(took);
        match self.answers.get_mut(outcome) {
            Some(count) => *count += 1,
            None => {
                self.answers.insert(outcome.to_owned(), 1);
            }
        }
    }

    /// Adds a failure.
    pub fn failure(&mut self, failure: Failure) {
        *self.failures.entry(failure).or_default() += 1;
    }

    /// How many replies had this outcome.
    pub fn count(&self, outcome: &str) -> u64 {
        self.answers.get(outcome).copied().unwrap_or(0)
    }

    /// Whether every request has ended in exactly one way.
    pub fn adds_up(&self) -> bool {
        self.sent == self.answers.values().sum::<u64>() + self.failures.values().sum::<u64>()
    }

    /// The tally as JSON.
    pub fn json(&self) -> Value {
        let ms = |q| self.latency.quantile(q).map(|took| took.as_micros() as f64 / 1_000.0);
        let failures: BTreeMap<_, _> = self.failures.iter().map(|(why, count)| (why.name(), count)).collect();
        json!({
            "sent": self.sent, "answers": self.answers, "failures": failures,
            "latency_ms": { "p50": ms(0.5), "p90": ms(0.9), "p99": ms(0.99), "p999": ms(0.999), "max": ms(1.0) },
        })
    }
}

/// One buyer's win, as told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToldWin {
    /// The buyer.
    pub user: String,
    /// The request id that the gate told.
    pub request_id: String,
    /// Whether WON was told, and not only QUEUED.
    pub accepted: bool,
}

/// Everything that happened.
#[derive(Debug, Clone, Default)]
pub struct Funnel {
    /// Looks at the sale's state.
    pub state: Tally,
    /// Token requests.
    pub tokens: Tally,
    /// Attempts.
    pub attempts: Tally,
    /// Looks at the result of a queued win.
    pub results: Tally,
    /// Wins as told, one per buyer.
    pub wins: Vec<ToldWin>,
    /// Buyers that have left.
    pub left: u64,
    /// Buyers that left without a definite answer, because time was up or patience was.
    pub gave_up: u64,
    /// Promises of the protocol that were broken, in words; the first hundred.
    pub broken: Vec<String>,
    /// How many were broken.
    pub broken_count: u64,
}

/// One step of the funnel of attempts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    /// What it is.
    pub name: &'static str,
    /// Attempts that ended here.
    pub ended: u64,
    /// Attempts that went on.
    pub left: u64,
    /// The outcomes of those that ended here.
    pub outcomes: Vec<(String, u64)>,
}

/// The stages in the gate's order, by the codes they refuse with. Only the last two names are not codes.
const STAGES: &[(&str, &[&str])] = &[
    ("route and shape", &["BAD_REQUEST", "NOT_FOUND", "METHOD_NOT_ALLOWED", "TIMEOUT", "TOO_LARGE"]),
    ("activity", &["NO_SUCH_ACTIVITY", "NO_SUCH_SKU"]),
    (BY_LEASE, &[]),
    ("rate limits", &["RATE_LIMITED"]),
    ("identity", &["UNAUTHENTICATED"]),
    ("token", &["TOKEN_INVALID", "CHALLENGE_REQUIRED", "BLOCKED"]),
    ("time", &["NOT_STARTED", "TOKEN_EXPIRED", "ENDED"]),
    ("store cannot say", &["BUSY", "PAUSED", "STORE_UNAVAILABLE", "OUTCOME_UNKNOWN"]),
    (BY_STORE, &["SOLD_OUT"]),
    ("store: other refusals", &["ALREADY_BOUGHT", "REQUEST_ID_CONFLICT", "ORDER_REFUSED", "RELEASED"]),
    ("win told again", &[outcome::WON_AGAIN, outcome::QUEUED_AGAIN]),
];
const BY_LEASE: &str = "sold out, known here";
const BY_STORE: &str = "sold out, by the store";

impl Funnel {
    /// The stages that attempts passed, from those sent to the wins told for the first time.
    ///
    /// SOLD_OUT is said by a gate's lease or by the store, in the same words: `by_store` is how many were the latter, if
    /// the gates' metrics told it.
    pub fn stages(&self, by_store: Option<u64>) -> Vec<Stage> {
        let mut left = self.attempts.sent;
        let mut stages = Vec::new();
        let mut push = |name, outcomes: Vec<(String, u64)>| {
            let ended: u64 = outcomes.iter().map(|(_, count)| count).sum();
            left = left.saturating_sub(ended);
            stages.push(Stage { name, ended, left, outcomes });
        };
        let failures = self.attempts.failures.iter();
        push("no reply", failures.map(|(why, count)| (why.name().to_owned(), *count)).collect());
        push("unknown reply", self.answers_where(|name| !is_known(name)));
        let by_lease = by_store.map_or(0, |by_store| self.attempts.count("SOLD_OUT").saturating_sub(by_store));
        for &(name, codes) in STAGES {
            let mut outcomes = match name {
                BY_LEASE => vec![("SOLD_OUT".to_owned(), by_lease)],
                // A limit's name may follow its code.
                _ => self.answers_where(|answer| codes.iter().any(|code| is_code(answer, code))),
            };
            if name == BY_STORE {
                for (_, count) in &mut outcomes {
                    *count -= by_lease;
                }
            }
            outcomes.retain(|(_, count)| *count > 0);
            push(if name == BY_STORE && by_store.is_none() { "sold out" } else { name }, outcomes);
        }
        stages
    }

    fn answers_where(&self, wanted: impl Fn(&str) -> bool) -> Vec<(String, u64)> {
        let answers = self.attempts.answers.iter();
        answers.filter(|(name, _)| wanted(name)).map(|(name, count)| (name.clone(), *count)).collect()
    }

    /// Whether each request ended in one way, and what is left after all stages is just the wins told first.
    pub fn adds_up(&self) -> bool {
        let told = self.attempts.count(outcome::WON) + self.attempts.count(outcome::QUEUED);
        let left = self.stages(None).last().map_or(0, |stage| stage.left);
        let tallies = [&self.state, &self.tokens, &self.attempts, &self.results];
        tallies.iter().all(|tally| tally.adds_up()) && left == told && told == self.wins.len() as u64
    }

    /// Notes a broken promise.
    pub fn broke(&mut self, what: String) {
        self.broken_count += 1;
        if self.broken.len() < 100 {
            self.broken.push(what);
        }
    }

    /// The table that people read: each stage, what ended there, what went on, and by which factor it shrank the crowd.
    pub fn table(&self, by_store: Option<u64>) -> String {
        let mut table = format!("{:<24}{:>12}{:>12}{:>10}  outcomes\n", "stage", "ended here", "went on", "factor");
        let mut before = self.attempts.sent;
        let _ = writeln!(table, "{:<24}{:>12}{:>12}{:>10}", "attempts sent", "", before, "");
        for stage in self.stages(by_store) {
            if stage.ended > 0 {
                let outcomes: Vec<_> = stage.outcomes.iter().map(|(name, count)| format!("{name} {count}")).collect();
                let _ = writeln!(
                    table,
                    "{:<24}{:>12}{:>12}{:>10}  {}",
                    stage.name,
                    stage.ended,
                    stage.left,
                    factor(before, stage.left),
                    outcomes.join(", ")
                );
            }
            before = stage.left;
        }
        let overall = factor(self.attempts.sent, before);
        let _ = writeln!(table, "{:<24}{:>12}{:>12}{:>10}", "wins", "", before, overall);
        table
    }

    /// One line on how it stands.
    pub fn line(&self) -> String {
        let attempts = &self.attempts;
        let told = attempts.count(outcome::WON) + attempts.count(outcome::QUEUED);
        let failed: u64 = attempts.failures.values().sum();
        let p99 = attempts.latency.quantile(0.99).unwrap_or_default();
        format!(
            "tokens {} · attempts {} · won {told} · sold out {} · limited {} · failed {failed} · p99 {:.1} ms · gone home {}",
            self.tokens.sent,
            attempts.sent,
            attempts.count("SOLD_OUT"),
            self.answers_where(|name| is_code(name, "RATE_LIMITED")).iter().map(|(_, count)| count).sum::<u64>(),
            p99.as_micros() as f64 / 1_000.0,
            self.left,
        )
    }

    /// Everything as JSON.
    pub fn json(&self, by_store: Option<u64>) -> Value {
        let mut before = self.attempts.sent;
        let stages: Vec<_> = self
            .stages(by_store)
            .into_iter()
            .map(|stage| {
                let factor = (stage.left > 0).then(|| before as f64 / stage.left as f64);
                before = stage.left;
                let outcomes: BTreeMap<_, _> = stage.outcomes.into_iter().collect();
                json!({ "stage": stage.name, "ended": stage.ended, "left": stage.left, "factor": factor,
                        "outcomes": outcomes })
            })
            .collect();
        json!({
            "stages": stages, "state": self.state.json(), "tokens": self.tokens.json(),
            "attempts": self.attempts.json(), "results": self.results.json(),
            "buyers_left": self.left, "gave_up": self.gave_up,
            "broken_promises": self.broken_count, "broken": self.broken,
        })
    }
}

fn is_known(answer: &str) -> bool {
    [outcome::WON, outcome::QUEUED].contains(&answer)
        || STAGES.iter().any(|(_, codes)| codes.iter().any(|code| is_code(answer, code)))
}

fn is_code(answer: &str, code: &str) -> bool {
    answer.strip_prefix(code).is_some_and(|rest| rest.is_empty() || rest.starts_with(" by "))
}

fn factor(before: u64, after: u64) -> String {
    if after == 0 { "-".into() } else { format!("×{:.2}", before as f64 / after as f64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn funnel(answers: &[(&str, u64)]) -> Funnel {
        let mut funnel = Funnel::default();
        for &(outcome, count) in answers {
            for _ in 0..count {
                funnel.attempts.sent += 1;
                funnel.attempts.answer(outcome, Duration::from_millis(1));
            }
            if [outcome::WON, outcome::QUEUED].contains(&outcome) {
                let win = |n| ToldWin { user: format!("u{n}"), request_id: format!("{n}"), accepted: true };
                funnel.wins.extend((0..count).map(win));
            }
        }
        funnel
    }

    #[test]
    fn the_stages_add_up_to_the_attempts_sent() {
        let mut funnel = funnel(&[
            ("WON", 5),
            ("QUEUED", 2),
            ("WON again", 4),
            ("SOLD_OUT", 80),
            ("RATE_LIMITED by user", 7),
            ("RATE_LIMITED", 1),
            ("NOT_STARTED", 3),
            ("HTTP 502", 1),
        ]);
        funnel.attempts.sent += 1;
        funnel.attempts.failure(Failure::Reset);
        for by_store in [None, Some(30), Some(1_000)] {
            let stages = funnel.stages(by_store);
            assert_eq!(stages.iter().map(|stage| stage.ended).sum::<u64>() + 7, funnel.attempts.sent);
            assert_eq!(stages.last().unwrap().left, 7);
        }
        assert!(funnel.adds_up());
        let table = funnel.table(Some(30));
        assert!(table.contains("RATE_LIMITED 1, RATE_LIMITED by user 7"), "{table}");
        assert!(table.contains("HTTP 502 1"), "{table}");
    }

    #[test]
    fn a_request_without_an_end_is_noticed() {
        let mut funnel = funnel(&[("SOLD_OUT", 2)]);
        assert!(funnel.adds_up());
        funnel.attempts.sent += 1;
        assert!(!funnel.adds_up());
    }

    #[test]
    fn a_win_told_but_not_kept_in_mind_is_noticed() {
        let mut funnel = funnel(&[("WON", 2)]);
        funnel.wins.pop();
        assert!(!funnel.adds_up());
    }
}
