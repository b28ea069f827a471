//! Opens SQLite files that must not lose what they were told.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use rusqlite::Connection;

/// A database file that this process alone has open. Dropping it gives the file up.
pub struct ExclusiveFile {
    /// The one connection.
    pub connection: Connection,
    _lock: File,
}

/// Opens (or creates) the file for this process alone: write-ahead log, every commit on disk before it returns.
pub fn open_exclusive(path: &Path) -> anyhow::Result<ExclusiveFile> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    let lock_path = path.with_extension("lock");
    let lock = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&lock_path)
        .with_context(|| format!("cannot open {}", lock_path.display()))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            bail!("{} is in use by another process; an embedded store serves one", path.display())
        }
        Err(TryLockError::Error(error)) => {
            return Err(error).with_context(|| format!("cannot lock {}", lock_path.display()));
        }
    }
    let connection = Connection::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    connection.busy_timeout(Duration::from_secs(5))?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "foreign_keys", "ON")?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(ExclusiveFile { connection, _lock: lock })
}
