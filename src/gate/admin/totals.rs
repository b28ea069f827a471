//! Totals: from a value that the operator saw to a new one, so that a repetition changes nothing.
//!
//! Raising goes to the ledger first, lowering to the store first: at no moment does the store offer more than the ledger
//! takes. A failure in between is mended by repeating the request.

use std::cmp::Ordering;
use std::sync::Arc;

use axum::extract::{Path, State};
use serde::Deserialize;

use super::body::{Asked, Outcome};
use super::changes::{operate, operated, stock_now, would};
use super::own_task::{Line, change};
use super::problem::Problem;
use super::world::{AdminWorld, Managed};
use crate::domain::admission::{Change, Operated};
use crate::domain::stock::Stock;
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
    // Judged on the store before the ledger moves: a `from` that is wrong would leave them apart.
    let foreseen = foresee(&stock_now(world, id, &new.sku).await?, new.from, new.to);
    if new.dry_run {
        return match foreseen {
            Operated::Applied | Operated::Already => Ok(would(foreseen == Operated::Already)),
            refused => operated(refused),
        };
    }
    let change =
        Change::SetTotal { sku: new.sku.clone(), from: new.from, to: new.to, returning_delay: world.returning_delay };
    match new.to.cmp(&new.from) {
        Ordering::Greater if matches!(foreseen, Operated::Applied | Operated::Already) => {
            in_ledger(world, id, new).await?;
            operate(managed, change).await
        }
        Ordering::Greater => operated(foreseen),
        Ordering::Less | Ordering::Equal => {
            let outcome = operate(managed, change).await?;
            in_ledger(world, id, new).await?;
            Ok(outcome)
        }
    }
}

async fn in_ledger(world: &AdminWorld, id: &ActivityId, new: &NewTotal) -> Result<(), Problem> {
    match world.ledger.set_total(id, &new.sku, new.from, new.to).await? {
        TotalSet::Stands => Ok(()),
        TotalSet::Refused(why) => {
            Err(Problem::conflict("LEDGER_REFUSED", format!("the ledger did not take the total: {why}")))
        }
    }
}

/// What the store would answer.
fn foresee(stock: &Stock, from: i64, to: i64) -> Operated {
    if stock.total == to {
        Operated::Already
    } else if stock.total != from {
        Operated::TotalIs(stock.total)
    } else if stock.left < from - to {
        Operated::OnlyLeft(stock.left)
    } else {
        Operated::Applied
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_total_moves_only_from_what_it_is_and_not_below_what_is_won() {
        let stock = Stock { total: 10, left: 3, ..Stock::default() };
        for (from, to, expected) in [
            (10, 12, Operated::Applied),
            (8, 10, Operated::Already),
            (9, 12, Operated::TotalIs(10)),
            (10, 7, Operated::Applied),
            (10, 6, Operated::OnlyLeft(3)),
        ] {
            assert_eq!(foresee(&stock, from, to), expected, "{from} -> {to}");
        }
    }
}
