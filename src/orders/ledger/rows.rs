//! What both ledgers compute from a batch before they touch the database, and how rows are read back.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytes::Bytes;

use super::super::order::{NewOrder, Order, OrderState};
use super::{
    AboveLimit, ActivityReport, Booked, Dropped, JournalRow, LedgerAudit, LedgerError, Miscounted, OrderRow, Oversold,
    Registration, SetAsideRow, SkuStock,
};
use crate::domain::{ActivityId, RequestId, SkuId, UserId};

/// What booking needs to know of a sale.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    pub base_epoch: u64,
    pub per_user_limit: u32,
}

/// A batch sorted for booking.
pub(super) struct Plan<'a> {
    /// The verdicts, `Booked` for whatever is in `insert`.
    pub verdicts: Vec<Booked>,
    /// Rows to insert, by request id, so that all writers lock in the same order.
    pub insert: Vec<&'a NewOrder>,
    /// Units per user.
    pub units: BTreeMap<(&'a ActivityId, &'a UserId), u64>,
    /// Units per SKU.
    pub sold: BTreeMap<(&'a ActivityId, &'a SkuId), u64>,
}

/// Sorts out what is already known, comes twice in the batch, or is dropped.
pub(super) fn plan<'a>(
    batch: &'a [NewOrder],
    known: &BTreeSet<RequestId>,
    rules: &HashMap<ActivityId, Rules>,
) -> Plan<'a> {
    let mut seen = known.clone();
    let mut plan = Plan { verdicts: vec![], insert: vec![], units: BTreeMap::new(), sold: BTreeMap::new() };
    for order in batch {
        let verdict =
            if seen.contains(&order.request_id) { Booked::Duplicate } else { admit(order, rules.get(&order.activity)) };
        plan.verdicts.push(verdict);
        if verdict == Booked::Booked {
            seen.insert(order.request_id);
            plan.insert.push(order);
            *plan.units.entry((&order.activity, &order.user)).or_default() += u64::from(order.qty);
            *plan.sold.entry((&order.activity, &order.sku)).or_default() += u64::from(order.qty);
        }
    }
    plan.insert.sort_by_key(|order| order.request_id);
    plan
}

/// Whether the ledger may book the order at all, guards aside.
pub(super) fn admit(order: &NewOrder, rules: Option<&Rules>) -> Booked {
    match rules {
        None => Booked::Dropped(Dropped::UnknownActivity),
        Some(rules) if order.epoch < rules.base_epoch => Booked::Dropped(Dropped::OldEpoch),
        Some(_) => Booked::Booked,
    }
}

/// The activities of a batch, sorted, each once.
pub(super) fn activities(batch: &[NewOrder]) -> Vec<&ActivityId> {
    batch.iter().map(|order| &order.activity).collect::<BTreeSet<_>>().into_iter().collect()
}

/// A row that our own code cannot have written.
pub(super) fn corrupt(what: &str) -> LedgerError {
    LedgerError::Unavailable(format!("the ledger holds a {what} that is none"))
}

/// Columns of an order as the drivers hand them over.
pub(super) type OrderColumns = (String, String, String, i64, Vec<u8>, String, String, i64, Vec<u8>, i64);

pub(super) fn order(columns: OrderColumns) -> Result<Order, LedgerError> {
    let (request_id, activity, sku, qty, user, state, reason, epoch, payload, created_at_ms) = columns;
    Ok(Order {
        request_id: request_id.parse().map_err(|_| corrupt("request id"))?,
        activity,
        sku,
        qty: u32::try_from(qty).map_err(|_| corrupt("quantity"))?,
        user: String::from_utf8(user).map_err(|_| corrupt("user"))?,
        state: OrderState::parse(&state).ok_or_else(|| corrupt("state"))?,
        reason,
        epoch: unsigned(epoch)?,
        payload: Bytes::from(payload),
        created_at_ms: unsigned(created_at_ms)?,
    })
}

/// Columns of a listed order.
pub(super) type ListColumns = (String, String, i64, Vec<u8>, String, String, i64);

pub(super) fn listed(columns: ListColumns) -> Result<OrderRow, LedgerError> {
    let (request_id, sku, qty, user, state, reason, created_at_ms) = columns;
    Ok(OrderRow {
        request_id: request_id.parse().map_err(|_| corrupt("request id"))?,
        sku,
        qty: u32::try_from(qty).map_err(|_| corrupt("quantity"))?,
        user: String::from_utf8(user).map_err(|_| corrupt("user"))?,
        state: OrderState::parse(&state).ok_or_else(|| corrupt("state"))?.as_str(),
        reason,
        created_at_ms: unsigned(created_at_ms)?,
    })
}

/// Columns of an entry set aside: entry, content, error, at.
pub(super) type AsideColumns = (String, Vec<u8>, String, i64);

pub(super) fn aside(columns: AsideColumns) -> Result<SetAsideRow, LedgerError> {
    let (entry, content, error, at_ms) = columns;
    Ok(SetAsideRow {
        order: entry.parse::<RequestId>().is_ok(),
        entry,
        content: String::from_utf8_lossy(&content).into_owned(),
        error,
        at_ms: unsigned(at_ms)?,
    })
}

/// Columns of a journal line: id, request id or empty, sku, kind, delta, at.
pub(super) type JournalColumns = (i64, String, String, String, i64, i64);

pub(super) fn journal(columns: JournalColumns) -> Result<JournalRow, LedgerError> {
    let (id, request_id, sku, kind, delta, at_ms) = columns;
    let request_id = match request_id.as_str() {
        "" => None,
        text => Some(text.parse().map_err(|_| corrupt("request id"))?),
    };
    Ok(JournalRow {
        id: unsigned(id)?,
        request_id,
        sku: sku.parse().map_err(|_| corrupt("sku"))?,
        kind,
        delta,
        at_ms: unsigned(at_ms)?,
    })
}

pub(super) fn unsigned(value: i64) -> Result<u64, LedgerError> {
    u64::try_from(value).map_err(|_| corrupt("count"))
}

/// Counts by activity and state; rows of void ids whose sale was not told are left out.
pub(super) fn counts(columns: Vec<(String, String, i64)>) -> Vec<(ActivityId, OrderState, u64)> {
    let count = |(activity, state, rows): (String, String, i64)| {
        Some((activity.parse().ok()?, OrderState::parse(&state)?, u64::try_from(rows).ok()?))
    };
    columns.into_iter().filter_map(count).collect()
}

/// Counts by activity.
pub(super) fn aside_counts(columns: Vec<(String, i64)>) -> Vec<(ActivityId, u64)> {
    let count = |(activity, rows): (String, i64)| Some((activity.parse().ok()?, u64::try_from(rows).ok()?));
    columns.into_iter().filter_map(count).collect()
}

/// Columns of a sale: epoch, base epoch, limit, rebuy, payment deadline.
pub(super) type TermsColumns = (i64, i64, i64, i64, i64);

pub(super) fn report(
    activity: &ActivityId,
    (epoch, base_epoch, limit, rebuy, payment_deadline_ms): TermsColumns,
    skus: Vec<(String, i64, i64)>,
    states: Vec<(String, i64)>,
    set_aside: i64,
) -> Result<ActivityReport, LedgerError> {
    let stock = |(sku, total, sold): (String, i64, i64)| {
        let sku = sku.parse().map_err(|_| corrupt("sku"))?;
        Ok((sku, SkuStock { total: unsigned(total)?, sold: unsigned(sold)? }))
    };
    Ok(ActivityReport {
        activity: activity.clone(),
        epoch: unsigned(epoch)?,
        base_epoch: unsigned(base_epoch)?,
        per_user_limit: u32::try_from(limit).map_err(|_| corrupt("limit"))?,
        rebuy_after_release: rebuy != 0,
        payment_deadline_ms: unsigned(payment_deadline_ms)?,
        skus: skus.into_iter().map(stock).collect::<Result<_, LedgerError>>()?,
        orders: states
            .into_iter()
            .map(|(state, rows)| Ok((state, unsigned(rows)?)))
            .collect::<Result<_, LedgerError>>()?,
        set_aside: unsigned(set_aside)?,
    })
}

/// What a report says was registered and set per SKU.
pub(super) fn registration(report: &ActivityReport) -> Registration {
    Registration {
        per_user_limit: report.per_user_limit,
        rebuy_after_release: report.rebuy_after_release,
        payment_deadline_ms: report.payment_deadline_ms,
        skus: report
            .skus
            .iter()
            .map(|(sku, stock)| (sku.clone(), u32::try_from(stock.total).unwrap_or(u32::MAX)))
            .collect(),
    }
}

/// Columns of a SKU in an audit: sku, total, sold, in orders, in journal.
pub(super) type AuditSku = (String, i64, i64, i64, i64);
/// Columns of a user in an audit: user, units in standing orders, units in `purchases`.
pub(super) type AuditUser = (Vec<u8>, i64, i64);

/// Judges what an audit selected.
pub(super) fn audit(skus: Vec<AuditSku>, users: Vec<AuditUser>, limit: u32, rebuy: bool) -> LedgerAudit {
    let mut audit = LedgerAudit::default();
    let count = |value: i64| u64::try_from(value).unwrap_or(0);
    for (sku, total, sold, in_orders, in_journal) in skus {
        if sold > total || in_orders > total {
            audit.oversold.push(Oversold { sku: sku.clone(), total: count(total), sold: count(sold.max(in_orders)) });
        }
        if sold != in_orders || sold != in_journal {
            audit.miscounted.push(Miscounted { sku, sold: count(sold), in_orders: count(in_orders), in_journal });
        }
    }
    for (user, units, counted) in users {
        let user = String::from_utf8_lossy(&user).into_owned();
        if units > i64::from(limit) {
            audit.above_limit.push(AboveLimit { user: user.clone(), units: count(units), allowed: limit.into() });
        }
        // Without rebuying, ended orders go on counting, so `purchases` may only be larger.
        if units > counted || (rebuy && units != counted) {
            audit.purchases_off.push(AboveLimit { user, units: count(units), allowed: count(counted) });
        }
    }
    audit
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(n: u8, user: &str, epoch: u64) -> NewOrder {
        NewOrder {
            request_id: format!("{n:032x}").parse().unwrap(),
            activity: "sale".parse().unwrap(),
            sku: "phone".parse().unwrap(),
            qty: 2,
            user: user.parse().unwrap(),
            epoch,
            payload: Bytes::new(),
        }
    }

    #[test]
    fn a_batch_books_each_id_once_and_drops_old_epochs() {
        let batch = [order(3, "b", 2), order(1, "a", 2), order(3, "b", 2), order(2, "a", 1), order(9, "a", 2)];
        let known = BTreeSet::from([batch[4].request_id]);
        let rules = HashMap::from([("sale".parse().unwrap(), Rules { base_epoch: 2, per_user_limit: 9 })]);
        let plan = plan(&batch, &known, &rules);
        let (booked, known) = (Booked::Booked, Booked::Duplicate);
        assert_eq!(plan.verdicts, [booked, booked, known, Booked::Dropped(Dropped::OldEpoch), known]);
        assert_eq!(plan.insert, [&batch[1], &batch[0]]);
        assert_eq!(plan.sold.values().copied().collect::<Vec<_>>(), [4]);
        assert_eq!(plan.units.values().copied().collect::<Vec<_>>(), [2, 2]);
    }

    #[test]
    fn an_order_of_an_unknown_sale_is_dropped_not_refused() {
        assert_eq!(admit(&order(1, "a", 1), None), Booked::Dropped(Dropped::UnknownActivity));
    }

    #[test]
    fn an_audit_names_each_kind_of_violation() {
        let skus = vec![("fine".into(), 5, 3, 3, 3), ("over".into(), 5, 6, 6, 6), ("off".into(), 5, 3, 2, 3)];
        let users = vec![(b"fine".to_vec(), 1, 1), (b"much".to_vec(), 2, 2), (b"lost".to_vec(), 1, 0)];
        let found = audit(skus, users, 1, true);
        assert_eq!(found.oversold.iter().map(|f| f.sku.as_str()).collect::<Vec<_>>(), ["over"]);
        assert_eq!(found.miscounted.iter().map(|f| f.sku.as_str()).collect::<Vec<_>>(), ["off"]);
        assert_eq!(found.above_limit.iter().map(|f| f.user.as_str()).collect::<Vec<_>>(), ["much"]);
        assert_eq!(found.purchases_off.iter().map(|f| f.user.as_str()).collect::<Vec<_>>(), ["lost"]);
        assert_eq!(found.violations(), 4);
    }
}
