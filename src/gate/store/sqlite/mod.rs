//! The admission store in an embedded SQLite file: one writer thread, one transaction per call, every commit on disk.
//!
//! A commit that fails leaves it unknown whether the transaction stands, and memory and file may then disagree. So the
//! caller hears `Unknown` and the store takes no further call: the process is to be stopped and started again, which
//! reads the truth from the file.

mod changes;
mod outbox;
mod rows;
mod transaction;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use async_trait::async_trait;
use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::Semaphore;

use self::transaction::Tx;
use super::{AdmissionStore, Guarded, StoreError};
use crate::domain::admission::{
    Batch, ClaimDue, Claimed, FoundWin, Operate, Operated, Poll, Polled, Preheat, Preheated, Recorded, ReleaseWin,
    Reply, RunId, Settle, Snapshot, Verdict,
};
use crate::domain::dead_letters::{DeadPage, Retried, Retry};
use crate::domain::{ActivityId, RequestId, StoreMs, UserId};
use crate::platform::sqlite::{Sharing, SqliteWorker, WorkerError};

/// Reads (look-ups, lists, snapshots) that may wait for the worker at once.
const MAX_READS: usize = 128;

/// The clock that judges: milliseconds since the Unix epoch.
pub type Clock = Arc<dyn Fn() -> StoreMs + Send + Sync>;

/// What is told when a commit fails; the process should end.
pub type OnFatal = Box<dyn Fn(&str) + Send + Sync>;

/// The store. Dropping it lets the writer thread finish what it holds and give the file up.
pub struct SqliteStore {
    worker: SqliteWorker,
    server: Arc<Server>,
    /// Reads under way: they must not fill the worker's queue before attempts and settlements.
    reads: Semaphore,
}

/// What every transaction needs to know.
struct Server {
    run_id: RunId,
    clock: Clock,
    failed: AtomicBool,
    on_fatal: OnFatal,
}

impl SqliteStore {
    /// Opens (or creates) the file, for this process alone.
    ///
    /// # Errors
    /// If it cannot be opened, is no store, or is another process's.
    pub async fn open(path: &Path, deadline: Duration, clock: Clock, on_fatal: OnFatal) -> anyhow::Result<SqliteStore> {
        let worker = SqliteWorker::open(path, Sharing::Exclusive, &[include_str!("schema.sql")], deadline)?;
        let run_id = worker.call(|connection| rows::server_run(connection)).await?;
        let run_id = run_id.context("cannot read the store's run id")?;
        Ok(SqliteStore {
            worker,
            server: Arc::new(Server { run_id, clock, failed: AtomicBool::new(false), on_fatal }),
            reads: Semaphore::new(MAX_READS),
        })
    }

    /// Runs `work` in a transaction of its own.
    async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Tx<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let server = Arc::clone(&self.server);
        answer(self.worker.call(move |connection| server.transact(connection, work)).await)
    }
}

fn answer<T>(answer: Result<Result<T, StoreError>, WorkerError>) -> Result<T, StoreError> {
    match answer {
        Ok(outcome) => outcome,
        Err(error @ WorkerError::NotTaken) => Err(StoreError::Unavailable(error.to_string())),
        Err(error @ (WorkerError::Late(_) | WorkerError::Gone)) => Err(StoreError::Unknown(error.to_string())),
    }
}

impl SqliteStore {
    /// The same for reads, of which only so many may wait for the worker at once; the others wait here.
    async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Tx<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let _place = tokio::time::timeout(self.worker.deadline(), self.reads.acquire())
            .await
            .map_err(|_| StoreError::Unavailable("too many reads wait for the store".into()))?;
        self.call(work).await
    }
}

impl Server {
    fn transact<T>(
        &self,
        connection: &mut Connection,
        work: impl FnOnce(&Tx<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        if self.failed.load(Ordering::Acquire) {
            return Err(StoreError::Unavailable("a commit failed; restart the process".into()));
        }
        let now = (self.clock)();
        let no_effect = |error: rusqlite::Error| StoreError::Unavailable(error.to_string());
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(no_effect)?;
        // An error inside rolls back when the transaction is dropped.
        let answer = work(&Tx { sql: &transaction, run_id: &self.run_id, now }).map_err(no_effect)?;
        if let Err(error) = transaction.commit() {
            let why = format!("a commit to the embedded store failed: {error}");
            self.failed.store(true, Ordering::Release);
            (self.on_fatal)(&why);
            return Err(StoreError::Unknown(why));
        }
        Ok(answer)
    }
}

#[async_trait]
impl AdmissionStore for SqliteStore {
    async fn preheat(&self, activity: &ActivityId, preheat: &Preheat) -> Result<Reply<Preheated>, StoreError> {
        let (activity, preheat) = (activity.clone(), preheat.clone());
        self.call(move |tx| tx.preheat(&activity, &preheat)).await
    }

    async fn admit(&self, activity: &ActivityId, batch: &Batch) -> Result<Reply<Vec<Verdict>>, StoreError> {
        let (activity, batch) = (activity.clone(), batch.clone());
        self.call(move |tx| tx.admit(&activity, &batch)).await
    }

    async fn settle(&self, activity: &ActivityId, settle: &Settle) -> Result<Reply<Recorded>, StoreError> {
        let (activity, settle) = (activity.clone(), settle.clone());
        self.call(move |tx| tx.settle(&activity, &settle)).await
    }

    async fn release(&self, activity: &ActivityId, release: &ReleaseWin) -> Result<Reply<Recorded>, StoreError> {
        let (activity, release) = (activity.clone(), release.clone());
        self.call(move |tx| tx.release(&activity, &release)).await
    }

    async fn claim_due(&self, activity: &ActivityId, claim: &ClaimDue) -> Result<Reply<Claimed>, StoreError> {
        let (activity, claim) = (activity.clone(), claim.clone());
        self.call(move |tx| tx.claim_due(&activity, &claim)).await
    }

    async fn retry(&self, activity: &ActivityId, retry: &Retry) -> Result<Reply<Vec<Retried>>, StoreError> {
        let (activity, retry) = (activity.clone(), retry.clone());
        self.call(move |tx| tx.retry(&activity, &retry)).await
    }

    async fn operate(&self, activity: &ActivityId, operate: &Operate) -> Result<Reply<Operated>, StoreError> {
        let (activity, operate) = (activity.clone(), operate.clone());
        self.call(move |tx| tx.operate(&activity, &operate)).await
    }

    async fn poll(&self, activity: &ActivityId, poll: &Poll) -> Result<Polled, StoreError> {
        let (activity, poll) = (activity.clone(), poll.clone());
        let (urgent, server) = (poll.gate.is_some(), Arc::clone(&self.server));
        let work = move |connection: &mut Connection| server.transact(connection, |tx| tx.poll(&activity, &poll));
        // A gate's own polls go ahead of waiting attempts: behind a crowd the sold-out lease would lapse, and every click
        // of the crowd would come here, too.
        answer(match urgent {
            true => self.worker.call_urgently(work).await,
            false => self.worker.call(work).await,
        })
    }

    async fn find(&self, activity: &ActivityId, ids: &[RequestId]) -> Guarded<Vec<Option<FoundWin>>> {
        let (activity, ids) = (activity.clone(), ids.to_vec());
        self.read(move |tx| tx.look(&activity, |tx| tx.find(&activity, &ids))).await
    }

    async fn wins_of(&self, activity: &ActivityId, user: &UserId) -> Guarded<Vec<FoundWin>> {
        let (activity, user) = (activity.clone(), user.clone());
        self.read(move |tx| tx.look(&activity, |tx| tx.wins_of(&activity, &user))).await
    }

    async fn dead_letters(&self, activity: &ActivityId, page: &DeadPage) -> Guarded<Vec<FoundWin>> {
        let (activity, page) = (activity.clone(), *page);
        self.read(move |tx| tx.look(&activity, |tx| tx.dead_letters(&activity, &page))).await
    }

    async fn activities(&self) -> Result<Vec<ActivityId>, StoreError> {
        self.read(|tx| tx.activities()).await
    }

    async fn snapshot(&self, activity: &ActivityId) -> Result<Option<Snapshot>, StoreError> {
        let activity = activity.clone();
        self.read(move |tx| tx.snapshot(&activity)).await
    }
}
