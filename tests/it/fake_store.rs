//! An admission store that knows just enough for the admin listener: one activity, its snapshot and wins.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use seckill_gate::domain::admission::*;
use seckill_gate::domain::dead_letters::{DeadCursor, DeadPage, Retried, Retry};
use seckill_gate::domain::stock::{Stock, WinUnits};
use seckill_gate::domain::{ActivityId, RequestId, StoreMs, UserId};
use seckill_gate::gate::store::{AdmissionStore, Guarded, StoreError};

#[derive(Default)]
pub struct FakeStore {
    pub state: Mutex<State>,
}

#[derive(Default)]
pub struct State {
    pub snapshot: Option<Snapshot>,
    pub wins: Vec<FoundWin>,
    /// What was asked of store and ledger, in order.
    pub calls: Arc<Mutex<Vec<String>>>,
    pub failing_preheats: usize,
    /// The next preheat finds another run than the poll before it.
    pub replaced: bool,
    pub down: bool,
    /// The server runs under another id than the one that the activity was preheated in.
    pub restarted: bool,
    /// A part of the activity's keys is gone.
    pub incomplete: bool,
}

impl State {
    fn is_whole(&self) -> Result<(), Barred> {
        match (&self.snapshot, self.incomplete) {
            (_, true) => Err(Barred::Fenced),
            (None, _) => Err(Barred::NotPreheated),
            (Some(_), _) => Ok(()),
        }
    }
}

pub fn terms() -> Terms {
    Terms {
        epoch: Epoch(1),
        starts_at: StoreMs(1_000),
        ends_at: StoreMs(u64::MAX / 2),
        per_user_limit: 1,
        rebuy_after_release: true,
        retention: Duration::from_secs(60),
        skus: vec![("phone".parse().unwrap(), 10)],
    }
}

pub fn snapshot(left: i64, held: (u64, i64), accepted: (u64, i64)) -> Snapshot {
    let stock = Stock { total: 10, left, wins: WinUnits { held, accepted, released: (1, 1) }, ..Stock::default() };
    Snapshot { terms: terms(), skus: vec![("phone".parse().unwrap(), stock)], unsettled: held.0, dead: 0 }
}

/// As the fake activity vouches for.
const RUN: &str = "run";

impl FakeStore {
    fn up(&self) -> Result<std::sync::MutexGuard<'_, State>, StoreError> {
        let state = self.state.lock().unwrap();
        if state.down { Err(StoreError::Unavailable("connection refused".into())) } else { Ok(state) }
    }
}

#[async_trait]
impl AdmissionStore for FakeStore {
    async fn preheat(&self, _: &ActivityId, preheat: &Preheat) -> Result<Reply<Preheated>, StoreError> {
        let mut state = self.up()?;
        if state.failing_preheats > 0 {
            state.failing_preheats -= 1;
            return Err(StoreError::Unknown("timeout".into()));
        }
        let run = if std::mem::take(&mut state.replaced) { "another" } else { RUN };
        if *preheat.run_id.0 != *run {
            return Ok(Reply { now: StoreMs(1), outcome: Err(Barred::Suspect) });
        }
        state.calls.lock().unwrap().push("store preheat".into());
        let mut fresh = snapshot(10, (0, 0), (0, 0));
        fresh.terms = preheat.terms.clone();
        state.snapshot = Some(fresh);
        Ok(Reply { now: StoreMs(1), outcome: Ok(Preheated::Created) })
    }
    async fn admit(&self, _: &ActivityId, _: &Batch) -> Result<Reply<Vec<Verdict>>, StoreError> {
        unreachable!()
    }
    async fn settle(&self, _: &ActivityId, _: &Settle) -> Result<Reply<Recorded>, StoreError> {
        unreachable!()
    }
    async fn release(&self, _: &ActivityId, _: &ReleaseWin) -> Result<Reply<Recorded>, StoreError> {
        unreachable!()
    }
    async fn claim_due(&self, _: &ActivityId, _: &ClaimDue) -> Result<Reply<Claimed>, StoreError> {
        unreachable!()
    }
    async fn operate(&self, _: &ActivityId, _: &Operate) -> Result<Reply<Operated>, StoreError> {
        unreachable!()
    }
    async fn retry(&self, _: &ActivityId, _: &Retry) -> Result<Reply<Vec<Retried>>, StoreError> {
        unreachable!()
    }
    async fn poll(&self, _: &ActivityId, poll: &Poll) -> Result<Polled, StoreError> {
        let state = self.up()?;
        let run = RunId(if state.restarted { "another" } else { RUN }.into());
        if state.incomplete {
            return Ok(Polled { now: StoreMs(1), server_run: run, activity: PolledActivity::Incomplete });
        }
        let Some(snapshot) = &state.snapshot else {
            return Ok(Polled { now: StoreMs(1), server_run: run, activity: PolledActivity::NotPreheated });
        };
        // One win per page, so that the pages must be followed.
        let at: usize = poll.after.0.parse().unwrap();
        let entries = state.wins.get(at).map(|win| JournalEntry {
            at: win.record.won_at,
            op: JournalOp::Won {
                request_id: win.request_id,
                key: win.record.key.clone(),
                sku: win.record.sku.clone(),
                qty: win.record.qty,
            },
        });
        let stored = ActivityState {
            terms: snapshot.terms.clone(),
            barred: state.restarted.then_some(Barred::Suspect),
            paused: false,
            stock: snapshot.skus.clone(),
            unsettled: 0,
            dead: 0,
            entries: entries.into_iter().collect(),
            cursor: JournalCursor((at + 1).to_string().into()),
            at_end: at + 1 >= state.wins.len(),
        };
        Ok(Polled { now: StoreMs(1), server_run: run, activity: PolledActivity::Stored(Box::new(stored)) })
    }
    async fn find(&self, _: &ActivityId, ids: &[RequestId]) -> Guarded<Vec<Option<FoundWin>>> {
        let state = self.up()?;
        let known = |id| state.wins.iter().find(|win| win.request_id == id).cloned();
        Ok(state.is_whole().map(|()| ids.iter().map(|id| known(*id)).collect()))
    }
    async fn wins_of(&self, _: &ActivityId, _: &UserId) -> Guarded<Vec<FoundWin>> {
        unreachable!()
    }
    async fn dead_letters(&self, _: &ActivityId, page: &DeadPage) -> Guarded<Vec<FoundWin>> {
        let state = self.up()?;
        if let Err(barred) = state.is_whole() {
            return Ok(Err(barred));
        }
        let place = |win: &FoundWin| Some(DeadCursor { since: win.record.dead_since?, id: win.request_id });
        let mut dead: Vec<FoundWin> = state.wins.iter().filter(|win| place(win) > page.after).cloned().collect();
        dead.sort_by_key(place);
        dead.truncate(page.limit);
        Ok(Ok(dead))
    }
    async fn activities(&self) -> Result<Vec<ActivityId>, StoreError> {
        unreachable!()
    }
    async fn snapshot(&self, _: &ActivityId) -> Result<Option<Snapshot>, StoreError> {
        Ok(self.up()?.snapshot.clone())
    }
}
