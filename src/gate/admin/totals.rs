//! Totals: from a value that the operator saw to a new one, so that a repetition changes nothing.
//!
//! Raising goes to the ledger first, lowering to the store first: at no moment does the store offer more than the ledger
//! takes. A failure in between is mended by repeating the request.

use std::cmp::Ordering;
use std::sync::Arc;

use axum::extract::{Path, State};
use serde::Deserialize;

use super::body::{Asked, Outcome};
use super::changes::{operate, operated};
use super::foresee::{changeable, foresee};
use super::own_task::{Line, change};
use super::problem::Problem;
use super::world::{AdminWorld, Managed};
use crate::domain::admission::{Change, Operated};
use crate::domain::{ActivityId, SkuId};
use crate::gate::ledger::TotalSet;

/// No sale of ours has more units of one SKU.
const MAX_TOTAL: i64 = u32::MAX as i64;

/// A new total.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewTotal {
    sku: SkuId,
    from: i64,
    to: i64,
    #[serde(default)]
    dry_run: bool,
}

/// `POST …/totals`
pub async fn set_total(
    State(world): State<Arc<AdminWorld>>,
    Path(name): Path<String>,
    asked: Asked<NewTotal>,
) -> Result<Outcome, Problem> {
    let new = asked.body;
    let told = format!("{} {} -> {}", new.sku, new.from, new.to);
    let line = Line { action: "totals", activity: name, peer: asked.peer, dry_run: new.dry_run, asked: told };
    change(world, line, move |world, id, managed| Box::pin(async move { apply(world, id, managed, &new).await })).await
}

async fn apply(world: &AdminWorld, id: &ActivityId, managed: &Managed, new: &NewTotal) -> Result<Outcome, Problem> {
    if !(0..=MAX_TOTAL).contains(&new.from) || !(0..=MAX_TOTAL).contains(&new.to) {
        return Err(Problem::bad_request(format!("totals lie between 0 and {MAX_TOTAL}")));
    }
    let change =
        Change::SetTotal { sku: new.sku.clone(), from: new.from, to: new.to, returning_delay: world.returning_delay };
    // Judged on the store before the ledger moves: a change that the store refuses would leave them apart.
    let stored = changeable(world, id, managed).await?;
    match (foresee(&stored, &change), new.to.cmp(&new.from)) {
        (Operated::Applied | Operated::Already, Ordering::Greater) if !new.dry_run => {
            in_ledger(world, id, new).await?;
            operate(managed, &stored, change, false).await.map_err(|refused| half_way("the ledger", refused))
        }
        (_, Ordering::Less | Ordering::Equal) if !new.dry_run => {
            let outcome = operate(managed, &stored, change, false).await?;
            in_ledger(world, id, new).await.map_err(|refused| half_way("the store", refused))?;
            Ok(outcome)
        }
        (foreseen, _) => operated(foreseen, new.dry_run),
    }
}

/// What was refused by one, when the other has moved already.
fn half_way(moved: &str, refused: Problem) -> Problem {
    Problem { detail: format!("{} ({moved} has the new total already)", refused.detail), ..refused }
}

async fn in_ledger(world: &AdminWorld, id: &ActivityId, new: &NewTotal) -> Result<(), Problem> {
    match world.ledger.set_total(id, &new.sku, new.from, new.to).await? {
        TotalSet::Stands => Ok(()),
        TotalSet::Refused(why) => {
            Err(Problem::conflict("LEDGER_REFUSED", format!("the ledger did not take the total: {why}")))
        }
    }
}
