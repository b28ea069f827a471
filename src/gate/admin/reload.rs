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
/// could not do it. Refused, nothing has changed. Each names the gate and the file that it read.
pub async fn reload(State(reloader): State<Option<Arc<Reloader>>>, asked: Asked<Plain>) -> Response {
    let Some(reloader) = reloader else {
        return Problem::not_found("NO_FILE", "this gate was started without a file to read again").into_response();
    };
    let outcome = reloader.reload(asked.body.dry_run, Asker::Admin(asked.peer)).await;
    let (file, gate) = (reloader.file.display().to_string(), reloader.gate.to_string());
    match outcome {
        Ok(reloaded) => {
            let mut told = reloaded.to_json();
            (told["file"], told["gate"]) = (file.into(), gate.into());
            Json(told).into_response()
        }
        Err(refused) => {
            let status = match refused {
                Refused::Faults(_) => StatusCode::UNPROCESSABLE_ENTITY,
                Refused::Halves(_) | Refused::Dangerous(_) => StatusCode::CONFLICT,
                Refused::Failed(_) => StatusCode::SERVICE_UNAVAILABLE,
            };
            let retryable = status == StatusCode::SERVICE_UNAVAILABLE;
            let mut more = refused.more();
            more.extend([("file".to_owned(), file.into()), ("gate".to_owned(), gate.into())]);
            problem_with(status, refused.code(), &refused.detail(), retryable, more)
        }
    }
}
