//! `POST /admin/reload`: the file is read again.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;

use super::body::{Asked, Plain};
use super::problem::Problem;
use crate::gate::reload::{Asker, Refused, Reloader};
use crate::platform::http_server::problem_with;

/// 200 with the outcome and every edit; 409 if an edit may not be made this way, 422 if the file has faults, 503 if the gate
/// could not do it. Refused, nothing has changed.
pub async fn reload(State(reloader): State<Option<Arc<Reloader>>>, asked: Asked<Plain>) -> Response {
    let Some(reloader) = reloader else {
        return Problem::not_found("NO_FILE", "this gate was started without a file to read again").into_response();
    };
    let outcome = reloader.reload(asked.body.dry_run, Asker::Admin(asked.peer)).await;
    match outcome {
        Ok(reloaded) => Json(reloaded.to_json()).into_response(),
        Err(refused) => {
            let status = match refused {
                Refused::Faults(_) => StatusCode::UNPROCESSABLE_ENTITY,
                Refused::Halves(_) | Refused::Dangerous(_) => StatusCode::CONFLICT,
                Refused::Failed(_) => StatusCode::SERVICE_UNAVAILABLE,
            };
            let retryable = status == StatusCode::SERVICE_UNAVAILABLE;
            problem_with(status, refused.code(), &refused.detail(), retryable, refused.more())
        }
    }
}
