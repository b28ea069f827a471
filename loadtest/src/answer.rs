//! What an attempt was answered, as a client reads it, and what a winner may hear afterwards.

use std::time::Duration;

use serde::Deserialize;

use crate::funnel::ToldWin;
use crate::http::{Failure, Reply};

/// What a buyer was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Won and accepted.
    Won {
        /// The win's name.
        request_id: String,
        /// The order service's reply.
        body: Vec<u8>,
    },
    /// Won, not booked yet.
    Queued {
        /// The win's name.
        request_id: String,
    },
    /// Refused by name.
    Refused {
        /// The code, or `HTTP <status>`.
        code: String,
        /// The limit that refused, if it was one.
        limit: Option<String>,
        /// When to come back.
        retry_after: Option<Duration>,
    },
    /// No reply.
    Failed(Failure),
}

/// The fields of a refusal that a buyer heeds.
#[derive(Debug, Default, Deserialize)]
struct Problem {
    code: Option<String>,
    retry_after_ms: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct QueuedBody {
    request_id: String,
}

impl Answer {
    /// Reads the reply to an attempt.
    pub fn of_attempt(reply: Result<Reply, Failure>) -> Answer {
        let reply = match reply {
            Ok(reply) => reply,
            Err(failure) => return Answer::Failed(failure),
        };
        let request_id = reply.header("seckill-request-id").map(str::to_owned);
        match reply.header("seckill-outcome") {
            Some("WON") => match request_id {
                Some(request_id) => Answer::Won { request_id, body: reply.body },
                None => Answer::Failed(Failure::Malformed),
            },
            Some("QUEUED") => {
                let told = serde_json::from_slice::<QueuedBody>(&reply.body).map(|body| body.request_id).ok();
                match told.or(request_id) {
                    Some(request_id) => Answer::Queued { request_id },
                    None => Answer::Failed(Failure::Malformed),
                }
            }
            _ => Answer::refusal(&reply),
        }
    }

    /// Reads a reply that is no win: its code, and when to come back.
    pub fn refusal(reply: &Reply) -> Answer {
        let problem: Problem = serde_json::from_slice(&reply.body).unwrap_or_default();
        let header = || reply.header("retry-after").and_then(|value| value.parse().ok()).map(Duration::from_secs);
        let quoted = reply.header("ratelimit-policy").and_then(|value| value.split('"').nth(1));
        Answer::Refused {
            code: problem.code.unwrap_or_else(|| format!("HTTP {}", reply.status)),
            limit: quoted.filter(|_| reply.status == 429).map(str::to_owned),
            retry_after: problem.retry_after_ms.map(Duration::from_millis).or_else(header),
        }
    }

    /// Whether the buyer knows no more than before: the same attempt must be repeated to learn its outcome.
    pub fn is_indefinite(&self) -> bool {
        match self {
            Answer::Won { .. } | Answer::Queued { .. } => false,
            Answer::Failed(_) => true,
            Answer::Refused { code, .. } => matches!(
                code.as_str(),
                "RATE_LIMITED"
                    | "NOT_STARTED"
                    | "TOKEN_EXPIRED"
                    | "TIMEOUT"
                    | "BUSY"
                    | "PAUSED"
                    | "STORE_UNAVAILABLE"
                    | "OUTCOME_UNKNOWN"
                    | "CHALLENGE_REQUIRED"
            ),
        }
    }

    /// Whether a winner may hear this on repeating its attempt without a promise being broken: its own win, that the order
    /// service ended a win not accepted before, or that nobody looked.
    pub fn may_follow(&self, win: &ToldWin, told_body: Option<&[u8]>) -> bool {
        match self {
            Answer::Won { request_id, body } => {
                *request_id == win.request_id && told_body.is_none_or(|told| told == body)
            }
            Answer::Queued { request_id } => *request_id == win.request_id && !win.accepted,
            Answer::Failed(_) => true,
            Answer::Refused { code, .. } => match code.as_str() {
                "RATE_LIMITED" | "TIMEOUT" | "BUSY" | "PAUSED" | "STORE_UNAVAILABLE" | "OUTCOME_UNKNOWN" => true,
                "ORDER_REFUSED" => !win.accepted,
                _ => false,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(status: u16, headers: &[(&str, &str)], body: &str) -> Result<Reply, Failure> {
        let headers = headers.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        Ok(Reply { status, headers, body: body.into() })
    }

    fn refused(code: &str) -> Answer {
        Answer::Refused { code: code.into(), limit: None, retry_after: None }
    }

    #[test]
    fn answers_are_read_as_the_protocol_says() {
        let won = reply(201, &[("seckill-outcome", "WON"), ("seckill-request-id", "aa")], "{}");
        assert_eq!(Answer::of_attempt(won), Answer::Won { request_id: "aa".into(), body: b"{}".to_vec() });
        let queued = reply(202, &[("seckill-outcome", "QUEUED")], r#"{"request_id":"bb","poll_after_ms":500}"#);
        assert_eq!(Answer::of_attempt(queued), Answer::Queued { request_id: "bb".into() });
        // A success that names no win is no win.
        assert_eq!(
            Answer::of_attempt(reply(200, &[("seckill-outcome", "WON")], "")),
            Answer::Failed(Failure::Malformed)
        );
        assert_eq!(Answer::of_attempt(reply(200, &[], "{}")), refused("HTTP 200"));
    }

    #[test]
    fn a_refusal_tells_code_limit_and_when_to_come_back() {
        let limited = reply(
            429,
            &[("retry-after", "2"), ("ratelimit-policy", "\"user\";q=1;w=1")],
            r#"{"code":"RATE_LIMITED","retry_after_ms":1200}"#,
        );
        assert_eq!(
            Answer::of_attempt(limited),
            Answer::Refused {
                code: "RATE_LIMITED".into(),
                limit: Some("user".into()),
                retry_after: Some(Duration::from_millis(1_200))
            }
        );
        let header_only = reply(503, &[("retry-after", "2")], r#"{"code":"BUSY"}"#);
        assert!(matches!(Answer::of_attempt(header_only), Answer::Refused { retry_after: Some(after), .. }
            if after == Duration::from_secs(2)));
    }

    #[test]
    fn a_winner_may_hear_only_of_its_own_win() {
        let queued = ToldWin { user: "u".into(), request_id: "aa".into(), accepted: false };
        let accepted = ToldWin { accepted: true, ..queued.clone() };
        let won = |id: &str, body: &str| Answer::Won { request_id: id.into(), body: body.into() };
        let told = |id: &str| Answer::Queued { request_id: id.into() };
        for (answer, win, body, kept) in [
            (won("aa", "x"), &queued, None, true),
            (won("aa", "x"), &accepted, Some("x"), true),
            (won("aa", "y"), &accepted, Some("x"), false),
            (won("bb", "x"), &accepted, Some("x"), false),
            (told("aa"), &queued, None, true),
            (told("aa"), &accepted, Some("x"), false),
            (refused("SOLD_OUT"), &queued, None, false),
            (refused("TOKEN_EXPIRED"), &queued, None, false),
            (refused("ALREADY_BOUGHT"), &queued, None, false),
            (refused("RATE_LIMITED"), &queued, None, true),
            (refused("OUTCOME_UNKNOWN"), &queued, None, true),
        ] {
            assert_eq!(answer.may_follow(win, body.map(str::as_bytes)), kept, "{answer:?} after {win:?}");
        }
    }
}
