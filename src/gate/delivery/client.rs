//! One delivery over HTTP: the payload byte for byte, the win in headers, a word back before the deadline.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use reqwest::{Client, Url, redirect};

use crate::domain::admission::DueWin;
use crate::domain::{ActivityId, RequestId};
use crate::gate::delivery::word::{ReplyBody, ReplyRules, Why, Word, judge_reply};

/// Node closes idle connections after 5 s, the shortest common default: below it, no delivery meets a closing connection.
const POOL_IDLE: Duration = Duration::from_secs(4);

/// How deliveries are made.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// Where winners are posted.
    pub url: Url,
    /// From connecting to the last byte of the reply.
    pub deadline: Duration,
    /// Longest reply body that is kept, bytes.
    pub max_reply: usize,
    /// Which statuses are definite.
    pub rules: ReplyRules,
}

/// Delivers to one order service.
#[derive(Debug, Clone)]
pub struct OrderClient {
    http: Client,
    options: ClientOptions,
}

impl OrderClient {
    /// A client with its own connection pool. Fails only if TLS cannot be set up.
    pub fn new(options: ClientOptions) -> reqwest::Result<OrderClient> {
        let http = Client::builder()
            .user_agent(concat!("seckill-gate/", env!("CARGO_PKG_VERSION")))
            // A redirected POST would arrive as something else, somewhere else.
            .redirect(redirect::Policy::none())
            .no_proxy()
            .http1_only()
            .tcp_nodelay(true)
            .pool_idle_timeout(POOL_IDLE)
            .connect_timeout(options.deadline)
            .timeout(options.deadline)
            .build()?;
        Ok(OrderClient { http, options })
    }

    /// The deadline of one delivery.
    pub fn deadline(&self) -> Duration {
        self.options.deadline
    }

    /// Delivers once. `traceparent` is the client's, if it sent one.
    pub async fn deliver(&self, activity: &ActivityId, win: &DueWin, ticket: &str, traceparent: Option<&str>) -> Word {
        let Some(headers) = headers(activity, win, ticket, traceparent) else {
            // Ids are visible ASCII and tickets base64, so this cannot happen; were it to, nothing was sent.
            return Word::Unknown(Why::Unreachable);
        };
        let request = self.http.post(self.options.url.clone()).headers(headers).body(win.payload.clone());
        let response = match request.send().await {
            Ok(response) => response,
            Err(error) => return Word::Unknown(why(&error)),
        };
        let (status, headers) = (response.status(), response.headers().clone());
        match read(response, self.options.max_reply).await {
            Err(error) if error.is_timeout() => Word::Unknown(Why::Deadline),
            Err(_) => judge_reply(status, &headers, ReplyBody::Cut, &self.options.rules),
            Ok(body) => judge_reply(status, &headers, body, &self.options.rules),
        }
    }
}

/// Reads to the end, whatever the length: only then is the reply complete. The deadline bounds it.
async fn read(mut response: reqwest::Response, max: usize) -> reqwest::Result<ReplyBody> {
    let mut kept = Vec::new();
    let mut length = 0_usize;
    while let Some(chunk) = response.chunk().await? {
        length = length.saturating_add(chunk.len());
        if length <= max {
            kept.extend_from_slice(&chunk);
        }
    }
    Ok(if length <= max { ReplyBody::Whole(Bytes::from(kept)) } else { ReplyBody::TooLong })
}

fn why(error: &reqwest::Error) -> Why {
    if error.is_connect() {
        Why::Unreachable
    } else if error.is_timeout() {
        Why::Deadline
    } else {
        Why::Broken
    }
}

fn headers(activity: &ActivityId, win: &DueWin, ticket: &str, traceparent: Option<&str>) -> Option<HeaderMap> {
    let id = win.request_id.to_string();
    let trace = match traceparent.filter(|text| is_traceparent(text)) {
        Some(text) => text.to_owned(),
        None => own_traceparent(win.request_id, rand::random()),
    };
    let fields = [
        (header::CONTENT_TYPE, "application/json"),
        (header::ACCEPT, "application/json"),
        (HeaderName::from_static("idempotency-key"), &id),
        (HeaderName::from_static("seckill-activity"), activity.as_str()),
        (HeaderName::from_static("seckill-sku"), win.sku.as_str()),
        (HeaderName::from_static("seckill-quantity"), &win.qty.to_string()),
        (HeaderName::from_static("seckill-user"), win.user.as_str()),
        (HeaderName::from_static("seckill-ticket"), ticket),
        (HeaderName::from_static("traceparent"), &trace),
        (header::CONTENT_LENGTH, &win.payload.len().to_string()),
    ];
    let mut headers = HeaderMap::with_capacity(fields.len());
    for (name, value) in fields {
        headers.insert(name, HeaderValue::from_str(value).ok()?);
    }
    Some(headers)
}

/// W3C trace context, version 00, with the request id as trace id: a win is found in the traces by its own name.
fn own_traceparent(id: RequestId, span: u64) -> String {
    // A span id of zeros is invalid.
    format!("00-{id}-{:016x}-01", span.max(1))
}

/// Whether `text` is a version 00 `traceparent`; others are dropped rather than passed on.
fn is_traceparent(text: &str) -> bool {
    let hex = |part: &str, length: usize| {
        part.len() == length && part.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    let nonzero = |part: &str| part.bytes().any(|b| b != b'0');
    match text.split('-').collect::<Vec<_>>()[..] {
        ["00", trace, span, flags] => {
            hex(trace, 32) && nonzero(trace) && hex(span, 16) && nonzero(span) && hex(flags, 2)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceparent_is_passed_on_only_if_it_is_one() {
        let own = own_traceparent("eef43c5759fe9038687e0cf204b6a00f".parse().unwrap(), 0);
        assert!(is_traceparent(&own), "{own}");
        assert!(is_traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"));
        for bad in [
            "",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
        ] {
            assert!(!is_traceparent(bad), "{bad:?}");
        }
    }
}
