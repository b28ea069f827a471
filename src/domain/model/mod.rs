//! The admission store as a pure in-memory model: the oracle that the SQLite store and the Lua scripts must agree with.
//!
//! It is written to be read, not to be fast: every operation of [`super::admission`] in its plainest form.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::admission::{
    ActivityState, Attempt, Barred, Batch, Change, ClaimDue, Claimed, Epoch, Facts, FoundWin, Guard, JournalCursor,
    JournalEntry, JournalOp, Operate, Operated, Poll, Polled, PolledActivity, Preheat, Preheated, Recorded, ReleaseWin,
    Reply, RunId, Settle, Snapshot, Terms, Verdict, WinRecord, judge,
};
use super::dead_letters::{DeadCursor, DeadPage, Retried, Retry};
use super::ids::{ActivityId, GateId, RequestId, SkuId, UserId};
use super::stock::{Stock, WinUnits};
use super::time::StoreMs;
use super::win::WinState;

mod outbox;

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
    /// A poll was answered under another run.
    suspect: bool,
    paused: bool,
    stock: BTreeMap<SkuId, Stock>,
    buyers: HashMap<UserId, Buyer>,
    wins: HashMap<RequestId, WinRecord>,
    /// Deliveries, by when they are due. Ties go by the id's hex digits, as in a Redis sorted set.
    due: BTreeSet<(StoreMs, String)>,
    /// Dead letters, by when they were marked; ties go by the id.
    dead: BTreeSet<DeadCursor>,
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
    pub fn preheat(&mut self, now: StoreMs, activity: &ActivityId, preheat: &Preheat) -> Reply<Preheated> {
        let terms = &preheat.terms;
        if let Some(stored) = self.activities.get(activity) {
            let outcome = if stored.terms == *terms { Preheated::Already } else { Preheated::Differs };
            return Reply { now, outcome: Ok(outcome) };
        }
        if preheat.run_id != self.run_id {
            return Reply { now, outcome: Err(Barred::Suspect) };
        }
        if now > preheat.not_after {
            return Reply { now, outcome: Err(Barred::Late) };
        }
        let stored = Stored {
            terms: terms.clone(),
            run_id: self.run_id.clone(),
            suspect: false,
            paused: false,
            stock: terms.skus.iter().map(|(sku, total)| (sku.clone(), Stock::new(*total))).collect(),
            buyers: HashMap::new(),
            wins: HashMap::new(),
            due: BTreeSet::new(),
            dead: BTreeSet::new(),
            returning: BTreeSet::new(),
            returning_entries: 0,
            journal: vec![JournalEntry { at: now, op: JournalOp::Preheated }],
            gates: HashMap::new(),
        };
        self.activities.insert(activity.clone(), stored);
        Reply { now, outcome: Ok(Preheated::Created) }
    }

    /// Judges a batch, in order.
    pub fn admit(&mut self, now: StoreMs, activity: &ActivityId, batch: &Batch) -> Reply<Vec<Verdict>> {
        let run_id = self.run_id.clone();
        let stored = match self.guarded(now, activity, &batch.guard) {
            Ok(stored) => stored,
            Err(barred) => return Reply { now, outcome: Err(barred) },
        };
        let suspect = stored.is_suspect(&run_id) || batch.guard.run_id != run_id;
        let first_due = now.after(batch.first_delivery_lease);
        let verdicts =
            batch.attempts.iter().map(|attempt| stored.judge_one(attempt, suspect, now, first_due)).collect();
        Reply { now, outcome: Ok(verdicts) }
    }

    /// Records the order service's word.
    pub fn settle(&mut self, now: StoreMs, activity: &ActivityId, settle: &Settle) -> Reply<Recorded> {
        let outcome = self.finishing(now, activity, &settle.guard).map(|stored| stored.settle(now, settle));
        Reply { now, outcome }
    }

    /// Gives a win's units back, once.
    pub fn release(&mut self, now: StoreMs, activity: &ActivityId, release: &ReleaseWin) -> Reply<Recorded> {
        let outcome = self.finishing(now, activity, &release.guard).map(|stored| stored.release(now, release));
        Reply { now, outcome }
    }

    /// Leases overdue deliveries, puts returned units on sale.
    pub fn claim_due(&mut self, now: StoreMs, activity: &ActivityId, claim: &ClaimDue) -> Reply<Claimed> {
        let outcome = self.finishing(now, activity, &claim.guard).map(|stored| stored.claim_due(now, claim));
        Reply { now, outcome }
    }

    /// Makes an operator's change.
    pub fn operate(&mut self, now: StoreMs, activity: &ActivityId, operate: &Operate) -> Reply<Operated> {
        let outcome = self.changeable(now, activity, &operate.guard).map(|stored| stored.operate(now, &operate.change));
        Reply { now, outcome }
    }

    /// Makes wins due now.
    pub fn retry(&mut self, now: StoreMs, activity: &ActivityId, retry: &Retry) -> Reply<Vec<Retried>> {
        let outcome = self.finishing(now, activity, &retry.guard).map(|stored| stored.retry(now, &retry.ids));
        Reply { now, outcome }
    }

    /// One page of the dead letters.
    pub fn dead_letters(&self, activity: &ActivityId, page: &DeadPage) -> Result<Vec<FoundWin>, Barred> {
        let stored = self.stored(activity)?;
        let after = stored.dead.iter().filter(|cursor| page.after.is_none_or(|after| **cursor > after));
        let listed = |found: FoundWin| FoundWin { record: WinRecord { reply: None, ..found.record }, ..found };
        Ok(after.take(page.limit).filter_map(|cursor| stored.found(&cursor.id).map(listed)).collect())
    }

    /// Tells how the activity stands.
    pub fn poll(&mut self, now: StoreMs, activity: &ActivityId, poll: &Poll) -> Polled {
        let server_run = self.run_id.clone();
        let Some(stored) = self.activities.get_mut(activity) else {
            return Polled { now, server_run, activity: PolledActivity::NotPreheated };
        };
        stored.suspect = stored.is_suspect(&server_run);
        if let Some(gate) = &poll.gate {
            stored.gates.insert(gate.clone(), (now, poll.vouched.clone()));
        }
        let from = poll.after.0.parse().unwrap_or(0).min(stored.journal.len());
        let to = stored.journal.len().min(from.saturating_add(poll.max_entries));
        let state = ActivityState {
            terms: stored.present_terms(),
            barred: stored.suspect.then_some(Barred::Suspect),
            paused: stored.paused,
            stock: stored.stock_in_order(),
            unsettled: stored.due.len() as u64,
            dead: stored.dead.len() as u64,
            entries: stored.journal[from..to].to_vec(),
            cursor: JournalCursor(to.to_string().into()),
            at_end: to == stored.journal.len(),
        };
        Polled { now, server_run, activity: PolledActivity::Stored(Box::new(state)) }
    }

    /// Looks wins up.
    pub fn find(&self, activity: &ActivityId, ids: &[RequestId]) -> Result<Vec<Option<FoundWin>>, Barred> {
        let stored = self.stored(activity)?;
        Ok(ids.iter().map(|id| stored.found(id)).collect())
    }

    /// All wins of one user, oldest first.
    pub fn wins_of(&self, activity: &ActivityId, user: &UserId) -> Result<Vec<FoundWin>, Barred> {
        let stored = self.stored(activity)?;
        let buyer = stored.buyers.get(user).into_iter();
        Ok(buyer.flat_map(|buyer| &buyer.wins).filter_map(|id| stored.found(id)).collect())
    }

    /// One picture for audits.
    pub fn snapshot(&self, activity: &ActivityId) -> Option<Snapshot> {
        let stored = self.activities.get(activity)?;
        Some(Snapshot {
            terms: stored.present_terms(),
            skus: stored.stock_in_order(),
            unsettled: stored.due.len() as u64,
            dead: stored.dead.len() as u64,
        })
    }

    /// There to be looked into. The model loses nothing, so it is never incomplete.
    fn stored(&self, activity: &ActivityId) -> Result<&Stored, Barred> {
        self.activities.get(activity).ok_or(Barred::NotPreheated)
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

    /// Guarded, and the caller knows which run it speaks to. The order service's word is recorded while the store is
    /// suspect too: it is repeated, and brings told wins to their end.
    fn finishing(&mut self, now: StoreMs, activity: &ActivityId, guard: &Guard) -> Result<&mut Stored, Barred> {
        let run_id = self.run_id.clone();
        let stored = self.guarded(now, activity, guard)?;
        if guard.run_id == run_id { Ok(stored) } else { Err(Barred::Suspect) }
    }

    /// Guarded, and the run is the one stored and vouched for.
    fn changeable(&mut self, now: StoreMs, activity: &ActivityId, guard: &Guard) -> Result<&mut Stored, Barred> {
        let run_id = self.run_id.clone();
        let stored = self.guarded(now, activity, guard)?;
        if stored.is_suspect(&run_id) || guard.run_id != run_id {
            return Err(Barred::Suspect);
        }
        Ok(stored)
    }
}

impl Stored {
    /// A run that comes back does not lift a suspicion.
    fn is_suspect(&self, run_id: &RunId) -> bool {
        self.suspect || self.run_id != *run_id
    }

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

    /// The sums of wins are counted here, from the wins: so the stores' running sums are checked against something.
    fn stock_in_order(&self) -> Vec<(SkuId, Stock)> {
        let mut sums: HashMap<&SkuId, WinUnits> = HashMap::new();
        for win in self.wins.values() {
            sums.entry(&win.sku).or_default().record(None, &win.state, i64::from(win.qty));
        }
        let stock = |sku| Stock {
            wins: sums.get(sku).copied().unwrap_or_default(),
            ..self.stock.get(sku).copied().unwrap_or_default()
        };
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
            first_delivery_at: None,
            last_word: None,
            dead_since: None,
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
