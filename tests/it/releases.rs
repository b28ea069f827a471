//! Releases that are repeated and reordered, among bookings: each win's units come back once, and stock adds up.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use seckill_gate::domain::admission::*;
use seckill_gate::domain::backoff::Backoff;
use seckill_gate::domain::dead_letters::DeadLetterPolicy;
use seckill_gate::domain::win::{Cause, Reason, Release, WinState};
use seckill_gate::domain::{ActivityId, Fingerprint, IdempotencyKey, RequestId, SkuId, StoreMs, UserId};
use seckill_gate::gate::store::AdmissionStore;
use seckill_gate::gate::store::sqlite::SqliteStore;
use seckill_gate::platform::clock::wall_ms;

use crate::edge::world::booked;
use crate::harness::redis::Redis;
use crate::harness::store::{look, preheat};
use crate::leases::{self, FAR_OFF, PATIENCE, patient};

const WINS: u32 = 48;

/// One thing that may happen to a win.
#[derive(Debug, Clone)]
enum Event {
    Release(Cause),
    Settle(Settlement),
}

/// Every event for every win, in any order; an even win only ever hears refusals, so that `booked` may come first.
fn events(random: &mut StdRng) -> Vec<(u32, Event)> {
    let booked = || Settlement::Booked { reply: booked().encode() };
    let mut events = Vec::new();
    for win in 0..WINS {
        for _ in 0..10 {
            let causes: &[Cause] = if win % 2 == 0 { &[Cause::Refused] } else { &Cause::ALL };
            events.push((win, Event::Release(causes[random.random_range(0..causes.len())])));
        }
        let queued = Settlement::Queued { reply: Bytes::from_static(b"202") };
        events.extend([booked(), booked(), Settlement::Unknown, queued].map(|said| (win, Event::Settle(said))));
    }
    events.shuffle(random);
    events
}

/// What came of it all.
async fn storm(store: Arc<dyn AdmissionStore>, activity: &str, seed: u64) {
    let activity: ActivityId = activity.parse().unwrap();
    let sku: SkuId = "phone".parse().unwrap();
    let total = i64::from(WINS) + 2;
    let terms = Terms { skus: vec![(sku.clone(), total)], ..leases::terms(&[], &activity) };
    let (run_id, preheated) = preheat(store.as_ref(), &activity, &terms).await;
    assert_eq!(preheated, Preheated::Created);
    let guard = Guard { epoch: Epoch(1), run_id, not_after: FAR_OFF };
    let attempts: Vec<Attempt> = (0..WINS).map(|n| attempt(&activity, &sku, n)).collect();
    let ids: Vec<RequestId> = attempts.iter().map(|attempt| attempt.request_id).collect();
    let batch = Batch { guard: guard.clone(), first_delivery_lease: Duration::from_secs(60), attempts };
    let verdicts = store.admit(&activity, &batch).await.unwrap().outcome.unwrap();
    assert!(verdicts.iter().all(|verdict| *verdict == Verdict::Won), "{verdicts:?}");

    let mut random = StdRng::seed_from_u64(seed);
    let mut applied = vec![0; WINS as usize];
    for tell_released_again in [false, true] {
        let tasks = events(&mut random).into_iter().map(|(win, event)| {
            let (store, activity, guard) = (Arc::clone(&store), activity.clone(), guard.clone());
            let id = ids[win as usize];
            tokio::spawn(async move { (win, tell(store.as_ref(), &activity, guard, id, event).await) })
        });
        for told in join_all(tasks).await {
            let (win, released) = told.unwrap();
            assert!(!(released && tell_released_again), "seed {seed}: win {win} was released a second time");
            applied[win as usize] += usize::from(released);
        }
    }

    let found = store.find(&activity, &ids).await.unwrap().unwrap();
    let mut live = 0;
    for (win, record) in found.iter().enumerate() {
        let state = &record.as_ref().unwrap().record.state;
        let released = matches!(state, WinState::Released(_));
        assert_eq!(applied[win], usize::from(released), "seed {seed}: win {win} is {state:?}");
        assert!(released || *state == WinState::Accepted && win % 2 == 0, "seed {seed}: win {win} is {state:?}");
        live += i64::from(!released);
    }
    let claim = ClaimDue { guard, limit: 100, lease: Duration::from_secs(60), mark_dead: None };
    let claimed = store.claim_due(&activity, &claim).await.unwrap().outcome.unwrap();
    assert_eq!(claimed.wins, [], "seed {seed}: an ended win is still due");
    assert_eq!(claimed.on_sale.iter().map(|(_, units)| units).sum::<i64>(), i64::from(WINS) - live, "seed {seed}");
    let snapshot = store.snapshot(&activity).await.unwrap().unwrap();
    let (_, stock) = &snapshot.skus[0];
    let units = &stock.wins;
    assert_eq!((stock.left, stock.returning, stock.withheld), (total - live, 0, 0), "seed {seed}");
    assert_eq!((units.held.1, units.accepted.1), (0, live), "seed {seed}");
    let PolledActivity::Stored(state) = store.poll(&activity, &look()).await.unwrap().activity else {
        panic!("the activity is gone")
    };
    for (win, id) in ids.iter().enumerate() {
        let journaled = state.entries.iter().filter(|entry| is_release_of(&entry.op, *id)).count();
        assert_eq!(journaled, applied[win], "seed {seed}: win {win} in the journal");
    }
}

fn is_release_of(op: &JournalOp, id: RequestId) -> bool {
    matches!(op, JournalOp::Released { request_id, .. } if *request_id == id)
}

fn attempt(activity: &ActivityId, sku: &SkuId, number: u32) -> Attempt {
    let (user, key): (UserId, IdempotencyKey) = (format!("u{number}").parse().unwrap(), "k".parse().unwrap());
    Attempt {
        request_id: RequestId::derive(activity, &user, &key),
        user,
        key,
        sku: sku.clone(),
        qty: 1,
        fingerprint: Fingerprint::of(b"{}"),
        may_win: true,
        payload: Bytes::from_static(b"{}"),
    }
}

/// Tells the store; true if units went back.
async fn tell(store: &dyn AdmissionStore, activity: &ActivityId, guard: Guard, id: RequestId, event: Event) -> bool {
    let recorded = match &event {
        Event::Release(cause) => {
            let release = Release { cause: *cause, reason: Reason::lossy("said") };
            let returning_delay = Duration::ZERO;
            let release = ReleaseWin { guard, request_id: id, release, ledger_short: false, returning_delay };
            store.release(activity, &release).await
        }
        Event::Settle(settlement) => {
            let backoff = Backoff { first: Duration::from_secs(60), cap: Duration::from_secs(60) };
            let dead_letters = DeadLetterPolicy::default();
            let settle = Settle { guard, request_id: id, settlement: settlement.clone(), backoff, dead_letters };
            store.settle(activity, &settle).await
        }
    };
    let recorded = recorded.unwrap().outcome.unwrap();
    matches!((event, recorded), (Event::Release(_), Recorded::Applied(_)))
}

#[tokio::test(flavor = "multi_thread")]
async fn releases_repeated_and_reordered_give_units_back_once() {
    let server = Redis::start();
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(|| StoreMs(wall_ms()));
    let path = folder.path().join("store.db");
    let sqlite = SqliteStore::open(&path, PATIENCE, clock, Box::new(|why| panic!("{why}"))).await.unwrap();
    let sqlite: Arc<dyn AdmissionStore> = Arc::new(sqlite);
    let redis = patient(&server);
    for seed in 0..8 {
        storm(Arc::clone(&redis), &format!("storm-{seed}"), seed).await;
        storm(Arc::clone(&sqlite), &format!("storm-{seed}"), seed).await;
    }
}
