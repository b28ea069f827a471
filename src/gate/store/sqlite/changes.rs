//! Changes of stock outside of winning: units that come back, and an operator's changes.

use std::time::Duration;

use super::rows::{self, ActivityRow};
use super::transaction::{Sql, Tx};
use crate::domain::admission::{Change, JournalOp, Operate, Operated, Reply};
use crate::domain::stock::Stock;
use crate::domain::{ActivityId, SkuId};

impl Tx<'_> {
    pub fn operate(&self, activity: &ActivityId, operate: &Operate) -> Sql<Reply<Operated>> {
        let stored = match self.changeable(activity, &operate.guard)? {
            Ok(stored) => stored,
            Err(barred) => return Ok(self.reply(Err(barred))),
        };
        let outcome = match &operate.change {
            Change::Pause => self.set_paused(activity, &stored, true)?,
            Change::Resume => self.set_paused(activity, &stored, false)?,
            Change::StopSku(sku) => self.set_stopped(activity, sku, true)?,
            Change::StartSku(sku) => self.set_stopped(activity, sku, false)?,
            Change::SetTotal { sku, from, to, returning_delay } => {
                self.set_total(activity, sku, *from, *to, *returning_delay)?
            }
        };
        Ok(self.reply(Ok(outcome)))
    }

    /// Puts units on their way to `left`.
    pub(super) fn give_back(
        &self,
        activity: &ActivityId,
        sku: &SkuId,
        stock: &mut Stock,
        units: i64,
        delay: Duration,
    ) -> Sql<()> {
        stock.returning += units;
        self.write_stock(activity, sku, stock)?;
        let n: u64 = self
            .sql
            .prepare_cached(
                "UPDATE activities SET returning_seq = returning_seq + 1 WHERE activity = ?1 RETURNING returning_seq",
            )?
            .query_row([activity.as_str()], |row| row.get(0))?;
        self.sql
            .prepare_cached(
                "INSERT INTO returning_units (activity, on_sale_ms, member, sku, units) VALUES (?1, ?2, ?3, ?4, ?5)",
            )?
            .execute((activity.as_str(), self.now.after(delay).0, format!("{sku} {units} {n}"), sku.as_str(), units))?;
        Ok(())
    }

    /// Store and ledger disagree about this SKU: stop it; units first pay off what is below zero.
    pub(super) fn keep_back(&self, activity: &ActivityId, sku: &SkuId, stock: &mut Stock, units: i64) -> Sql<()> {
        let debt = (-stock.left).clamp(0, units);
        stock.left += debt;
        stock.withheld += units - debt;
        if !stock.stopped {
            stock.stopped = true;
            rows::note(self.sql, activity, self.now, &JournalOp::Stopped { sku: sku.clone(), stopped: true })?;
        }
        self.write_stock(activity, sku, stock)
    }

    fn set_total(&self, activity: &ActivityId, sku: &SkuId, from: i64, to: i64, delay: Duration) -> Sql<Operated> {
        let Some(mut stock) = self.stock_of(activity, sku)? else { return Ok(Operated::NoSuchSku) };
        if stock.total == to {
            return Ok(Operated::Already);
        }
        if stock.total != from {
            return Ok(Operated::TotalIs(stock.total));
        }
        let delta = to - from;
        if delta < 0 && stock.left < -delta {
            return Ok(Operated::OnlyLeft(stock.left));
        }
        stock.total = to;
        if delta < 0 {
            stock.left += delta;
            self.write_stock(activity, sku, &stock)?;
        } else {
            self.give_back(activity, sku, &mut stock, delta, delay)?;
        }
        rows::note(self.sql, activity, self.now, &JournalOp::Total { sku: sku.clone(), delta })?;
        Ok(Operated::Applied)
    }

    fn set_paused(&self, activity: &ActivityId, stored: &ActivityRow, paused: bool) -> Sql<Operated> {
        if stored.paused == paused {
            return Ok(Operated::Already);
        }
        self.sql.execute("UPDATE activities SET paused = ?2 WHERE activity = ?1", (activity.as_str(), paused))?;
        rows::note(self.sql, activity, self.now, &JournalOp::Paused(paused))?;
        Ok(Operated::Applied)
    }

    fn set_stopped(&self, activity: &ActivityId, sku: &SkuId, stopped: bool) -> Sql<Operated> {
        let Some(mut stock) = self.stock_of(activity, sku)? else { return Ok(Operated::NoSuchSku) };
        if stock.stopped == stopped {
            return Ok(Operated::Already);
        }
        if !stopped && stock.left < 0 {
            return Ok(Operated::BelowZero);
        }
        stock.stopped = stopped;
        self.write_stock(activity, sku, &stock)?;
        rows::note(self.sql, activity, self.now, &JournalOp::Stopped { sku: sku.clone(), stopped })?;
        Ok(Operated::Applied)
    }
}
