//! Pause, resume, stop and start a SKU.

use std::sync::Arc;

use axum::extract::{Path, State};
use serde::Deserialize;

use super::body::{Asked, Outcome, Plain};
use super::own_task::{Line, change};
use super::problem::Problem;
use super::world::{AdminWorld, Managed};
use crate::domain::admission::{Change, Operated};
use crate::domain::stock::Stock;
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
    change(world, line, move |_, id, managed| {
        Box::pin(async move {
            if dry_run {
                let view = managed.activity.view();
                return view.epoch().ok_or_else(|| Problem::not_preheated(id)).map(|_| would(view.paused == pause));
            }
            operate(managed, wished).await
        })
    })
    .await
}

/// `POST …/stop-sku`
pub async fn stop_sku(State(world): State<Arc<AdminWorld>>, Path(name): Path<String>, asked: Asked<OneSku>) -> Changed {
    let OneSku { sku, dry_run } = asked.body;
    let line = Line { action: "stop-sku", activity: name, peer: asked.peer, dry_run, asked: sku.to_string() };
    change(world, line, move |world, id, managed| {
        Box::pin(async move {
            if dry_run {
                return stock_now(world, id, &sku).await.map(|stock| would(stock.stopped));
            }
            operate(managed, Change::StopSku(sku)).await
        })
    })
    .await
}

/// `POST …/start-sku`: only where store and ledger agree, since a disagreement is what stops a SKU by itself.
pub async fn start_sku(
    State(world): State<Arc<AdminWorld>>,
    Path(name): Path<String>,
    asked: Asked<OneSku>,
) -> Changed {
    let OneSku { sku, dry_run } = asked.body;
    let line = Line { action: "start-sku", activity: name, peer: asked.peer, dry_run, asked: sku.to_string() };
    change(world, line, move |world, id, managed| {
        Box::pin(async move { start(world, id, managed, &sku, dry_run).await })
    })
    .await
}

async fn start(world: &AdminWorld, id: &ActivityId, managed: &Managed, sku: &SkuId, dry_run: bool) -> Changed {
    // Ledger first: what it has sold by then, the later picture of the store holds as won.
    let ledger = world.ledger.report(id).await?;
    let stock = stock_now(world, id, sku).await?;
    if let Some(of_ledger) = ledger.and_then(|report| report.skus.get(sku).copied()) {
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
    if dry_run { Ok(would(!stock.stopped)) } else { operate(managed, Change::StartSku(sku.clone())).await }
}

fn below_zero() -> Problem {
    Problem::conflict("BELOW_ZERO", "fewer than zero units are left, so the SKU cannot be started")
}

/// The outcome of a change that was only asked about.
pub fn would(already: bool) -> Outcome {
    Outcome { name: if already { "already" } else { "would_apply" }, dry_run: true }
}

/// One SKU's stock, now.
pub async fn stock_now(world: &AdminWorld, id: &ActivityId, sku: &SkuId) -> Result<Stock, Problem> {
    let stored = world.stored(id).await?.ok_or_else(|| Problem::not_preheated(id))?;
    let found = stored.stock.iter().find(|(name, _)| name == sku);
    found.map(|(_, stock)| *stock).ok_or_else(no_such_sku)
}

fn no_such_sku() -> Problem {
    Problem::not_found("NO_SUCH_SKU", "the activity does not offer this SKU")
}

/// Makes a change at the store and names what came of it.
pub async fn operate(managed: &Managed, change: Change) -> Changed {
    operated(managed.activity.operate(change).await??)
}

/// An operator's outcome, told.
pub fn operated(operated: Operated) -> Changed {
    let done = |name| Ok(Outcome { name, dry_run: false });
    match operated {
        Operated::Applied => done("applied"),
        Operated::Already => done("already"),
        Operated::NoSuchSku => Err(no_such_sku()),
        Operated::TotalIs(total) => Err(Problem::conflict("TOTAL_IS", format!("the total is {total} now"))),
        Operated::OnlyLeft(left) => {
            Err(Problem::conflict("ONLY_LEFT", format!("only {left} units are left to take away")))
        }
        Operated::BelowZero => Err(below_zero()),
    }
}
