//! Wins that wait too long: marked, delivered slowly, delivered again by an operator's word, and given up only by the order
//! service's. On a real store and our real order service, with deliveries that hang, arrive late, or lose their reply.

mod rig;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::join_all;
use seckill_gate::domain::admission::{Barred, DueWin, Recorded};
use seckill_gate::domain::dead_letters::{DeadLetterPolicy, LastWord};
use seckill_gate::domain::win::{Cause, Reason, Release, WinState};
use seckill_gate::gate::activity::Admitted;
use seckill_gate::gate::delivery::outbox::Outbox;
use seckill_gate::gate::delivery::told::Told;
use seckill_gate::gate::view_metrics::ViewMetrics;
use seckill_gate::orders::order::OrderState;
use seckill_gate::platform::clock::StoreClock;
use serde_json::json;

use crate::harness::log::Log;
use rig::{Kind, Mode, at_once, eventually, rig};

fn is_void(state: &WinState) -> bool {
    matches!(state, WinState::Released(Release { cause: Cause::Void, .. }))
}

#[tokio::test]
async fn a_win_without_a_final_word_is_marked_once_goes_slowly_and_is_booked_when_the_order_service_is_mended() {
    let (log, _guard) = Log::start();
    let policy = DeadLetterPolicy { after: Duration::from_millis(1_200), retry_every: Duration::from_secs(3_600) };
    let rig = rig(Kind::Redis, 5, policy).await;
    let activity = rig.activity.clone();
    let views =
        ViewMetrics::new(move || vec![activity.clone() as Arc<dyn Outbox>], Arc::new(StoreClock::new())).unwrap();
    rig.metrics.register(Box::new(views)).unwrap();
    let gauge = || rig.metrics.render().unwrap().contains("seckill_dead_letters{activity=\"sale\"} 1\n");
    assert!(rig.metrics.render().unwrap().contains("seckill_dead_letters{activity=\"sale\"} 0\n"), "from the start");
    let win = rig.win("ann").await;
    rig.tap.set(Mode::Answer(503, None));
    rig.relay();
    assert_eq!(rig.deliver(&win).await, Told::Queued);
    let first = rig.found(&win).await.record;
    assert_eq!(first.last_word, Some(LastWord::Unknown));
    eventually("it is marked and counted", async || rig.activity.view().dead == 1 && gauge()).await;

    let record = rig.found(&win).await.record;
    let (began, since) = (record.first_delivery_at.unwrap(), record.dead_since.unwrap());
    assert_eq!(Some(began), first.first_delivery_at, "the age counts from the first delivery");
    assert!(began.until(since) >= policy.after, "marked {:?} after its first delivery", began.until(since));
    assert_eq!(rig.activity.view().unsettled, 1, "it stays in the outbox");
    let alarms = log.lines("DEAD LETTER");
    assert_eq!(alarms.len(), 1, "{alarms:?}");
    for told in [&win.request_id.to_string(), &format!("tries={}", record.tries), "age_seconds=", "ERROR"] {
        assert!(alarms[0].contains(told), "{told} is missing: {}", alarms[0]);
    }
    let listed = &rig.read("/dead-letters").await["dead_letters"][0];
    let expected = json!({
        "request_id": win.request_id, "user": "ann", "sku": "phone", "qty": 1, "won_at_ms": win.won_at.0,
        "first_delivery_at_ms": began.0, "dead_since_ms": since.0, "tries": record.tries, "last_word": "unknown",
    });
    assert_eq!(*listed, expected);
    assert_eq!(rig.read("").await["dead_letters"], 1);

    // Mended; but the next try is an hour away, until an operator asks for it.
    rig.tap.set(Mode::Pass);
    assert!(rig.due(&win) >= since.0 + 3_600_000, "it is delivered at the pace of the living");
    eventually("it is booked", async || {
        // The order service says 202 first, which is no final word.
        assert_eq!(rig.change("dead-letters/retry-all").await.0, 200);
        rig.found(&win).await.record.state == WinState::Accepted
    })
    .await;
    assert_eq!(rig.found(&win).await.record.dead_since, None);
    eventually("nothing is dead any more", async || rig.activity.view().dead == 0 && !gauge()).await;
    assert_eq!(rig.read("/dead-letters").await, json!({ "dead_letters": [], "next": null }));
    assert_eq!(log.lines("DEAD LETTER").len(), 1);
    let again = rig.change(&format!("dead-letters/{}/retry", win.request_id)).await;
    assert_eq!(again, (200, "already_accepted".into()));
    assert_eq!(rig.change("dead-letters/retry-all").await, (200, "already".into()));
}

#[tokio::test]
async fn wins_that_an_order_service_that_is_down_leaves_no_room_to_deliver_are_marked_all_the_same() {
    const WINS: usize = 300;
    let (log, _guard) = Log::start();
    let policy = DeadLetterPolicy { after: Duration::from_secs(2), retry_every: Duration::from_secs(3_600) };
    let rig = rig(Kind::Redis, WINS as i64, policy).await;
    rig.tap.set(Mode::Answer(503, None));
    let users: Vec<String> = (0..WINS).map(|n| format!("u{n}")).collect();
    let mut wins = Vec::new();
    for some in users.chunks(50) {
        wins.extend(join_all(some.iter().map(|user| rig.win(user))).await);
    }
    // Due at once, as after their first lease.
    for some in wins.chunks(100) {
        let ids: Vec<_> = some.iter().map(|win| win.request_id).collect();
        _ = rig.activity.retry(&ids).await.unwrap().unwrap();
    }
    rig.relay();
    eventually("all of them are marked", async || rig.activity.view().dead == WINS as u64).await;
    assert!(rig.tap.seen.load(Ordering::SeqCst) < WINS / 2, "the breaker kept most deliveries back");
    assert_eq!(rig.activity.view().unsettled, WINS as u64, "they stay in the outbox");
    let alarmed: usize = log.lines("DEAD LETTER").iter().map(|line| wins_in(line)).sum();
    assert_eq!(alarmed, WINS, "each is alarmed once");
    let undelivered = wins.iter().map(|win| rig.found(win));
    let records = join_all(undelivered).await;
    assert!(records.iter().any(|found| found.record.first_delivery_at.is_none()), "most were never delivered");
}

#[tokio::test]
async fn wins_that_waited_for_a_gate_and_not_for_the_order_service_are_delivered_and_no_dead_letters() {
    const WINS: usize = 300;
    let (log, _guard) = Log::start();
    let policy = DeadLetterPolicy { after: Duration::from_secs(2), retry_every: Duration::from_secs(3_600) };
    let rig = rig(Kind::Redis, WINS as i64, policy).await;
    rig.tap.set(Mode::Answer(201, None));
    let users: Vec<String> = (0..WINS).map(|n| format!("u{n}")).collect();
    for some in users.chunks(50) {
        let wins = join_all(some.iter().map(|user| rig.win(user))).await;
        let ids: Vec<_> = wins.iter().map(|win| win.request_id).collect();
        _ = rig.activity.retry(&ids).await.unwrap().unwrap();
    }
    // For longer than a win may wait no gate runs; then one starts, and the order service is well.
    tokio::time::sleep(policy.after + Duration::from_millis(200)).await;
    rig.relay();
    eventually("all of them are booked", async || rig.activity.snapshot().await.unwrap().unwrap().unsettled == 0).await;
    assert_eq!(log.lines("DEAD LETTER"), [""; 0]);
}

/// How many wins an alarm is about.
fn wins_in(line: &str) -> usize {
    line.split_once(" wins=").map_or(1, |(_, rest)| rest.split(' ').next().unwrap().parse().unwrap())
}

#[tokio::test]
async fn a_delivery_that_arrives_after_the_release_finds_the_id_void_for_ever() {
    let rig = rig(Kind::Redis, 5, at_once()).await;
    let win = rig.dead_letter("ann").await;
    // The next delivery hangs in its socket.
    rig.tap.set(Mode::Hold);
    rig.hang(&win).await;
    eventually("it is held", async || rig.tap.held() == 1).await;
    assert_eq!(rig.release(&win).await, (200, "applied".into()));
    assert!(is_void(&rig.found(&win).await.record.state));
    assert_eq!(rig.release(&win).await, (200, "already".into()), "repeating it changes nothing");
    assert_eq!(rig.tap.let_go().await, [(409, Some("refused".into()))]);
    // What the gate would hear of it changes nothing either, and is no conflict.
    rig.tap.set(Mode::Pass);
    assert!(matches!(rig.deliver(&win).await, Told::Ended(release) if release.cause == Cause::Void));
    assert_eq!(rig.conflicts(), 0);
    assert_eq!(rig.order(&win).await.unwrap().state, OrderState::Void);
    assert_eq!(rig.left_at_last().await, 5, "the unit came back once");
    assert_eq!(rig.activity.snapshot().await.unwrap().unwrap().dead, 0);
}

#[tokio::test]
async fn a_delivery_that_arrived_before_the_release_is_an_order_and_is_booked() {
    let rig = rig(Kind::Redis, 5, at_once()).await;
    let win = rig.dead_letter("ann").await;
    rig.tap.set(Mode::LoseReply);
    rig.hang(&win).await;
    eventually("the order service has it", async || rig.order(&win).await.is_some()).await;
    assert_eq!(rig.release(&win).await, (409, "ORDER_EXISTS".into()));
    assert_eq!(rig.found(&win).await.record.state, WinState::Held);
    // It is due now, although its next try was an hour away.
    rig.tap.set(Mode::Pass);
    rig.relay();
    eventually("it is booked", async || rig.found(&win).await.record.state == WinState::Accepted).await;
    assert_eq!(rig.release(&win).await, (409, "ORDER_EXISTS".into()), "an accepted win is not given up from here");
    assert_eq!(rig.order(&win).await.unwrap().state, OrderState::Pending);
    assert_eq!(rig.left_at_last().await, 4);
}

#[tokio::test]
async fn an_order_that_waits_in_the_queue_when_its_id_becomes_void_is_not_booked() {
    let rig = rig(Kind::Redis, 5, at_once()).await;
    rig.queue.close().await;
    rig.tap.set(Mode::Pass);
    let win = rig.win("ann").await;
    assert_eq!(rig.deliver(&win).await, Told::Queued);
    let record = rig.found(&win).await.record;
    assert_eq!(record.last_word, Some(LastWord::Queued));
    assert_eq!(rig.release(&win).await, (200, "applied".into()));
    rig.queue.open();
    use seckill_gate::orders::queue::OrderQueue;
    eventually("the queue is worked off", async || rig.queue.lag(&rig.activity.id).await == Ok(0)).await;
    assert_eq!(rig.order(&win).await.unwrap().state, OrderState::Void);
    let report = rig.ledger.report(&rig.activity.id).await.unwrap().unwrap();
    assert_eq!(report.skus.values().map(|sku| sku.sold).sum::<u64>(), 0);
    assert_eq!(rig.left_at_last().await, 5);
}

#[tokio::test]
async fn however_release_and_delivery_race_it_is_one_order_or_one_release() {
    const WINS: usize = 24;
    let rig = rig(Kind::Redis, WINS as i64, at_once()).await;
    rig.tap.set(Mode::Hold);
    let users: Vec<String> = (0..WINS).map(|n| format!("u{n}")).collect();
    let wins: Vec<DueWin> = join_all(users.iter().map(|user| rig.win(user))).await;
    join_all(wins.iter().map(|win| rig.hang(win))).await;
    eventually("all of them hang", async || rig.tap.held() == WINS).await;
    // All of them arrive while all of them are released.
    let (arrived, released) = tokio::join!(rig.tap.let_go(), join_all(wins.iter().map(|win| rig.release(win))));
    assert_eq!(arrived.len(), WINS);
    let released = released.iter().filter(|(status, _)| *status == 200).count();
    rig.tap.set(Mode::Pass);
    rig.relay();
    let ids: Vec<_> = wins.iter().map(|win| win.request_id).collect();
    eventually("every win has its word", async || {
        _ = rig.activity.retry(&ids).await.unwrap().unwrap();
        rig.activity.snapshot().await.unwrap().unwrap().unsettled == 0
    })
    .await;
    let mut orders = 0;
    for win in &wins {
        let (state, order) = (rig.found(win).await.record.state, rig.order(win).await.unwrap().state);
        match order {
            OrderState::Pending => assert_eq!(state, WinState::Accepted, "{}", win.request_id),
            OrderState::Void => assert!(is_void(&state), "{}: void, but {state:?}", win.request_id),
            other => panic!("{}: {other:?}", win.request_id),
        }
        orders += i64::from(order == OrderState::Pending);
    }
    assert_eq!(WINS as i64 - orders, released as i64, "told released, and are: {released}; orders: {orders}");
    assert_eq!(rig.left_at_last().await, WINS as i64 - orders);
    assert_eq!(rig.conflicts(), 0);
}

async fn a_contradiction_is_alarmed_and_the_record_stands(kind: Kind) {
    let rig = rig(kind, 5, DeadLetterPolicy::default()).await;
    let booked = Mode::Answer(201, None);
    let refused = Mode::Answer(409, Some("refused"));
    let release = |cause| Release { cause, reason: Reason::lossy("because") };

    // Accepted, then refused.
    let accepted = rig.win("accepted").await;
    rig.tap.set(booked);
    assert!(matches!(rig.deliver(&accepted).await, Told::Won(_)));
    rig.tap.set(refused);
    assert!(matches!(rig.deliver(&accepted).await, Told::Won(_)));
    assert_eq!((rig.found(&accepted).await.record.state, rig.conflicts()), (WinState::Accepted, 1));

    // Refused, then booked.
    let gone = rig.win("refused").await;
    assert_eq!(rig.deliver(&gone).await, Told::Ended(release(Cause::Refused)));
    rig.tap.set(booked);
    assert_eq!(rig.deliver(&gone).await, Told::Ended(release(Cause::Refused)));
    let recorded = rig.found(&gone).await.record.state;
    assert_eq!((recorded, rig.conflicts()), (WinState::Released(release(Cause::Refused)), 2));

    // Void, then booked.
    let void = rig.win("void").await;
    let recorded = rig.activity.release(void.request_id, release(Cause::Void)).await.unwrap().unwrap();
    assert!(matches!(recorded, Recorded::Applied(_)), "{recorded:?}");
    assert_eq!(rig.deliver(&void).await, Told::Ended(release(Cause::Void)));
    assert_eq!((rig.found(&void).await.record.state, rig.conflicts()), (WinState::Released(release(Cause::Void)), 3));

    // Ended, then booked: an old word that comes late, and no conflict.
    let ended = rig.win("ended").await;
    rig.activity.release(ended.request_id, release(Cause::Ended)).await.unwrap().unwrap();
    assert_eq!(rig.deliver(&ended).await, Told::Ended(release(Cause::Ended)));
    assert_eq!(rig.conflicts(), 3);
    let (_, stock) = rig.activity.snapshot().await.unwrap().unwrap().skus[0].clone();
    assert_eq!((stock.wins.held, stock.wins.accepted, stock.wins.released), ((0, 0), (1, 1), (3, 3)));
    assert!(stock.adds_up(), "{stock:?}");
}

#[tokio::test]
async fn a_contradiction_is_alarmed_and_the_record_stands_on_redis() {
    a_contradiction_is_alarmed_and_the_record_stands(Kind::Redis).await;
}

#[tokio::test]
async fn a_contradiction_is_alarmed_and_the_record_stands_on_sqlite() {
    a_contradiction_is_alarmed_and_the_record_stands(Kind::Sqlite).await;
}

#[tokio::test]
async fn a_sum_that_breaks_is_seen_by_the_next_poll_and_said_once() {
    let (log, _guard) = Log::start();
    let rig = rig(Kind::Redis, 5, DeadLetterPolicy::default()).await;
    let activity = rig.activity.clone();
    let views =
        ViewMetrics::new(move || vec![activity.clone() as Arc<dyn Outbox>], Arc::new(StoreClock::new())).unwrap();
    rig.metrics.register(Box::new(views)).unwrap();
    let shown = |broken: u32| {
        let line = format!("seckill_invariant_violations{{activity=\"sale\",invariant=\"INV-2\"}} {broken}\n");
        rig.metrics.render().unwrap().contains(&line)
    };
    let (redis, stock) = (rig.redis.as_ref().unwrap(), "sk:{sale.0}:stock");
    rig.win("ann").await;
    eventually("the poll has seen the win", async || rig.activity.view().unsettled == 1).await;
    assert!(shown(0));
    redis.command(&["HINCRBY", stock, "phone:left", "1"]).unwrap();
    eventually("it is seen", async || shown(1)).await;
    assert_eq!(rig.read("").await["invariants"], json!({ "INV-2": false }));
    redis.command(&["HINCRBY", stock, "phone:left", "-1"]).unwrap();
    eventually("it is mended", async || shown(0)).await;
    assert_eq!((log.lines("INV-2 BROKEN").len(), log.lines("INV-2 holds again").len()), (1, 1));
}

#[tokio::test]
async fn a_store_without_its_dead_letters_is_incomplete() {
    let rig = rig(Kind::Redis, 5, at_once()).await;
    rig.redis.as_ref().unwrap().command(&["DEL", "sk:{sale.0}:dead"]).unwrap();
    eventually("it is fenced", async || rig.activity.view().barred == Some(Barred::Fenced)).await;
    assert_eq!(rig.attempt("ann").await, Admitted::Barred(Barred::Fenced));
}
