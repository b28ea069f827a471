//! Every operation as one transaction. What is decided is decided by the pure functions of the domain.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension};

use super::rows::{self, ActivityRow};
use crate::domain::admission::{
    ActivityState, Attempt, Barred, Batch, ClaimDue, Claimed, DueWin, Facts, FoundWin, Guard, JournalCursor, JournalOp,
    Poll, Polled, PolledActivity, Preheated, Recorded, ReleaseWin, Reply, RunId, Settle, Settlement, Snapshot, Terms,
    Verdict, WinRecord, WinUnits, judge,
};
use crate::domain::stock::Stock;
use crate::domain::win::{Step, WinEvent, WinState, transition};
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
    pub fn preheat(&self, activity: &ActivityId, terms: &Terms) -> Sql<(StoreMs, Preheated)> {
        let canonical = terms.canonical();
        if let Some(stored) = rows::activity(self.sql, activity)? {
            let same = stored.canonical == canonical;
            return Ok((self.now, if same { Preheated::Already } else { Preheated::Differs }));
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
        Ok((self.now, Preheated::Created))
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
                self.write_stock(activity, &attempt.sku, stock)?;
                self.write_win(activity, attempt, batch.first_delivery_lease)?;
            }
            verdicts.push(verdict);
        }
        Ok(self.reply(Ok(verdicts)))
    }

    pub fn settle(&self, activity: &ActivityId, settle: &Settle) -> Sql<Reply<Recorded>> {
        if let Err(barred) = self.changeable(activity, &settle.guard)? {
            return Ok(self.reply(Err(barred)));
        }
        let id = settle.request_id;
        let Some(mut win) = self.win(activity, &id)? else { return Ok(self.reply(Ok(Recorded::UnknownWin))) };
        let event = match settle.settlement {
            Settlement::Queued { .. } => WinEvent::Queued,
            Settlement::Booked { .. } => WinEvent::Booked,
            Settlement::Unknown => WinEvent::Unknown,
        };
        let mut due = None;
        match (transition(&win.state, event), &settle.settlement) {
            (Step::Accept, Settlement::Booked { reply }) => {
                win.state = WinState::Accepted;
                win.reply = Some(reply.clone());
                win.payload = None;
                rows::note(self.sql, activity, self.now, &JournalOp::Booked { request_id: id })?;
            }
            (Step::KeepReplyAndRetry | Step::Retry, settlement) => {
                if let Settlement::Queued { reply } = settlement {
                    win.reply.get_or_insert_with(|| reply.clone());
                }
                due = Some(self.now.after(settle.backoff.pause(win.tries)));
                win.tries += 1;
            }
            (Step::Conflict, _) => return Ok(self.reply(Ok(Recorded::Conflict(win.known())))),
            _ => return Ok(self.reply(Ok(Recorded::Already(win.known())))),
        }
        self.update_win(activity, &id, &win, due)?;
        Ok(self.reply(Ok(Recorded::Applied(win.known()))))
    }

    pub fn release(&self, activity: &ActivityId, release: &ReleaseWin) -> Sql<Reply<Recorded>> {
        let stored = match self.changeable(activity, &release.guard)? {
            Ok(stored) => stored,
            Err(barred) => return Ok(self.reply(Err(barred))),
        };
        let id = release.request_id;
        let Some(mut win) = self.win(activity, &id)? else { return Ok(self.reply(Ok(Recorded::UnknownWin))) };
        match transition(&win.state, WinEvent::Ended(release.release.cause)) {
            Step::Release => {}
            Step::Conflict => return Ok(self.reply(Ok(Recorded::Conflict(win.known())))),
            _ => return Ok(self.reply(Ok(Recorded::Already(win.known())))),
        }
        win.state = WinState::Released(release.release.clone());
        win.payload = None;
        self.update_win(activity, &id, &win, None)?;
        if stored.terms.rebuy_after_release {
            self.sql
                .prepare_cached("UPDATE buyers SET units = max(0, units - ?3) WHERE activity = ?1 AND user = ?2")?
                .execute((activity.as_str(), win.user.as_str(), win.qty))?;
        }
        let entry = JournalOp::Released { request_id: id, sku: win.sku.clone(), qty: win.qty };
        rows::note(self.sql, activity, self.now, &entry)?;
        let units = i64::from(win.qty);
        if let Some(mut stock) = self.stock_of(activity, &win.sku)? {
            if release.ledger_short {
                self.keep_back(activity, &win.sku, &mut stock, units)?;
            } else {
                self.give_back(activity, &win.sku, &mut stock, units, release.returning_delay)?;
            }
        }
        Ok(self.reply(Ok(Recorded::Applied(win.known()))))
    }

    pub fn claim_due(&self, activity: &ActivityId, claim: &ClaimDue) -> Sql<Reply<Claimed>> {
        if let Err(barred) = self.changeable(activity, &claim.guard)? {
            return Ok(self.reply(Err(barred)));
        }
        let mut claimed = Claimed::default();
        let returned: Vec<(String, SkuId, i64)> = {
            let mut select = self.sql.prepare_cached(
                "SELECT member, sku, units FROM returning_units WHERE activity = ?1 AND on_sale_ms <= ?2 \
                 ORDER BY on_sale_ms, member",
            )?;
            let rows = select.query_map((activity.as_str(), self.now.0), |row| {
                Ok((row.get("member")?, rows::parsed(row, "sku")?, row.get("units")?))
            })?;
            rows.collect::<Sql<_>>()?
        };
        for (member, sku, qty) in returned {
            self.sql
                .prepare_cached("DELETE FROM returning_units WHERE activity = ?1 AND member = ?2")?
                .execute((activity.as_str(), member))?;
            if let Some(mut stock) = self.stock_of(activity, &sku)? {
                stock.returning -= qty;
                stock.left += qty;
                self.write_stock(activity, &sku, &stock)?;
            }
            rows::note(self.sql, activity, self.now, &JournalOp::OnSale { sku: sku.clone(), qty })?;
            claimed.on_sale.push((sku, qty));
        }
        let due: Vec<(RequestId, WinRecord)> = {
            let mut select = self.sql.prepare_cached(
                "SELECT * FROM wins WHERE activity = ?1 AND due_at_ms <= ?2 ORDER BY due_at_ms, request_id LIMIT ?3",
            )?;
            let rows = select.query_map((activity.as_str(), self.now.0, claim.limit), rows::win)?;
            rows.collect::<Sql<_>>()?
        };
        for (request_id, win) in due {
            self.update_win(activity, &request_id, &win, Some(self.now.after(claim.lease)))?;
            claimed.wins.push(DueWin {
                request_id,
                user: win.user,
                sku: win.sku,
                qty: win.qty,
                won_at: win.won_at,
                tries: win.tries,
                payload: win.payload.unwrap_or_default(),
            });
        }
        Ok(self.reply(Ok(claimed)))
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
            run_id: stored.run_id,
            paused: stored.paused,
            stock,
            unsettled: self.unsettled(activity)?,
            at_end: entries.len() < poll.max_entries,
            entries: entries.into_iter().map(|(_, entry)| entry).collect(),
            cursor,
        };
        Ok(Polled { now, server_run, activity: PolledActivity::Stored(Box::new(state)) })
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

    pub fn snapshot(&self, activity: &ActivityId) -> Sql<Option<Snapshot>> {
        let Some(stored) = rows::activity(self.sql, activity)? else { return Ok(None) };
        let stock = rows::stock(self.sql, activity)?;
        let mut skus = Vec::with_capacity(stock.len());
        for (sku, of_sku) in &stock {
            let sum = |state: &str| {
                self.sql.query_row(
                    "SELECT count(*), coalesce(sum(qty), 0) FROM wins WHERE activity = ?1 AND sku = ?2 AND state = ?3",
                    [activity.as_str(), sku.as_str(), state],
                    |row| Ok((row.get(0)?, row.get(1)?)),
                )
            };
            let units = WinUnits { held: sum("held")?, accepted: sum("accepted")?, released: sum("released")? };
            skus.push((sku.clone(), *of_sku, units));
        }
        let users_above_limit = {
            let mut select = self
                .sql
                .prepare("SELECT user, units FROM buyers WHERE activity = ?1 AND units > ?2 ORDER BY user LIMIT 100")?;
            let rows = select.query_map((activity.as_str(), stored.terms.per_user_limit), |row| {
                Ok((rows::parsed(row, "user")?, row.get("units")?))
            })?;
            rows.collect::<Sql<_>>()?
        };
        Ok(Some(Snapshot {
            terms: with_present_totals(stored.terms, &stock),
            skus,
            users_above_limit,
            unsettled: self.unsettled(activity)?,
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

    /// Guarded, and the run is the one stored and vouched for.
    pub(super) fn changeable(&self, activity: &ActivityId, guard: &Guard) -> Sql<Result<ActivityRow, Barred>> {
        let guarded = self.guarded(activity, guard)?;
        Ok(guarded.and_then(|stored| {
            let suspect = stored.run_id != *self.run_id || guard.run_id != *self.run_id;
            if suspect { Err(Barred::Suspect) } else { Ok(stored) }
        }))
    }

    fn win(&self, activity: &ActivityId, id: &RequestId) -> Sql<Option<WinRecord>> {
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

    pub(super) fn stock_of(&self, activity: &ActivityId, sku: &SkuId) -> Sql<Option<Stock>> {
        Ok(rows::stock(self.sql, activity)?.into_iter().find(|(name, _)| name == sku).map(|(_, stock)| stock))
    }

    pub(super) fn write_stock(&self, activity: &ActivityId, sku: &SkuId, stock: &Stock) -> Sql<()> {
        let mut update = self.sql.prepare_cached(
            "UPDATE stock SET total = ?3, available = ?4, coming_back = ?5, withheld = ?6, stopped = ?7 \
             WHERE activity = ?1 AND sku = ?2",
        )?;
        update.execute((
            activity.as_str(),
            sku.as_str(),
            stock.total,
            stock.left,
            stock.returning,
            stock.withheld,
            stock.stopped,
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

    fn update_win(&self, activity: &ActivityId, id: &RequestId, win: &WinRecord, due: Option<StoreMs>) -> Sql<()> {
        let (state, release) = match &win.state {
            WinState::Held => ("held", None),
            WinState::Accepted => ("accepted", None),
            WinState::Released(release) => ("released", Some(release)),
        };
        let mut update = self.sql.prepare_cached(
            "UPDATE wins SET state = ?3, cause = ?4, reason = ?5, tries = ?6, due_at_ms = ?7, payload = ?8, reply = ?9 \
             WHERE activity = ?1 AND request_id = ?2",
        )?;
        update.execute((
            activity.as_str(),
            id.hex().as_str(),
            state,
            release.map(|release| release.cause.as_str()),
            release.map(|release| release.reason.as_str()),
            win.tries,
            due.map(|due| due.0.min(i64::MAX as u64)),
            win.payload.as_deref(),
            win.reply.as_deref(),
        ))?;
        Ok(())
    }
}

fn with_present_totals(terms: Terms, stock: &[(SkuId, Stock)]) -> Terms {
    Terms { skus: stock.iter().map(|(sku, stock)| (sku.clone(), stock.total)).collect(), ..terms }
}
