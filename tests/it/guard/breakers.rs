//! Slow, dead, or accepting and hanging: nobody waits for long, nobody is told what is not known, and the others sell on.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::post;
use futures::future::join_all;
use http::{HeaderMap, StatusCode};
use seckill_gate::domain::refusal::Code;
use seckill_gate::gate::activity::Admitted;
use seckill_gate::gate::delivery::backlog::Backlog;
use seckill_gate::gate::delivery::client::{ClientOptions, OrderClient};
use seckill_gate::gate::delivery::courier::{Courier, CourierOptions};
use seckill_gate::gate::delivery::metrics::DeliveryMetrics;
use seckill_gate::gate::delivery::pacer::Pacer;
use seckill_gate::gate::delivery::relay;
use seckill_gate::gate::delivery::ticket::{self, TicketSigner};
use seckill_gate::gate::delivery::told::{FirstDelivery, Told};
use seckill_gate::gate::delivery::word::ReplyRules;
use seckill_gate::gate::stages::outcome::{Fate, fate};
use seckill_gate::gate::stages::time::Leave;
use seckill_gate::platform::breaker::BreakerMetrics;
use seckill_gate::platform::clock::monotonic;
use seckill_gate::platform::metrics::Metrics;
use seckill_gate::platform::shutdown;

use super::{Bench, admit, attempt, eventually, won};
use crate::fake_activity::{FakeActivity, Noted};
use crate::harness::process::signal;
use crate::harness::redis::Redis;

const STORE_DEADLINE: Duration = Duration::from_millis(600);

#[tokio::test]
async fn a_store_that_stands_still_is_refused_at_once_and_nothing_refused_has_happened() {
    let redis = Redis::start();
    let mut bench = Bench::new(&redis.url(), STORE_DEADLINE);
    bench.world.queue = 4;
    let activity = bench.sale("sale").await;
    assert!(won(&admit(&activity, "before").await));
    assert!(bench.shows(r#"seckill_breaker_open{activity="",target="store"} 0"#));
    signal(redis.pid(), "STOP");
    let mut told = Vec::new();
    let mut longest = Duration::ZERO;
    for wave in 0.. {
        let users: Vec<String> = (0..12).map(|n| format!("u{wave}-{n}")).collect();
        let started = Instant::now();
        let outcomes = join_all(users.iter().map(|user| admit(&activity, user))).await;
        longest = longest.max(started.elapsed());
        told.extend(users.into_iter().zip(outcomes));
        if bench.shows(r#"seckill_breaker_open{activity="",target="store"} 1"#) {
            break;
        }
        assert!(wave < 20, "the breaker never opened");
    }
    assert!(longest < STORE_DEADLINE + Duration::from_secs(1), "took {longest:?}");
    // From now on nobody waits, for as long as it lasts.
    let user = "before".parse().unwrap();
    for n in 0..60 {
        let started = Instant::now();
        let outcome = admit(&activity, &format!("late{n}")).await;
        assert_eq!(outcome, Admitted::Unavailable);
        told.push((format!("late{n}"), outcome));
        activity.wins_of(&user).await.expect_err("nor for a result");
        assert!(started.elapsed() < STORE_DEADLINE / 2, "two calls took {:?}", started.elapsed());
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    let of = |kind: &Admitted| told.iter().filter(|(_, told)| told == kind).count();
    let (busy, unknown, unavailable) = (of(&Admitted::Busy), of(&Admitted::Unknown), of(&Admitted::Unavailable));
    assert_eq!(busy + unknown + unavailable, told.len(), "{told:?}");
    assert!(busy > 0 && unknown > 0, "busy {busy}, unknown {unknown}, unavailable {unavailable}");
    assert!(bench.shows(r#"seckill_activity_barred{activity="sale",reason="unreachable"} 1"#));

    signal(redis.pid(), "CONT");
    let closed = || bench.shows(r#"seckill_breaker_open{activity="",target="store"} 0"#);
    let took = eventually("the polls close it", closed).await;
    assert!(took < Duration::from_secs(3), "took {took:?}");
    for (user, outcome) in &told {
        let found = activity.find(attempt(&activity.id, user).request_id).await.unwrap().unwrap();
        assert!(found.is_none() || *outcome == Admitted::Unknown, "{user} was told {outcome:?} and has won");
    }
    assert!(won(&admit(&activity, "after").await));
    assert!(bench.shows(r#"seckill_breaker_opened_total{activity="",target="store"} 1"#));
}

#[tokio::test]
async fn a_dead_store_is_named_at_once() {
    let redis = Redis::start();
    let bench = Bench::new(&redis.url(), STORE_DEADLINE);
    let activity = bench.sale("sale").await;
    drop(redis);
    eventually("it opens", || bench.shows(r#"seckill_breaker_open{activity="",target="store"} 1"#)).await;
    let started = Instant::now();
    let outcome = admit(&activity, "ann").await;
    let now = bench.world.clock.now().store;
    let told = fate(outcome, &Leave::MayWin, now, activity.file.get().starts_at);
    assert_eq!(told, Fate::Refused(Code::StoreUnavailable));
    assert!(started.elapsed() < STORE_DEADLINE);
}

#[tokio::test]
async fn a_flood_on_one_sale_is_shed_there_and_leaves_the_other_alone() {
    let redis = Redis::start();
    let mut bench = Bench::new(&redis.url(), Duration::from_secs(5));
    bench.world.queue = 8;
    let (flooded, other) = (bench.sale("flooded").await, bench.sale("other").await);
    let users: Vec<String> = (0..400).map(|n| format!("u{n}")).collect();
    let flood = join_all(users.iter().map(|user| admit(&flooded, user)));
    let buyers = async {
        let mut told = Vec::new();
        for user in &users[..50] {
            told.push(admit(&other, user).await);
        }
        told
    };
    let (flood, buyers) = tokio::join!(flood, buyers);
    assert!(flood.iter().filter(|told| **told == Admitted::Busy).count() > 100);
    assert!(buyers.iter().all(won), "{buyers:?}");
}

/// An order service that hangs, fails or books, per activity, and counts.
#[derive(Clone, Default)]
struct Orders {
    sick: Arc<AtomicBool>,
    hangs: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
}

impl Orders {
    async fn serve(&self) -> SocketAddr {
        let orders = self.clone();
        let handler = move |headers: HeaderMap| {
            let orders = orders.clone();
            async move {
                if headers["seckill-activity"] != "sick" || !orders.sick.load(Ordering::SeqCst) {
                    return StatusCode::CREATED;
                }
                orders.asked.fetch_add(1, Ordering::SeqCst);
                if orders.hangs.load(Ordering::SeqCst) {
                    tokio::time::sleep(Duration::from_secs(60)).await;
                }
                StatusCode::INTERNAL_SERVER_ERROR
            }
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/orders", post(handler));
        tokio::spawn(async move { axum::serve(listener, router).await });
        address
    }
}

const DELIVERY: Duration = Duration::from_millis(1_500);

async fn courier(orders: &Orders, max_in_flight: usize) -> (Courier, Backlog, Arc<Metrics>) {
    let pair = ticket::generate_key_pair().unwrap();
    let options = ClientOptions {
        url: format!("http://{}/orders", orders.serve().await).parse().unwrap(),
        deadline: DELIVERY,
        max_reply: 64 << 10,
        rules: ReplyRules::default(),
    };
    let metrics = Arc::new(Metrics::new().unwrap());
    let (courier, backlog) = Courier::new(
        OrderClient::new(options).unwrap(),
        Arc::new(TicketSigner::from_pem(pair.private_pem.as_bytes()).unwrap()),
        CourierOptions { max_in_flight, answer_within: Duration::from_secs(5) },
        DeliveryMetrics::register(&metrics).unwrap(),
        &BreakerMetrics::register(&metrics).unwrap(),
    );
    (courier, backlog, metrics)
}

#[tokio::test]
async fn an_order_service_that_fails_one_sale_is_probed_and_the_other_sale_never_notices() {
    let orders = Orders::default();
    orders.sick.store(true, Ordering::SeqCst);
    let (courier, _backlog, metrics) = courier(&orders, 8).await;
    let (sick, well) = (FakeActivity::named("sick"), FakeActivity::named("well"));
    courier.announce(&"sick".parse().unwrap());
    courier.announce(&"well".parse().unwrap());
    let open = |value: u8| {
        let line = format!("seckill_breaker_open{{activity=\"sick\",target=\"orders\"}} {value}");
        metrics.render().unwrap().lines().any(|shown| shown == line)
    };
    assert!(open(0));
    for n in 0..5 {
        let win = sick.win(&format!("u{n}"), b"{}");
        assert_eq!(courier.deliver_first(&sick, win, None).await, Told::Queued);
    }
    assert!(open(1));
    // From now on a winner is queued without a delivery.
    let asked = orders.asked.load(Ordering::SeqCst);
    let wins: Vec<_> = (0..20).map(|n| sick.win(&format!("later{n}"), b"{}")).collect();
    for win in &wins {
        assert_eq!(courier.deliver_first(&sick, win.clone(), None).await, Told::Queued);
    }
    assert_eq!(orders.asked.load(Ordering::SeqCst), asked, "a sick order service was asked for a fresh win");
    assert!(matches!(courier.deliver_first(&well, well.win("ann", b"{}"), None).await, Told::Won(_)));

    // The relay probes with one delivery now and then, whatever is due.
    sick.state.lock().unwrap().due = wins.clone();
    let (_trigger, shutdown) = shutdown::channel();
    let pacer = Arc::new(Mutex::new(Pacer::new(500, Duration::from_secs(1), monotonic())));
    tokio::spawn(relay::run(sick.clone(), courier.clone(), pacer, shutdown));
    eventually("two probes", || orders.asked.load(Ordering::SeqCst) >= asked + 2).await;
    assert!(orders.asked.load(Ordering::SeqCst) <= asked + 3, "more than single probes");
    assert!(open(1));
    let probed = wins.iter().filter(|win| !sick.noted(win.request_id).is_empty()).count();
    assert!(probed <= 3, "{probed} were taken off the outbox");
    orders.sick.store(false, Ordering::SeqCst);
    let booked = || wins.iter().filter(|win| sick.noted(win.request_id).contains(&Noted::Booked)).count();
    eventually("a probe closes it, and all that is due is booked", || booked() >= wins.len() - 3).await;
    assert!(open(0));
    assert!(matches!(courier.deliver_first(&sick, sick.win("new", b"{}"), None).await, Told::Won(_)));
}

#[tokio::test]
async fn one_sale_whose_deliveries_hang_holds_neither_all_permits_nor_the_backlog() {
    let orders = Orders::default();
    orders.sick.store(true, Ordering::SeqCst);
    orders.hangs.store(true, Ordering::SeqCst);
    let (courier, backlog, _metrics) = courier(&orders, 4).await;
    let (sick, well) = (FakeActivity::named("sick"), FakeActivity::named("well"));
    courier.announce(&"sick".parse().unwrap());
    courier.announce(&"well".parse().unwrap());
    let (_trigger, shutdown) = shutdown::channel();
    let pacer = Arc::new(Mutex::new(Pacer::new(500, Duration::from_secs(1), monotonic())));
    tokio::spawn(backlog.run(courier.clone(), pacer, shutdown));
    // Two under way, the others in the backlog, before any win of the other sale.
    let hanging: Vec<_> = (0..30).map(|n| sick.win(&format!("u{n}"), b"{}")).collect();
    let (courier_of_sick, sick_too) = (courier.clone(), sick.clone());
    tokio::spawn(async move {
        join_all(hanging.into_iter().map(|win| courier_of_sick.deliver_first(&sick_too, win, None))).await
    });
    eventually("they hang", || orders.asked.load(Ordering::SeqCst) >= 2).await;
    let started = Instant::now();
    let wins: Vec<_> = (0..10).map(|n| well.win(&format!("u{n}"), b"{}")).collect();
    let told = join_all(wins.iter().map(|win| courier.deliver_first(&well, win.clone(), None))).await;
    assert!(told.iter().any(|told| matches!(told, Told::Won(_))), "{told:?}");
    assert!(told.contains(&Told::Queued), "some had to go through the backlog: {told:?}");
    eventually("all are booked", || wins.iter().all(|win| well.noted(win.request_id) == [Noted::Booked])).await;
    assert!(started.elapsed() < DELIVERY, "waited for a hanging delivery: {:?}", started.elapsed());
    assert_eq!(orders.asked.load(Ordering::SeqCst), 2, "more than its share");
}
