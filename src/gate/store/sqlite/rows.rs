//! Rows to domain types and back.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Row};

use crate::domain::admission::{Epoch, JournalEntry, JournalOp, RunId, Terms, WinRecord};
use crate::domain::dead_letters::LastWord;
use crate::domain::stock::{Stock, WinUnits};
use crate::domain::win::{Cause, Reason, Release, WinState};
use crate::domain::{ActivityId, RequestId, SkuId, StoreMs};

/// The run of an embedded store is the file itself: nothing that was committed is lost by a restart.
pub fn server_run(connection: &Connection) -> rusqlite::Result<RunId> {
    let known: Option<String> = connection.query_row("SELECT run_id FROM server", [], |row| row.get(0)).optional()?;
    let run_id = match known {
        Some(run_id) => run_id,
        None => {
            let run_id = format!("{:032x}", rand::random::<u128>());
            connection.execute("INSERT INTO server (run_id) VALUES (?1)", [&run_id])?;
            run_id
        }
    };
    Ok(RunId(Arc::from(run_id)))
}

/// A column that is written as text.
pub fn parsed<T: FromStr>(row: &Row<'_>, column: &str) -> rusqlite::Result<T>
where
    T::Err: std::error::Error + Send + Sync + 'static,
{
    let text: String = row.get(column)?;
    text.parse().map_err(|error: T::Err| rusqlite::Error::FromSqlConversionFailure(0, Type::Text, error.into()))
}

/// A column of milliseconds.
pub fn time(row: &Row<'_>, column: &str) -> rusqlite::Result<StoreMs> {
    row.get::<_, u64>(column).map(StoreMs)
}

/// The same, where there may be none.
fn optional_time(row: &Row<'_>, column: &str) -> rusqlite::Result<Option<StoreMs>> {
    Ok(row.get::<_, Option<u64>>(column)?.map(StoreMs))
}

/// The state of an activity, without its stock.
pub struct ActivityRow {
    /// `skus` is empty.
    pub terms: Terms,
    /// The terms it was preheated on, as one text.
    pub canonical: String,
    /// The run it was preheated in.
    pub run_id: RunId,
    /// An operator's pause.
    pub paused: bool,
}

/// Reads an activity.
pub fn activity(sql: &Connection, activity: &ActivityId) -> rusqlite::Result<Option<ActivityRow>> {
    let mut statement = sql.prepare_cached("SELECT * FROM activities WHERE activity = ?1")?;
    statement
        .query_row([activity.as_str()], |row| {
            Ok(ActivityRow {
                terms: Terms {
                    epoch: Epoch(row.get("epoch")?),
                    starts_at: time(row, "starts_at_ms")?,
                    ends_at: time(row, "ends_at_ms")?,
                    per_user_limit: row.get("per_user_limit")?,
                    rebuy_after_release: row.get("rebuy")?,
                    retention: Duration::from_millis(row.get("retention_ms")?),
                    skus: Vec::new(),
                },
                canonical: row.get("terms")?,
                run_id: RunId(Arc::from(row.get::<_, String>("run_id")?)),
                paused: row.get("paused")?,
            })
        })
        .optional()
}

/// Reads the stock of an activity, in the order of its terms.
pub fn stock(sql: &Connection, activity: &ActivityId) -> rusqlite::Result<Vec<(SkuId, Stock)>> {
    let mut statement = sql.prepare_cached("SELECT * FROM stock WHERE activity = ?1 ORDER BY position")?;
    let rows = statement.query_map([activity.as_str()], |row| {
        let stock = Stock {
            total: row.get("total")?,
            left: row.get("available")?,
            returning: row.get("coming_back")?,
            withheld: row.get("withheld")?,
            stopped: row.get("stopped")?,
            wins: WinUnits {
                held: (row.get("held_wins")?, row.get("held_units")?),
                accepted: (row.get("accepted_wins")?, row.get("accepted_units")?),
                released: (row.get("released_wins")?, row.get("released_units")?),
            },
        };
        Ok((parsed(row, "sku")?, stock))
    })?;
    rows.collect()
}

/// Reads a win from `SELECT * FROM wins`.
pub fn win(row: &Row<'_>) -> rusqlite::Result<(RequestId, WinRecord)> {
    let state = match row.get::<_, String>("state")?.as_str() {
        "held" => WinState::Held,
        "accepted" => WinState::Accepted,
        _ => {
            let cause: String = row.get("cause")?;
            let reason: String = row.get("reason")?;
            let release = Cause::parse(&cause).zip(Reason::new(&reason).ok());
            let (cause, reason) = release.ok_or(rusqlite::Error::InvalidColumnName("cause, reason".into()))?;
            WinState::Released(Release { cause, reason })
        }
    };
    let record = WinRecord {
        user: parsed(row, "user")?,
        key: parsed(row, "key")?,
        sku: parsed(row, "sku")?,
        qty: row.get("qty")?,
        fingerprint: parsed(row, "fingerprint")?,
        won_at: time(row, "won_at_ms")?,
        state,
        tries: row.get("tries")?,
        first_delivery_at: optional_time(row, "first_delivery_ms")?,
        last_word: row.get::<_, Option<String>>("last_word")?.as_deref().and_then(LastWord::parse),
        dead_since: optional_time(row, "dead_since_ms")?,
        payload: row.get::<_, Option<Vec<u8>>>("payload")?.map(Bytes::from),
        reply: row.get::<_, Option<Vec<u8>>>("reply")?.map(Bytes::from),
    };
    Ok((parsed(row, "request_id")?, record))
}

/// Adds to the journal.
pub fn note(sql: &Connection, activity: &ActivityId, at: StoreMs, op: &JournalOp) -> rusqlite::Result<()> {
    let (name, id, key, sku, delta) = match op {
        JournalOp::Preheated => ("preheated", None, None, None, 0),
        JournalOp::Won { request_id, key, sku, qty } => {
            ("won", Some(request_id), Some(key), Some(sku), i64::from(*qty))
        }
        JournalOp::Booked { request_id } => ("booked", Some(request_id), None, None, 0),
        JournalOp::Released { request_id, sku, qty } => {
            ("released", Some(request_id), None, Some(sku), i64::from(*qty))
        }
        JournalOp::OnSale { sku, qty } => ("on_sale", None, None, Some(sku), *qty),
        JournalOp::Total { sku, delta } => ("total", None, None, Some(sku), *delta),
        JournalOp::Stopped { sku, stopped } => ("stopped", None, None, Some(sku), i64::from(*stopped)),
        JournalOp::Paused(paused) => ("paused", None, None, None, i64::from(*paused)),
    };
    let mut insert = sql.prepare_cached(
        "INSERT INTO journal (activity, at_ms, op, request_id, key, sku, delta) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )?;
    insert.execute((
        activity.as_str(),
        at.0,
        name,
        id.map(|id| id.to_string()),
        key.map(|key| key.as_str()),
        sku.map(|sku| sku.as_str()),
        delta,
    ))?;
    Ok(())
}

/// Reads an entry from `SELECT * FROM journal`.
pub fn entry(row: &Row<'_>) -> rusqlite::Result<(i64, JournalEntry)> {
    let delta: i64 = row.get("delta")?;
    let qty = || u32::try_from(delta).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(0, delta));
    let op = match row.get::<_, String>("op")?.as_str() {
        "won" => JournalOp::Won {
            request_id: parsed(row, "request_id")?,
            key: parsed(row, "key")?,
            sku: parsed(row, "sku")?,
            qty: qty()?,
        },
        "booked" => JournalOp::Booked { request_id: parsed(row, "request_id")? },
        "released" => {
            JournalOp::Released { request_id: parsed(row, "request_id")?, sku: parsed(row, "sku")?, qty: qty()? }
        }
        "on_sale" => JournalOp::OnSale { sku: parsed(row, "sku")?, qty: delta },
        "total" => JournalOp::Total { sku: parsed(row, "sku")?, delta },
        "stopped" => JournalOp::Stopped { sku: parsed(row, "sku")?, stopped: delta == 1 },
        "paused" => JournalOp::Paused(delta == 1),
        _ => JournalOp::Preheated,
    };
    Ok((row.get("id")?, JournalEntry { at: time(row, "at_ms")?, op }))
}
