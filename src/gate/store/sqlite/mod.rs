//! The admission store in an embedded SQLite file: one writer thread, one transaction per call, every commit on disk.
//!
//! A commit that fails leaves it unknown whether the transaction stands, and memory and file may then disagree. So the
//! caller hears `Unknown` and the store takes no further call: the process is to be stopped and started again, which
//! reads the truth from the file.

mod changes;
mod rows;
mod transaction;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use async_trait::async_trait;
use rusqlite::TransactionBehavior;
use tokio::sync::{mpsc, oneshot};

use self::transaction::Tx;
use super::{AdmissionStore, StoreError};
use crate::domain::admission::{
    Batch, ClaimDue, Claimed, FoundWin, Operate, Operated, Poll, Polled, Preheated, Recorded, ReleaseWin, Reply, RunId,
    Settle, Snapshot, Terms, Verdict,
};
use crate::domain::{ActivityId, RequestId, StoreMs, UserId};
use crate::platform::sqlite::{ExclusiveFile, open_exclusive};

/// Calls that may wait for the writer thread. The combiners queue before it, one call per activity.
const QUEUE: usize = 1_024;

/// The clock that judges: milliseconds since the Unix epoch.
pub type Clock = Arc<dyn Fn() -> StoreMs + Send + Sync>;

/// What is told when a commit fails; the process should end.
pub type OnFatal = Box<dyn Fn(&str) + Send>;

/// The store. Dropping it lets the writer thread finish what it holds and give the file up.
pub struct SqliteStore {
    jobs: mpsc::Sender<Job>,
    deadline: Duration,
    failed: Arc<AtomicBool>,
}

type Job = Box<dyn FnOnce(&mut Writer) + Send>;

struct Writer {
    file: ExclusiveFile,
    run_id: RunId,
    clock: Clock,
    failed: Arc<AtomicBool>,
    on_fatal: OnFatal,
}

impl SqliteStore {
    /// Opens (or creates) the file, for this process alone, and starts the writer thread.
    pub fn open(path: &Path, deadline: Duration, clock: Clock, on_fatal: OnFatal) -> anyhow::Result<SqliteStore> {
        let file = open_exclusive(path)?;
        file.connection.execute_batch(include_str!("schema.sql")).context("cannot create the store's tables")?;
        let run_id = rows::server_run(&file.connection).context("cannot read the store's run id")?;
        let failed = Arc::new(AtomicBool::new(false));
        let mut writer = Writer { file, run_id, clock, failed: Arc::clone(&failed), on_fatal };
        let (jobs, mut queue) = mpsc::channel::<Job>(QUEUE);
        std::thread::Builder::new()
            .name("sqlite-store".into())
            .spawn(move || {
                while let Some(job) = queue.blocking_recv() {
                    job(&mut writer);
                }
            })
            .context("cannot start the store's thread")?;
        Ok(SqliteStore { jobs, deadline, failed })
    }

    /// Runs `work` in a transaction of its own on the writer thread.
    async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Tx<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        if self.failed.load(Ordering::Acquire) {
            return Err(StoreError::Unavailable("a commit failed; restart the process".into()));
        }
        let (answer, answered) = oneshot::channel();
        let job: Job = Box::new(move |writer| {
            // The caller has given up: nothing was written, and nothing will be.
            if !answer.is_closed() {
                _ = answer.send(writer.transact(work));
            }
        });
        if self.jobs.try_send(job).is_err() {
            return Err(StoreError::Unavailable("the store's queue is full or closed".into()));
        }
        match tokio::time::timeout(self.deadline, answered).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err(StoreError::Unknown("the store's thread ended".into())),
            Err(_) => Err(StoreError::Unknown(format!("no answer within {:?}", self.deadline))),
        }
    }
}

impl Writer {
    fn transact<T>(&mut self, work: impl FnOnce(&Tx<'_>) -> rusqlite::Result<T>) -> Result<T, StoreError> {
        if self.failed.load(Ordering::Acquire) {
            return Err(StoreError::Unavailable("a commit failed; restart the process".into()));
        }
        let now = (self.clock)();
        let no_effect = |error: rusqlite::Error| StoreError::Unavailable(error.to_string());
        let transaction =
            self.file.connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(no_effect)?;
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
    async fn preheat(&self, activity: &ActivityId, terms: &Terms) -> Result<(StoreMs, Preheated), StoreError> {
        let (activity, terms) = (activity.clone(), terms.clone());
        self.call(move |tx| tx.preheat(&activity, &terms)).await
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

    async fn operate(&self, activity: &ActivityId, operate: &Operate) -> Result<Reply<Operated>, StoreError> {
        let (activity, operate) = (activity.clone(), operate.clone());
        self.call(move |tx| tx.operate(&activity, &operate)).await
    }

    async fn poll(&self, activity: &ActivityId, poll: &Poll) -> Result<Polled, StoreError> {
        let (activity, poll) = (activity.clone(), poll.clone());
        self.call(move |tx| tx.poll(&activity, &poll)).await
    }

    async fn find(&self, activity: &ActivityId, ids: &[RequestId]) -> Result<Vec<Option<FoundWin>>, StoreError> {
        let (activity, ids) = (activity.clone(), ids.to_vec());
        self.call(move |tx| tx.find(&activity, &ids)).await
    }

    async fn wins_of(&self, activity: &ActivityId, user: &UserId) -> Result<Vec<FoundWin>, StoreError> {
        let (activity, user) = (activity.clone(), user.clone());
        self.call(move |tx| tx.wins_of(&activity, &user)).await
    }

    async fn snapshot(&self, activity: &ActivityId) -> Result<Option<Snapshot>, StoreError> {
        let activity = activity.clone();
        self.call(move |tx| tx.snapshot(&activity)).await
    }
}
