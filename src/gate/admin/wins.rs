//! The wins of an activity, page by page in the order in which they were won: the store's journal, and the records.

use std::collections::HashSet;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Query, State};
use serde::Deserialize;
use serde_json::{Value, json};

use super::problem::Problem;
use super::world::AdminWorld;
use crate::domain::admission::{Barred, FoundWin, JournalCursor, JournalOp, Poll, PolledActivity};
use crate::domain::win::WinState;
use crate::domain::{InvalidId, RequestId};
use crate::gate::delivery::reply::StoredReply;

/// Journal entries read per page.
const PAGE: usize = 500;

/// Where to go on.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct After {
    #[serde(default)]
    after: Option<String>,
}

/// `GET …/wins?after=`: `next` is the `after` of the following page, until `more` is false.
pub async fn page(
    State(world): State<Arc<AdminWorld>>,
    Path(name): Path<String>,
    query: Result<Query<After>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<Value>, Problem> {
    let (id, managed) = world.managed(&name)?;
    let Query(After { after }) = query.map_err(|rejected| Problem::bad_request(rejected.body_text()))?;
    let poll = Poll { gate: None, vouched: None, after: cursor(after.as_deref())?, max_entries: PAGE };
    let state = match world.store.poll(id, &poll).await?.activity {
        PolledActivity::Stored(state) => state,
        PolledActivity::NotPreheated => return Err(managed.problem(Barred::NotPreheated)),
        PolledActivity::Incomplete => return Err(managed.problem(Barred::Fenced)),
    };
    let mut seen = HashSet::new();
    let ids: Vec<_> = state
        .entries
        .iter()
        .filter_map(|entry| match &entry.op {
            JournalOp::Won { request_id, .. } => Some(*request_id),
            _ => None,
        })
        .filter(|id| seen.insert(*id))
        .collect();
    let found = match ids.is_empty() {
        true => Vec::new(),
        false => world.store.find(id, &ids).await?.map_err(|barred| managed.problem(barred))?,
    };
    let wins: Vec<Value> = found.iter().flatten().map(shown).collect();
    Ok(Json(json!({ "wins": wins, "next": &*state.cursor.0, "more": !state.at_end })))
}

/// `GET …/wins/{request_id}`: one win.
pub async fn one(
    State(world): State<Arc<AdminWorld>>,
    Path((name, request_id)): Path<(String, String)>,
) -> Result<Json<Value>, Problem> {
    let (id, managed) = world.managed(&name)?;
    let request_id: RequestId = request_id.parse().map_err(|e: InvalidId| Problem::bad_request(e.to_string()))?;
    Ok(Json(shown(&world.find(id, managed, request_id).await?)))
}

/// Cursors are the store's own text, handed out by an earlier page; nothing else goes to the store.
fn cursor(after: Option<&str>) -> Result<JournalCursor, Problem> {
    match after.filter(|text| !text.is_empty()) {
        None => Ok(JournalCursor::start()),
        Some(text) if text.len() <= 64 && text.bytes().all(|b| b.is_ascii_digit() || b == b'-') => {
            Ok(JournalCursor(text.into()))
        }
        Some(_) => Err(Problem::bad_request("`after` is not the `next` of an earlier page")),
    }
}

fn shown(win: &FoundWin) -> Value {
    let record = &win.record;
    let (state, cause, reason) = match &record.state {
        WinState::Held => ("held", None, None),
        WinState::Accepted => ("accepted", None, None),
        WinState::Released(release) => ("released", Some(release.cause.as_str()), Some(release.reason.as_str())),
    };
    let status = record.reply.as_ref().and_then(StoredReply::decode).map(|reply| reply.status);
    json!({
        "request_id": win.request_id, "user": record.user, "key": record.key, "sku": record.sku, "qty": record.qty,
        "won_at_ms": record.won_at.0, "state": state, "cause": cause, "reason": reason, "tries": record.tries,
        "first_delivery_at_ms": record.first_delivery_at.map(|at| at.0),
        "dead_since_ms": record.dead_since.map(|at| at.0), "reply_status": status,
    })
}
