//! The queue in an embedded SQLite file, for one process.

use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, Row, params};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::{Claimed, Delivery, MAX_BATCH, MAX_WAITING, OrderQueue, Pushed, QueueError, entry};
use crate::domain::ActivityId;
use crate::domain::time::millis;
use crate::orders::order::NewOrder;
use crate::platform::sqlite::{Sharing, SqliteWorker};

const NOW_MS: &str = "CAST(ROUND(unixepoch('now', 'subsec') * 1000) AS INTEGER)";

/// The queue in an SQLite file.
pub struct SqliteQueue {
    worker: SqliteWorker,
    pushed: Notify,
}

impl SqliteQueue {
    /// Opens (or creates) the file.
    pub fn open(path: &Path, deadline: Duration) -> anyhow::Result<SqliteQueue> {
        let worker = SqliteWorker::open(path, Sharing::Shared, &[include_str!("0001_queue.sql")], deadline)?;
        Ok(SqliteQueue { worker, pushed: Notify::new() })
    }

    async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, QueueError> {
        let unavailable = |error: &dyn std::fmt::Display| QueueError::Unavailable(error.to_string());
        self.worker.call(work).await.map_err(|error| unavailable(&error))?.map_err(|error| unavailable(&error))
    }

    /// Marks entries as taken that were last taken before `idle` ago, or never (`None`).
    async fn mark(&self, max: usize, idle: Option<Duration>) -> Result<Vec<Delivery>, QueueError> {
        let max = i64::try_from(max.clamp(1, MAX_BATCH)).unwrap_or(1);
        let which = match idle {
            None => "taken_at_ms = 0".to_owned(),
            Some(idle) => format!("taken_at_ms > 0 AND taken_at_ms <= {NOW_MS} - {}", millis(idle)),
        };
        let update = format!(
            "UPDATE queue SET taken_at_ms = {NOW_MS} WHERE id IN (SELECT id FROM queue WHERE {which} ORDER BY id \
             LIMIT ?) RETURNING id, activity, rid, sku, qty, user, epoch, payload"
        );
        let mut found = self
            .call(move |connection| {
                let mut statement = connection.prepare_cached(&update)?;
                let found = statement.query_map([max], delivery)?;
                found.collect::<rusqlite::Result<Vec<_>>>()
            })
            .await?;
        found.sort_by_key(|(id, _)| *id);
        Ok(found.into_iter().filter_map(|(_, delivery)| delivery).collect())
    }
}

fn ids(deliveries: &[Delivery]) -> Vec<i64> {
    deliveries.iter().filter_map(|delivery| delivery.entry.parse().ok()).collect()
}

fn delivery(row: &Row<'_>) -> rusqlite::Result<(i64, Option<Delivery>)> {
    let id: i64 = row.get(0)?;
    let activity: String = row.get(1)?;
    let Ok(activity) = activity.parse::<ActivityId>() else { return Ok((id, None)) };
    let mut fields = vec![];
    for (column, name) in ["rid", "sku", "qty", "user", "epoch"].into_iter().enumerate() {
        fields.push((name.to_owned(), row.get::<_, String>(column + 2)?.into_bytes()));
    }
    fields.push(("payload".to_owned(), row.get(7)?));
    let order = entry::parse(&activity, fields);
    Ok((id, Some(Delivery { activity, entry: id.to_string(), order })))
}

#[async_trait]
impl OrderQueue for SqliteQueue {
    async fn push(&self, order: &NewOrder) -> Result<Pushed, QueueError> {
        let order = order.clone();
        let inserted = self
            .call(move |connection| {
                // At least the number of entries, and read from both ends of the key instead of counted.
                let waiting: i64 = connection
                    .prepare_cached("SELECT COALESCE(MAX(id) - MIN(id) + 1, 0) FROM queue")?
                    .query_row([], |row| row.get(0))?;
                if waiting.unsigned_abs() >= MAX_WAITING {
                    return Ok(None);
                }
                let inserted = connection
                    .prepare_cached(
                        "INSERT INTO queue (activity, rid, sku, qty, user, epoch, payload) VALUES (?, ?, ?, ?, ?, ?, ?) \
                         ON CONFLICT (activity, rid) DO NOTHING",
                    )?
                    .execute(params![
                        order.activity.as_str(),
                        order.request_id.hex().as_str(),
                        order.sku.as_str(),
                        order.qty.to_string(),
                        order.user.as_str(),
                        order.epoch.to_string(),
                        order.payload.as_ref(),
                    ])?;
                Ok(Some(inserted))
            })
            .await?;
        match inserted {
            None => Err(QueueError::Full),
            Some(0) => Ok(Pushed::Waiting),
            Some(_) => {
                self.pushed.notify_one();
                Ok(Pushed::Queued)
            }
        }
    }

    async fn take(&self, _: &[ActivityId], max: usize, wait: Duration) -> Result<Vec<Delivery>, QueueError> {
        let taken = self.mark(max, None).await?;
        // A push between the look and the wait has left its permit.
        if taken.is_empty() && timeout(wait, self.pushed.notified()).await.is_ok() {
            return self.mark(max, None).await;
        }
        Ok(taken)
    }

    async fn claim_stale(&self, _: &[ActivityId], max: usize, idle: Duration) -> Result<Claimed, QueueError> {
        Ok(Claimed { deliveries: self.mark(max, Some(idle)).await?, lost: 0 })
    }

    async fn keep(&self, deliveries: &[Delivery]) -> Result<(), QueueError> {
        let ids = ids(deliveries);
        let update = format!("UPDATE queue SET taken_at_ms = {NOW_MS} WHERE id = ?");
        self.call(move |connection| {
            let transaction = connection.transaction()?;
            for id in ids {
                transaction.prepare_cached(&update)?.execute([id])?;
            }
            transaction.commit()
        })
        .await
    }

    async fn done(&self, deliveries: &[Delivery]) -> Result<(), QueueError> {
        let ids = ids(deliveries);
        self.call(move |connection| {
            let transaction = connection.transaction()?;
            for id in ids {
                transaction.prepare_cached("DELETE FROM queue WHERE id = ?")?.execute([id])?;
            }
            transaction.commit()
        })
        .await
    }

    async fn lag(&self, activity: &ActivityId) -> Result<u64, QueueError> {
        let activity = activity.clone();
        self.call(move |connection| {
            let count = "SELECT COUNT(*) FROM queue WHERE activity = ?";
            connection.prepare_cached(count)?.query_row([activity.as_str()], |row| row.get(0).map(i64::unsigned_abs))
        })
        .await
    }

    async fn ping(&self) -> Result<(), QueueError> {
        self.call(|_| Ok(())).await
    }
}
