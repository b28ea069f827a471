//! How answers look: JSON, and problems as RFC 9457 has them.

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Value, json};

use crate::orders::ledger::LedgerError;
use crate::orders::order::{Order, Word};
use crate::orders::queue::QueueError;
use crate::platform::http_server::problem_with;

/// A refusal. Without the header `Seckill-Order` it says nothing definite about an order.
#[derive(Debug)]
pub(super) struct Problem {
    status: StatusCode,
    code: &'static str,
    detail: String,
    more: Vec<(&'static str, Value)>,
}

impl Problem {
    pub(super) fn new(status: StatusCode, code: &'static str, detail: &str) -> Problem {
        Problem { status, code, detail: detail.into(), more: vec![] }
    }

    pub(super) fn bad(detail: &str) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, "BAD_REQUEST", detail)
    }

    pub(super) fn later(code: &'static str, detail: &str) -> Problem {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, code, detail)
    }

    pub(super) fn with(mut self, name: &'static str, value: impl Into<Value>) -> Problem {
        self.more.push((name, value.into()));
        self
    }

    pub(super) fn code(&self) -> &'static str {
        self.code
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let retryable = self.status.is_server_error();
        let mut response = problem_with(self.status, self.code, &self.detail, retryable, self.more);
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert("retry-after", HeaderValue::from_static("1"));
        }
        response
    }
}

impl From<LedgerError> for Problem {
    fn from(error: LedgerError) -> Problem {
        // What the database said is for the log; the caller learns what to do.
        tracing::warn!(%error, "ledger call failed");
        Problem::later("LEDGER_UNAVAILABLE", "the ledger does not answer; try again")
    }
}

impl From<QueueError> for Problem {
    fn from(error: QueueError) -> Problem {
        tracing::warn!(%error, "queue call failed");
        match error {
            QueueError::Full => Problem::later("QUEUE_FULL", "too many orders are waiting; try again"),
            QueueError::Unavailable(_) => Problem::later("QUEUE_UNAVAILABLE", "the queue does not answer; try again"),
        }
    }
}

pub(super) fn json_reply(status: StatusCode, body: &impl Serialize) -> Response {
    match serde_json::to_vec(body) {
        Ok(body) => (status, [(CONTENT_TYPE, "application/json")], body).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// A known order as the gate is told of it: the same for ever, so nothing in it may change while the order stands.
pub(super) fn told(order: &Order) -> Response {
    let (status, state, word) = match order.state.word() {
        Word::Booked => (StatusCode::OK, "booked", None),
        Word::Refused => (StatusCode::CONFLICT, order.state.as_str(), Some("refused")),
        Word::Ended => (StatusCode::CONFLICT, order.state.as_str(), Some("ended")),
    };
    let mut body = json!({"order_id": order.order_id().to_string(), "request_id": order.request_id, "state": state});
    match word {
        None => {
            body["activity"] = order.activity.as_str().into();
            body["sku"] = order.sku.as_str().into();
            body["qty"] = order.qty.into();
            body["created_at_ms"] = order.created_at_ms.into();
        }
        Some(_) => body["reason"] = reason(order).into(),
    }
    let mut response = json_reply(status, &body);
    if let (Some(word), Ok(reason)) = (word, HeaderValue::from_str(reason(order))) {
        response.headers_mut().insert(HeaderName::from_static("seckill-order"), HeaderValue::from_static(word));
        response.headers_mut().insert(HeaderName::from_static("seckill-reason"), reason);
    }
    response
}

fn reason(order: &Order) -> &str {
    if order.reason.is_empty() { order.state.as_str() } else { &order.reason }
}
