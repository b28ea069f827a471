//! Probes. Neither depends on the store, the database or a fence: one sick activity must not take the shop offline.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use serde_json::{Map, Value, json};

use super::world::AdminWorld;

/// The process lives.
pub async fn healthz() -> &'static str {
    "ok\n"
}

/// Started and not draining; how the activities stand is in the body, for people.
pub async fn readyz(State(world): State<Arc<AdminWorld>>) -> Response {
    let ready = world.is_ready();
    let now = world.clock.now().store;
    let activities: Map<String, Value> = world
        .activities
        .iter()
        .map(|(id, managed)| (id.to_string(), json!(managed.activity.phase(now).as_str())))
        .collect();
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body = Json(json!({ "ready": ready, "activities": activities }));
    (status, [(header::CACHE_CONTROL, "no-store")], body).into_response()
}
