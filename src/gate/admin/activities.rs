//! How activities stand: phase, stock as a sum that adds up, wins, unsettled, epoch, gates, invariants.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Value, json};

use super::problem::Problem;
use super::world::{AdminWorld, Managed};
use crate::domain::ActivityId;
use crate::domain::admission::{Barred, Snapshot, WinUnits};
use crate::domain::stock::Stock;

fn barred_name(barred: Barred) -> &'static str {
    match barred {
        Barred::NotPreheated => "not_preheated",
        Barred::Fenced => "fenced",
        Barred::Late => "late",
        Barred::Suspect => "suspect",
    }
}

/// `GET /admin/activities`: from memory, no store call.
pub async fn list(State(world): State<Arc<AdminWorld>>) -> Json<Value> {
    let activities: Vec<Value> = world.activities.iter().map(|(id, managed)| brief(&world, id, managed)).collect();
    Json(json!({ "activities": activities }))
}

/// `GET /admin/activities/{id}`: with one atomic snapshot of the store; without an answer of the store, what the last poll
/// showed, and `store_error`.
pub async fn show(State(world): State<Arc<AdminWorld>>, Path(name): Path<String>) -> Result<Json<Value>, Problem> {
    let (id, managed) = world.managed(&name)?;
    let snapshot = world.store.snapshot(id).await;
    let mut shown = brief(&world, id, managed);
    match snapshot {
        Ok(Some(snapshot)) => add_snapshot(&mut shown, &snapshot),
        Ok(None) => {}
        // An operator looks here most of all when the store is in trouble: what the last poll showed is better than nothing.
        Err(error) => shown["store_error"] = error.to_string().into(),
    }
    Ok(Json(shown))
}

fn brief(world: &AdminWorld, id: &ActivityId, managed: &Managed) -> Value {
    let now = world.clock.now().store;
    let view = managed.activity.view();
    json!({
        "activity": id,
        "phase": managed.activity.phase(now).as_str(),
        "preheated": view.epoch().is_some(),
        "epoch": view.epoch().map(|epoch| epoch.0),
        "paused": view.paused,
        "barred": view.barred.map(barred_name),
        "server_time_ms": now.0,
        "starts_at_ms": view.starts_at.0,
        "ends_at_ms": view.ends_at.0,
        "per_user_limit": view.per_user_limit,
        "unsettled": view.unsettled,
        "oldest_unsettled_age_ms": view.oldest_unsettled.map(|won| now.0.saturating_sub(won.0)),
        "gates": world.gates,
        "file_differs": *managed.activity.file_differs(),
        "skus": view.stock.iter().map(|(sku, stock)| json!({
            "sku": sku, "total": stock.total, "left": stock.left, "returning": stock.returning,
            "withheld": stock.withheld, "stopped": stock.stopped,
        })).collect::<Vec<_>>(),
    })
}

fn add_snapshot(shown: &mut Value, snapshot: &Snapshot) {
    let mut wins = WinUnits::default();
    let mut adds_up = true;
    let skus: Vec<Value> = snapshot
        .skus
        .iter()
        .map(|(sku, stock, units)| {
            for (sum, part) in [
                (&mut wins.held, units.held),
                (&mut wins.accepted, units.accepted),
                (&mut wins.released, units.released),
            ] {
                *sum = (sum.0 + part.0, sum.1 + part.1);
            }
            let sku_adds_up = sum_holds(stock, units);
            adds_up &= sku_adds_up;
            json!({
                "sku": sku, "total": stock.total, "left": stock.left, "returning": stock.returning,
                "withheld": stock.withheld, "held": units.held.1, "accepted": units.accepted.1,
                "released": units.released.1, "stopped": stock.stopped, "adds_up": sku_adds_up,
            })
        })
        .collect();
    let above: Vec<Value> =
        snapshot.users_above_limit.iter().map(|(user, units)| json!({ "user": user, "units": units })).collect();
    shown["preheated"] = true.into();
    shown["epoch"] = snapshot.terms.epoch.0.into();
    shown["starts_at_ms"] = snapshot.terms.starts_at.0.into();
    shown["ends_at_ms"] = snapshot.terms.ends_at.0.into();
    shown["per_user_limit"] = snapshot.terms.per_user_limit.into();
    shown["unsettled"] = snapshot.unsettled.into();
    shown["skus"] = skus.into();
    shown["wins"] = json!({ "held": wins.held.0, "accepted": wins.accepted.0, "released": wins.released.0 });
    shown["invariants"] = json!({ "INV-2": adds_up, "INV-3": above.is_empty() });
    shown["users_above_limit"] = above.into();
}

/// INV-2: total = left + returning + withheld + units of held and accepted wins.
pub fn sum_holds(stock: &Stock, units: &WinUnits) -> bool {
    stock.units_in_wins() == units.held.1 + units.accepted.1
}
