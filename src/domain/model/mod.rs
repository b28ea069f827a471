//! The admission store as a pure in-memory model: the oracle that the SQLite store and the Lua scripts must agree with.
//!
//! It is written to be read, not to be fast: every operation of [`super::admission`] in its plainest form.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::admission::{
    ActivityState, Attempt, Barred, Batch, Change, ClaimDue, Claimed, DueWin, Epoch, Facts, FoundWin, Guard,
    JournalCursor, JournalEntry, JournalOp, Operate, Operated, Poll, Polled, PolledActivity, Preheated, Recorded,
    ReleaseWin, Reply, RunId, Settle, Settlement, Snapshot, Terms, Verdict, WinRecord, WinUnits, judge,
};
use super::ids::{ActivityId, GateId, RequestId, SkuId, UserId};
use super::stock::Stock;
use super::time::StoreMs;
use super::win::{Step, WinEvent, WinState, transition};

/// One store server with its activities.
#[derive(Debug, Clone)]
pub struct Model {
    run_id: RunId,
    activities: HashMap<ActivityId, Stored>,
}

/// One activity, as the store keeps it.
#[derive(Debug, Clone)]
struct Stored {
    terms: Terms,
    run_id: RunId,
    paused: bool,
    stock: BTreeMap<SkuId, Stock>,
    buyers: HashMap<UserId, Buyer>,
    wins: HashMap<RequestId, WinRecord>,
    /// Deliveries, by when they are due. Ties go by the id's hex digits, as in a Redis sorted set.
    due: BTreeSet<(StoreMs, String)>,
    /// Units on their way back: when, which entry (its text is a Redis member), how many of what.
    returning: BTreeSet<(StoreMs, String, SkuId, i64)>,
    returning_entries: u64,
    journal: Vec<JournalEntry>,
    gates: HashMap<GateId, (StoreMs, Option<(Epoch, RunId)>)>,
}

#[derive(Debug, Clone, Default)]
struct Buyer {
    units: u32,
    wins: Vec<RequestId>,
}

impl Model {
    /// An empty store whose server runs as `run_id`.
    pub fn new(run_id: RunId) -> Model {
        Model { run_id, activities: HashMap::new() }
    }

    /// The server restarts with its data intact.
    pub fn restart(&mut self, run_id: RunId) {
        self.run_id = run_id;
    }

    /// Creates an activity if there is none.
    pub fn preheat(&mut self, now: StoreMs, activity: &ActivityId, terms: &Terms) -> Preheated {
        if let Some(stored) = self.activities.get(activity) {
            return if stored.terms == *terms { Preheated::Already } else { Preheated::Differs };
        }
        let stored = Stored {
            terms: terms.clone(),
            run_id: self.run_id.clone(),
            paused: false,
            stock: terms.skus.iter().map(|(sku, total)| (sku.clone(), Stock::new(*total))).collect(),
            buyers: HashMap::new(),
            wins: HashMap::new(),
            due: BTreeSet::new(),
            returning: BTreeSet::new(),
            returning_entries: 0,
            journal: vec![JournalEntry { at: now, op: JournalOp::Preheated }],
            gates: HashMap::new(),
        };
        self.activities.insert(activity.clone(), stored);
        Preheated::Created
    }

    /// Judges a batch, in order.
    pub fn admit(&mut self, now: StoreMs, activity: &ActivityId, batch: &Batch) -> Reply<Vec<Verdict>> {
        let run_id = self.run_id.clone();
        let stored = match self.guarded(now, activity, &batch.guard) {
            Ok(stored) => stored,
            Err(barred) => return Reply { now, outcome: Err(barred) },
        };
        let suspect = stored.run_id != run_id || batch.guard.run_id != run_id;
        let first_due = now.after(batch.first_delivery_lease);
        let verdicts =
            batch.attempts.iter().map(|attempt| stored.judge_one(attempt, suspect, now, first_due)).collect();
        Reply { now, outcome: Ok(verdicts) }
    }

    /// Records the order service's word.
    pub fn settle(&mut self, now: StoreMs, activity: &ActivityId, settle: &Settle) -> Reply<Recorded> {
        let outcome = self.changeable(now, activity, &settle.guard).map(|stored| stored.settle(now, settle));
        Reply { now, outcome }
    }

    /// Gives a win's units back, once.
    pub fn release(&mut self, now: StoreMs, activity: &ActivityId, release: &ReleaseWin) -> Reply<Recorded> {
        let outcome = self.changeable(now, activity, &release.guard).map(|stored| stored.release(now, release));
        Reply { now, outcome }
    }

    /// Leases overdue deliveries, puts returned units on sale.
    pub fn claim_due(&mut self, now: StoreMs, activity: &ActivityId, claim: &ClaimDue) -> Reply<Claimed> {
        let outcome = self.changeable(now, activity, &claim.guard).map(|stored| stored.claim_due(now, claim));
        Reply { now, outcome }
    }

    /// Makes an operator's change.
    pub fn operate(&mut self, now: StoreMs, activity: &ActivityId, operate: &Operate) -> Reply<Operated> {
        let outcome = self.changeable(now, activity, &operate.guard).map(|stored| stored.operate(now, &operate.change));
        Reply { now, outcome }
    }

    /// Tells how the activity stands.
    pub fn poll(&mut self, now: StoreMs, activity: &ActivityId, poll: &Poll) -> Polled {
        let server_run = self.run_id.clone();
        let Some(stored) = self.activities.get_mut(activity) else {
            return Polled { now, server_run, activity: PolledActivity::NotPreheated };
        };
        if let Some(gate) = &poll.gate {
            stored.gates.insert(gate.clone(), (now, poll.vouched.clone()));
        }
        let from = poll.after.0.parse().unwrap_or(0).min(stored.journal.len());
        let to = stored.journal.len().min(from.saturating_add(poll.max_entries));
        let state = ActivityState {
            terms: stored.present_terms(),
            run_id: stored.run_id.clone(),
            paused: stored.paused,
            stock: stored.stock_in_order(),
            unsettled: stored.due.len() as u64,
            entries: stored.journal[from..to].to_vec(),
            cursor: JournalCursor(to.to_string().into()),
            at_end: to == stored.journal.len(),
        };
        Polled { now, server_run, activity: PolledActivity::Stored(Box::new(state)) }
    }

    /// Looks wins up.
    pub fn find(&self, activity: &ActivityId, ids: &[RequestId]) -> Vec<Option<FoundWin>> {
        let stored = self.activities.get(activity);
        ids.iter().map(|id| stored.and_then(|stored| stored.found(id))).collect()
    }

    /// All wins of one user, oldest first.
    pub fn wins_of(&self, activity: &ActivityId, user: &UserId) -> Vec<FoundWin> {
        let Some(stored) = self.activities.get(activity) else { return Vec::new() };
        let Some(buyer) = stored.buyers.get(user) else { return Vec::new() };
        buyer.wins.iter().filter_map(|id| stored.found(id)).collect()
    }

    /// One picture for audits.
    pub fn snapshot(&self, activity: &ActivityId) -> Option<Snapshot> {
        let stored = self.activities.get(activity)?;
        let mut units: BTreeMap<&SkuId, WinUnits> = BTreeMap::new();
        for win in stored.wins.values() {
            let units = units.entry(&win.sku).or_default();
            let (wins, sum) = match win.state {
                WinState::Held => &mut units.held,
                WinState::Accepted => &mut units.accepted,
                WinState::Released(_) => &mut units.released,
            };
            *wins += 1;
            *sum += i64::from(win.qty);
        }
        let skus = stored.stock_in_order().into_iter().map(|(sku, stock)| {
            let units = units.get(&sku).copied().unwrap_or_default();
            (sku, stock, units)
        });
        let mut users_above_limit: Vec<(UserId, u32)> = stored
            .buyers
            .iter()
            .filter(|(_, buyer)| buyer.units > stored.terms.per_user_limit)
            .map(|(user, buyer)| (user.clone(), buyer.units))
            .collect();
        users_above_limit.sort();
        users_above_limit.truncate(100);
        Some(Snapshot {
            skus: skus.collect(),
            terms: stored.present_terms(),
            users_above_limit,
            unsettled: stored.due.len() as u64,
        })
    }

    /// Present and of the caller's epoch, in time. The run is judged by the caller.
    fn guarded(&mut self, now: StoreMs, activity: &ActivityId, guard: &Guard) -> Result<&mut Stored, Barred> {
        let stored = self.activities.get_mut(activity).ok_or(Barred::NotPreheated)?;
        if stored.terms.epoch != guard.epoch {
            return Err(Barred::Fenced);
        }
        if now > guard.not_after {
            return Err(Barred::Late);
        }
        Ok(stored)
    }

    /// Guarded, and the run is the one stored and vouched for.
    fn changeable(&mut self, now: StoreMs, activity: &ActivityId, guard: &Guard) -> Result<&mut Stored, Barred> {
        let run_id = self.run_id.clone();
        let stored = self.guarded(now, activity, guard)?;
        if stored.run_id != run_id || guard.run_id != run_id {
            return Err(Barred::Suspect);
        }
        Ok(stored)
    }
}

impl Stored {
    fn note(&mut self, at: StoreMs, op: JournalOp) {
        self.journal.push(JournalEntry { at, op });
    }

    fn present_terms(&self) -> Terms {
        let skus = self.terms.skus.iter().map(|(sku, total)| {
            let total = self.stock.get(sku).map_or(*total, |stock| stock.total);
            (sku.clone(), total)
        });
        Terms { skus: skus.collect(), ..self.terms.clone() }
    }

    fn stock_in_order(&self) -> Vec<(SkuId, Stock)> {
        let stock = |sku| self.stock.get(sku).copied().unwrap_or_default();
        self.terms.skus.iter().map(|(sku, _)| (sku.clone(), stock(sku))).collect()
    }

    fn found(&self, id: &RequestId) -> Option<FoundWin> {
        let record = self.wins.get(id)?;
        Some(FoundWin { request_id: *id, record: WinRecord { payload: None, ..record.clone() } })
    }

    fn judge_one(&mut self, attempt: &Attempt, suspect: bool, now: StoreMs, first_due: StoreMs) -> Verdict {
        let facts = Facts {
            known: self.wins.get(&attempt.request_id),
            paused: self.paused,
            suspect,
            terms: &self.terms,
            stock: self.stock.get(&attempt.sku),
            user_units: self.buyers.get(&attempt.user).map_or(0, |buyer| buyer.units),
        };
        let verdict = judge(attempt, facts, now);
        if verdict == Verdict::Won {
            self.win(attempt, now, first_due);
        }
        verdict
    }

    fn win(&mut self, attempt: &Attempt, now: StoreMs, first_due: StoreMs) {
        if let Some(stock) = self.stock.get_mut(&attempt.sku) {
            stock.left -= i64::from(attempt.qty);
        }
        let buyer = self.buyers.entry(attempt.user.clone()).or_default();
        buyer.units += attempt.qty;
        buyer.wins.push(attempt.request_id);
        let record = WinRecord {
            user: attempt.user.clone(),
            key: attempt.key.clone(),
            sku: attempt.sku.clone(),
            qty: attempt.qty,
            fingerprint: attempt.fingerprint,
            won_at: now,
            state: WinState::Held,
            tries: 0,
            payload: Some(attempt.payload.clone()),
            reply: None,
        };
        self.wins.insert(attempt.request_id, record);
        self.due.insert((first_due, attempt.request_id.to_string()));
        self.note(
            now,
            JournalOp::Won {
                request_id: attempt.request_id,
                key: attempt.key.clone(),
                sku: attempt.sku.clone(),
                qty: attempt.qty,
            },
        );
    }

    fn undue(&mut self, id: &RequestId) {
        let member = id.to_string();
        self.due.retain(|(_, other)| *other != member);
    }

    fn settle(&mut self, now: StoreMs, settle: &Settle) -> Recorded {
        let id = settle.request_id;
        let Some(win) = self.wins.get_mut(&id) else { return Recorded::UnknownWin };
        let event = match settle.settlement {
            Settlement::Queued { .. } => WinEvent::Queued,
            Settlement::Booked { .. } => WinEvent::Booked,
            Settlement::Unknown => WinEvent::Unknown,
        };
        let step = transition(&win.state, event);
        match (&settle.settlement, step) {
            (Settlement::Booked { reply }, Step::Accept) => {
                win.state = WinState::Accepted;
                win.reply = Some(reply.clone());
                win.payload = None;
                let known = win.known();
                self.undue(&id);
                self.note(now, JournalOp::Booked { request_id: id });
                Recorded::Applied(known)
            }
            (settlement, Step::KeepReplyAndRetry | Step::Retry) => {
                if let Settlement::Queued { reply } = settlement {
                    win.reply.get_or_insert_with(|| reply.clone());
                }
                let due = now.after(settle.backoff.pause(win.tries));
                win.tries += 1;
                let known = win.known();
                self.undue(&id);
                self.due.insert((due, id.to_string()));
                Recorded::Applied(known)
            }
            (_, Step::Conflict) => Recorded::Conflict(win.known()),
            _ => Recorded::Already(win.known()),
        }
    }

    fn release(&mut self, now: StoreMs, release: &ReleaseWin) -> Recorded {
        let id = release.request_id;
        let Some(win) = self.wins.get_mut(&id) else { return Recorded::UnknownWin };
        match transition(&win.state, WinEvent::Ended(release.release.cause)) {
            Step::Release => {}
            Step::Conflict => return Recorded::Conflict(win.known()),
            _ => return Recorded::Already(win.known()),
        }
        win.state = WinState::Released(release.release.clone());
        win.payload = None;
        let (known, user, sku, qty) = (win.known(), win.user.clone(), win.sku.clone(), win.qty);
        let units = i64::from(qty);
        self.undue(&id);
        if self.terms.rebuy_after_release
            && let Some(buyer) = self.buyers.get_mut(&user)
        {
            buyer.units = buyer.units.saturating_sub(qty);
        }
        self.note(now, JournalOp::Released { request_id: id, sku: sku.clone(), qty });
        if release.ledger_short {
            self.keep_back(now, &sku, units);
        } else {
            self.give_back(now.after(release.returning_delay), &sku, units);
        }
        Recorded::Applied(known)
    }

    /// Puts units on their way to `left`.
    fn give_back(&mut self, on_sale_at: StoreMs, sku: &SkuId, units: i64) {
        if let Some(stock) = self.stock.get_mut(sku) {
            stock.returning += units;
        }
        self.returning_entries += 1;
        let member = format!("{sku} {units} {}", self.returning_entries);
        self.returning.insert((on_sale_at, member, sku.clone(), units));
    }

    /// Store and ledger disagree about this SKU: stop it; units first pay off what is below zero.
    fn keep_back(&mut self, now: StoreMs, sku: &SkuId, units: i64) {
        let Some(stock) = self.stock.get_mut(sku) else { return };
        let debt = (-stock.left).clamp(0, units);
        stock.left += debt;
        stock.withheld += units - debt;
        if !stock.stopped {
            stock.stopped = true;
            self.note(now, JournalOp::Stopped { sku: sku.clone(), stopped: true });
        }
    }

    fn claim_due(&mut self, now: StoreMs, claim: &ClaimDue) -> Claimed {
        let mut claimed = Claimed::default();
        let back: Vec<_> = self.returning.iter().take_while(|(at, ..)| *at <= now).cloned().collect();
        for entry in back {
            self.returning.remove(&entry);
            let (_, _, sku, qty) = entry;
            if let Some(stock) = self.stock.get_mut(&sku) {
                stock.returning -= qty;
                stock.left += qty;
            }
            self.note(now, JournalOp::OnSale { sku: sku.clone(), qty });
            claimed.on_sale.push((sku, qty));
        }
        let due: Vec<_> = self.due.iter().take_while(|(at, _)| *at <= now).take(claim.limit).cloned().collect();
        for entry in due {
            self.due.remove(&entry);
            let (_, member) = entry;
            let Ok(request_id) = member.parse::<RequestId>() else { continue };
            self.due.insert((now.after(claim.lease), member));
            let Some(win) = self.wins.get(&request_id) else { continue };
            claimed.wins.push(DueWin {
                request_id,
                user: win.user.clone(),
                sku: win.sku.clone(),
                qty: win.qty,
                won_at: win.won_at,
                tries: win.tries,
                payload: win.payload.clone().unwrap_or_default(),
            });
        }
        claimed
    }

    fn operate(&mut self, now: StoreMs, change: &Change) -> Operated {
        match change {
            Change::Pause => self.set_paused(now, true),
            Change::Resume => self.set_paused(now, false),
            Change::StopSku(sku) => self.set_stopped(now, sku, true),
            Change::StartSku(sku) => self.set_stopped(now, sku, false),
            Change::SetTotal { sku, from, to, returning_delay } => {
                let Some(stock) = self.stock.get_mut(sku) else { return Operated::NoSuchSku };
                if stock.total == *to {
                    return Operated::Already;
                }
                if stock.total != *from {
                    return Operated::TotalIs(stock.total);
                }
                let delta = to - from;
                if delta < 0 && stock.left < -delta {
                    return Operated::OnlyLeft(stock.left);
                }
                stock.total = *to;
                if delta < 0 {
                    stock.left += delta;
                } else {
                    self.give_back(now.after(*returning_delay), sku, delta);
                }
                self.note(now, JournalOp::Total { sku: sku.clone(), delta });
                Operated::Applied
            }
        }
    }

    fn set_paused(&mut self, now: StoreMs, paused: bool) -> Operated {
        if self.paused == paused {
            return Operated::Already;
        }
        self.paused = paused;
        self.note(now, JournalOp::Paused(paused));
        Operated::Applied
    }

    fn set_stopped(&mut self, now: StoreMs, sku: &SkuId, stopped: bool) -> Operated {
        let Some(stock) = self.stock.get_mut(sku) else { return Operated::NoSuchSku };
        if stock.stopped == stopped {
            return Operated::Already;
        }
        if !stopped && stock.left < 0 {
            return Operated::BelowZero;
        }
        stock.stopped = stopped;
        self.note(now, JournalOp::Stopped { sku: sku.clone(), stopped });
        Operated::Applied
    }
}

#[cfg(test)]
mod tests;
