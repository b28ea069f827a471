//! Booking. Locks are taken in one order by everybody: activities, orders by request id, purchases by user, the journal,
//! and the hot stock rows last, so that they are held for the shortest time.

use std::collections::{BTreeSet, HashMap};

use async_trait::async_trait;
use sqlx::{MySql, MySqlConnection, QueryBuilder};

use super::connect::Work;
use super::fault::Fault;
use super::{NOW_MS, rows, rows_of, sql};
use crate::domain::{ActivityId, RequestId, UserId};
use crate::orders::ledger::Booked;
use crate::orders::ledger::rows::Rules;
use crate::orders::order::{NewOrder, OrderId, OrderState, Refusal};

/// A batch, all or nothing.
pub(super) struct Batch<'a>(pub &'a [NewOrder]);

/// One order: booked, or written as refused.
pub(super) struct One<'a> {
    pub order: &'a NewOrder,
    pub refusal: Option<Refusal>,
}

#[async_trait]
impl Work for Batch<'_> {
    type Out = Vec<Booked>;

    async fn run(&self, connection: &mut MySqlConnection) -> Result<Vec<Booked>, Fault> {
        if self.0.is_empty() {
            return Ok(vec![]);
        }
        let rules = rules(connection, self.0).await?;
        let known = known(connection, self.0).await?;
        let plan = rows::plan(self.0, &known, &rules);
        if plan.insert.is_empty() {
            return Ok(plan.verdicts);
        }
        insert_orders(connection, &plan.insert, OrderState::Pending, "").await.map_err(seen_too_late)?;
        count_purchases(connection, plan.units.iter().map(|((activity, user), units)| (*activity, *user, *units)))
            .await?;
        for activity in rows::activities(self.0) {
            let users: Vec<&UserId> =
                plan.units.keys().filter(|(of, _)| *of == activity).map(|(_, user)| *user).collect();
            if let Some(rules) = rules.get(activity) {
                limits_hold(connection, activity, &users, rules.per_user_limit).await?;
            }
        }
        journal(connection, &plan.insert).await?;
        for ((activity, sku), units) in &plan.sold {
            sell(connection, activity.as_str(), sku.as_str(), *units).await?;
        }
        Ok(plan.verdicts)
    }
}

#[async_trait]
impl Work for One<'_> {
    type Out = Booked;

    async fn run(&self, connection: &mut MySqlConnection) -> Result<Booked, Fault> {
        let order = self.order;
        let rules = rules(connection, std::slice::from_ref(order)).await?;
        if known(connection, std::slice::from_ref(order)).await?.contains(&order.request_id) {
            return Ok(Booked::Duplicate);
        }
        let (Booked::Booked, Some(rules)) =
            (rows::admit(order, rules.get(&order.activity)), rules.get(&order.activity))
        else {
            return Ok(rows::admit(order, rules.get(&order.activity)));
        };
        if let Some(refusal) = self.refusal {
            insert_orders(connection, &[order], OrderState::Refused, refusal.as_str()).await?;
            return Ok(Booked::Refused(refusal));
        }
        let stock: Vec<(i64, i64)> = rows_of!(connection, sql::STOCK_OF, order.activity.as_str(), order.sku.as_str())?;
        if stock.is_empty() {
            return Err(Fault::Guard(Refusal::NoSuchSku));
        }
        insert_orders(connection, &[order], OrderState::Pending, "").await?;
        count_purchases(connection, [(&order.activity, &order.user, u64::from(order.qty))].into_iter()).await?;
        limits_hold(connection, &order.activity, &[&order.user], rules.per_user_limit).await?;
        journal(connection, &[order]).await?;
        sell(connection, order.activity.as_str(), order.sku.as_str(), order.qty.into()).await?;
        Ok(Booked::Booked)
    }
}

/// Another writer committed the row after we had looked: the next look sees it.
fn seen_too_late(fault: Fault) -> Fault {
    match fault {
        Fault::Duplicate(text) => Fault::Again(text),
        other => other,
    }
}

/// Reads the activities and keeps them as they are until the commit, so that no rebuild slips in between.
async fn rules(connection: &mut MySqlConnection, batch: &[NewOrder]) -> Result<HashMap<ActivityId, Rules>, Fault> {
    let mut query =
        QueryBuilder::<MySql>::new("SELECT activity, base_epoch, per_user_limit FROM activities WHERE activity IN (");
    let mut names = query.separated(", ");
    for activity in rows::activities(batch) {
        names.push_bind(activity.as_str());
    }
    query.push(") ORDER BY activity LOCK IN SHARE MODE");
    let found: Vec<(String, i64, i64)> = query.build_query_as().persistent(false).fetch_all(&mut *connection).await?;
    let mut rules = HashMap::new();
    for (activity, base_epoch, limit) in found {
        let activity = activity.parse().map_err(|_| rows::corrupt("activity"))?;
        let per_user_limit = u32::try_from(limit).map_err(|_| rows::corrupt("limit"))?;
        rules.insert(activity, Rules { base_epoch: rows::unsigned(base_epoch)?, per_user_limit });
    }
    Ok(rules)
}

async fn known(connection: &mut MySqlConnection, batch: &[NewOrder]) -> Result<BTreeSet<RequestId>, Fault> {
    let mut query = QueryBuilder::<MySql>::new("SELECT request_id FROM orders WHERE request_id IN (");
    let mut ids = query.separated(", ");
    for order in batch {
        ids.push_bind(order.request_id.to_string());
    }
    query.push(")");
    let found: Vec<(String,)> = query.build_query_as().persistent(false).fetch_all(&mut *connection).await?;
    found.iter().map(|(id,)| id.parse().map_err(|_| rows::corrupt("request id").into())).collect()
}

async fn insert_orders(
    connection: &mut MySqlConnection,
    orders: &[&NewOrder],
    state: OrderState,
    reason: &str,
) -> Result<(), Fault> {
    let mut query = QueryBuilder::<MySql>::new(
        "INSERT INTO orders (request_id, order_id, activity, sku, qty, user, state, reason, epoch, payload, \
         created_at_ms, updated_at_ms) ",
    );
    query.push_values(orders, |mut row, order| {
        row.push_bind(order.request_id.to_string())
            .push_bind(OrderId(order.request_id).to_string())
            .push_bind(order.activity.as_str())
            .push_bind(order.sku.as_str())
            .push_bind(i64::from(order.qty))
            .push_bind(order.user.as_str().as_bytes())
            .push_bind(state.as_str())
            .push_bind(reason)
            .push_bind(i64::try_from(order.epoch).unwrap_or(i64::MAX))
            .push_bind(order.payload.as_ref())
            .push(NOW_MS)
            .push(NOW_MS);
    });
    query.build().persistent(false).execute(&mut *connection).await?;
    Ok(())
}

async fn count_purchases<'a>(
    connection: &mut MySqlConnection,
    units: impl Iterator<Item = (&'a ActivityId, &'a UserId, u64)>,
) -> Result<(), Fault> {
    let mut query = QueryBuilder::<MySql>::new("INSERT INTO purchases (activity, user, units) ");
    query.push_values(units, |mut row, (activity, user, units)| {
        row.push_bind(activity.as_str()).push_bind(user.as_str().as_bytes()).push_bind(as_i64(units));
    });
    // VALUES() in this place is the one form that MySQL and MariaDB share.
    query.push(" ON DUPLICATE KEY UPDATE units = units + VALUES(units)");
    query.build().persistent(false).execute(&mut *connection).await?;
    Ok(())
}

/// The guard of the limit. The rows were just written, so they are locked: what is read is what will be committed.
async fn limits_hold(
    connection: &mut MySqlConnection,
    activity: &ActivityId,
    users: &[&UserId],
    limit: u32,
) -> Result<(), Fault> {
    if users.is_empty() {
        return Ok(());
    }
    let mut query = QueryBuilder::<MySql>::new("SELECT COUNT(*) FROM purchases WHERE activity = ");
    query.push_bind(activity.as_str()).push(" AND units > ").push_bind(i64::from(limit)).push(" AND user IN (");
    let mut names = query.separated(", ");
    for user in users {
        names.push_bind(user.as_str().as_bytes());
    }
    query.push(")");
    let above: i64 = query.build_query_scalar().persistent(false).fetch_one(&mut *connection).await?;
    if above == 0 { Ok(()) } else { Err(Fault::Guard(Refusal::Limit)) }
}

async fn journal(connection: &mut MySqlConnection, orders: &[&NewOrder]) -> Result<(), Fault> {
    let mut query = QueryBuilder::<MySql>::new("INSERT INTO journal (request_id, activity, sku, kind, delta, at_ms) ");
    query.push_values(orders, |mut row, order| {
        row.push_bind(order.request_id.to_string())
            .push_bind(order.activity.as_str())
            .push_bind(order.sku.as_str())
            .push("'book'")
            .push_bind(i64::from(order.qty))
            .push(NOW_MS);
    });
    query.build().persistent(false).execute(&mut *connection).await?;
    Ok(())
}

async fn sell(connection: &mut MySqlConnection, activity: &str, sku: &str, units: u64) -> Result<(), Fault> {
    let units = as_i64(units);
    let sold =
        sqlx::query(sql::SELL).bind(units).bind(activity).bind(sku).bind(units).execute(&mut *connection).await?;
    if sold.rows_affected() == 1 { Ok(()) } else { Err(Fault::Guard(Refusal::NoStock)) }
}

fn as_i64(units: u64) -> i64 {
    i64::try_from(units).unwrap_or(i64::MAX)
}
