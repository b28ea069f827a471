//! An SQLite file with one thread that owns its connection: writers never meet, and no async worker blocks on a disk.
//! Every commit is on the disk before it is answered.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::{mpsc, oneshot};

use crate::domain::time::millis;

/// Jobs that may wait; more are refused.
const WAITING_JOBS: usize = 1_024;

/// Prepared statements kept.
const STATEMENTS: usize = 64;

type Job = Box<dyn FnOnce(&mut Connection) + Send>;

/// Why a job gave no result.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// It was not taken: too many wait, or the thread has ended. Nothing was or will be done.
    #[error("too many calls wait for the database file")]
    NotTaken,
    /// It was not done in time; it may still be done.
    #[error("no answer within {0} ms")]
    Late(u64),
    /// The thread ended with it.
    #[error("the database thread has ended")]
    Gone,
}

/// Who may have the file open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// This process alone.
    Exclusive,
    /// Several processes; SQLite's own locks keep them apart.
    Shared,
}

/// A handle to the thread. Cheap to clone; the thread ends with the last handle.
#[derive(Clone, Debug)]
pub struct SqliteWorker {
    jobs: mpsc::Sender<Job>,
    deadline: Duration,
}

impl SqliteWorker {
    /// Opens (or creates) the file and runs those of `migrations` (SQL scripts, in order) that it has not seen.
    ///
    /// # Errors
    /// If the file cannot be opened or migrated, or is another process's.
    pub fn open(
        path: &Path,
        sharing: Sharing,
        migrations: &[&str],
        deadline: Duration,
    ) -> anyhow::Result<SqliteWorker> {
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        }
        let lock = match sharing {
            Sharing::Exclusive => Some(lock(path)?),
            Sharing::Shared => None,
        };
        let mut connection = Connection::open(path).with_context(|| format!("opening {}", path.display()))?;
        connection.busy_timeout(deadline)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "foreign_keys", "ON")?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS);
        migrate(&mut connection, migrations).with_context(|| format!("migrating {}", path.display()))?;
        let (jobs, mut waiting) = mpsc::channel::<Job>(WAITING_JOBS);
        std::thread::Builder::new().name("sqlite".into()).spawn(move || {
            let _lock = lock;
            while let Some(job) = waiting.blocking_recv() {
                job(&mut connection);
            }
        })?;
        Ok(SqliteWorker { jobs, deadline })
    }

    /// The deadline of one call.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Runs `work` on the thread. Work whose caller has given up before its turn is not begun.
    pub async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> T + Send + 'static,
    ) -> Result<T, WorkerError> {
        let (reply, answer) = oneshot::channel();
        let job: Job = Box::new(move |connection| {
            if !reply.is_closed() {
                _ = reply.send(work(connection));
            }
        });
        self.jobs.try_send(job).map_err(|_| WorkerError::NotTaken)?;
        match tokio::time::timeout(self.deadline, answer).await {
            Ok(done) => done.map_err(|_| WorkerError::Gone),
            Err(_) => Err(WorkerError::Late(millis(self.deadline))),
        }
    }
}

/// Takes the file for this process; the system gives it up when the process ends, however it ends.
fn lock(path: &Path) -> anyhow::Result<File> {
    let beside = path.with_extension("lock");
    let opened = OpenOptions::new().create(true).truncate(false).write(true).open(&beside);
    let lock = opened.with_context(|| format!("cannot open {}", beside.display()))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => {
            bail!("{} is in use by another process; an embedded store serves one", path.display())
        }
        Err(TryLockError::Error(error)) => Err(error).with_context(|| format!("cannot lock {}", beside.display())),
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
