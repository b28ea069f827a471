//! Activities on a gate before a real Redis: combiner, watch, lease.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use seckill_gate::domain::admission::{Attempt, Barred, Epoch, Preheated, Recorded, Terms, Verdict};
use seckill_gate::domain::dead_letters::DeadLetterPolicy;
use seckill_gate::domain::win::{Cause, Reason, Release};
use seckill_gate::domain::{ActivityId, Fingerprint, IdempotencyKey, RequestId, StoreMs, UserId};
use seckill_gate::gate::activity::{Activity, Admitted, Phase, StoreMetrics, World};
use seckill_gate::gate::store::redis::RedisStore;
use seckill_gate::gate::win_log::{LogFirst, NoWinLog};
use seckill_gate::platform::clock::{StoreClock, monotonic, wall_ms};
use seckill_gate::platform::metrics::Metrics;
use seckill_gate::platform::redis::RedisSettings;
use tokio_util::sync::CancellationToken;

use crate::harness::process::signal;
use crate::harness::redis::Redis;

const STORE_DEADLINE: Duration = Duration::from_millis(500);

/// What a gate in this process gives its activities.
pub fn world(redis: &Redis, gate: &str, queue: usize) -> World {
    let settings = RedisSettings { url: redis.url(), username: None, password: None, deadline: STORE_DEADLINE };
    World {
        gate: gate.parse().unwrap(),
        store: Arc::new(RedisStore::new(&settings).unwrap()),
        clock: Arc::new(StoreClock::new()),
        wins: Arc::new(LogFirst::new(NoWinLog)),
        store_deadline: STORE_DEADLINE,
        queue,
        first_delivery_lease: Duration::from_secs(60),
        dead_letters: DeadLetterPolicy::default(),
        metrics: Arc::new(StoreMetrics::register(&Metrics::new().unwrap()).unwrap()),
    }
}

fn terms(stock: i64) -> Terms {
    let now = wall_ms();
    Terms {
        epoch: Epoch(1),
        starts_at: StoreMs(now - 60_000),
        ends_at: StoreMs(now + 3_600_000),
        per_user_limit: 1,
        rebuy_after_release: true,
        retention: Duration::from_secs(60),
        skus: vec![("phone".parse().unwrap(), stock)],
    }
}

fn start(world: &World, stock: i64) -> Arc<Activity> {
    Activity::start("sale".parse().unwrap(), terms(stock), world, CancellationToken::new())
}

fn attempt(user: &str, key: &str) -> Attempt {
    let activity: ActivityId = "sale".parse().unwrap();
    let (user, key): (UserId, IdempotencyKey) = (user.parse().unwrap(), key.parse().unwrap());
    let payload = Bytes::from_static(b"{}");
    Attempt {
        request_id: RequestId::derive(&activity, &user, &key),
        user,
        key,
        sku: "phone".parse().unwrap(),
        qty: 1,
        fingerprint: Fingerprint::of(&payload),
        may_win: true,
        payload,
    }
}

async fn admit(activity: &Activity, user: &str, key: &str) -> Admitted {
    activity.admit(attempt(user, key), monotonic()).await
}

/// Waits until `holds`; fails after five seconds.
async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < Duration::from_secs(5), "never: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn won(admitted: &Admitted) -> bool {
    matches!(admitted, Admitted::Judged(Verdict::Won, _))
}

#[tokio::test]
async fn a_crowd_on_two_gates_wins_exactly_the_stock() {
    let redis = Redis::start();
    let gates = [start(&world(&redis, "gate-1", 4_096), 100), start(&world(&redis, "gate-2", 4_096), 100)];
    assert_eq!(gates[0].preheat(&terms(100)).await.unwrap(), Ok(Preheated::Created));
    eventually("the other gate sees it", || gates[1].view().phase(StoreMs(wall_ms())) == Phase::Open).await;
    let crowd = (0..3_000).map(|n| {
        let gate = Arc::clone(&gates[n % 2]);
        tokio::spawn(async move { admit(&gate, &format!("u{n}"), "k").await })
    });
    let outcomes: Vec<Admitted> = futures::future::join_all(crowd).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(outcomes.iter().filter(|outcome| won(outcome)).count(), 100);
    let lost = outcomes.iter().filter(|outcome| matches!(outcome, Admitted::Judged(Verdict::SoldOut, _))).count();
    assert_eq!(lost, 2_900, "everybody else hears that it is sold out");
    for gate in &gates {
        eventually("sold out is told without the store", || gate.view().lease_says_sold_out(monotonic())).await;
        let known = (0..3_000).filter(|n| won(&outcomes[*n])).count();
        assert_eq!(known, 100);
        assert!(gate.may_be_winner(&"k".parse().unwrap()), "a winner's key is never refused under the lease");
        assert!(!gate.may_be_winner(&"never-used".parse().unwrap()));
    }
}

#[tokio::test]
async fn whoever_gives_up_before_the_batch_is_written_has_not_won() {
    let redis = Redis::start();
    let activity = start(&world(&redis, "gate-1", 16), 5);
    activity.preheat(&terms(5)).await.unwrap().unwrap();
    signal(redis.pid(), "STOP");
    let first = tokio::spawn({
        let activity = Arc::clone(&activity);
        async move { admit(&activity, "first", "k").await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    // The second waits behind the call under way, and its caller goes away.
    let gone = tokio::time::timeout(Duration::from_millis(50), admit(&activity, "gone", "k")).await;
    assert!(gone.is_err(), "there was an answer while the store stood still: {gone:?}");
    signal(redis.pid(), "CONT");
    let first = first.await.unwrap();
    assert!(won(&first), "{first:?}");
    let snapshot = activity.snapshot().await.unwrap().unwrap();
    assert_eq!(snapshot.skus[0].1.left, 4, "the one who left won");
    assert!(activity.find(attempt("gone", "k").request_id).await.unwrap().unwrap().is_none());
}

#[tokio::test]
async fn a_full_queue_sheds_and_a_dead_store_is_named() {
    let redis = Redis::start();
    let activity = start(&world(&redis, "gate-1", 2), 5);
    activity.preheat(&terms(5)).await.unwrap().unwrap();
    signal(redis.pid(), "STOP");
    let crowd = (0..50).map(|n| {
        let activity = Arc::clone(&activity);
        tokio::spawn(async move { admit(&activity, &format!("u{n}"), "k").await })
    });
    let crowd: Vec<_> = crowd.collect();
    let started = Instant::now();
    let outcomes = futures::future::join_all(crowd).await;
    assert!(started.elapsed() < STORE_DEADLINE + Duration::from_secs(1), "took {:?}", started.elapsed());
    let of = |kind: Admitted| outcomes.iter().filter(|outcome| *outcome.as_ref().unwrap() == kind).count();
    let (busy, unknown, unavailable) = (of(Admitted::Busy), of(Admitted::Unknown), of(Admitted::Unavailable));
    assert!(busy > 0 && unknown > 0, "busy {busy}, unknown {unknown}, unavailable {unavailable}");
    assert_eq!(busy + unknown + unavailable, 50);
    signal(redis.pid(), "CONT");
    drop(redis);
    let after = admit(&activity, "late", "k").await;
    assert!(matches!(after, Admitted::Unavailable | Admitted::Unknown), "{after:?}");
    assert_eq!(admit(&activity, "later", "k").await, Admitted::Unavailable, "no connection can be made: definite");
}

#[tokio::test]
async fn a_batch_that_sat_in_a_socket_past_its_time_cannot_win() {
    // The control: with time to spare the server does execute what sat in its socket, although its sender gave up.
    assert_eq!(left_after_a_stall(Duration::from_secs(60)).await, 3, "the batch was never executed");
    assert_eq!(left_after_a_stall(STORE_DEADLINE).await, 4, "a late batch won");
}

/// Sends one attempt to a server that stands still until the sender has given up; `in_time_for` is its `not_after`. Five
/// units were on sale, and one was sold before, which also made the script known: an unknown one would not be executed.
async fn left_after_a_stall(in_time_for: Duration) -> i64 {
    let redis = Redis::start();
    let activity = start(&World { store_deadline: in_time_for, ..world(&redis, "gate-1", 16) }, 5);
    activity.preheat(&terms(5)).await.unwrap().unwrap();
    assert!(won(&admit(&activity, "before", "k").await));
    signal(redis.pid(), "STOP");
    assert_eq!(admit(&activity, "u", "k").await, Admitted::Unknown);
    tokio::time::sleep(STORE_DEADLINE).await;
    signal(redis.pid(), "CONT");
    tokio::time::sleep(Duration::from_millis(300)).await;
    activity.snapshot().await.unwrap().unwrap().skus[0].1.left
}

#[tokio::test]
async fn units_that_come_back_are_sold_again_at_both_gates() {
    let redis = Redis::start();
    let gates = [start(&world(&redis, "gate-1", 64), 1), start(&world(&redis, "gate-2", 64), 1)];
    gates[0].preheat(&terms(1)).await.unwrap().unwrap();
    eventually("the other gate sees it", || gates[1].view().phase(StoreMs(wall_ms())) == Phase::Open).await;
    assert!(won(&admit(&gates[0], "first", "k1").await));
    eventually("sold out at both", || gates.iter().all(|gate| gate.view().lease_says_sold_out(monotonic()))).await;
    let release = Release { cause: Cause::Refused, reason: Reason::lossy("no address") };
    let id = attempt("first", "k1").request_id;
    let changed = gates[1].change_of(id);
    let applied = gates[0].release(id, release.clone()).await.unwrap().unwrap();
    assert!(matches!(applied, Recorded::Applied(_)), "{applied:?}");
    tokio::time::timeout(Duration::from_secs(2), changed).await.expect("the other gate tells who waits");
    let again = gates[1].release(id, release).await.unwrap().unwrap();
    assert!(matches!(again, Recorded::Already(_)), "{again:?}");
    eventually("no gate says sold out", || !gates.iter().any(|gate| gate.view().lease_says_sold_out(monotonic())))
        .await;
    let started = Instant::now();
    while !won(&admit(&gates[1], "second", "k2").await) {
        gates[0].claim_due(10, Duration::from_secs(1), false).await.unwrap().unwrap();
        assert!(started.elapsed() < Duration::from_secs(5), "the unit never came back");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(started.elapsed() > Duration::from_millis(500), "it was sold before every lease had run out");
}

#[tokio::test]
async fn a_store_that_lost_its_keys_is_fenced_not_fresh() {
    let redis = Redis::start();
    let activity = start(&world(&redis, "gate-1", 64), 3);
    activity.preheat(&terms(3)).await.unwrap().unwrap();
    redis.command(&["DEL", "sk:{sale.0}:buyers"]).unwrap();
    let after = admit(&activity, "u", "k").await;
    assert_eq!(after, Admitted::Barred(Barred::Fenced));
    assert_eq!(activity.preheat(&terms(3)).await.unwrap(), Ok(Preheated::Incomplete));
}

#[tokio::test]
async fn callers_of_a_store_that_stands_still_fail_together_and_in_time() {
    let redis = Redis::start();
    let world = world(&redis, "gate-1", 64);
    signal(redis.pid(), "STOP");
    let activity: ActivityId = "sale".parse().unwrap();
    let ids = [attempt("u", "k").request_id];
    let started = Instant::now();
    let calls = (0..40).map(|_| world.store.find(&activity, &ids));
    let answers = futures::future::join_all(calls).await;
    assert!(started.elapsed() < STORE_DEADLINE * 3, "one after the other: {:?}", started.elapsed());
    assert!(answers.iter().all(Result::is_err));
    signal(redis.pid(), "CONT");
    assert_eq!(eventually_ok(|| world.store.find(&activity, &ids)).await, Err(Barred::NotPreheated));
}

/// Repeats a call until it succeeds; fails after five seconds.
async fn eventually_ok<T, E: std::fmt::Debug, F: Future<Output = Result<T, E>>>(call: impl Fn() -> F) -> T {
    let started = Instant::now();
    loop {
        match call().await {
            Ok(value) => return value,
            Err(error) => assert!(started.elapsed() < Duration::from_secs(5), "still {error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
