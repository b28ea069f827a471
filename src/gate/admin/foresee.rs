//! What the store would answer to an operator's change, from a fresh poll: asked before anything moves, since the ledger
//! must not move for a change that the store then refuses, and by dry runs, which must not promise such a change.

use super::problem::Problem;
use super::world::{AdminWorld, Managed};
use crate::domain::ActivityId;
use crate::domain::admission::{ActivityState, Barred, Change, Operated, Polled, PolledActivity};
use crate::domain::stock::Stock;
use crate::gate::view::View;

/// The store as it stands, if it would take an operator's change from this gate now.
///
/// # Errors
/// If it would not, or does not answer.
pub async fn changeable(world: &AdminWorld, id: &ActivityId, managed: &Managed) -> Result<ActivityState, Problem> {
    judged(world, id, managed, barred_by).await
}

/// The same for what brings wins to their end.
///
/// # Errors
/// If it would not, or does not answer.
pub async fn finishable(world: &AdminWorld, id: &ActivityId, managed: &Managed) -> Result<ActivityState, Problem> {
    judged(world, id, managed, barred_from_finishing).await
}

async fn judged(
    world: &AdminWorld,
    id: &ActivityId,
    managed: &Managed,
    by: fn(&Polled, &View) -> Option<Barred>,
) -> Result<ActivityState, Problem> {
    let polled = world.poll(id).await?;
    match (by(&polled, &managed.activity.view()), polled.activity) {
        (None, PolledActivity::Stored(state)) => Ok(*state),
        (barred, _) => Err(managed.problem(barred.unwrap_or(Barred::NotPreheated))),
    }
}

/// Why an operator's change would be refused.
pub fn barred_by(polled: &Polled, view: &View) -> Option<Barred> {
    // A fence stays in view although its keys are back: they do not tell what was lost meanwhile.
    barred_from_finishing(polled, view).or(view.barred).or(match &polled.activity {
        PolledActivity::Stored(state) => state.barred,
        PolledActivity::NotPreheated | PolledActivity::Incomplete => None,
    })
}

/// Why the store would not let this gate bring a win to its end. It does so while it is suspect, but only for those who
/// know which run they speak to.
fn barred_from_finishing(polled: &Polled, view: &View) -> Option<Barred> {
    let state = match &polled.activity {
        PolledActivity::Stored(state) => state,
        PolledActivity::Incomplete => return Some(Barred::Fenced),
        PolledActivity::NotPreheated => return Some(Barred::NotPreheated),
    };
    if state.barred == Some(Barred::Fenced) {
        return state.barred;
    }
    match &view.vouched {
        None => Some(Barred::NotPreheated),
        Some((epoch, _)) if *epoch != state.terms.epoch => Some(Barred::Fenced),
        Some((_, run)) => (*run != polled.server_run).then_some(Barred::Suspect),
    }
}

/// What a store that stands so answers to a change.
pub fn foresee(state: &ActivityState, change: &Change) -> Operated {
    let of = |sku| state.stock.iter().find(|(name, _)| name == sku).map(|(_, stock)| stock);
    let unless = |already| if already { Operated::Already } else { Operated::Applied };
    match change {
        Change::Pause => unless(state.paused),
        Change::Resume => unless(!state.paused),
        Change::StopSku(sku) => of(sku).map_or(Operated::NoSuchSku, |stock| unless(stock.stopped)),
        Change::StartSku(sku) => match of(sku) {
            None => Operated::NoSuchSku,
            Some(stock) if stock.stopped && stock.left < 0 => Operated::BelowZero,
            Some(stock) => unless(!stock.stopped),
        },
        Change::SetTotal { sku, from, to, .. } => {
            of(sku).map_or(Operated::NoSuchSku, |stock| with_total(stock, *from, *to))
        }
    }
}

fn with_total(stock: &Stock, from: i64, to: i64) -> Operated {
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
            assert_eq!(with_total(&stock, from, to), expected, "{from} -> {to}");
        }
    }
}
