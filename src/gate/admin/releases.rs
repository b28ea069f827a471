//! The order service tells that an order ended: its units come back, once per request id.

use std::sync::Arc;

use axum::extract::{Path, State};
use serde::Deserialize;

use super::body::{Asked, Outcome};
use super::changes::would;
use super::foresee::finishable;
use super::own_task::{Line, change};
use super::problem::Problem;
use super::world::{AdminWorld, Managed};
use crate::domain::admission::Recorded;
use crate::domain::win::{Cause, Reason, Release, Step, WinEvent, transition};
use crate::domain::{ActivityId, RequestId};

/// An order's end.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OrderEnded {
    request_id: RequestId,
    reason: String,
    #[serde(default)]
    dry_run: bool,
}

/// `POST …/releases`
pub async fn release(
    State(world): State<Arc<AdminWorld>>,
    Path(name): Path<String>,
    asked: Asked<OrderEnded>,
) -> Result<Outcome, Problem> {
    let OrderEnded { request_id, reason, dry_run } = asked.body;
    let told = format!("{request_id} {}", Reason::lossy(&reason));
    let line = Line { action: "release", activity: name, peer: asked.peer, dry_run, asked: told };
    change(world, line, move |world, id, managed| {
        Box::pin(async move {
            let reason = Reason::new(&reason).map_err(|invalid| Problem::bad_request(invalid.to_string()))?;
            apply(world, id, managed, request_id, reason, dry_run).await
        })
    })
    .await
}

async fn apply(
    world: &AdminWorld,
    id: &ActivityId,
    managed: &Managed,
    request_id: RequestId,
    reason: Reason,
    dry_run: bool,
) -> Result<Outcome, Problem> {
    let cause = cause_of(&reason);
    if dry_run {
        finishable(world, id, managed).await?;
        let found = world.find(id, managed, request_id).await?;
        return match transition(&found.record.state, WinEvent::Ended(cause)) {
            Step::Conflict => Err(conflict()),
            step => Ok(would(step != Step::Release)),
        };
    }
    let done = |name| Ok(Outcome { name, dry_run: false });
    match managed
        .activity
        .release(request_id, Release { cause, reason })
        .await?
        .map_err(|barred| managed.problem(barred))?
    {
        Recorded::Applied(_) | Recorded::MarkedDead { .. } => done("applied"),
        Recorded::Already(_) => done("already"),
        Recorded::Conflict(known) => {
            world.conflicts.contradicted(id, request_id, cause.as_str(), &known);
            Err(conflict())
        }
        Recorded::UnknownWin => Err(Problem::unknown_win()),
    }
}

/// Only `void` means that no order ever was; every other reason ended one.
fn cause_of(reason: &Reason) -> Cause {
    if reason.as_str() == Cause::Void.as_str() { Cause::Void } else { Cause::Ended }
}

pub(super) fn conflict() -> Problem {
    Problem::conflict("CONFLICT", "the win's record contradicts this, and stands")
}
