//! Dead letters: to be seen, delivered again now, or given up, and the last only on the order service's word.
//!
//! Releasing asks the order service to void the request id first. A delivery that still hangs in a socket then arrives too
//! late: the id is void for ever. So it is one order or one release, never both, and never by an operator's word alone.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::body::{Asked, Outcome, Plain};
use super::changes::would;
use super::foresee::finishable;
use super::own_task::{Line, Told, change};
use super::problem::Problem;
use super::releases::conflict;
use super::world::{AdminWorld, Managed};
use crate::domain::admission::{FoundWin, Recorded};
use crate::domain::dead_letters::{DeadCursor, DeadPage, LastWord, MAX_RETRY, Retried};
use crate::domain::win::{Cause, Reason, Release, WinState};
use crate::domain::{ActivityId, RequestId};
use crate::gate::ledger::Voided;

/// Dead letters per page.
const PAGE: usize = 200;
const _: () = assert!(PAGE <= MAX_RETRY);

/// Where to go on.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct After {
    #[serde(default)]
    after: Option<String>,
}

/// `GET …/dead-letters?after=`: `next` is the `after` of the following page; it is null on the last one.
pub async fn page(
    State(world): State<Arc<AdminWorld>>,
    Path(name): Path<String>,
    query: Result<Query<After>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<Value>, Problem> {
    let (id, managed) = world.managed(&name)?;
    let Query(After { after }) = query.map_err(|rejected| Problem::bad_request(rejected.body_text()))?;
    let after = after.filter(|text| !text.is_empty()).map(|text| text.parse::<DeadCursor>()).transpose();
    let after = after.map_err(|invalid| Problem::bad_request(format!("`after`: {invalid}")))?;
    let page = world.dead_letters(id, managed, &DeadPage { after, limit: PAGE }).await?;
    let next = if page.len() == PAGE { page.last().and_then(place) } else { None };
    let shown: Vec<Value> = page.iter().map(shown).collect();
    Ok(Json(json!({ "dead_letters": shown, "next": next.map(|next| next.to_string()) })))
}

/// Where a dead letter stands in the list.
fn place(win: &FoundWin) -> Option<DeadCursor> {
    Some(DeadCursor { since: win.record.dead_since?, id: win.request_id })
}

fn shown(win: &FoundWin) -> Value {
    let record = &win.record;
    json!({
        "request_id": win.request_id, "user": record.user, "sku": record.sku, "qty": record.qty,
        "won_at_ms": record.won_at.0, "first_delivery_at_ms": record.first_delivery_at.map(|at| at.0),
        "dead_since_ms": record.dead_since.map(|at| at.0), "tries": record.tries,
        "last_word": record.last_word.map(LastWord::as_str),
    })
}

/// `POST …/dead-letters/{request_id}/retry`: due now.
pub async fn retry(
    State(world): State<Arc<AdminWorld>>,
    Path((name, request_id)): Path<(String, String)>,
    asked: Asked<Plain>,
) -> Result<Outcome, Problem> {
    let (request_id, dry_run) = (parsed(&request_id)?, asked.body.dry_run);
    let told = request_id.to_string();
    let line = Line { action: "dead-letter-retry", activity: name, peer: asked.peer, dry_run, asked: told };
    change(world, line, move |world, id, managed| Box::pin(retry_one(world, id, managed, request_id, dry_run))).await
}

async fn retry_one(
    world: &AdminWorld,
    id: &ActivityId,
    managed: &Managed,
    request_id: RequestId,
    dry_run: bool,
) -> Result<Outcome, Problem> {
    let retried = if dry_run {
        finishable(world, id, managed).await?;
        match world.find(id, managed, request_id).await?.record.state {
            WinState::Held => return Ok(would(false)),
            state => Retried::Final(state),
        }
    } else {
        due_now(managed, &[request_id]).await?.pop().unwrap_or(Retried::UnknownWin)
    };
    match retried {
        Retried::Due => Ok(Outcome { name: "applied", dry_run }),
        Retried::Final(WinState::Released(_)) => Ok(Outcome { name: "already_released", dry_run }),
        Retried::Final(_) => Ok(Outcome { name: "already_accepted", dry_run }),
        Retried::UnknownWin => Err(Problem::unknown_win()),
    }
}

/// `POST …/dead-letters/retry-all`: all that are dead by now, page by page; `count` tells how many.
pub async fn retry_all(
    State(world): State<Arc<AdminWorld>>,
    Path(name): Path<String>,
    asked: Asked<Plain>,
) -> Result<RetriedAll, Problem> {
    let dry_run = asked.body.dry_run;
    let line =
        Line { action: "dead-letter-retry-all", activity: name, peer: asked.peer, dry_run, asked: String::new() };
    change(world, line, move |world, id, managed| {
        Box::pin(async move {
            let mut count = 0;
            let outcome = retry_every(world, id, managed, dry_run, &mut count).await.map_err(|problem| Problem {
                detail: format!("{}; {count} wins were met before", problem.detail),
                ..problem
            })?;
            Ok(RetriedAll { outcome, count })
        })
    })
    .await
}

/// What came of all of them, and how many there were.
pub struct RetriedAll {
    outcome: Outcome,
    count: usize,
}

impl Told for RetriedAll {
    fn outcome(&self) -> &'static str {
        self.outcome.name
    }
    fn count(&self) -> Option<usize> {
        Some(self.count)
    }
}

impl IntoResponse for RetriedAll {
    fn into_response(self) -> Response {
        let mut body = json!({ "outcome": self.outcome.name, "count": self.count });
        if self.outcome.dry_run {
            body["dry_run"] = true.into();
        }
        Json(body).into_response()
    }
}

async fn retry_every(
    world: &AdminWorld,
    id: &ActivityId,
    managed: &Managed,
    dry_run: bool,
    count: &mut usize,
) -> Result<Outcome, Problem> {
    // What is marked while this goes on was delivered just now: it need not be chased.
    let until = world.clock.now().store;
    finishable(world, id, managed).await?;
    let mut after = None;
    loop {
        let mut page = world.dead_letters(id, managed, &DeadPage { after, limit: PAGE }).await?;
        let last = page.len() < PAGE;
        after = page.last().and_then(place);
        page.retain(|win| win.record.dead_since.is_some_and(|since| since <= until));
        let ids: Vec<RequestId> = page.iter().map(|win| win.request_id).collect();
        if !ids.is_empty() {
            *count += match dry_run {
                true => ids.len(),
                false => due_now(managed, &ids).await?.iter().filter(|one| **one == Retried::Due).count(),
            };
        }
        if last || ids.len() < PAGE {
            break;
        }
    }
    Ok(match (*count, dry_run) {
        (0, _) => Outcome { name: "already", dry_run },
        (_, true) => would(false),
        (_, false) => Outcome { name: "applied", dry_run },
    })
}

/// `POST …/dead-letters/{request_id}/release`: void at the order service, then release, for any win without a final word.
pub async fn release(
    State(world): State<Arc<AdminWorld>>,
    Path((name, request_id)): Path<(String, String)>,
    asked: Asked<Plain>,
) -> Result<Outcome, Problem> {
    let (request_id, dry_run) = (parsed(&request_id)?, asked.body.dry_run);
    let told = request_id.to_string();
    let line = Line { action: "dead-letter-release", activity: name, peer: asked.peer, dry_run, asked: told };
    change(world, line, move |world, id, managed| Box::pin(release_one(world, id, managed, request_id, dry_run))).await
}

async fn release_one(
    world: &AdminWorld,
    id: &ActivityId,
    managed: &Managed,
    request_id: RequestId,
    dry_run: bool,
) -> Result<Outcome, Problem> {
    // Before the id is void: a store that then refuses the release would keep the win for good.
    finishable(world, id, managed).await?;
    match world.find(id, managed, request_id).await?.record.state {
        WinState::Held if dry_run => return Ok(would(false)),
        WinState::Held => {}
        WinState::Released(_) => return Ok(Outcome { name: "already", dry_run }),
        WinState::Accepted => {
            let detail = "its order stands; end it at the order service, which then gives the units back";
            return Err(Problem::conflict("ORDER_EXISTS", detail));
        }
    }
    let voided = world.ledger.void(id, request_id).await.map_err(|error| {
        let detail = format!("{error}. Whether the id is void is not known, and nothing was released: repeat it");
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "VOID_UNKNOWN", detail)
    })?;
    let (release, name) = match voided {
        Voided::Void => (Release { cause: Cause::Void, reason: Reason::lossy(Cause::Void.as_str()) }, "applied"),
        Voided::Ended(release) => {
            let name = release.cause.as_str();
            (release, name)
        }
        Voided::OrderExists => {
            // The win's record is behind: the next delivery brings the word that books it.
            due_now(managed, &[request_id]).await?;
            let detail = "the order service has an order for it; not released, and due for delivery now";
            return Err(Problem::conflict("ORDER_EXISTS", detail));
        }
        Voided::CannotVoid => {
            let detail = "the order service cannot void, so this win cannot be released from here";
            return Err(Problem::conflict("CANNOT_VOID", detail));
        }
    };
    let word = release.cause.as_str();
    match managed.activity.release(request_id, release).await?.map_err(|barred| managed.problem(barred))? {
        Recorded::Applied(_) | Recorded::MarkedDead { .. } => Ok(Outcome { name, dry_run }),
        Recorded::Already(_) => Ok(Outcome { name: "already", dry_run }),
        Recorded::Conflict(known) => {
            world.conflicts.contradicted(id, request_id, word, &known);
            Err(conflict())
        }
        Recorded::UnknownWin => {
            world.conflicts.unknown(id, request_id, word);
            Err(Problem::unknown_win())
        }
    }
}

async fn due_now(managed: &Managed, ids: &[RequestId]) -> Result<Vec<Retried>, Problem> {
    managed.activity.retry(ids).await?.map_err(|barred| managed.problem(barred))
}

fn parsed(request_id: &str) -> Result<RequestId, Problem> {
    request_id.parse().map_err(|invalid: crate::domain::InvalidId| Problem::bad_request(invalid.to_string()))
}
