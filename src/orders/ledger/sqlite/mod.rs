//! The ledger in an embedded SQLite file: one writer, every commit on disk before it is told.

mod book;
mod operate;

use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior};

use super::{
    ActivityReport, BatchBooked, Booked, JournalRow, Known, Ledger, LedgerAudit, LedgerError, OrderRow, PoolUse,
    Registered, Registration, SetAside, SetAsideRow, TotalSet, Voided,
};
use crate::domain::time::millis;
use crate::domain::{ActivityId, RequestId, SkuId};
use crate::orders::order::{NewOrder, Order, OrderState, Refusal};
use crate::platform::sqlite::{Sharing, SqliteWorker};

/// The database's clock in milliseconds.
const NOW_MS: &str = "CAST(ROUND(unixepoch('now', 'subsec') * 1000) AS INTEGER)";

/// The ledger in an SQLite file.
#[derive(Clone, Debug)]
pub struct SqliteLedger {
    worker: SqliteWorker,
}

/// Why a transaction was rolled back.
#[derive(Debug)]
enum Fault {
    Guard(Refusal),
    Ledger(LedgerError),
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Fault {
        let text = error.to_string();
        Fault::Ledger(match error.sqlite_error_code() {
            Some(ErrorCode::ConstraintViolation | ErrorCode::TooBig | ErrorCode::TypeMismatch) => {
                LedgerError::Rejected(text)
            }
            _ => LedgerError::Unavailable(text),
        })
    }
}

impl From<LedgerError> for Fault {
    fn from(error: LedgerError) -> Fault {
        Fault::Ledger(error)
    }
}

impl From<Fault> for LedgerError {
    fn from(fault: Fault) -> LedgerError {
        match fault {
            Fault::Ledger(error) => error,
            Fault::Guard(refusal) => LedgerError::Unavailable(format!("guard: {}", refusal.as_str())),
        }
    }
}

/// Runs `work` in a transaction; the write lock is taken at its begin.
fn transact<T>(
    connection: &mut Connection,
    work: impl FnOnce(&Transaction<'_>) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let out = work(&transaction)?;
    transaction.commit()?;
    Ok(out)
}

impl SqliteLedger {
    /// Opens (or creates) the file; `deadline` bounds each call.
    pub fn open(path: &Path, deadline: Duration) -> anyhow::Result<SqliteLedger> {
        let migrations = [include_str!("0001_ledger.sql")];
        Ok(SqliteLedger { worker: SqliteWorker::open(path, Sharing::Shared, &migrations, deadline)? })
    }

    async fn transact<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        match self.worker.call(move |connection| transact(connection, work)).await {
            Ok(done) => done,
            Err(error) => Err(Fault::Ledger(LedgerError::Unavailable(error.to_string()))),
        }
    }
}

#[async_trait]
impl Ledger for SqliteLedger {
    async fn book_batch(&self, batch: &[NewOrder]) -> Result<BatchBooked, LedgerError> {
        let batch = batch.to_vec();
        match self.transact(move |tx| book::batch(tx, &batch)).await {
            Ok(verdicts) => Ok(BatchBooked::Done(verdicts)),
            Err(Fault::Guard(_)) => Ok(BatchBooked::GoRowByRow),
            Err(Fault::Ledger(error)) => Err(error),
        }
    }

    async fn book_one(&self, order: &NewOrder) -> Result<Booked, LedgerError> {
        let order = order.clone();
        let done = self.worker.call(move |connection| match transact(connection, |tx| book::one(tx, &order)) {
            Err(Fault::Guard(refusal)) => transact(connection, |tx| book::refuse(tx, &order, refusal)),
            other => other,
        });
        Ok(done.await.map_err(|error| LedgerError::Unavailable(error.to_string()))??)
    }

    async fn find(&self, id: RequestId) -> Result<Option<Order>, LedgerError> {
        Ok(self.transact(move |tx| operate::find(tx, id)).await?)
    }

    async fn void(&self, id: RequestId, activity: Option<&ActivityId>) -> Result<Voided, LedgerError> {
        let activity = activity.cloned();
        Ok(self
            .transact(move |tx| match operate::find(tx, id)? {
                Some(order) if order.state == OrderState::Void => Ok(Voided::Void),
                Some(order) => Ok(Voided::Exists(Box::new(order))),
                None => operate::void(tx, id, activity.as_ref()).map(|()| Voided::Void),
            })
            .await?)
    }

    async fn look_up(&self, activity: &ActivityId, id: RequestId, within: Duration) -> Result<Known, LedgerError> {
        let activity = activity.clone();
        // Giving a call up is safe here: what has not begun never begins, and this one only reads.
        let looked = tokio::time::timeout(within, self.transact(move |tx| operate::look_up(tx, &activity, id))).await;
        let late = || LedgerError::Unavailable(format!("no answer within {} ms", millis(within)));
        Ok(looked.map_err(|_| late())??)
    }

    async fn list_set_aside(
        &self,
        activity: &ActivityId,
        after: &str,
        limit: u32,
    ) -> Result<Vec<SetAsideRow>, LedgerError> {
        let (activity, after) = (activity.clone(), after.to_owned());
        Ok(self.transact(move |tx| operate::list_set_aside(tx, &activity, &after, limit)).await?)
    }

    async fn put_back(&self, activity: &ActivityId, id: RequestId) -> Result<bool, LedgerError> {
        let activity = activity.clone();
        Ok(self.transact(move |tx| operate::put_back(tx, &activity, id)).await?)
    }

    async fn set_aside_counts(&self) -> Result<Vec<(ActivityId, u64)>, LedgerError> {
        Ok(self.transact(operate::set_aside_counts).await?)
    }

    async fn set_aside(&self, entry: &SetAside) -> Result<(), LedgerError> {
        let entry = entry.clone();
        Ok(self.transact(move |tx| operate::set_aside(tx, &entry)).await?)
    }

    async fn register(
        &self,
        activity: &ActivityId,
        terms: &Registration,
        from: u64,
        to: u64,
    ) -> Result<Registered, LedgerError> {
        let (activity, terms) = (activity.clone(), terms.clone());
        Ok(self.transact(move |tx| operate::register(tx, &activity, &terms, from, to)).await?)
    }

    async fn set_total(&self, activity: &ActivityId, sku: &SkuId, from: u32, to: u32) -> Result<TotalSet, LedgerError> {
        let (activity, sku) = (activity.clone(), sku.clone());
        Ok(self.transact(move |tx| operate::set_total(tx, &activity, &sku, from, to)).await?)
    }

    async fn report(&self, activity: &ActivityId) -> Result<Option<ActivityReport>, LedgerError> {
        let activity = activity.clone();
        Ok(self.transact(move |tx| operate::report(tx, &activity)).await?)
    }

    async fn activities(&self) -> Result<Vec<ActivityId>, LedgerError> {
        Ok(self.transact(operate::activities).await?)
    }

    async fn journal(&self, activity: &ActivityId, after: u64, limit: u32) -> Result<Vec<JournalRow>, LedgerError> {
        let activity = activity.clone();
        Ok(self.transact(move |tx| operate::journal(tx, &activity, after, limit)).await?)
    }

    async fn orders(
        &self,
        activity: &ActivityId,
        after: Option<RequestId>,
        limit: u32,
    ) -> Result<Vec<OrderRow>, LedgerError> {
        let activity = activity.clone();
        Ok(self.transact(move |tx| operate::list(tx, &activity, after, limit)).await?)
    }

    async fn audit(&self, activity: &ActivityId) -> Result<LedgerAudit, LedgerError> {
        let activity = activity.clone();
        Ok(self.transact(move |tx| operate::audit(tx, &activity)).await?)
    }

    async fn counts(&self) -> Result<Vec<(ActivityId, OrderState, u64)>, LedgerError> {
        Ok(self.transact(operate::counts).await?)
    }

    async fn ping(&self) -> Result<(), LedgerError> {
        self.worker.call(|_| ()).await.map_err(|error| LedgerError::Unavailable(error.to_string()))
    }

    fn pool_use(&self) -> PoolUse {
        PoolUse { busy: 0, idle: 1 }
    }
}
