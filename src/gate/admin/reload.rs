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
use crate::gate::reload::{Refused, Reloader};
use crate::platform::http_server::{Peer, problem_with};

/// 200 with the outcome and every edit; 409 if an edit may not be made this way, 422 if the file has faults, 503 if the gate
/// could not do it. Refused, nothing has changed.
pub async fn reload(
    State(reloader): State<Option<Arc<Reloader>>>,
    State(world): State<Arc<AdminWorld>>,
    asked: Asked<Plain>,
) -> Response {
    let Some(reloader) = reloader else {
        return Problem::not_found("NO_FILE", "this gate was started without a file to read again").into_response();
    };
    let dry_run = asked.body.dry_run;
    let peer = asked.peer.map(|Peer(address)| address.to_string()).unwrap_or_default();
    let task = to_its_end(&world.under_way, async move {
        let outcome = reloader.reload(dry_run).await;
        let named = outcome.as_ref().map_or_else(|refused| refused.code(), |reloaded| reloaded.outcome());
        tracing::info!(target: "audit", action = "reload", peer, dry_run, outcome = named, "operator change");
        outcome
    });
    match task.await.unwrap_or_else(|_| Err(Refused::Failed("the reload broke off; see the log".into()))) {
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
