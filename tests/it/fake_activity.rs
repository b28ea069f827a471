//! One activity in memory, behind the traits that delivery and admin ask for: keeps wins by the domain's own table.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use seckill_gate::domain::admission::{
    Barred, Change, Claimed, DueWin, Epoch, KnownWin, Operated, Recorded, RunId, Settlement,
};
use seckill_gate::domain::dead_letters::Retried;
use seckill_gate::domain::win::{Release, Step, WinEvent, WinState, transition};
use seckill_gate::domain::{ActivityId, IdempotencyKey, RequestId, SkuId, StoreMs, UserId};
use seckill_gate::gate::activity::{Phase, View};
use seckill_gate::gate::admin::world::Operable;
use seckill_gate::gate::delivery::outbox::{Guarded, Outbox};
use seckill_gate::gate::store::StoreError;

/// What was recorded for one win, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Noted {
    Queued,
    Booked,
    Unknown,
    Released(&'static str, String, bool),
}

pub struct FakeActivity {
    id: ActivityId,
    view: View,
    pub state: Mutex<State>,
    /// Whoever writes it holds every change up, just before it is made.
    pub hold: tokio::sync::RwLock<()>,
}

#[derive(Default)]
pub struct State {
    pub due: Vec<DueWin>,
    pub wins: BTreeMap<RequestId, KnownWin>,
    pub noted: Vec<(RequestId, Noted)>,
    pub changes: Vec<Change>,
    pub retried: Vec<RequestId>,
    pub operated: Option<Operated>,
    pub store_lost: bool,
    /// The gate has not seen the activity preheated.
    pub unseen: bool,
    pub barred: Option<Barred>,
    /// What the gate has seen of it, and the run that it has followed since, if not the first.
    pub seen: Option<Barred>,
    pub follows: Option<&'static str>,
    pub claims: usize,
    /// Shared with other fakes, so that the order among them shows.
    pub calls: Arc<Mutex<Vec<String>>>,
}

pub fn view() -> View {
    View {
        reached: true,
        vouched: Some((Epoch(1), RunId("run".into()))),
        starts_at: StoreMs(1_000),
        ends_at: StoreMs(u64::MAX / 2),
        per_user_limit: 1,
        retention: Duration::from_secs(60),
        stock: vec![("phone".parse().unwrap(), seckill_gate::domain::stock::Stock::new(10))],
        barred: None,
        paused: false,
        unsettled: 0,
        dead: 0,
        oldest_unsettled: None,
        winners_known_at: None,
        sold_out_lease_until: None,
    }
}

impl FakeActivity {
    pub fn new() -> Arc<FakeActivity> {
        FakeActivity::named("sale")
    }

    pub fn named(id: &str) -> Arc<FakeActivity> {
        Arc::new(FakeActivity {
            id: id.parse().unwrap(),
            view: view(),
            state: Mutex::default(),
            hold: Default::default(),
        })
    }

    /// A fresh win of this user, held.
    pub fn win(&self, user: &str, payload: &'static [u8]) -> DueWin {
        let user = UserId::new(user).unwrap();
        let request_id = RequestId::derive(&self.id, &user, &IdempotencyKey::new("k").unwrap());
        let sku = SkuId::new("phone").unwrap();
        let won_at = StoreMs(2_000);
        self.state.lock().unwrap().wins.insert(request_id, KnownWin { state: WinState::Held, won_at, reply: None });
        DueWin { request_id, user, sku, qty: 1, won_at, tries: 0, payload: Bytes::from_static(payload) }
    }

    /// What was recorded for a win so far.
    pub fn noted(&self, id: RequestId) -> Vec<Noted> {
        let state = self.state.lock().unwrap();
        state.noted.iter().filter(|(of, _)| *of == id).map(|(_, noted)| noted.clone()).collect()
    }

    fn record(
        &self,
        id: RequestId,
        noted: Noted,
        event: WinEvent,
        to: WinState,
        reply: Option<Bytes>,
    ) -> Guarded<Recorded> {
        let mut state = self.state.lock().unwrap();
        if state.store_lost {
            return Err(StoreError::Unknown("timeout".into()));
        }
        if let Some(barred) = state.barred {
            return Ok(Err(barred));
        }
        state.noted.push((id, noted));
        let Some(win) = state.wins.get_mut(&id) else { return Ok(Ok(Recorded::UnknownWin)) };
        let step = transition(&win.state, event);
        if matches!(step, Step::Accept | Step::Release) {
            win.state = to;
        }
        if reply.is_some() && matches!(step, Step::Accept) {
            win.reply = reply;
        }
        let known = win.clone();
        Ok(Ok(match step {
            Step::Conflict => Recorded::Conflict(known),
            Step::Recorded => Recorded::Already(known),
            _ => Recorded::Applied(known),
        }))
    }
}

#[async_trait]
impl Outbox for FakeActivity {
    fn id(&self) -> &ActivityId {
        &self.id
    }
    fn view(&self) -> Arc<View> {
        let state = self.state.lock().unwrap();
        let mut view = View { barred: state.seen, ..self.view.clone() };
        if let (Some(run), Some((_, vouched))) = (state.follows, &mut view.vouched) {
            *vouched = RunId(run.into());
        }
        if state.unseen {
            (view.vouched, view.barred) = (None, Some(Barred::NotPreheated));
        }
        Arc::new(view)
    }
    async fn settle(&self, id: RequestId, settlement: Settlement) -> Guarded<Recorded> {
        match settlement {
            Settlement::Queued { reply } => {
                self.record(id, Noted::Queued, WinEvent::Queued, WinState::Held, Some(reply))
            }
            Settlement::Booked { reply } => {
                self.record(id, Noted::Booked, WinEvent::Booked, WinState::Accepted, Some(reply))
            }
            Settlement::Unknown => self.record(id, Noted::Unknown, WinEvent::Unknown, WinState::Held, None),
        }
    }
    async fn release(&self, id: RequestId, release: Release) -> Guarded<Recorded> {
        let _go = self.hold.read().await;
        let short = release.ledger_was_short();
        let noted = Noted::Released(release.cause.as_str(), release.reason.to_string(), short);
        self.record(id, noted, WinEvent::Ended(release.cause), WinState::Released(release), None)
    }
    async fn claim_due(&self, limit: usize, _lease: Duration, _: bool) -> Guarded<Claimed> {
        let mut state = self.state.lock().unwrap();
        state.claims += 1;
        let count = limit.min(state.due.len());
        Ok(Ok(Claimed { wins: state.due.drain(..count).collect(), ..Claimed::default() }))
    }
}

#[async_trait]
impl Operable for FakeActivity {
    fn phase(&self, _now: StoreMs) -> Phase {
        Phase::Open
    }
    async fn poll_now(&self) {}
    async fn operate(&self, change: Change) -> Guarded<Operated> {
        let _go = self.hold.read().await;
        let mut state = self.state.lock().unwrap();
        state.changes.push(change);
        state.calls.lock().unwrap().push("store change".into());
        Ok(Ok(state.operated.clone().unwrap_or(Operated::Applied)))
    }
    async fn retry(&self, ids: &[RequestId]) -> Guarded<Vec<Retried>> {
        let _go = self.hold.read().await;
        let mut state = self.state.lock().unwrap();
        state.retried.extend(ids);
        Ok(Ok(ids.iter().map(|_| Retried::Due).collect()))
    }
}
