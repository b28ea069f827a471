//! How activities stand: phase, stock as a sum that adds up, wins, unsettled, epoch, gates, invariants.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Value, json};

use super::problem::Problem;
use super::world::{AdminWorld, Managed};
use crate::domain::admission::{Barred, Snapshot};
use crate::domain::stock::{Stock, WinUnits};
use crate::domain::{ActivityId, SkuId};

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
    let mut shown = json!({
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
        "dead_letters": view.dead,
        "file_differs": *managed.activity.file_differs(),
    });
    add_stock(&mut shown, &view.stock);
    shown
}

fn add_snapshot(shown: &mut Value, snapshot: &Snapshot) {
    shown["preheated"] = true.into();
    shown["epoch"] = snapshot.terms.epoch.0.into();
    shown["starts_at_ms"] = snapshot.terms.starts_at.0.into();
    shown["ends_at_ms"] = snapshot.terms.ends_at.0.into();
    shown["per_user_limit"] = snapshot.terms.per_user_limit.into();
    shown["unsettled"] = snapshot.unsettled.into();
    shown["dead_letters"] = snapshot.dead.into();
    add_stock(shown, &snapshot.skus);
}

/// Stock per SKU as a sum, its wins, and whether the sums add up.
fn add_stock(shown: &mut Value, skus: &[(SkuId, Stock)]) {
    let count = |of: fn(&WinUnits) -> (u64, i64)| skus.iter().map(|(_, stock)| of(&stock.wins).0).sum::<u64>();
    shown["wins"] = json!({
        "held": count(|wins| wins.held), "accepted": count(|wins| wins.accepted), "released": count(|wins| wins.released),
    });
    shown["invariants"] = json!({ "INV-2": skus.iter().all(|(_, stock)| stock.adds_up()) });
    let skus = skus.iter().map(|(sku, stock)| {
        json!({
            "sku": sku, "total": stock.total, "left": stock.left, "returning": stock.returning,
            "withheld": stock.withheld, "held": stock.wins.held.1, "accepted": stock.wins.accepted.1,
            "released": stock.wins.released.1, "stopped": stock.stopped, "adds_up": stock.adds_up(),
        })
    });
    shown["skus"] = skus.collect();
}
