//! An SQLite file with one thread that owns its connection: writers never meet, and no async worker blocks on a disk.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::{mpsc, oneshot};

use crate::domain::time::millis;

/// Jobs that may wait; more make the caller wait, up to the deadline.
const WAITING_JOBS: usize = 1_024;

type Job = Box<dyn FnOnce(&mut Connection) + Send>;

/// Why a job gave no result.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// It was not done in time; it may still be done.
    #[error("no answer within {0} ms")]
    Late(u64),
    /// The thread has ended.
    #[error("the database thread has ended")]
    Gone,
}

/// A handle to the thread. Cheap to clone; the thread ends with the last handle.
#[derive(Clone, Debug)]
pub struct SqliteWorker {
    jobs: mpsc::Sender<Job>,
    deadline: Duration,
}

impl SqliteWorker {
    /// Opens (or creates) the file, durable to the last commit, and runs those of `migrations` (SQL scripts, in order)
    /// that it has not seen.
    pub fn open(path: &Path, migrations: &[&str], deadline: Duration) -> anyhow::Result<SqliteWorker> {
        let mut connection = Connection::open(path).with_context(|| format!("opening {}", path.display()))?;
        connection.busy_timeout(deadline)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "foreign_keys", "ON")?;
        migrate(&mut connection, migrations).with_context(|| format!("migrating {}", path.display()))?;
        let (jobs, mut waiting) = mpsc::channel::<Job>(WAITING_JOBS);
        std::thread::Builder::new().name("sqlite".into()).spawn(move || {
            while let Some(job) = waiting.blocking_recv() {
                job(&mut connection);
            }
        })?;
        Ok(SqliteWorker { jobs, deadline })
    }

    /// Runs `work` on the thread.
    pub async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> T + Send + 'static,
    ) -> Result<T, WorkerError> {
        let (reply, answer) = oneshot::channel();
        let job: Job = Box::new(move |connection| {
            // The caller may have given up; there is nobody else to tell.
            let _ = reply.send(work(connection));
        });
        let done = async {
            self.jobs.send(job).await.map_err(|_| WorkerError::Gone)?;
            answer.await.map_err(|_| WorkerError::Gone)
        };
        tokio::time::timeout(self.deadline, done).await.unwrap_or(Err(WorkerError::Late(millis(self.deadline))))
    }
}

fn migrate(connection: &mut Connection, migrations: &[&str]) -> rusqlite::Result<()> {
    // The write lock is taken first, so two processes cannot both find the same migration missing.
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let seen: usize =
        transaction.query_row("PRAGMA user_version", [], |row| row.get::<_, i64>(0))?.try_into().unwrap_or(0);
    for migration in migrations.iter().skip(seen) {
        transaction.execute_batch(migration)?;
    }
    transaction.pragma_update(None, "user_version", i64::try_from(migrations.len().max(seen)).unwrap_or(i64::MAX))?;
    transaction.commit()
}
