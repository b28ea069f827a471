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

/// Urgent jobs that may wait besides.
const URGENT_JOBS: usize = 256;

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
    /// Done before the next of `jobs`.
    urgent: mpsc::Sender<Job>,
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
        let (urgent, mut waiting_urgent) = mpsc::channel::<Job>(URGENT_JOBS);
        std::thread::Builder::new().name("sqlite".into()).spawn(move || {
            let _lock = lock;
            while let Some(job) = waiting.blocking_recv() {
                while let Ok(urgent) = waiting_urgent.try_recv() {
                    urgent(&mut connection);
                }
                job(&mut connection);
            }
        })?;
        Ok(SqliteWorker { jobs, urgent, deadline })
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
        let (job, answer) = job(work);
        self.jobs.try_send(job).map_err(|_| WorkerError::NotTaken)?;
        self.answered(answer).await
    }

    /// The same, ahead of everything that waits: for the few calls that must not starve under load.
    pub async fn call_urgently<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> T + Send + 'static,
    ) -> Result<T, WorkerError> {
        let (job, answer) = job(work);
        self.urgent.try_send(job).map_err(|_| WorkerError::NotTaken)?;
        // Wakes the thread. If there is no room for it, the thread is awake.
        _ = self.jobs.try_send(Box::new(|_| ()));
        self.answered(answer).await
    }

    async fn answered<T>(&self, answer: oneshot::Receiver<T>) -> Result<T, WorkerError> {
        match tokio::time::timeout(self.deadline, answer).await {
            Ok(done) => done.map_err(|_| WorkerError::Gone),
            Err(_) => Err(WorkerError::Late(millis(self.deadline))),
        }
    }
}

/// Work with a way back; not begun if its caller has given up before its turn.
fn job<T: Send + 'static>(work: impl FnOnce(&mut Connection) -> T + Send + 'static) -> (Job, oneshot::Receiver<T>) {
    let (reply, answer) = oneshot::channel();
    let job = move |connection: &mut Connection| {
        if !reply.is_closed() {
            _ = reply.send(work(connection));
        }
    };
    (Box::new(job), answer)
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

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[tokio::test]
    async fn an_urgent_call_is_done_before_all_that_waits_and_wakes_an_idle_thread() {
        let folder = tempfile::tempdir().unwrap();
        let open = SqliteWorker::open(&folder.path().join("t.db"), Sharing::Exclusive, &[], Duration::from_secs(20));
        let worker = open.unwrap();
        assert_eq!(worker.call_urgently(|_| 7).await.unwrap(), 7);
        let order = Arc::new(Mutex::new(Vec::new()));
        let note = |name: &'static str| {
            let order = Arc::clone(&order);
            move |_: &mut Connection| order.lock().unwrap().push(name)
        };
        // Holds the thread until the rest is in line.
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let first = worker.call(move |_| wait.recv().unwrap());
        let line = async {
            let plain = futures::future::join_all((0..20).map(|_| worker.call(note("plain"))));
            let urgent = worker.call_urgently(note("urgent"));
            let release = async { go.send(()).unwrap() };
            // Polled in this order: all are in line before the thread goes on.
            tokio::join!(plain, urgent, release)
        };
        let (_, (plain, urgent, ())) = tokio::join!(first, line);
        assert!(urgent.is_ok() && plain.iter().all(Result::is_ok));
        let order = order.lock().unwrap();
        assert_eq!((order[0], order.len()), ("urgent", 21), "{order:?}");
    }

    #[tokio::test]
    async fn an_urgent_call_finds_room_where_others_do_not() {
        let folder = tempfile::tempdir().unwrap();
        let open = SqliteWorker::open(&folder.path().join("t.db"), Sharing::Exclusive, &[], Duration::from_secs(20));
        let worker = open.unwrap();
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let first = worker.call(move |_| wait.recv().unwrap());
        let line = async {
            let full = futures::future::join_all((0..WAITING_JOBS + 10).map(|_| worker.call(|_| ())));
            let urgent = worker.call_urgently(|_| ());
            tokio::join!(full, urgent, async { go.send(()).unwrap() })
        };
        let (_, (full, urgent, ())) = tokio::join!(first, line);
        assert!(full.iter().any(|answer| matches!(answer, Err(WorkerError::NotTaken))));
        assert!(urgent.is_ok());
    }
}
