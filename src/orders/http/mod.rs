//! The service's HTTP side: intake for the gate, an API for those who hold the bearer token, health and metrics.

mod api;
mod intake;
mod reply;
mod sight;

use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use self::reply::{Problem, json_reply};
use self::sight::Sight;
use super::activities::Activities;
use super::ledger::Ledger;
use super::metrics::Metrics;
use super::queue::OrderQueue;
use super::ticket::TicketVerifier;
use super::{ApiToken, WallClock};
use crate::platform::http_server::HttpLimits;
use crate::platform::metrics as platform_metrics;

/// Longest answer time; every call behind it has a shorter deadline of its own.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);
/// Longest body of any request; the gate caps payloads far below.
const MAX_BODY_BYTES: usize = 64 << 10;

/// What the listener holds: gates pool their connections, and give idle ones up after 4 s.
pub(super) const LIMITS: HttpLimits = HttpLimits {
    connections: 1_024,
    requests: 1_024,
    body: MAX_BODY_BYTES,
    request: Duration::from_secs(20),
    headers: Duration::from_secs(30),
    closing: Duration::from_secs(10),
};

/// What the handlers share.
pub(super) struct Service {
    pub ledger: Arc<dyn Ledger>,
    pub queue: Arc<dyn OrderQueue>,
    pub activities: Activities,
    pub tickets: TicketVerifier,
    pub api_token: ApiToken,
    pub wall_ms: WallClock,
    pub metrics: Metrics,
    pub sight: Sight,
    pub shutdown: CancellationToken,
}

/// All routes; `registry` is what `/metrics` shows.
pub(super) fn router(service: Arc<Service>, registry: Arc<platform_metrics::Metrics>) -> Router {
    let api = Router::new()
        .route("/orders/{id}", get(api::order))
        .route("/orders/{id}/void", post(api::void))
        .route("/activities/{id}", get(api::activity).put(api::put_activity))
        .route("/activities/{id}/journal", get(api::journal))
        .route("/activities/{id}/orders", get(api::orders))
        .route("/activities/{id}/audit", get(api::audit))
        .route("/activities/{id}/set-aside", get(api::set_aside))
        .route("/activities/{id}/set-aside/{request_id}/retry", post(api::put_back))
        .layer(from_fn_with_state(service.clone(), bearer_only));
    Router::new()
        .route("/orders", post(intake::post_order))
        .route("/healthz", get(async || json_reply(StatusCode::OK, &json!({"status": "alive"}))))
        .route("/readyz", get(ready))
        .merge(api)
        .fallback(async || Problem::new(StatusCode::NOT_FOUND, "NOT_FOUND", "there is no such route"))
        .with_state(service)
        .merge(platform_metrics::router(registry))
        .layer(from_fn(in_time))
}

/// Answers in time, and lets nobody keep an answer.
async fn in_time(request: Request, next: Next) -> Response {
    let mut response = match tokio::time::timeout(ANSWER_WITHIN, next.run(request)).await {
        Ok(response) => response,
        Err(_) => Problem::later("TIMEOUT", "the answer took too long; whether it was done is unknown").into_response(),
    };
    response.headers_mut().insert("cache-control", HeaderValue::from_static("no-store"));
    response
}

async fn bearer_only(State(service): State<Arc<Service>>, request: Request, next: Next) -> Response {
    let shown = request.headers().get(AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
    let token = shown.strip_prefix(b"Bearer ").unwrap_or_default();
    if !service.api_token.matches(token) {
        let problem = Problem::new(StatusCode::UNAUTHORIZED, "UNAUTHENTICATED", "the bearer token is missing or wrong");
        let mut response = problem.into_response();
        response.headers_mut().insert("www-authenticate", HeaderValue::from_static("Bearer"));
        return response;
    }
    next.run(request).await
}

impl ApiToken {
    /// Compares digests, in constant time, so that neither content nor length leaks.
    fn matches(&self, shown: &[u8]) -> bool {
        let (own, shown) = (digest(&SHA256, self.0.as_bytes()), digest(&SHA256, shown));
        !self.0.is_empty() && verify_slices_are_equal(own.as_ref(), shown.as_ref()).is_ok()
    }
}

/// Ready unless draining. Whether ledger and queue answer stands in the body: a sick database is no reason to send the
/// gate elsewhere.
async fn ready(State(service): State<Arc<Service>>) -> Response {
    let (ledger, queue) = tokio::join!(service.ledger.ping(), service.queue.ping());
    let draining = service.shutdown.is_cancelled();
    let status = if draining { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    json_reply(status, &json!({"draining": draining, "ledger": ledger.is_ok(), "queue": queue.is_ok()}))
}

/// A header that must be there exactly once, as text.
fn one_header<'a>(headers: &'a HeaderMap, name: &str) -> Result<&'a str, Problem> {
    let mut values = headers.get_all(name).iter();
    match (values.next().map(HeaderValue::to_str), values.next()) {
        (Some(Ok(value)), None) => Ok(value),
        _ => Err(Problem::bad(&format!("header {name} must be there once, as ASCII text"))),
    }
}

async fn read_body(body: Body) -> Result<Bytes, Problem> {
    axum::body::to_bytes(body, MAX_BODY_BYTES)
        .await
        .map_err(|_| Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "TOO_LARGE", "the body is too long or was cut off"))
}
