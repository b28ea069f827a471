//! The ledger on MySQL 8 or MariaDB 10.6 and later, in SQL that both understand.

mod book;
mod connect;
mod fault;
mod operate;

use std::time::Duration;

use async_trait::async_trait;
use sqlx::MySqlConnection;

use self::connect::Work;
pub use self::connect::{MySqlLedger, MySqlSettings};
use self::fault::Fault;
use super::{
    ActivityReport, BatchBooked, Booked, JournalRow, Known, Ledger, LedgerAudit, LedgerError, OrderRow, PoolUse,
    Registered, Registration, SetAside, SetAsideRow, TotalSet, Voided, rows, sql,
};
use crate::domain::{ActivityId, RequestId, SkuId};
use crate::orders::order::{NewOrder, Order, OrderState};

/// The database's clock in milliseconds. sqlx sets every session to UTC, so no hour comes twice.
const NOW_MS: &str = "CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)";

/// Rows of `query` with binds, as tuples.
macro_rules! rows_of {
    ($connection:expr, $sql:expr $(, $bind:expr)*) => {
        sqlx::query_as($sql)$(.bind($bind))*.fetch_all(&mut *$connection).await
    };
}
use rows_of;

#[async_trait]
impl Ledger for MySqlLedger {
    async fn book_batch(&self, batch: &[NewOrder]) -> Result<BatchBooked, LedgerError> {
        match self.transact(&book::Batch(batch)).await {
            Ok(verdicts) => Ok(BatchBooked::Done(verdicts)),
            Err(Fault::Guard(_) | Fault::Duplicate(_)) => Ok(BatchBooked::GoRowByRow),
            Err(fault) => Err(fault.into()),
        }
    }

    async fn book_one(&self, order: &NewOrder) -> Result<Booked, LedgerError> {
        let booked = match self.transact(&book::One { order, refusal: None }).await {
            Err(Fault::Guard(refusal)) => self.transact(&book::One { order, refusal: Some(refusal) }).await,
            other => other,
        };
        match booked {
            Err(Fault::Duplicate(_)) => Ok(Booked::Duplicate),
            other => Ok(other?),
        }
    }

    async fn find(&self, id: RequestId) -> Result<Option<Order>, LedgerError> {
        Ok(self.transact(&Find(id)).await?)
    }

    async fn void(&self, id: RequestId, activity: Option<&ActivityId>) -> Result<Voided, LedgerError> {
        match self.transact(&operate::Void { id, activity }).await {
            Ok(()) => Ok(Voided::Void),
            Err(Fault::Duplicate(_)) => match self.find(id).await? {
                Some(order) if order.state == OrderState::Void => Ok(Voided::Void),
                Some(order) => Ok(Voided::Exists(Box::new(order))),
                None => Err(LedgerError::Unavailable("a row vanished".into())),
            },
            Err(fault) => Err(fault.into()),
        }
    }

    async fn look_up(&self, activity: &ActivityId, id: RequestId, within: Duration) -> Result<Known, LedgerError> {
        Ok(self.transact_within(&operate::LookUp { activity, id }, within).await?)
    }

    async fn list_set_aside(
        &self,
        activity: &ActivityId,
        after: &str,
        limit: u32,
    ) -> Result<Vec<SetAsideRow>, LedgerError> {
        Ok(self.transact(&operate::ListAside { activity, after, limit }).await?)
    }

    async fn put_back(&self, activity: &ActivityId, id: RequestId) -> Result<bool, LedgerError> {
        Ok(self.transact(&operate::PutBack { activity, id }).await?)
    }

    async fn set_aside_counts(&self) -> Result<Vec<(ActivityId, u64)>, LedgerError> {
        Ok(self.transact(&operate::CountsAside).await?)
    }

    async fn set_aside(&self, entry: &SetAside) -> Result<(), LedgerError> {
        match self.transact(&operate::KeepAside(entry)).await {
            Err(Fault::Duplicate(_)) => Ok(()),
            other => Ok(other?),
        }
    }

    async fn register(
        &self,
        activity: &ActivityId,
        terms: &Registration,
        from: u64,
        to: u64,
    ) -> Result<Registered, LedgerError> {
        Ok(self.transact(&operate::Register { activity, terms, from, to }).await?)
    }

    async fn set_total(&self, activity: &ActivityId, sku: &SkuId, from: u32, to: u32) -> Result<TotalSet, LedgerError> {
        Ok(self.transact(&operate::SetTotal { activity, sku, from, to }).await?)
    }

    async fn report(&self, activity: &ActivityId) -> Result<Option<ActivityReport>, LedgerError> {
        Ok(self.transact(&operate::Report(activity)).await?)
    }

    async fn activities(&self) -> Result<Vec<ActivityId>, LedgerError> {
        Ok(self.transact(&Activities).await?)
    }

    async fn journal(&self, activity: &ActivityId, after: u64, limit: u32) -> Result<Vec<JournalRow>, LedgerError> {
        Ok(self.transact(&Journal { activity, after, limit }).await?)
    }

    async fn orders(
        &self,
        activity: &ActivityId,
        after: Option<RequestId>,
        limit: u32,
    ) -> Result<Vec<OrderRow>, LedgerError> {
        Ok(self.transact(&List { activity, after, limit }).await?)
    }

    async fn audit(&self, activity: &ActivityId) -> Result<LedgerAudit, LedgerError> {
        Ok(self.transact(&operate::Audit(activity)).await?)
    }

    async fn counts(&self) -> Result<Vec<(ActivityId, OrderState, u64)>, LedgerError> {
        Ok(self.transact(&Counts).await?)
    }

    async fn ping(&self) -> Result<(), LedgerError> {
        Ok(self.transact(&Ping).await?)
    }

    fn pool_use(&self) -> PoolUse {
        let idle = u32::try_from(self.pool().num_idle()).unwrap_or(u32::MAX);
        PoolUse { busy: self.pool().size().saturating_sub(idle), idle }
    }
}

struct Find(RequestId);
struct Activities;
struct Counts;
struct Ping;
struct Journal<'a> {
    activity: &'a ActivityId,
    after: u64,
    limit: u32,
}
struct List<'a> {
    activity: &'a ActivityId,
    after: Option<RequestId>,
    limit: u32,
}

#[async_trait]
impl Work for Find {
    type Out = Option<Order>;
    fn begin(&self) -> Option<&'static str> {
        None
    }
    async fn run(&self, connection: &mut MySqlConnection) -> Result<Option<Order>, Fault> {
        let found: Vec<rows::OrderColumns> = rows_of!(connection, sql::FIND, self.0.to_string())?;
        Ok(found.into_iter().next().map(rows::order).transpose()?)
    }
}

#[async_trait]
impl Work for Activities {
    type Out = Vec<ActivityId>;
    fn begin(&self) -> Option<&'static str> {
        None
    }
    async fn run(&self, connection: &mut MySqlConnection) -> Result<Vec<ActivityId>, Fault> {
        let names: Vec<(String,)> = rows_of!(connection, sql::ACTIVITIES)?;
        names.iter().map(|(name,)| name.parse().map_err(|_| rows::corrupt("activity").into())).collect()
    }
}

#[async_trait]
impl Work for Counts {
    type Out = Vec<(ActivityId, OrderState, u64)>;
    fn begin(&self) -> Option<&'static str> {
        None
    }
    async fn run(&self, connection: &mut MySqlConnection) -> Result<Self::Out, Fault> {
        let counts: Vec<(String, String, i64)> = rows_of!(connection, sql::COUNTS)?;
        Ok(rows::counts(counts))
    }
}

#[async_trait]
impl Work for Ping {
    type Out = ();
    fn begin(&self) -> Option<&'static str> {
        None
    }
    async fn run(&self, connection: &mut MySqlConnection) -> Result<(), Fault> {
        sqlx::query("SELECT 1").execute(&mut *connection).await?;
        Ok(())
    }
}

#[async_trait]
impl Work for Journal<'_> {
    type Out = Vec<JournalRow>;
    fn begin(&self) -> Option<&'static str> {
        None
    }
    async fn run(&self, connection: &mut MySqlConnection) -> Result<Vec<JournalRow>, Fault> {
        let after = i64::try_from(self.after).unwrap_or(i64::MAX);
        let lines: Vec<rows::JournalColumns> =
            rows_of!(connection, sql::JOURNAL, self.activity.as_str(), after, self.limit)?;
        Ok(lines.into_iter().map(rows::journal).collect::<Result<_, _>>()?)
    }
}

#[async_trait]
impl Work for List<'_> {
    type Out = Vec<OrderRow>;
    fn begin(&self) -> Option<&'static str> {
        None
    }
    async fn run(&self, connection: &mut MySqlConnection) -> Result<Vec<OrderRow>, Fault> {
        let after = self.after.map(|id| id.to_string()).unwrap_or_default();
        let listed: Vec<rows::ListColumns> =
            rows_of!(connection, sql::LIST, self.activity.as_str(), after, self.limit)?;
        Ok(listed.into_iter().map(rows::listed).collect::<Result<_, _>>()?)
    }
}
