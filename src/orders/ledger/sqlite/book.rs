//! Booking, as on MySQL, but with the whole file to ourselves: rows are looked at before they are written.

use std::collections::{BTreeSet, HashMap};

use rusqlite::{OptionalExtension, Transaction, params};

use super::{Fault, NOW_MS};
use crate::domain::{ActivityId, RequestId, SkuId, UserId};
use crate::orders::ledger::rows::Rules;
use crate::orders::ledger::{Booked, rows, sql};
use crate::orders::order::{NewOrder, OrderId, OrderState, Refusal};

/// Books a batch, all or nothing.
pub(super) fn batch(tx: &Transaction<'_>, batch: &[NewOrder]) -> Result<Vec<Booked>, Fault> {
    let mut rules = HashMap::new();
    for activity in rows::activities(batch) {
        if let Some(found) = rules_of(tx, activity)? {
            rules.insert(activity.clone(), found);
        }
    }
    let mut known = BTreeSet::new();
    for order in batch {
        if is_known(tx, order.request_id)? {
            known.insert(order.request_id);
        }
    }
    let plan = rows::plan(batch, &known, &rules);
    for order in &plan.insert {
        insert(tx, order, OrderState::Pending, "")?;
        journal(tx, order)?;
    }
    for ((activity, user), units) in &plan.units {
        let limit = rules.get(*activity).map_or(0, |rules| rules.per_user_limit);
        count_purchase(tx, activity, user, *units, limit)?;
    }
    for ((activity, sku), units) in &plan.sold {
        sell(tx, activity, sku, *units)?;
    }
    Ok(plan.verdicts)
}

/// Books one order.
pub(super) fn one(tx: &Transaction<'_>, order: &NewOrder) -> Result<Booked, Fault> {
    if is_known(tx, order.request_id)? {
        return Ok(Booked::Duplicate);
    }
    let rules = rules_of(tx, &order.activity)?;
    let admitted = rows::admit(order, rules.as_ref());
    if admitted != Booked::Booked {
        return Ok(admitted);
    }
    let on_sale = tx.prepare_cached(sql::STOCK_OF)?.exists(params![order.activity.as_str(), order.sku.as_str()])?;
    if !on_sale {
        return Err(Fault::Guard(Refusal::NoSuchSku));
    }
    insert(tx, order, OrderState::Pending, "")?;
    journal(tx, order)?;
    let limit = rules.map_or(0, |rules| rules.per_user_limit);
    count_purchase(tx, &order.activity, &order.user, order.qty.into(), limit)?;
    sell(tx, &order.activity, &order.sku, order.qty.into())?;
    Ok(Booked::Booked)
}

/// Writes one order as refused.
pub(super) fn refuse(tx: &Transaction<'_>, order: &NewOrder, refusal: Refusal) -> Result<Booked, Fault> {
    insert(tx, order, OrderState::Refused, refusal.as_str())?;
    Ok(Booked::Refused(refusal))
}

fn rules_of(tx: &Transaction<'_>, activity: &ActivityId) -> Result<Option<Rules>, Fault> {
    let found: Option<(i64, i64)> = tx
        .prepare_cached("SELECT base_epoch, per_user_limit FROM activities WHERE activity = ?")?
        .query_row([activity.as_str()], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((base_epoch, limit)) = found else { return Ok(None) };
    let per_user_limit = u32::try_from(limit).map_err(|_| rows::corrupt("limit"))?;
    Ok(Some(Rules { base_epoch: rows::unsigned(base_epoch)?, per_user_limit }))
}

fn is_known(tx: &Transaction<'_>, id: RequestId) -> Result<bool, Fault> {
    Ok(tx.prepare_cached("SELECT 1 FROM orders WHERE request_id = ?")?.exists([id.hex().as_str()])?)
}

fn insert(tx: &Transaction<'_>, order: &NewOrder, state: OrderState, reason: &str) -> Result<(), Fault> {
    let insert = format!(
        "INSERT INTO orders (request_id, order_id, activity, sku, qty, user, state, reason, epoch, payload, \
         created_at_ms, updated_at_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, {NOW_MS}, {NOW_MS})"
    );
    tx.prepare_cached(&insert)?.execute(params![
        order.request_id.hex().as_str(),
        OrderId(order.request_id).to_string(),
        order.activity.as_str(),
        order.sku.as_str(),
        order.qty,
        order.user.as_str().as_bytes(),
        state.as_str(),
        reason,
        i64::try_from(order.epoch).unwrap_or(i64::MAX),
        order.payload.as_ref(),
    ])?;
    Ok(())
}

fn journal(tx: &Transaction<'_>, order: &NewOrder) -> Result<(), Fault> {
    let insert = format!(
        "INSERT INTO journal (request_id, activity, sku, kind, delta, at_ms) VALUES (?, ?, ?, 'book', ?, {NOW_MS})"
    );
    tx.prepare_cached(&insert)?.execute(params![
        order.request_id.hex().as_str(),
        order.activity.as_str(),
        order.sku.as_str(),
        order.qty
    ])?;
    Ok(())
}

fn count_purchase(
    tx: &Transaction<'_>,
    activity: &ActivityId,
    user: &UserId,
    units: u64,
    limit: u32,
) -> Result<(), Fault> {
    let held: i64 = tx
        .prepare_cached(
            "INSERT INTO purchases (activity, user, units) VALUES (?, ?, ?) \
             ON CONFLICT (activity, user) DO UPDATE SET units = units + excluded.units RETURNING units",
        )?
        .query_row(params![activity.as_str(), user.as_str().as_bytes(), as_i64(units)], |row| row.get(0))?;
    if held > i64::from(limit) { Err(Fault::Guard(Refusal::Limit)) } else { Ok(()) }
}

fn sell(tx: &Transaction<'_>, activity: &ActivityId, sku: &SkuId, units: u64) -> Result<(), Fault> {
    let units = as_i64(units);
    let sold = tx.prepare_cached(sql::SELL)?.execute(params![units, activity.as_str(), sku.as_str(), units])?;
    if sold == 1 { Ok(()) } else { Err(Fault::Guard(Refusal::NoStock)) }
}

fn as_i64(units: u64) -> i64 {
    i64::try_from(units).unwrap_or(i64::MAX)
}
