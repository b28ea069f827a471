//! Pause, resume, stop and start a SKU.

use std::sync::Arc;

use axum::extract::{Path, State};
use serde::Deserialize;

use super::body::{Asked, Outcome, Plain};
use super::foresee::{changeable, foresee};
use super::own_task::{Line, change};
use super::problem::Problem;
use super::world::{AdminWorld, Managed};
use crate::domain::admission::{ActivityState, Change, Operated};
use crate::domain::{ActivityId, SkuId};

type Changed = Result<Outcome, Problem>;

/// A change of one SKU.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OneSku {
    sku: SkuId,
    #[serde(default)]
    dry_run: bool,
}

/// `POST …/pause`
pub async fn pause(world: State<Arc<AdminWorld>>, name: Path<String>, asked: Asked<Plain>) -> Changed {
    set_pause(world, name, asked, true).await
}

/// `POST …/resume`
pub async fn resume(world: State<Arc<AdminWorld>>, name: Path<String>, asked: Asked<Plain>) -> Changed {
    set_pause(world, name, asked, false).await
}

async fn set_pause(
    State(world): State<Arc<AdminWorld>>,
    Path(name): Path<String>,
    asked: Asked<Plain>,
    pause: bool,
) -> Changed {
    let (action, wished) = if pause { ("pause", Change::Pause) } else { ("resume", Change::Resume) };
    let dry_run = asked.body.dry_run;
    let line = Line { action, activity: name, peer: asked.peer, dry_run, asked: String::new() };
    change(world, line, move |world, id, managed| Box::pin(simple(world, id, managed, wished, dry_run))).await
}

/// `POST …/stop-sku`
pub async fn stop_sku(State(world): State<Arc<AdminWorld>>, Path(name): Path<String>, asked: Asked<OneSku>) -> Changed {
    let OneSku { sku, dry_run } = asked.body;
    let line = Line { action: "stop-sku", activity: name, peer: asked.peer, dry_run, asked: sku.to_string() };
    let wished = Change::StopSku(sku);
    change(world, line, move |world, id, managed| Box::pin(simple(world, id, managed, wished, dry_run))).await
}

/// `POST …/start-sku`: only where store and ledger agree, since a disagreement is what stops a SKU by itself.
pub async fn start_sku(
    State(world): State<Arc<AdminWorld>>,
    Path(name): Path<String>,
    asked: Asked<OneSku>,
) -> Changed {
    let OneSku { sku, dry_run } = asked.body;
    let line = Line { action: "start-sku", activity: name, peer: asked.peer, dry_run, asked: sku.to_string() };
    change(world, line, move |world, id, managed| Box::pin(start(world, id, managed, sku, dry_run))).await
}

async fn start(world: &AdminWorld, id: &ActivityId, managed: &Managed, sku: SkuId, dry_run: bool) -> Changed {
    // Ledger first: what it has sold by then, the later picture of the store holds as won.
    let ledger = world.ledger.report(id).await?;
    let stored = changeable(world, id, managed).await?;
    let (_, stock) = stored.stock.iter().find(|(name, _)| *name == sku).ok_or_else(no_such_sku)?;
    if let Some(of_ledger) = ledger.and_then(|report| report.skus.get(&sku).copied()) {
        let disagreement = if of_ledger.total != stock.total {
            Some(format!("the total is {} in the ledger, {} in the store", of_ledger.total, stock.total))
        } else if of_ledger.sold > stock.units_in_wins() {
            Some(format!("{} are sold in the ledger, {} won in the store", of_ledger.sold, stock.units_in_wins()))
        } else {
            None
        };
        if let Some(disagreement) = disagreement {
            return Err(Problem::conflict("LEDGER_DISAGREES", disagreement));
        }
    }
    if stock.left < 0 {
        return Err(below_zero());
    }
    operate(managed, &stored, Change::StartSku(sku), dry_run).await
}

fn below_zero() -> Problem {
    Problem::conflict("BELOW_ZERO", "fewer than zero units are left, so the SKU cannot be started")
}

/// The outcome of a change that was only asked about.
pub fn would(already: bool) -> Outcome {
    Outcome { name: if already { "already" } else { "would_apply" }, dry_run: true }
}

fn no_such_sku() -> Problem {
    Problem::not_found("NO_SUCH_SKU", "the activity does not offer this SKU")
}

/// A change that asks nothing of the ledger.
async fn simple(world: &AdminWorld, id: &ActivityId, managed: &Managed, change: Change, dry_run: bool) -> Changed {
    operate(managed, &changeable(world, id, managed).await?, change, dry_run).await
}

/// Makes a change at a store that stands so, or says what would come of it.
pub async fn operate(managed: &Managed, stored: &ActivityState, change: Change, dry_run: bool) -> Changed {
    let outcome = match dry_run {
        true => foresee(stored, &change),
        false => managed.activity.operate(change).await?.map_err(|barred| managed.problem(barred))?,
    };
    operated(outcome, dry_run)
}

/// An operator's outcome, told.
pub fn operated(operated: Operated, dry_run: bool) -> Changed {
    match operated {
        Operated::Applied if dry_run => Ok(would(false)),
        Operated::Applied => Ok(Outcome { name: "applied", dry_run }),
        Operated::Already => Ok(Outcome { name: "already", dry_run }),
        Operated::NoSuchSku => Err(no_such_sku()),
        Operated::TotalIs(total) => Err(Problem::conflict("TOTAL_IS", format!("the total is {total} now"))),
        Operated::OnlyLeft(left) => {
            Err(Problem::conflict("ONLY_LEFT", format!("only {left} units are left to take away")))
        }
        Operated::BelowZero => Err(below_zero()),
    }
}
