//! Void, set aside, registration, totals, reports and audits.

use async_trait::async_trait;
use sqlx::{AssertSqlSafe, MySqlConnection};

use super::connect::Work;
use super::fault::Fault;
use super::{NOW_MS, rows, rows_of, sql};
use crate::domain::{ActivityId, RequestId, SkuId};
use crate::orders::ledger::{
    ActivityReport, Known, LedgerAudit, Registered, Registration, SetAside, SetAsideRow, TotalSet,
};
use crate::orders::order::OrderId;

/// Opens a transaction that sees one moment; READ COMMITTED would show each statement another.
const ONE_PICTURE: &str =
    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY";

pub(super) struct Void<'a> {
    pub id: RequestId,
    pub activity: Option<&'a ActivityId>,
}
pub(super) struct KeepAside<'a>(pub &'a SetAside);
pub(super) struct LookUp<'a> {
    pub activity: &'a ActivityId,
    pub id: RequestId,
}
pub(super) struct ListAside<'a> {
    pub activity: &'a ActivityId,
    pub after: &'a str,
    pub limit: u32,
}
pub(super) struct PutBack<'a> {
    pub activity: &'a ActivityId,
    pub id: RequestId,
}
pub(super) struct CountsAside;
pub(super) struct Register<'a> {
    pub activity: &'a ActivityId,
    pub terms: &'a Registration,
    pub from: u64,
    pub to: u64,
}
pub(super) struct SetTotal<'a> {
    pub activity: &'a ActivityId,
    pub sku: &'a SkuId,
    pub from: u32,
    pub to: u32,
}
pub(super) struct Report<'a>(pub &'a ActivityId);
pub(super) struct Audit<'a>(pub &'a ActivityId);

#[async_trait]
impl Work for Void<'_> {
    type Out = ();
    async fn run(&self, connection: &mut MySqlConnection) -> Result<(), Fault> {
        let insert = format!(
            "INSERT INTO orders (request_id, order_id, activity, sku, qty, user, state, reason, epoch, payload, \
             created_at_ms, updated_at_ms) VALUES (?, ?, ?, '', 0, '', 'void', 'void', 0, '', {NOW_MS}, {NOW_MS})"
        );
        sqlx::query(AssertSqlSafe(insert))
            .bind(self.id.to_string())
            .bind(OrderId(self.id).to_string())
            .bind(self.activity.map_or("", ActivityId::as_str))
            .execute(&mut *connection)
            .await?;
        Ok(())
    }
}

#[async_trait]
impl Work for KeepAside<'_> {
    type Out = ();
    async fn run(&self, connection: &mut MySqlConnection) -> Result<(), Fault> {
        let insert =
            format!("INSERT INTO set_aside (activity, entry, content, error, at_ms) VALUES (?, ?, ?, ?, {NOW_MS})");
        sqlx::query(AssertSqlSafe(insert))
            .bind(self.0.activity.as_str())
            .bind(&self.0.entry)
            .bind(&self.0.content)
            .bind(&self.0.error)
            .execute(&mut *connection)
            .await?;
        Ok(())
    }
}

#[async_trait]
impl Work for LookUp<'_> {
    type Out = Known;
    fn begin(&self) -> Option<&'static str> {
        None
    }
    async fn run(&self, connection: &mut MySqlConnection) -> Result<Known, Fault> {
        let id = self.id.to_string();
        let found: Vec<rows::OrderColumns> = rows_of!(connection, sql::FIND, &id)?;
        if let Some(columns) = found.into_iter().next() {
            return Ok(Known::Order(Box::new(rows::order(columns)?)));
        }
        let (aside,): (i64,) = sqlx::query_as(sql::IS_SET_ASIDE)
            .bind(self.activity.as_str())
            .bind(&id)
            .fetch_one(&mut *connection)
            .await?;
        Ok(if aside == 0 { Known::No } else { Known::SetAside })
    }
}

#[async_trait]
impl Work for ListAside<'_> {
    type Out = Vec<SetAsideRow>;
    fn begin(&self) -> Option<&'static str> {
        None
    }
    async fn run(&self, connection: &mut MySqlConnection) -> Result<Vec<SetAsideRow>, Fault> {
        let listed: Vec<rows::AsideColumns> =
            rows_of!(connection, sql::LIST_SET_ASIDE, self.activity.as_str(), self.after, self.limit)?;
        Ok(listed.into_iter().map(rows::aside).collect::<Result<_, _>>()?)
    }
}

#[async_trait]
impl Work for PutBack<'_> {
    type Out = bool;
    async fn run(&self, connection: &mut MySqlConnection) -> Result<bool, Fault> {
        let deleted = sqlx::query(sql::PUT_BACK)
            .bind(self.activity.as_str())
            .bind(self.id.to_string())
            .execute(&mut *connection)
            .await?;
        Ok(deleted.rows_affected() > 0)
    }
}

#[async_trait]
impl Work for CountsAside {
    type Out = Vec<(ActivityId, u64)>;
    fn begin(&self) -> Option<&'static str> {
        None
    }
    async fn run(&self, connection: &mut MySqlConnection) -> Result<Self::Out, Fault> {
        Ok(rows::aside_counts(rows_of!(connection, sql::COUNTS_SET_ASIDE)?))
    }
}

#[async_trait]
impl Work for Register<'_> {
    type Out = Registered;
    async fn run(&self, connection: &mut MySqlConnection) -> Result<Registered, Fault> {
        let name = self.activity.as_str();
        let written = read_terms(connection, self.activity).await?;
        let (orders,): (i64,) = sqlx::query_as(sql::COUNT_ORDERS).bind(name).fetch_one(&mut *connection).await?;
        let orders = rows::unsigned(orders)?;
        if let Some((epoch, terms)) = written {
            let same = epoch == self.to && terms == *self.terms && orders == 0;
            return Ok(if same { Registered::Already } else { Registered::Conflict { epoch, orders } });
        }
        if self.from != 0 {
            return Ok(Registered::Conflict { epoch: 0, orders });
        }
        let insert = format!(
            "INSERT INTO activities (activity, epoch, base_epoch, per_user_limit, rebuy, payment_deadline_ms, \
             created_at_ms) VALUES (?, ?, 0, ?, ?, ?, {NOW_MS})"
        );
        let created = sqlx::query(AssertSqlSafe(insert))
            .bind(name)
            .bind(as_i64(self.to))
            .bind(i64::from(self.terms.per_user_limit))
            .bind(i64::from(self.terms.rebuy_after_release))
            .bind(as_i64(self.terms.payment_deadline_ms))
            .execute(&mut *connection)
            .await;
        match created.map_err(Fault::from) {
            // Another process registered it since we looked: look again.
            Err(Fault::Duplicate(text)) => return Err(Fault::Again(text)),
            other => other?,
        };
        for (sku, total) in &self.terms.skus {
            sqlx::query("INSERT INTO stock (activity, sku, total, sold) VALUES (?, ?, ?, 0)")
                .bind(name)
                .bind(sku.as_str())
                .bind(i64::from(*total))
                .execute(&mut *connection)
                .await?;
            journal_total(connection, self.activity, sku, i64::from(*total)).await?;
        }
        Ok(Registered::Created)
    }
}

#[async_trait]
impl Work for SetTotal<'_> {
    type Out = TotalSet;
    async fn run(&self, connection: &mut MySqlConnection) -> Result<TotalSet, Fault> {
        let (from, to) = (i64::from(self.from), i64::from(self.to));
        let (activity, sku) = (self.activity.as_str(), self.sku.as_str());
        let changed = sqlx::query(sql::SET_TOTAL)
            .bind(to)
            .bind(activity)
            .bind(sku)
            .bind(from)
            .bind(to)
            .execute(&mut *connection)
            .await?;
        if changed.rows_affected() == 1 {
            if from != to {
                journal_total(connection, self.activity, self.sku, to - from).await?;
            }
            return Ok(TotalSet::Done);
        }
        let stock: Vec<(i64, i64)> = rows_of!(connection, sql::STOCK_OF, activity, sku)?;
        Ok(match stock.first() {
            None => TotalSet::Unknown,
            Some((total, _)) if *total == to => TotalSet::Already,
            Some((total, _)) if *total != from => TotalSet::OtherTotal(rows::unsigned(*total)?),
            Some((_, sold)) => TotalSet::Sold(rows::unsigned(*sold)?),
        })
    }
}

#[async_trait]
impl Work for Report<'_> {
    type Out = Option<ActivityReport>;

    fn begin(&self) -> Option<&'static str> {
        Some(ONE_PICTURE)
    }

    async fn run(&self, connection: &mut MySqlConnection) -> Result<Option<ActivityReport>, Fault> {
        let name = self.0.as_str();
        let terms: Vec<rows::TermsColumns> = rows_of!(connection, sql::ACTIVITY, name)?;
        let Some(terms) = terms.first() else { return Ok(None) };
        let skus: Vec<(String, i64, i64)> = rows_of!(connection, sql::STOCK, name)?;
        let states: Vec<(String, i64)> = rows_of!(connection, sql::STATES, name)?;
        let (aside,): (i64,) = sqlx::query_as(sql::COUNT_SET_ASIDE).bind(name).fetch_one(&mut *connection).await?;
        Ok(Some(rows::report(self.0, *terms, skus, states, aside)?))
    }
}

#[async_trait]
impl Work for Audit<'_> {
    type Out = LedgerAudit;

    fn begin(&self) -> Option<&'static str> {
        Some(ONE_PICTURE)
    }

    async fn run(&self, connection: &mut MySqlConnection) -> Result<LedgerAudit, Fault> {
        let name = self.0.as_str();
        let terms: Vec<rows::TermsColumns> = rows_of!(connection, sql::ACTIVITY, name)?;
        let Some((_, _, limit, rebuy, _)) = terms.first().copied() else { return Ok(LedgerAudit::default()) };
        let skus: Vec<rows::AuditSku> = rows_of!(connection, sql::AUDIT_SKUS, name)?;
        let mut users: Vec<rows::AuditUser> = rows_of!(connection, sql::AUDIT_BUYERS, name, limit)?;
        let idle: Vec<rows::AuditUser> = rows_of!(connection, sql::AUDIT_IDLE_BUYERS, name)?;
        users.extend(idle);
        Ok(rows::audit(skus, users, u32::try_from(limit).unwrap_or(u32::MAX), rebuy != 0))
    }
}

/// The epoch and what was registered.
async fn read_terms(
    connection: &mut MySqlConnection,
    activity: &ActivityId,
) -> Result<Option<(u64, Registration)>, Fault> {
    let terms: Vec<rows::TermsColumns> = rows_of!(connection, sql::ACTIVITY, activity.as_str())?;
    let Some(terms) = terms.first() else { return Ok(None) };
    let skus: Vec<(String, i64, i64)> = rows_of!(connection, sql::STOCK, activity.as_str())?;
    let report = rows::report(activity, *terms, skus, vec![], 0)?;
    Ok(Some((report.epoch, rows::registration(&report))))
}

async fn journal_total(
    connection: &mut MySqlConnection,
    activity: &ActivityId,
    sku: &SkuId,
    delta: i64,
) -> Result<(), Fault> {
    let insert = format!("INSERT INTO journal (activity, sku, kind, delta, at_ms) VALUES (?, ?, 'total', ?, {NOW_MS})");
    sqlx::query(AssertSqlSafe(insert))
        .bind(activity.as_str())
        .bind(sku.as_str())
        .bind(delta)
        .execute(&mut *connection)
        .await?;
    Ok(())
}

fn as_i64(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
