//! Answers, and the one place that turns a refusal into one.
//!
//! A refusal is `application/problem+json`, is never stored by a cache and keeps its connection open. The parts that
//! never change are rendered once ([`Problems::new`]), so that the common refusals are one reference-counted copy.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, LOCATION, RETRY_AFTER};
use http::{HeaderName, HeaderValue};

use crate::domain::refusal::Code;
use crate::domain::time::millis;
use crate::domain::win::{Cause, Reason};
use crate::domain::{ActivityId, IdempotencyKey, RequestId};
use crate::gate::delivery::reply::StoredReply;

/// `WON` or `QUEUED`: how a winner's reply is told from any other.
pub const SECKILL_OUTCOME: HeaderName = HeaderName::from_static("seckill-outcome");
/// The request id of a win.
pub const SECKILL_REQUEST_ID: HeaderName = HeaderName::from_static("seckill-request-id");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// When a client that was told QUEUED should look again.
const QUEUED_POLL_MS: u64 = 500;

/// A finished reply. `Content-Length`, `Date` and `Connection` are added when it is written.
#[derive(Debug, Clone)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Headers in the order in which they are written.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The body; not written for HEAD.
    pub body: Bytes,
    /// Close the connection afterwards: the request was malformed on the wire, or its body was not read.
    pub close: bool,
    /// Which refusal this is, if it is one.
    pub code: Option<Code>,
}

impl Answer {
    /// An answer with a content type and a cache rule.
    pub fn new(status: u16, content_type: &'static str, cache: &'static str, body: impl Into<Bytes>) -> Answer {
        let mut headers = Vec::with_capacity(6);
        headers.push((CONTENT_TYPE, HeaderValue::from_static(content_type)));
        headers.push((CACHE_CONTROL, HeaderValue::from_static(cache)));
        Answer { status, headers, body: body.into(), close: false, code: None }
    }

    /// JSON that no cache may keep.
    pub fn json(status: u16, body: impl Into<Bytes>) -> Answer {
        Answer::new(status, "application/json", "no-store", body)
    }

    /// Adds a header; a value that HTTP does not allow is left out.
    pub fn with(mut self, name: HeaderName, value: impl AsRef<str>) -> Answer {
        if let Ok(value) = HeaderValue::from_str(value.as_ref()) {
            self.headers.push((name, value));
        }
        self
    }

    /// The first value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n.as_str() == name).and_then(|(_, value)| value.to_str().ok())
    }
}

/// A rate limit that was used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exceeded {
    /// The policy's name: `address`, `user`, `device` or `activity`.
    pub policy: &'static str,
    /// How many requests may come at once.
    pub quota: u32,
    /// In how many seconds an empty quota is full again.
    pub window_seconds: u64,
}

/// Why a request is not served, with what the client should know beyond the code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Which refusal.
    pub code: Code,
    /// What is wrong with this very request; the code's explanation if `None`.
    pub detail: Option<Cow<'static, str>>,
    /// When a retry may help.
    pub retry_after: Option<Duration>,
    /// The limit that was used up.
    pub exceeded: Option<Exceeded>,
    /// The rarer parts.
    pub more: Option<Box<More>>,
}

/// The rarer parts of a refusal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct More {
    /// The attempt it is about.
    pub request_id: Option<RequestId>,
    /// Where its owner finds the win.
    pub result_url: Option<String>,
    /// The methods that the route takes.
    pub allow: Option<&'static str>,
    /// The body was not read, so the connection cannot go on.
    pub close: bool,
}

impl From<Code> for Refusal {
    fn from(code: Code) -> Refusal {
        Refusal { code, detail: None, retry_after: None, exceeded: None, more: None }
    }
}

impl Refusal {
    /// A malformed request; `detail` says what is wrong.
    pub fn bad_request(detail: &'static str) -> Refusal {
        Refusal::from(Code::BadRequest).detail(detail)
    }

    /// Says what is wrong with this very request.
    pub fn detail(mut self, detail: impl Into<Cow<'static, str>>) -> Refusal {
        self.detail = Some(detail.into());
        self
    }

    /// Says when a retry may help.
    pub fn retry_after(mut self, after: Duration) -> Refusal {
        self.retry_after = Some(after);
        self
    }

    /// Names the limit.
    pub fn exceeded(mut self, exceeded: Exceeded) -> Refusal {
        self.exceeded = Some(exceeded);
        self
    }

    /// Names the attempt.
    pub fn request_id(mut self, id: RequestId) -> Refusal {
        self.more.get_or_insert_default().request_id = Some(id);
        self
    }

    /// Names where the win stands.
    pub fn result_url(mut self, url: String) -> Refusal {
        self.more.get_or_insert_default().result_url = Some(url);
        self
    }

    /// Names the methods that the route takes.
    pub fn method_not_allowed(allow: &'static str) -> Refusal {
        let mut refusal = Refusal::from(Code::MethodNotAllowed);
        refusal.more.get_or_insert_default().allow = Some(allow);
        refusal
    }

    /// Closes the connection after the answer.
    pub fn closing(mut self) -> Refusal {
        self.more.get_or_insert_default().close = true;
        self
    }

    /// A win that ended: refused by the order service, or cancelled or expired later.
    pub fn ended_win(cause: Cause, reason: &Reason) -> Refusal {
        let (code, said) = match cause {
            Cause::Refused | Cause::Void => (Code::OrderRefused, "refused the order"),
            Cause::Ended => (Code::Released, "ended the order"),
        };
        Refusal::from(code).detail(format!("The order service {said}: {reason}."))
    }
}

/// Every refusal, rendered as far as it does not depend on the request.
#[derive(Debug)]
pub struct Problems {
    /// By `Code as usize`: the JSON up to and including `"detail":`.
    heads: Vec<String>,
    /// By `Code as usize`: the whole body when there is nothing to add.
    whole: Vec<Bytes>,
}

impl Problems {
    /// Renders the fixed parts. `prefix` is the path prefix of the sale's routes; `type` points below it.
    pub fn new(prefix: &str) -> Problems {
        let mut heads = vec![String::new(); Code::ALL.len()];
        let mut whole = vec![Bytes::new(); Code::ALL.len()];
        for &code in Code::ALL {
            let meaning = code.meaning();
            let head = format!(
                r#"{{"type":{},"title":{},"status":{},"code":{},"retryable":{},"detail":"#,
                quoted(&format!("{prefix}/problems/{}", meaning.name)),
                quoted(meaning.title),
                meaning.status,
                quoted(meaning.name),
                meaning.retryable,
            );
            heads[code as usize] = head;
            whole[code as usize] = body(&heads[code as usize], &Refusal::from(code), pause(code));
        }
        Problems { heads, whole }
    }

    /// The answer to a refused request.
    pub fn render(&self, refusal: &Refusal) -> Answer {
        let meaning = refusal.code.meaning();
        let plain = refusal.detail.is_none() && refusal.retry_after.is_none() && refusal.more.is_none();
        let retry_after = refusal.retry_after.or(pause(refusal.code));
        let index = refusal.code as usize;
        let body = if plain { self.whole[index].clone() } else { body(&self.heads[index], refusal, retry_after) };
        let mut answer = Answer::new(meaning.status, "application/problem+json", "no-store", body);
        answer.code = Some(refusal.code);
        if let Some(after) = retry_after {
            answer.headers.push((RETRY_AFTER, HeaderValue::from(whole_seconds(after))));
        }
        if let Some(limit) = refusal.exceeded {
            let reset = retry_after.map_or(limit.window_seconds, whole_seconds);
            answer = answer
                .with(RATELIMIT_POLICY, format!("\"{}\";q={};w={}", limit.policy, limit.quota, limit.window_seconds))
                .with(RATELIMIT, format!("\"{}\";r=0;t={reset}", limit.policy));
        }
        if let Some(more) = &refusal.more {
            if let Some(allow) = more.allow {
                answer.headers.push((ALLOW, HeaderValue::from_static(allow)));
            }
            answer.close = more.close;
        }
        answer
    }
}

/// When to come back after a refusal that does not know better.
const fn pause(code: Code) -> Option<Duration> {
    match code {
        Code::Busy | Code::StoreUnavailable | Code::OutcomeUnknown | Code::NoSuchResult => Some(Duration::from_secs(1)),
        Code::Paused | Code::UpstreamUnavailable | Code::UpstreamTimeout => Some(Duration::from_secs(2)),
        _ => None,
    }
}

fn body(head: &str, refusal: &Refusal, retry_after: Option<Duration>) -> Bytes {
    let mut body = String::with_capacity(512);
    body.push_str(head);
    body.push_str(&quoted(refusal.detail.as_deref().unwrap_or(refusal.code.meaning().explanation)));
    if let Some(after) = retry_after {
        let _ = write!(body, r#","retry_after_ms":{}"#, millis(after));
    }
    if let Some(more) = &refusal.more {
        if let Some(id) = more.request_id {
            let _ = write!(body, r#","request_id":"{}""#, id.hex().as_str());
        }
        if let Some(url) = &more.result_url {
            let _ = write!(body, r#","result_url":{}"#, quoted(url));
        }
    }
    body.push('}');
    Bytes::from(body)
}

/// Seconds for `Retry-After`: rounded up, at least one, so that a client that obeys never comes too early.
fn whole_seconds(duration: Duration) -> u64 {
    millis(duration).div_ceil(1_000).max(1)
}

/// `text` as a JSON string.
pub fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Where the owner of a key finds the win.
pub fn result_url(prefix: &str, activity: &ActivityId, key: &IdempotencyKey) -> String {
    format!("{prefix}/{activity}/results/{key}")
}

/// Where a user finds all wins.
pub fn results_url(prefix: &str, activity: &ActivityId) -> String {
    format!("{prefix}/{activity}/results")
}

/// The reply to a winner whose order stands. Without a kept reply (a win reasserted from an order) a small body of ours
/// takes its place.
pub fn won(id: RequestId, result_url: &str, reply: Option<&StoredReply>) -> Answer {
    let request_id = id.hex();
    let (status, location) = match reply {
        Some(reply) => (reply.status, reply.location.as_deref()),
        None => (200, None),
    };
    let mut answer = Answer { status, headers: Vec::with_capacity(6), body: Bytes::new(), close: false, code: None };
    match reply {
        Some(reply) => {
            answer.body = reply.body.clone();
            if let Some(content_type) = &reply.content_type {
                answer = answer.with(CONTENT_TYPE, content_type);
            }
        }
        None => {
            let url = quoted(result_url);
            answer.body = format!(r#"{{"request_id":"{}","result_url":{url}}}"#, request_id.as_str()).into();
            answer = answer.with(CONTENT_TYPE, "application/json");
        }
    }
    answer
        .with(CACHE_CONTROL, "no-store")
        .with(SECKILL_OUTCOME, "WON")
        .with(SECKILL_REQUEST_ID, request_id.as_str())
        .with(LOCATION, location.unwrap_or(result_url))
}

/// The reply to a winner whose order service has not answered yet.
pub fn queued(id: RequestId, result_url: &str) -> Answer {
    let request_id = id.hex();
    let body = format!(
        r#"{{"request_id":"{}","result_url":{},"poll_after_ms":{QUEUED_POLL_MS}}}"#,
        request_id.as_str(),
        quoted(result_url)
    );
    Answer::json(202, body)
        .with(SECKILL_OUTCOME, "QUEUED")
        .with(SECKILL_REQUEST_ID, request_id.as_str())
        .with(LOCATION, result_url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_is_a_complete_problem() {
        let problems = Problems::new("/seckill");
        for &code in Code::ALL {
            let meaning = code.meaning();
            for refusal in [Refusal::from(code), Refusal::from(code).detail("say \"why\"").retry_after(Duration::ZERO)]
            {
                let answer = problems.render(&refusal);
                let body: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
                assert_eq!(answer.status, meaning.status);
                assert_eq!(answer.header("content-type"), Some("application/problem+json"));
                assert_eq!(answer.header("cache-control"), Some("no-store"));
                assert_eq!(body["code"], meaning.name);
                assert_eq!(body["status"], meaning.status);
                assert_eq!(body["retryable"], meaning.retryable);
                assert_eq!(body["type"], format!("/seckill/problems/{}", meaning.name));
                assert!(body["title"].is_string() && body["detail"].is_string());
                assert!(!answer.close);
            }
        }
    }

    #[test]
    fn what_helps_is_told() {
        let exceeded = Exceeded { policy: "user", quota: 3, window_seconds: 3 };
        let refusal = Refusal::from(Code::RateLimited).retry_after(Duration::from_millis(1_200)).exceeded(exceeded);
        let answer = Problems::new("/s").render(&refusal);
        assert_eq!(answer.header("retry-after"), Some("2"));
        assert_eq!(answer.header("ratelimit-policy"), Some("\"user\";q=3;w=3"));
        assert_eq!(answer.header("ratelimit"), Some("\"user\";r=0;t=2"));
        assert!(std::str::from_utf8(&answer.body).unwrap().contains(r#""retry_after_ms":1200"#));

        let answer = Problems::new("/s").render(&Refusal::method_not_allowed("GET, HEAD"));
        assert_eq!((answer.status, answer.header("allow")), (405, Some("GET, HEAD")));
    }
}
