//! Void, set aside, registration, totals, reports and audits.

use rusqlite::{OptionalExtension, Params, Row, Transaction, params};

use super::{Fault, NOW_MS};
use crate::domain::{ActivityId, RequestId, SkuId};
use crate::orders::ledger::{
    ActivityReport, JournalRow, Known, LedgerAudit, OrderRow, Registered, Registration, SetAside, SetAsideRow,
    TotalSet, rows, sql,
};
use crate::orders::order::{Order, OrderId, OrderState};

pub(super) fn find(tx: &Transaction<'_>, id: RequestId) -> Result<Option<Order>, Fault> {
    let columns: Vec<rows::OrderColumns> = all(tx, sql::FIND, [id.hex().as_str()])?;
    Ok(columns.into_iter().next().map(rows::order).transpose()?)
}

pub(super) fn void(tx: &Transaction<'_>, id: RequestId, activity: Option<&ActivityId>) -> Result<(), Fault> {
    let insert = format!(
        "INSERT INTO orders (request_id, order_id, activity, sku, qty, user, state, reason, epoch, payload, \
         created_at_ms, updated_at_ms) VALUES (?, ?, ?, '', 0, x'', 'void', 'void', 0, x'', {NOW_MS}, {NOW_MS})"
    );
    let activity = activity.map_or("", ActivityId::as_str);
    tx.execute(&insert, params![id.hex().as_str(), OrderId(id).to_string(), activity])?;
    Ok(())
}

pub(super) fn set_aside(tx: &Transaction<'_>, entry: &SetAside) -> Result<(), Fault> {
    let insert = format!(
        "INSERT INTO set_aside (activity, entry, content, error, at_ms) VALUES (?, ?, ?, ?, {NOW_MS}) \
         ON CONFLICT DO NOTHING"
    );
    tx.execute(&insert, params![entry.activity.as_str(), entry.entry, entry.content, entry.error])?;
    Ok(())
}

pub(super) fn look_up(tx: &Transaction<'_>, activity: &ActivityId, id: RequestId) -> Result<Known, Fault> {
    if let Some(order) = find(tx, id)? {
        return Ok(Known::Order(Box::new(order)));
    }
    let hex = id.hex();
    let aside: i64 =
        tx.prepare_cached(sql::IS_SET_ASIDE)?.query_row(params![activity.as_str(), hex.as_str()], |row| row.get(0))?;
    Ok(if aside == 0 { Known::No } else { Known::SetAside })
}

pub(super) fn list_set_aside(
    tx: &Transaction<'_>,
    activity: &ActivityId,
    after: &str,
    limit: u32,
) -> Result<Vec<SetAsideRow>, Fault> {
    let listed: Vec<rows::AsideColumns> = all(tx, sql::LIST_SET_ASIDE, params![activity.as_str(), after, limit])?;
    Ok(listed.into_iter().map(rows::aside).collect::<Result<_, _>>()?)
}

pub(super) fn put_back(tx: &Transaction<'_>, activity: &ActivityId, id: RequestId) -> Result<bool, Fault> {
    Ok(tx.execute(sql::PUT_BACK, params![activity.as_str(), id.hex().as_str()])? > 0)
}

pub(super) fn set_aside_counts(tx: &Transaction<'_>) -> Result<Vec<(ActivityId, u64)>, Fault> {
    Ok(rows::aside_counts(all(tx, sql::COUNTS_SET_ASIDE, [])?))
}

pub(super) fn register(
    tx: &Transaction<'_>,
    activity: &ActivityId,
    terms: &Registration,
    from: u64,
    to: u64,
) -> Result<Registered, Fault> {
    let name = activity.as_str();
    let orders = rows::unsigned(tx.query_row(sql::COUNT_ORDERS, [name], |row| row.get(0))?)?;
    if let Some(report) = report(tx, activity)? {
        let same = report.epoch == to && rows::registration(&report) == *terms && orders == 0;
        return Ok(if same { Registered::Already } else { Registered::Conflict { epoch: report.epoch, orders } });
    }
    if from != 0 {
        return Ok(Registered::Conflict { epoch: 0, orders });
    }
    let insert = format!(
        "INSERT INTO activities (activity, epoch, base_epoch, per_user_limit, rebuy, payment_deadline_ms, \
         created_at_ms) VALUES (?, ?, 0, ?, ?, ?, {NOW_MS})"
    );
    let (to, deadline) = (as_i64(to), as_i64(terms.payment_deadline_ms));
    tx.execute(&insert, params![name, to, terms.per_user_limit, i64::from(terms.rebuy_after_release), deadline])?;
    for (sku, total) in &terms.skus {
        tx.execute(
            "INSERT INTO stock (activity, sku, total, sold) VALUES (?, ?, ?, 0)",
            params![name, sku.as_str(), total],
        )?;
        journal_total(tx, activity, sku, i64::from(*total))?;
    }
    Ok(Registered::Created)
}

pub(super) fn set_total(
    tx: &Transaction<'_>,
    activity: &ActivityId,
    sku: &SkuId,
    from: u32,
    to: u32,
) -> Result<TotalSet, Fault> {
    if tx.execute(sql::SET_TOTAL, params![to, activity.as_str(), sku.as_str(), from, to])? == 1 {
        if from != to {
            journal_total(tx, activity, sku, i64::from(to) - i64::from(from))?;
        }
        return Ok(TotalSet::Done);
    }
    let stock: Option<(i64, i64)> = tx
        .query_row(sql::STOCK_OF, [activity.as_str(), sku.as_str()], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    Ok(match stock {
        None => TotalSet::Unknown,
        Some((total, _)) if total == i64::from(to) => TotalSet::Already,
        Some((total, _)) if total != i64::from(from) => TotalSet::OtherTotal(rows::unsigned(total)?),
        Some((_, sold)) => TotalSet::Sold(rows::unsigned(sold)?),
    })
}

pub(super) fn report(tx: &Transaction<'_>, activity: &ActivityId) -> Result<Option<ActivityReport>, Fault> {
    let name = activity.as_str();
    let terms: Vec<rows::TermsColumns> = all(tx, sql::ACTIVITY, [name])?;
    let Some(terms) = terms.first() else { return Ok(None) };
    let aside = tx.query_row(sql::COUNT_SET_ASIDE, [name], |row| row.get(0))?;
    Ok(Some(rows::report(activity, *terms, all(tx, sql::STOCK, [name])?, all(tx, sql::STATES, [name])?, aside)?))
}

pub(super) fn activities(tx: &Transaction<'_>) -> Result<Vec<ActivityId>, Fault> {
    let names: Vec<(String,)> = all(tx, sql::ACTIVITIES, [])?;
    names.iter().map(|(name,)| name.parse().map_err(|_| rows::corrupt("activity").into())).collect()
}

pub(super) fn journal(
    tx: &Transaction<'_>,
    activity: &ActivityId,
    after: u64,
    limit: u32,
) -> Result<Vec<JournalRow>, Fault> {
    let lines: Vec<rows::JournalColumns> = all(tx, sql::JOURNAL, params![activity.as_str(), as_i64(after), limit])?;
    Ok(lines.into_iter().map(rows::journal).collect::<Result<_, _>>()?)
}

pub(super) fn list(
    tx: &Transaction<'_>,
    activity: &ActivityId,
    after: Option<RequestId>,
    limit: u32,
) -> Result<Vec<OrderRow>, Fault> {
    let after = after.map(|id| id.to_string()).unwrap_or_default();
    let listed: Vec<rows::ListColumns> = all(tx, sql::LIST, params![activity.as_str(), after, limit])?;
    Ok(listed.into_iter().map(rows::listed).collect::<Result<_, _>>()?)
}

pub(super) fn counts(tx: &Transaction<'_>) -> Result<Vec<(ActivityId, OrderState, u64)>, Fault> {
    Ok(rows::counts(all(tx, sql::COUNTS, [])?))
}

pub(super) fn audit(tx: &Transaction<'_>, activity: &ActivityId) -> Result<LedgerAudit, Fault> {
    let name = activity.as_str();
    let terms: Vec<rows::TermsColumns> = all(tx, sql::ACTIVITY, [name])?;
    let Some((_, _, limit, rebuy, _)) = terms.first().copied() else { return Ok(LedgerAudit::default()) };
    let mut users: Vec<rows::AuditUser> = all(tx, sql::AUDIT_BUYERS, params![name, limit])?;
    users.extend(all::<rows::AuditUser>(tx, sql::AUDIT_IDLE_BUYERS, [name])?);
    let limit = u32::try_from(limit).unwrap_or(u32::MAX);
    Ok(rows::audit(all(tx, sql::AUDIT_SKUS, [name])?, users, limit, rebuy != 0))
}

fn journal_total(tx: &Transaction<'_>, activity: &ActivityId, sku: &SkuId, delta: i64) -> Result<(), Fault> {
    let insert = format!("INSERT INTO journal (activity, sku, kind, delta, at_ms) VALUES (?, ?, 'total', ?, {NOW_MS})");
    tx.execute(&insert, params![activity.as_str(), sku.as_str(), delta])?;
    Ok(())
}

/// All rows of a statement, as tuples.
fn all<T>(tx: &Transaction<'_>, statement: &str, binds: impl Params) -> Result<Vec<T>, Fault>
where
    T: for<'a> TryFrom<&'a Row<'a>, Error = rusqlite::Error>,
{
    let mut statement = tx.prepare_cached(statement)?;
    let rows = statement.query_map(binds, |row| T::try_from(row))?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

fn as_i64(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
