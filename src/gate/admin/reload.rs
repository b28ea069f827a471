//! `POST /admin/reload`: the file is read again.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;

use super::body::{Asked, Plain};
use super::own_task::to_its_end;
use super::problem::Problem;
use super::world::AdminWorld;
use crate::gate::reload::{Asker, Refused, Reloader};
use crate::platform::http_server::problem_with;

/// 200 with the outcome and every edit; 409 if an edit may not be made this way, 422 if the file has faults, 503 if the gate
/// could not do it. Refused, nothing has changed. Each names the gate and the file that it read.
pub async fn reload(
    State(reloader): State<Option<Arc<Reloader>>>,
    State(world): State<Arc<AdminWorld>>,
    asked: Asked<Plain>,
) -> Response {
    let Some(reloader) = reloader else {
        return Problem::not_found("NO_FILE", "this gate was started without a file to read again").into_response();
    };
    let (dry_run, asker) = (asked.body.dry_run, Asker::Admin(asked.peer));
    let of_task = Arc::clone(&reloader);
    let task = to_its_end(&world.under_way, async move { of_task.reload(dry_run, asker).await });
    let outcome = task.await.unwrap_or_else(|_| Err(Refused::Failed("the reload broke off; see the log".into())));
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
