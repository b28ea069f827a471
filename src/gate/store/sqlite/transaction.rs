//! Every operation as one transaction. What is decided is decided by the pure functions of the domain.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension};

use super::rows::{self, ActivityRow};
use crate::domain::admission::{
    ActivityState, Attempt, Barred, Batch, Facts, FoundWin, Guard, JournalCursor, JournalOp, Poll, Polled,
    PolledActivity, Preheat, Preheated, Reply, RunId, Snapshot, Terms, Verdict, WinRecord, judge,
};
use crate::domain::stock::Stock;
use crate::domain::win::WinState;
use crate::domain::{ActivityId, RequestId, SkuId, StoreMs, UserId};

/// One open transaction, at one moment of the store's clock.
pub struct Tx<'a> {
    /// The transaction.
    pub sql: &'a Connection,
    /// The run of the server: of the file.
    pub run_id: &'a RunId,
    /// Read once.
    pub now: StoreMs,
}

pub(super) type Sql<T> = rusqlite::Result<T>;

impl Tx<'_> {
    pub fn preheat(&self, activity: &ActivityId, preheat: &Preheat) -> Sql<Reply<Preheated>> {
        let terms = &preheat.terms;
        let canonical = terms.canonical();
        if let Some(stored) = rows::activity(self.sql, activity)? {
            let same = stored.canonical == canonical;
            return Ok(self.reply(Ok(if same { Preheated::Already } else { Preheated::Differs })));
        }
        if preheat.run_id != *self.run_id {
            return Ok(self.reply(Err(Barred::Suspect)));
        }
        if self.now > preheat.not_after {
            return Ok(self.reply(Err(Barred::Late)));
        }
        self.sql.execute(
            "INSERT INTO activities (activity, epoch, run_id, terms, starts_at_ms, ends_at_ms, per_user_limit, rebuy, \
             retention_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
            (
                activity.as_str(),
                terms.epoch.0,
                &*self.run_id.0,
                canonical,
                terms.starts_at.0,
                // SQLite keeps signed 64-bit integers.
                terms.ends_at.0.min(i64::MAX as u64),
                terms.per_user_limit,
                terms.rebuy_after_release,
                crate::domain::time::millis(terms.retention).min(i64::MAX as u64),
            ),
        )?;
        for (position, (sku, total)) in terms.skus.iter().enumerate() {
            self.sql.execute(
                "INSERT INTO stock (activity, position, sku, total, available) VALUES (?1, ?2, ?3, ?4, ?4)",
                (activity.as_str(), position, sku.as_str(), total),
            )?;
        }
        rows::note(self.sql, activity, self.now, &JournalOp::Preheated)?;
        Ok(self.reply(Ok(Preheated::Created)))
    }

    pub fn admit(&self, activity: &ActivityId, batch: &Batch) -> Sql<Reply<Vec<Verdict>>> {
        let stored = match self.guarded(activity, &batch.guard)? {
            Ok(stored) => stored,
            Err(barred) => return Ok(self.reply(Err(barred))),
        };
        let suspect = stored.run_id != *self.run_id || batch.guard.run_id != *self.run_id;
        let mut stock = rows::stock(self.sql, activity)?;
        let mut verdicts = Vec::with_capacity(batch.attempts.len());
        for attempt in &batch.attempts {
            let known = self.win(activity, &attempt.request_id)?;
            let mine = stock.iter_mut().find(|(sku, _)| *sku == attempt.sku).map(|(_, stock)| stock);
            let facts = Facts {
                known: known.as_ref(),
                paused: stored.paused,
                suspect,
                terms: &stored.terms,
                stock: mine.as_deref(),
                user_units: self.units_of(activity, &attempt.user)?,
            };
            let verdict = judge(attempt, facts, self.now);
            if verdict == Verdict::Won
                && let Some(stock) = mine
            {
                stock.left -= i64::from(attempt.qty);
                stock.wins.record(None, &WinState::Held, i64::from(attempt.qty));
                self.write_stock(activity, &attempt.sku, stock)?;
                self.write_win(activity, attempt, batch.first_delivery_lease)?;
            }
            verdicts.push(verdict);
        }
        Ok(self.reply(Ok(verdicts)))
    }

    pub fn poll(&self, activity: &ActivityId, poll: &Poll) -> Sql<Polled> {
        let (now, server_run) = (self.now, self.run_id.clone());
        let Some(stored) = rows::activity(self.sql, activity)? else {
            return Ok(Polled { now, server_run, activity: PolledActivity::NotPreheated });
        };
        if let Some(gate) = &poll.gate {
            let (epoch, run) = poll.vouched.as_ref().map(|(epoch, run)| (epoch.0, &*run.0)).unzip();
            self.sql
                .prepare_cached(
                    "REPLACE INTO gates (activity, gate, last_poll_ms, epoch, run_id) VALUES (?1, ?2, ?3, ?4, ?5)",
                )?
                .execute((activity.as_str(), gate.as_str(), now.0, epoch, run))?;
        }
        let after: i64 = poll.after.0.parse().unwrap_or(0);
        let entries = {
            let mut select = self
                .sql
                .prepare_cached("SELECT * FROM journal WHERE activity = ?1 AND id > ?2 ORDER BY id LIMIT ?3")?;
            let rows = select.query_map((activity.as_str(), after, poll.max_entries), rows::entry)?;
            rows.collect::<Sql<Vec<_>>>()?
        };
        let cursor = entries.last().map_or_else(|| poll.after.clone(), |(id, _)| JournalCursor(id.to_string().into()));
        let stock = rows::stock(self.sql, activity)?;
        let state = ActivityState {
            terms: with_present_totals(stored.terms, &stock),
            barred: (stored.run_id != *self.run_id).then_some(Barred::Suspect),
            paused: stored.paused,
            stock,
            unsettled: self.unsettled(activity)?,
            dead: self.dead(activity)?,
            at_end: entries.len() < poll.max_entries,
            entries: entries.into_iter().map(|(_, entry)| entry).collect(),
            cursor,
        };
        Ok(Polled { now, server_run, activity: PolledActivity::Stored(Box::new(state)) })
    }

    /// Looks into an activity. A file never loses a part of one, so it is there or it is not.
    pub fn look<T>(&self, activity: &ActivityId, look: impl FnOnce(&Self) -> Sql<T>) -> Sql<Result<T, Barred>> {
        match rows::activity(self.sql, activity)? {
            Some(_) => look(self).map(Ok),
            None => Ok(Err(Barred::NotPreheated)),
        }
    }

    pub fn find(&self, activity: &ActivityId, ids: &[RequestId]) -> Sql<Vec<Option<FoundWin>>> {
        ids.iter()
            .map(|id| {
                let record = self.win(activity, id)?;
                Ok(record.map(|record| FoundWin { request_id: *id, record: WinRecord { payload: None, ..record } }))
            })
            .collect()
    }

    pub fn wins_of(&self, activity: &ActivityId, user: &UserId) -> Sql<Vec<FoundWin>> {
        let mut select = self.sql.prepare_cached("SELECT * FROM wins WHERE activity = ?1 AND user = ?2 ORDER BY id")?;
        let rows = select.query_map([activity.as_str(), user.as_str()], rows::win)?;
        rows.map(|row| {
            row.map(|(request_id, record)| FoundWin { request_id, record: WinRecord { payload: None, ..record } })
        })
        .collect()
    }

    pub fn activities(&self) -> Sql<Vec<ActivityId>> {
        let mut select = self.sql.prepare_cached("SELECT activity FROM activities ORDER BY activity")?;
        let rows = select.query_map([], |row| rows::parsed(row, "activity"))?;
        rows.collect()
    }

    pub fn snapshot(&self, activity: &ActivityId) -> Sql<Option<Snapshot>> {
        let Some(stored) = rows::activity(self.sql, activity)? else { return Ok(None) };
        let stock = rows::stock(self.sql, activity)?;
        Ok(Some(Snapshot {
            terms: with_present_totals(stored.terms, &stock),
            skus: stock,
            unsettled: self.unsettled(activity)?,
            dead: self.dead(activity)?,
        }))
    }

    pub(super) fn reply<T>(&self, outcome: Result<T, Barred>) -> Reply<T> {
        Reply { now: self.now, outcome }
    }

    /// Present and of the caller's epoch, in time. The run is judged by the caller.
    fn guarded(&self, activity: &ActivityId, guard: &Guard) -> Sql<Result<ActivityRow, Barred>> {
        let Some(stored) = rows::activity(self.sql, activity)? else { return Ok(Err(Barred::NotPreheated)) };
        if stored.terms.epoch != guard.epoch {
            return Ok(Err(Barred::Fenced));
        }
        if self.now > guard.not_after {
            return Ok(Err(Barred::Late));
        }
        Ok(Ok(stored))
    }

    /// Guarded, and the caller knows which run it speaks to: for the order service's word, which is recorded while the
    /// store is suspect too.
    pub(super) fn finishing(&self, activity: &ActivityId, guard: &Guard) -> Sql<Result<ActivityRow, Barred>> {
        let guarded = self.guarded(activity, guard)?;
        Ok(guarded.and_then(|stored| if guard.run_id == *self.run_id { Ok(stored) } else { Err(Barred::Suspect) }))
    }

    /// Guarded, and the run is the one stored and vouched for.
    pub(super) fn changeable(&self, activity: &ActivityId, guard: &Guard) -> Sql<Result<ActivityRow, Barred>> {
        let guarded = self.guarded(activity, guard)?;
        Ok(guarded.and_then(|stored| {
            let suspect = stored.run_id != *self.run_id || guard.run_id != *self.run_id;
            if suspect { Err(Barred::Suspect) } else { Ok(stored) }
        }))
    }

    pub(super) fn win(&self, activity: &ActivityId, id: &RequestId) -> Sql<Option<WinRecord>> {
        let mut select = self.sql.prepare_cached("SELECT * FROM wins WHERE activity = ?1 AND request_id = ?2")?;
        let found = select.query_row([activity.as_str(), id.hex().as_str()], rows::win).optional()?;
        Ok(found.map(|(_, record)| record))
    }

    fn units_of(&self, activity: &ActivityId, user: &UserId) -> Sql<u32> {
        let mut select = self.sql.prepare_cached("SELECT units FROM buyers WHERE activity = ?1 AND user = ?2")?;
        let units = select.query_row([activity.as_str(), user.as_str()], |row| row.get(0)).optional()?;
        Ok(units.unwrap_or(0))
    }

    fn unsettled(&self, activity: &ActivityId) -> Sql<u64> {
        let mut select =
            self.sql.prepare_cached("SELECT count(*) FROM wins WHERE activity = ?1 AND due_at_ms IS NOT NULL")?;
        select.query_row([activity.as_str()], |row| row.get(0))
    }

    fn dead(&self, activity: &ActivityId) -> Sql<u64> {
        let mut select =
            self.sql.prepare_cached("SELECT count(*) FROM wins WHERE activity = ?1 AND dead_since_ms IS NOT NULL")?;
        select.query_row([activity.as_str()], |row| row.get(0))
    }

    pub(super) fn stock_of(&self, activity: &ActivityId, sku: &SkuId) -> Sql<Option<Stock>> {
        Ok(rows::stock(self.sql, activity)?.into_iter().find(|(name, _)| name == sku).map(|(_, stock)| stock))
    }

    pub(super) fn write_stock(&self, activity: &ActivityId, sku: &SkuId, stock: &Stock) -> Sql<()> {
        let mut update = self.sql.prepare_cached(
            "UPDATE stock SET total = ?3, available = ?4, coming_back = ?5, withheld = ?6, stopped = ?7, \
             held_wins = ?8, held_units = ?9, accepted_wins = ?10, accepted_units = ?11, released_wins = ?12, \
             released_units = ?13 WHERE activity = ?1 AND sku = ?2",
        )?;
        update.execute((
            activity.as_str(),
            sku.as_str(),
            stock.total,
            stock.left,
            stock.returning,
            stock.withheld,
            stock.stopped,
            stock.wins.held.0,
            stock.wins.held.1,
            stock.wins.accepted.0,
            stock.wins.accepted.1,
            stock.wins.released.0,
            stock.wins.released.1,
        ))?;
        Ok(())
    }

    fn write_win(&self, activity: &ActivityId, attempt: &Attempt, lease: Duration) -> Sql<()> {
        let id = attempt.request_id;
        self.sql
            .prepare_cached(
                "INSERT INTO buyers (activity, user, units) VALUES (?1, ?2, ?3) \
                 ON CONFLICT (activity, user) DO UPDATE SET units = units + excluded.units",
            )?
            .execute((activity.as_str(), attempt.user.as_str(), attempt.qty))?;
        self.sql
            .prepare_cached(
                "INSERT INTO wins (activity, request_id, user, key, sku, qty, fingerprint, won_at_ms, state, \
                 due_at_ms, payload) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 'held', ?9, ?10)",
            )?
            .execute((
                activity.as_str(),
                id.hex().as_str(),
                attempt.user.as_str(),
                attempt.key.as_str(),
                attempt.sku.as_str(),
                attempt.qty,
                attempt.fingerprint.hex().as_str(),
                self.now.0,
                self.now.after(lease).0,
                &attempt.payload[..],
            ))?;
        let (key, sku, qty) = (attempt.key.clone(), attempt.sku.clone(), attempt.qty);
        rows::note(self.sql, activity, self.now, &JournalOp::Won { request_id: id, key, sku, qty })
    }
}

fn with_present_totals(terms: Terms, stock: &[(SkuId, Stock)]) -> Terms {
    Terms { skus: stock.iter().map(|(sku, stock)| (sku.clone(), stock.total)).collect(), ..terms }
}
