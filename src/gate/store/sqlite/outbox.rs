//! The outbox: what the order service says of a win, and what is delivered again when.

use super::rows;
use super::transaction::{Sql, Tx};
use crate::domain::admission::{
    ClaimDue, Claimed, DueWin, FoundWin, JournalOp, MAX_MARKS, Recorded, ReleaseWin, Reply, Settle, Settlement,
    WinRecord,
};
use crate::domain::dead_letters::{DeadPage, LastWord, Retried, Retry};
use crate::domain::time::millis;
use crate::domain::win::{Step, WinEvent, WinState, transition};
use crate::domain::{ActivityId, RequestId, SkuId, StoreMs};

impl Tx<'_> {
    pub fn settle(&self, activity: &ActivityId, settle: &Settle) -> Sql<Reply<Recorded>> {
        if let Err(barred) = self.finishing(activity, &settle.guard)? {
            return Ok(self.reply(Err(barred)));
        }
        let id = settle.request_id;
        let Some(mut win) = self.win(activity, &id)? else { return Ok(self.reply(Ok(Recorded::UnknownWin))) };
        let event = match settle.settlement {
            Settlement::Queued { .. } => WinEvent::Queued,
            Settlement::Booked { .. } => WinEvent::Booked,
            Settlement::Unknown => WinEvent::Unknown,
        };
        let (mut due, mut marked) = (None, None);
        match (transition(&win.state, event), &settle.settlement) {
            (Step::Accept, Settlement::Booked { reply }) => {
                win.state = WinState::Accepted;
                win.reply = Some(reply.clone());
                win.payload = None;
                win.dead_since = None;
                if let Some(mut stock) = self.stock_of(activity, &win.sku)? {
                    stock.wins.record(Some(&WinState::Held), &win.state, i64::from(win.qty));
                    self.write_stock(activity, &win.sku, &stock)?;
                }
                rows::note(self.sql, activity, self.now, &JournalOp::Booked { request_id: id })?;
            }
            (Step::KeepReplyAndRetry | Step::Retry, settlement) => {
                if let Settlement::Queued { reply } = settlement {
                    win.reply.get_or_insert_with(|| reply.clone());
                }
                let first = *win.first_delivery_at.get_or_insert(self.now);
                let dead = win.dead_since.is_some();
                let judged = settle.dead_letters.not_final(self.now, first, dead, settle.backoff, win.tries);
                win.tries += 1;
                win.last_word = Some(if event == WinEvent::Queued { LastWord::Queued } else { LastWord::Unknown });
                due = Some(judged.due);
                if judged.mark {
                    win.dead_since = Some(self.now);
                    marked = Some(first.until(self.now));
                }
            }
            (Step::Conflict, _) => return Ok(self.reply(Ok(Recorded::Conflict(win.known())))),
            _ => return Ok(self.reply(Ok(Recorded::Already(win.known())))),
        }
        self.update_win(activity, &id, &win, due)?;
        let known = win.known();
        Ok(self.reply(Ok(match marked {
            Some(age) => Recorded::MarkedDead { known, tries: win.tries, age },
            None => Recorded::Applied(known),
        })))
    }

    pub fn release(&self, activity: &ActivityId, release: &ReleaseWin) -> Sql<Reply<Recorded>> {
        let stored = match self.finishing(activity, &release.guard)? {
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
        let from = std::mem::replace(&mut win.state, WinState::Released(release.release.clone()));
        win.payload = None;
        win.dead_since = None;
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
            stock.wins.record(Some(&from), &win.state, units);
            if release.ledger_short {
                self.keep_back(activity, &win.sku, &mut stock, units)?;
            } else {
                self.give_back(activity, &win.sku, &mut stock, units, release.returning_delay)?;
            }
        }
        Ok(self.reply(Ok(Recorded::Applied(win.known()))))
    }

    pub fn claim_due(&self, activity: &ActivityId, claim: &ClaimDue) -> Sql<Reply<Claimed>> {
        if let Err(barred) = self.finishing(activity, &claim.guard)? {
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
        for (request_id, mut win) in self.due_since(activity, self.now, claim.limit)? {
            win.first_delivery_at.get_or_insert(self.now);
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
        if let Some(policy) = claim.mark_dead
            && let Some(before) = self.now.0.checked_sub(millis(policy.after))
        {
            for (id, mut win) in self.due_since(activity, StoreMs(before), MAX_MARKS)? {
                if win.dead_since.is_none() {
                    win.dead_since = Some(self.now);
                    claimed.marked_dead.push(id);
                }
                self.update_win(activity, &id, &win, Some(self.now.after(policy.retry_every)))?;
            }
        }
        Ok(self.reply(Ok(claimed)))
    }

    /// Wins that are due since this moment or longer, the longest first.
    fn due_since(&self, activity: &ActivityId, at: StoreMs, limit: usize) -> Sql<Vec<(RequestId, WinRecord)>> {
        let mut select = self.sql.prepare_cached(
            "SELECT * FROM wins WHERE activity = ?1 AND due_at_ms <= ?2 ORDER BY due_at_ms, request_id LIMIT ?3",
        )?;
        let rows = select.query_map((activity.as_str(), at.0, limit), rows::win)?;
        rows.collect()
    }

    pub fn retry(&self, activity: &ActivityId, retry: &Retry) -> Sql<Reply<Vec<Retried>>> {
        if let Err(barred) = self.finishing(activity, &retry.guard)? {
            return Ok(self.reply(Err(barred)));
        }
        let mut retried = Vec::with_capacity(retry.ids.len());
        for id in &retry.ids {
            retried.push(match self.win(activity, id)? {
                None => Retried::UnknownWin,
                Some(win) if win.state == WinState::Held => {
                    self.update_win(activity, id, &win, Some(self.now))?;
                    Retried::Due
                }
                Some(win) => Retried::Final(win.state),
            });
        }
        Ok(self.reply(Ok(retried)))
    }

    pub fn dead_letters(&self, activity: &ActivityId, page: &DeadPage) -> Sql<Vec<FoundWin>> {
        let mut select = self.sql.prepare_cached(
            "SELECT * FROM wins WHERE activity = ?1 AND dead_since_ms IS NOT NULL \
             AND (dead_since_ms, request_id) > (?2, ?3) ORDER BY dead_since_ms, request_id LIMIT ?4",
        )?;
        let (since, id) = page.after.map_or((-1, String::new()), |after| {
            (i64::try_from(after.since.0).unwrap_or(i64::MAX), after.id.to_string())
        });
        let rows = select.query_map((activity.as_str(), since, id, page.limit), rows::win)?;
        rows.map(|row| {
            let (request_id, record) = row?;
            Ok(FoundWin { request_id, record: WinRecord { payload: None, reply: None, ..record } })
        })
        .collect()
    }

    fn update_win(&self, activity: &ActivityId, id: &RequestId, win: &WinRecord, due: Option<StoreMs>) -> Sql<()> {
        let (state, release) = match &win.state {
            WinState::Held => ("held", None),
            WinState::Accepted => ("accepted", None),
            WinState::Released(release) => ("released", Some(release)),
        };
        let mut update = self.sql.prepare_cached(
            "UPDATE wins SET state = ?3, cause = ?4, reason = ?5, tries = ?6, due_at_ms = ?7, payload = ?8, \
             reply = ?9, first_delivery_ms = ?10, last_word = ?11, dead_since_ms = ?12 \
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
            win.first_delivery_at.map(|at| at.0),
            win.last_word.map(LastWord::as_str),
            win.dead_since.map(|at| at.0),
        ))?;
        Ok(())
    }
}
