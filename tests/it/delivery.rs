//! A misbehaving order service on real sockets: what is recorded for each of its words, and what the winner is told.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::routing::post;
use bytes::Bytes;
use http::{HeaderMap, Response};
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use seckill_gate::domain::win::Cause;
use seckill_gate::gate::delivery::backlog::Backlog;
use seckill_gate::gate::delivery::client::{ClientOptions, OrderClient};
use seckill_gate::gate::delivery::courier::{Courier, CourierOptions};
use seckill_gate::gate::delivery::lanes::Errand;
use seckill_gate::gate::delivery::metrics::DeliveryMetrics;
use seckill_gate::gate::delivery::pacer::Pacer;
use seckill_gate::gate::delivery::relay;
use seckill_gate::gate::delivery::reply::StoredReply;
use seckill_gate::gate::delivery::ticket::{self, Ticket, TicketSigner};
use seckill_gate::gate::delivery::told::{FirstDelivery, Told};
use seckill_gate::gate::delivery::word::ReplyRules;
use seckill_gate::platform::breaker::BreakerMetrics;
use seckill_gate::platform::metrics::Metrics;
use seckill_gate::platform::shutdown::{self, Stage};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::fake_activity::{FakeActivity, Noted};

const DEADLINE: Duration = Duration::from_millis(600);

/// Serves `router` on a port of its own.
async fn serve(router: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

/// Answers every connection with these bytes, then closes (or hangs, if there are none).
async fn serve_bytes(answer: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut request = [0; 8_192];
                let _ = stream.read(&mut request).await;
                if answer.is_empty() {
                    tokio::time::sleep(Duration::from_secs(60)).await;
                }
                let _ = stream.write_all(answer).await;
            });
        }
    });
    address
}

/// An order service with one answer for everything.
async fn answering(status: u16, headers: &'static [(&'static str, &'static str)], body: Bytes) -> SocketAddr {
    serve(Router::new().route(
        "/orders",
        post(move || {
            let mut response = Response::builder().status(status);
            for (name, value) in headers {
                response = response.header(*name, *value);
            }
            let response = response.body(Body::from(body.clone())).unwrap();
            async move { response }
        }),
    ))
    .await
}

struct Rig {
    backlog: Backlog,
    courier: Courier,
    public_pem: String,
    metrics: Arc<Metrics>,
}

fn rig(orders: SocketAddr, max_in_flight: usize, answer_within: Duration) -> Rig {
    let pair = ticket::generate_key_pair().unwrap();
    let options = ClientOptions {
        url: format!("http://{orders}/orders").parse().unwrap(),
        deadline: DEADLINE,
        max_reply: 64 << 10,
        rules: ReplyRules::default(),
    };
    let metrics = Arc::new(Metrics::new().unwrap());
    let (courier, backlog) = Courier::new(
        OrderClient::new(options).unwrap(),
        Arc::new(TicketSigner::from_pem(pair.private_pem.as_bytes()).unwrap()),
        CourierOptions { max_in_flight, answer_within },
        DeliveryMetrics::register(&metrics).unwrap(),
        &BreakerMetrics::register(&metrics).unwrap(),
    );
    Rig { courier, backlog, public_pem: pair.public_pem, metrics }
}

/// Delivers one fresh win to `orders`: what was recorded, and what was told.
async fn one(orders: SocketAddr) -> (Vec<Noted>, Told) {
    let rig = rig(orders, 4, Duration::from_secs(5));
    let activity = FakeActivity::new();
    let win = activity.win("u1", b"{\"address\":1}");
    let told = rig.courier.deliver_first(&activity, win.clone(), None).await;
    (activity.noted(win.request_id), told)
}

fn released(cause: &'static str, reason: &str, short: bool) -> Noted {
    Noted::Released(cause, reason.into(), short)
}

#[tokio::test]
async fn each_word_of_the_order_service_is_recorded_for_what_it_is() {
    let unknown = (vec![Noted::Unknown], Told::Queued);
    for status in [204, 400, 404, 409, 422, 500, 503] {
        assert_eq!(one(answering(status, &[], Bytes::new()).await).await, unknown, "{status}");
    }
    assert_eq!(one(answering(202, &[], Bytes::from_static(b"{}")).await).await, (vec![Noted::Queued], Told::Queued));

    let refused =
        one(answering(409, &[("seckill-order", "refused"), ("seckill-reason", "Bad Address")], Bytes::new()).await)
            .await;
    assert_eq!(refused.0, [released("refused", "bad_address", false)]);
    assert!(
        matches!(refused.1, Told::Ended(release) if release.cause == Cause::Refused && release.reason.as_str() == "bad_address")
    );

    let short =
        one(answering(409, &[("seckill-order", "refused"), ("seckill-reason", "no_stock")], Bytes::new()).await).await;
    assert_eq!(short.0, [released("refused", "no_stock", true)]);

    let ended =
        one(answering(410, &[("seckill-order", "ended"), ("seckill-reason", "expired")], Bytes::new()).await).await;
    assert_eq!(ended.0, [released("ended", "expired", false)]);
    assert!(matches!(ended.1, Told::Ended(release) if release.cause == Cause::Ended));
}

#[tokio::test]
async fn a_booked_order_is_told_byte_for_byte() {
    let headers = &[("content-type", "application/json"), ("location", "/orders/7"), ("set-cookie", "a=b")];
    let (noted, told) = one(answering(201, headers, Bytes::from_static(b" {\"order\": 7}\n")).await).await;
    assert_eq!(noted, [Noted::Booked]);
    let reply = StoredReply {
        status: 201,
        content_type: Some("application/json".into()),
        location: Some("/orders/7".into()),
        body: Bytes::from_static(b" {\"order\": 7}\n"),
    };
    assert_eq!(told, Told::Won(Some(reply)));
}

#[tokio::test]
async fn no_complete_reply_is_no_word() {
    let unknown = (vec![Noted::Unknown], Told::Queued);
    let half: &[u8] = b"HTTP/1.1 201 Created\r\ncontent-length: 100\r\n\r\nhalf";
    assert_eq!(one(serve_bytes(half).await).await, unknown, "half a body");
    let half_refusal: &[u8] = b"HTTP/1.1 409 Conflict\r\nseckill-order: refused\r\ncontent-length: 100\r\n\r\nhalf";
    assert_eq!(one(serve_bytes(half_refusal).await).await, unknown, "half a refusal");
    let chunks: &[u8] = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n";
    assert_eq!(one(serve_bytes(chunks).await).await, unknown, "chunks without an end");
    assert_eq!(one(serve_bytes(b"nonsense\r\n\r\n").await).await, unknown, "not HTTP");
    let started = Instant::now();
    assert_eq!(one(serve_bytes(b"").await).await, unknown, "hangs");
    assert!((DEADLINE..DEADLINE * 4).contains(&started.elapsed()), "{:?}", started.elapsed());
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    assert_eq!(one(nobody).await, unknown, "nobody listens");
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let hits = Arc::new(AtomicUsize::new(0));
    let counted = hits.clone();
    let elsewhere = serve(Router::new().fallback(move || {
        counted.fetch_add(1, Ordering::SeqCst);
        async { "booked" }
    }))
    .await;
    let location: &'static str = Box::leak(format!("http://{elsewhere}/").into_boxed_str());
    let headers: &'static [(&str, &str)] = Box::leak(Box::new([("location", location)]));
    for status in [303, 307, 308] {
        let outcome = one(answering(status, headers, Bytes::new()).await).await;
        assert_eq!(outcome, (vec![Noted::Unknown], Told::Queued), "{status}");
    }
    assert_eq!(hits.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_reply_of_ten_megabytes_counts_and_is_not_kept() {
    let (noted, told) = one(answering(200, &[], Bytes::from(vec![b'x'; 10 << 20])).await).await;
    assert_eq!(noted, [Noted::Booked]);
    assert!(matches!(told, Told::Won(Some(reply)) if reply.status == 200 && reply.body.is_empty()));
}

#[tokio::test]
async fn the_order_service_gets_the_payload_the_win_and_a_fresh_ticket() {
    type Seen = Arc<Mutex<Vec<(HeaderMap, Bytes)>>>;
    let seen: Seen = Arc::default();
    let keep = seen.clone();
    let orders = serve(Router::new().route(
        "/orders",
        post(move |request: Request| async move {
            let (parts, body) = request.into_parts();
            let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
            keep.lock().unwrap().push((parts.headers, body));
            ([("seckill-order", "unheard-of")], "{}")
        }),
    ))
    .await;
    let rig = rig(orders, 4, Duration::from_secs(5));
    let activity = FakeActivity::new();
    let win = activity.win("user@shop", b" { \"address\" : 1 }\n");
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    rig.courier.deliver_first(&activity, win.clone(), Some(parent.into())).await;
    rig.courier.deliver_first(&activity, win.clone(), None).await;
    // An empty payload still has its length told.
    rig.courier.deliver_first(&activity, activity.win("u2", b""), None).await;
    let seen = seen.lock().unwrap();
    let (headers, body) = &seen[0];
    let get = |name: &str| headers[name].to_str().unwrap();
    let id = win.request_id.to_string();
    assert_eq!(body, &win.payload);
    assert_eq!((get("idempotency-key"), get("content-length")), (id.as_str(), "19"));
    assert_eq!((get("seckill-activity"), get("seckill-sku"), get("seckill-quantity")), ("sale", "phone", "1"));
    assert_eq!((get("seckill-user"), get("traceparent")), ("user@shop", parent));
    assert!(seen[1].0["traceparent"].to_str().unwrap().starts_with(&format!("00-{id}-")));
    assert_eq!(seen[2].0["content-length"], "0");
    let mut validation = Validation::new(Algorithm::EdDSA);
    validation.set_audience(&[ticket::AUDIENCE]);
    validation.leeway = 0;
    let key = DecodingKey::from_ed_pem(rig.public_pem.as_bytes()).unwrap();
    let ticket = jsonwebtoken::decode::<Ticket>(get("seckill-ticket"), &key, &validation).unwrap().claims;
    assert_eq!((ticket.rid, ticket.sub.as_str(), ticket.qty, ticket.epoch.0), (win.request_id, "user@shop", 1, 1));
    assert!(ticket.exp - ticket.iat <= 4, "lives {} s", ticket.exp - ticket.iat);
}

/// Holds each delivery for a while, then books it; counts how many it held at once.
async fn slow(hold: Duration) -> (SocketAddr, Arc<AtomicUsize>) {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let peak = most.clone();
    let orders = serve(Router::new().route(
        "/orders",
        post(move || {
            let (now, most) = (now.clone(), most.clone());
            async move {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(hold).await;
                now.fetch_sub(1, Ordering::SeqCst);
                "{}"
            }
        }),
    ))
    .await;
    (orders, peak)
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < Duration::from_secs(10), "never {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_winner_who_waits_too_long_or_leaves_is_booked_all_the_same() {
    let (orders, _) = slow(Duration::from_millis(250)).await;
    let rig = rig(orders, 4, Duration::from_millis(50));
    let activity = FakeActivity::new();
    let (waits, leaves) = (activity.win("waits", b"{}"), activity.win("leaves", b"{}"));
    assert_eq!(rig.courier.deliver_first(&activity, waits.clone(), None).await, Told::Queued);
    let left = rig.courier.deliver_first(&activity, leaves.clone(), None);
    let _ = tokio::time::timeout(Duration::from_millis(5), left).await.unwrap_err();
    rig.courier.idle().await;
    assert_eq!(activity.noted(waits.request_id), [Noted::Booked]);
    assert_eq!(activity.noted(leaves.request_id), [Noted::Booked]);
}

#[tokio::test]
async fn what_may_not_be_recorded_is_not_told() {
    let orders = answering(201, &[], Bytes::new()).await;
    let rig = rig(orders, 4, Duration::from_secs(5));
    let activity = FakeActivity::new();
    let win = activity.win("u1", b"{}");
    activity.state.lock().unwrap().store_lost = true;
    assert_eq!(rig.courier.deliver_first(&activity, win.clone(), None).await, Told::Queued);
    activity.state.lock().unwrap().store_lost = false;
    activity.state.lock().unwrap().barred = Some(seckill_gate::domain::admission::Barred::Suspect);
    assert_eq!(rig.courier.deliver_first(&activity, win.clone(), None).await, Told::Queued);
    activity.state.lock().unwrap().barred = None;
    assert!(matches!(rig.courier.deliver_first(&activity, win, None).await, Told::Won(_)));
}

#[tokio::test]
async fn an_end_that_may_not_be_recorded_is_not_told_either() {
    let activity = FakeActivity::new();
    for (word, cause) in [("refused", Cause::Refused), ("ended", Cause::Ended)] {
        let headers: &'static [(&str, &str)] = Box::leak(Box::new([("seckill-order", word)]));
        let rig = rig(answering(409, headers, Bytes::new()).await, 4, Duration::from_secs(5));
        let win = activity.win(word, b"{}");
        activity.state.lock().unwrap().store_lost = true;
        assert_eq!(rig.courier.deliver_first(&activity, win.clone(), None).await, Told::Queued, "{word}");
        activity.state.lock().unwrap().store_lost = false;
        let told = rig.courier.deliver_first(&activity, win, None).await;
        assert!(matches!(&told, Told::Ended(release) if release.cause == cause), "{word}: {told:?}");
    }
}

#[tokio::test]
async fn a_contradiction_leaves_the_record_and_raises_an_alarm() {
    let activity = FakeActivity::new();
    let win = activity.win("u1", b"{}");
    let booked = rig(answering(201, &[], Bytes::new()).await, 4, Duration::from_secs(5));
    assert!(matches!(booked.courier.deliver_first(&activity, win.clone(), None).await, Told::Won(_)));
    let refusing = rig(answering(409, &[("seckill-order", "refused")], Bytes::new()).await, 4, Duration::from_secs(5));
    assert!(matches!(refusing.courier.deliver_first(&activity, win, None).await, Told::Won(_)));
    let text = refusing.metrics.render().unwrap();
    assert!(text.contains("seckill_win_conflicts_total{activity=\"sale\"} 1"), "{text}");
}

#[tokio::test]
async fn beyond_max_in_flight_winners_are_queued_and_the_relay_delivers_them_at_its_rate() {
    let (orders, most) = slow(Duration::from_millis(30)).await;
    let rig = rig(orders, 4, Duration::from_secs(5));
    let activity = FakeActivity::new();
    let wins: Vec<_> = (0..40).map(|n| activity.win(&format!("u{n}"), b"{}")).collect();
    let told =
        futures::future::join_all(wins.iter().map(|win| rig.courier.deliver_first(&activity, win.clone(), None))).await;
    let won = told.iter().filter(|told| matches!(told, Told::Won(_))).count();
    assert_eq!((won, told.iter().filter(|told| **told == Told::Queued).count()), (4, 36));

    let booked = |activity: &FakeActivity| {
        let state = activity.state.lock().unwrap();
        state.noted.iter().filter(|(_, noted)| *noted == Noted::Booked).count()
    };
    let due = wins.iter().zip(&told).filter(|(_, told)| **told == Told::Queued).map(|(win, _)| win.clone());
    activity.state.lock().unwrap().due = due.collect();
    let (trigger, shutdown) = shutdown::channel();
    let started = Instant::now();
    let pacer = Arc::new(Mutex::new(Pacer::new(60, Duration::from_secs(1), started)));
    let relay = tokio::spawn(relay::run(activity.clone(), rig.courier.clone(), pacer, shutdown));
    until("booked all", || booked(&activity) == 40).await;
    // 36 deliveries, 15 of them at once at the start, the others at 60 a second.
    assert!(started.elapsed() > Duration::from_millis(330), "{:?}", started.elapsed());
    assert!(most.load(Ordering::SeqCst) <= 4);
    trigger.advance(Stage::Closing);
    tokio::time::timeout(Duration::from_secs(2), relay).await.unwrap().unwrap();
    rig.courier.idle().await;
}

#[tokio::test]
async fn a_relay_without_a_free_permit_claims_no_win_but_still_puts_returned_units_on_sale() {
    let rig = rig(serve_bytes(b"").await, 2, Duration::from_secs(5));
    let activity = FakeActivity::new();
    activity.state.lock().unwrap().due = vec![activity.win("u1", b"{}")];
    let id = "sale".parse().unwrap();
    let permit = || rig.courier.try_permit(&id, Errand::First).expect("a permit is free");
    let permits = (permit(), permit());
    let (_trigger, shutdown) = shutdown::channel();
    let pacer = Arc::new(Mutex::new(Pacer::new(500, Duration::from_secs(1), Instant::now())));
    tokio::spawn(relay::run(activity.clone(), rig.courier.clone(), pacer, shutdown));
    until("claimed again and again", || activity.state.lock().unwrap().claims > 3).await;
    assert_eq!(activity.state.lock().unwrap().due.len(), 1, "a win was claimed that could not be delivered");
    drop(permits);
    until("delivered", || activity.state.lock().unwrap().due.is_empty()).await;
}

#[tokio::test]
async fn an_activity_whose_deliveries_hang_leaves_permits_to_the_others() {
    // Hangs for the activity's first user, books for everybody else.
    let orders = serve(Router::new().route(
        "/orders",
        post(|headers: HeaderMap| async move {
            if headers["seckill-user"].to_str().unwrap().starts_with("stuck") {
                tokio::time::sleep(Duration::from_secs(60)).await;
            }
            "{}"
        }),
    ))
    .await;
    let rig = rig(orders, 4, Duration::from_secs(5));
    let (stuck, other) = (FakeActivity::named("stuck"), FakeActivity::named("other"));
    stuck.state.lock().unwrap().due = (0..20).map(|n| stuck.win(&format!("stuck{n}"), b"{}")).collect();
    let (_trigger, shutdown) = shutdown::channel();
    let pacer = Arc::new(Mutex::new(Pacer::new(500, Duration::from_secs(1), Instant::now())));
    tokio::spawn(relay::run(stuck.clone(), rig.courier.clone(), pacer.clone(), shutdown.clone()));
    until("claimed", || stuck.state.lock().unwrap().due.len() < 20).await;
    let started = Instant::now();
    let win = other.win("u1", b"{}");
    other.state.lock().unwrap().due = vec![win.clone()];
    tokio::spawn(relay::run(other.clone(), rig.courier.clone(), pacer, shutdown));
    until("booked beside the stuck ones", || other.noted(win.request_id) == [Noted::Booked]).await;
    assert!(started.elapsed() < DEADLINE, "waited for a stuck delivery: {:?}", started.elapsed());
}

#[tokio::test]
async fn winners_beyond_max_in_flight_do_not_wait_for_their_first_lease_to_end() {
    let (orders, most) = slow(Duration::from_millis(50)).await;
    let rig = rig(orders, 1, Duration::from_secs(5));
    let activity = FakeActivity::new();
    let (_trigger, shutdown) = shutdown::channel();
    let pacer = Arc::new(Mutex::new(Pacer::new(500, Duration::from_secs(1), Instant::now())));
    tokio::spawn(rig.backlog.run(rig.courier.clone(), pacer, shutdown));
    let wins: Vec<_> = (0..6).map(|n| activity.win(&format!("u{n}"), b"{}")).collect();
    let told = wins.iter().map(|win| rig.courier.deliver_first(&activity, win.clone(), None));
    let told = futures::future::join_all(told).await;
    assert_eq!(told.iter().filter(|told| **told == Told::Queued).count(), 5, "{told:?}");
    // No relay runs here: only the backlog delivers.
    until("all are booked", || wins.iter().all(|win| activity.noted(win.request_id) == [Noted::Booked])).await;
    assert_eq!(most.load(Ordering::SeqCst), 1, "more were under way than allowed");
}
