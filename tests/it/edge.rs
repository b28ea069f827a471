//! The public edge over real sockets: the adapter and the pipeline before a scripted store, a scripted delivery and a
//! small shop.

pub mod http1;
mod plain;
mod told;
pub mod world;

use std::time::{Duration, Instant};

use seckill_gate::domain::admission::{Barred, Verdict};
use seckill_gate::domain::win::{Cause, Reason, Release, WinState};
use seckill_gate::gate::activity::{Admitted, Phase};
use seckill_gate::gate::delivery::told::Told;
use world::{booked, start, start_with};

#[tokio::test]
async fn a_refusal_keeps_the_connection_and_leaves_in_one_write() {
    let world = start().await;
    world.port.sell_out();
    let mut client = world.connect().await;
    for n in 0..50 {
        let reply = client.send(&world.attempt("k", "", "{}")).await;
        assert_eq!((reply.status, reply.code()), (410, "SOLD_OUT".into()));
        assert_eq!(reply.header("connection"), Some("keep-alive"), "request {n}");
        assert_eq!(reply.header("cache-control"), Some("no-store"));
        assert_eq!(reply.reads, 1, "header and body came in one piece");
    }
    for (request, status) in [
        ("GET /seckill/nope HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        ("GET /seckill/sale/nope HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        ("DELETE /seckill/sale HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", 405),
        ("POST /seckill/sale HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}", 400),
        ("GET /SECKILL/sale HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        ("GET /seckill/sale/results HTTP/1.1\r\nHost: x\r\n\r\n", 401),
        ("HEAD /seckill/sale/results HTTP/1.1\r\nHost: x\r\n\r\n", 401),
        ("GET /seckill/problems/SOLD_OUT HTTP/1.1\r\nHost: x\r\n\r\n", 200),
    ] {
        client.write(request).await;
        let reply = if request.starts_with("HEAD") { client.reply_to_head().await } else { client.reply().await };
        assert_eq!(reply.status, status, "{request}");
        assert_eq!(reply.header("connection"), Some("keep-alive"), "{request}");
        if status == 405 {
            assert_eq!(reply.header("allow"), Some("GET, HEAD, POST"));
        }
    }
}

#[tokio::test]
async fn an_attempt_goes_from_token_to_win() {
    let world = start().await;
    let mut client = world.connect().await;
    let token = world.token(&mut client, "k1").await;
    world.port.answers(Admitted::Judged(Verdict::Won, world.now()));
    world.delivery.tells(Told::Won(Some(booked())));
    let payload = "{\"a\": 1 }";
    let reply = client.send(&world.attempt("\"k1\"", &token, payload)).await;
    assert_eq!((reply.status, reply.body.as_str()), (201, "{\"order_id\":\"o1\"}"));
    assert_eq!(reply.header("seckill-outcome"), Some("WON"));
    assert_eq!(reply.header("location"), Some("/orders/o1"));
    assert!(reply.head.contains("\r\nSeckill-Outcome: WON\r\n"), "{}", reply.head);
    let attempt = world.port.last_attempt();
    assert_eq!(&attempt.payload[..], payload.as_bytes(), "byte for byte");
    assert!(attempt.may_win);
    assert_eq!(reply.header("seckill-request-id"), Some(attempt.request_id.to_string().as_str()));
    let (win, traceparent) = world.delivery.last();
    assert_eq!((win.request_id, win.qty, &win.payload[..]), (attempt.request_id, 1, payload.as_bytes()));
    assert_eq!(traceparent.as_deref(), Some(world::TRACEPARENT));
}

#[tokio::test]
async fn what_the_store_and_the_delivery_say_is_what_the_client_hears() {
    let world = start().await;
    let mut client = world.connect().await;
    let token = world.token(&mut client, "k").await;
    let won = || Admitted::Judged(Verdict::Won, world.now());
    let known = |state, reply| world::known(state, reply, world.now());
    let release = |cause| WinState::Released(Release { cause, reason: Reason::lossy("why") });
    let no = || Told::Queued;
    let rows = [
        (won(), Told::Queued, 202, "QUEUED"),
        (won(), Told::Ended(Release { cause: Cause::Refused, reason: Reason::lossy("why") }), 409, "ORDER_REFUSED"),
        (won(), Told::Ended(Release { cause: Cause::Ended, reason: Reason::lossy("why") }), 409, "RELEASED"),
        (known(WinState::Held, None), no(), 202, "QUEUED"),
        (known(WinState::Accepted, Some(booked())), no(), 201, "WON"),
        (known(WinState::Accepted, None), no(), 200, "WON"),
        (known(release(Cause::Void), None), no(), 409, "ORDER_REFUSED"),
        (known(release(Cause::Ended), None), no(), 409, "RELEASED"),
        (Admitted::Judged(Verdict::Conflict, world.now()), no(), 422, "REQUEST_ID_CONFLICT"),
        (Admitted::Judged(Verdict::AtLimit, world.now()), no(), 409, "ALREADY_BOUGHT"),
        (Admitted::Judged(Verdict::SoldOut, world.now()), no(), 410, "SOLD_OUT"),
        (Admitted::Busy, no(), 503, "BUSY"),
        (Admitted::Unavailable, no(), 503, "STORE_UNAVAILABLE"),
        (Admitted::Unknown, no(), 503, "OUTCOME_UNKNOWN"),
    ];
    for (admitted, told, status, word) in rows {
        world.port.answers(admitted.clone());
        world.delivery.tells(told);
        let reply = client.send(&world.attempt("k", &token, "{}")).await;
        let heard = reply.header("seckill-outcome").map_or_else(|| reply.code(), Into::into);
        assert_eq!((reply.status, heard.as_str()), (status, word), "{admitted:?}");
        if status == 503 {
            assert!(reply.header("retry-after").is_some());
        }
        if word == "QUEUED" {
            assert_eq!(reply.json()["result_url"], "/seckill/sale/results/k");
        }
    }
}

#[tokio::test]
async fn too_late_for_a_win_is_still_looked_up() {
    let world = start().await;
    let mut client = world.connect().await;
    let token = world.token(&mut client, "k").await;
    for (phase, code) in [(Phase::Ended, "ENDED"), (Phase::Paused, "PAUSED")] {
        world.port.phase(phase);
        world.port.answers(Admitted::Judged(Verdict::NotKnown, world.now()));
        let reply = client.send(&world.attempt("k", &token, "{}")).await;
        assert_eq!(reply.code(), code);
        assert!(!world.port.last_attempt().may_win);
        world.port.answers(world::known(WinState::Held, None, world.now()));
        let reply = client.send(&world.attempt("k", &token, "{}")).await;
        assert_eq!(reply.header("seckill-outcome"), Some("QUEUED"), "a known id hears of its win");
    }
    world.port.phase(Phase::Open);
    // The lease refuses at once, without the store, unless the key may be a winner's.
    world.port.sell_out();
    let before = world.port.attempts();
    assert_eq!(client.send(&world.attempt("k", &token, "{}")).await.code(), "SOLD_OUT");
    assert_eq!(world.port.attempts(), before);
    world.port.may_be_winner("k");
    assert_eq!(client.send(&world.attempt("k", &token, "{}")).await.status, 202);
}

#[tokio::test]
async fn who_lost_a_reply_gets_a_token_to_ask_again_whatever_the_state() {
    let world = start().await;
    let mut client = world.connect().await;
    let mut ask = async |key: &str| client.send(&world.token_request(key, r#"{"sku":"phone"}"#)).await;
    world.port.phase(Phase::Paused);
    assert_eq!(ask("k").await.status, 200);
    // Over, but a win just before the end may not be known at this gate yet.
    world.port.phase(Phase::Ended);
    assert_eq!(ask("k").await.status, 200);
    world.port.all_winners_are_known();
    assert_eq!(ask("k").await.code(), "ENDED");
    world.port.may_be_winner("k");
    assert_eq!(ask("k").await.status, 200);
    assert_eq!(ask("k2").await.code(), "ENDED");
}

#[tokio::test]
async fn another_device_hears_of_a_win_and_wins_nothing() {
    let world = start().await;
    let mut client = world.connect().await;
    let on =
        |request: String, device: &str| request.replacen("Host: x", &format!("Host: x\r\nSeckill-Device: {device}"), 1);
    let issued = client.send(&on(world.token_request("k", r#"{"sku":"phone"}"#), "phone-1")).await;
    let token = issued.json()["token"].as_str().unwrap().to_owned();
    let from = |device: &str| on(world.attempt("k", &token, "{}"), device);
    world.port.answers(Admitted::Judged(Verdict::NotKnown, world.now()));
    let reply = client.send(&from("tablet-1")).await;
    assert_eq!((reply.code().as_str(), world.port.last_attempt().may_win), ("TOKEN_INVALID", false));
    world.port.answers(world::known(WinState::Held, None, world.now()));
    assert_eq!(client.send(&from("tablet-1")).await.header("seckill-outcome"), Some("QUEUED"));
    assert_eq!(client.send(&world.attempt("k", &token, "{}")).await.header("seckill-outcome"), Some("QUEUED"));
    world.port.answers(Admitted::Judged(Verdict::Won, world.now()));
    client.send(&from("phone-1")).await;
    assert!(world.port.last_attempt().may_win);
    // Nobody can have won before the start: the store is not asked.
    world.port.starts_in(Duration::from_secs(60));
    let before = world.port.attempts();
    assert_eq!(client.send(&from("tablet-1")).await.code(), "TOKEN_INVALID");
    assert_eq!(world.port.attempts(), before);
}

#[tokio::test]
async fn tokens_are_issued_by_the_rules_and_count_for_one_attempt() {
    let world = start().await;
    let mut client = world.connect().await;
    let mut ask = async |key: &str, body: &str| client.send(&world.token_request(key, body)).await;
    let good = ask("k", r#"{"sku":"phone","qty":1}"#).await;
    assert_eq!(good.status, 200);
    assert!(good.header("set-cookie").unwrap().starts_with("seckill_device="));
    let left = good.json()["expires_at_ms"].as_u64().unwrap() - world.now().0;
    assert!((8_000..=10_000).contains(&left), "{left} ms left of 10,000");
    assert_eq!(ask("k", r#"{"sku":"car","qty":1}"#).await.code(), "NO_SUCH_SKU");
    assert_eq!(ask("k", r#"{"sku":"phone","qty":3}"#).await.code(), "BAD_REQUEST");
    assert_eq!(ask("k k", r#"{"sku":"phone"}"#).await.code(), "BAD_REQUEST");
    assert_eq!(ask("k", "sku=phone").await.code(), "BAD_REQUEST");
    let token = good.json()["token"].as_str().unwrap().to_owned();
    for (key, token, code) in [("k2", token.as_str(), "TOKEN_INVALID"), ("k", "x.y.z", "TOKEN_INVALID")] {
        assert_eq!(client.send(&world.attempt(key, token, "{}")).await.code(), code);
    }
    assert_eq!(client.send(&world.attempt("k", &token, "{nope")).await.code(), "BAD_REQUEST");
    assert_eq!(world.port.attempts(), 0, "none of these touched the store");

    world.port.starts_in(Duration::from_secs(3_600));
    let early = client.send(&world.token_request("k", r#"{"sku":"phone"}"#)).await;
    assert_eq!(early.code(), "NOT_STARTED");
    let left = early.json()["retry_after_ms"].as_u64().unwrap();
    assert!((2_990_000..=3_000_100).contains(&left), "until ten minutes before: {left}");
    world.port.starts_in(Duration::from_secs(60));
    let token = world.token(&mut client, "k").await;
    let early = client.send(&world.attempt("k", &token, "{}")).await;
    assert_eq!((early.status, early.code()), (409, "NOT_STARTED".into()));
    assert!(early.json()["retry_after_ms"].as_u64().unwrap() > 50_000);
}

#[tokio::test]
async fn the_shop_gets_everything_else_as_it_was_sent() {
    let world = start().await;
    let mut client = world.connect().await;
    let reply = client
        .send(
            "POST /cart/a%2Fb;v=1//x?q=%2e%2e&r=/seckill HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 5\r\n\
             Seckill-User: admin\r\nSECKILL-TICKET: t\r\nseckill_user: admin\r\nX-Forwarded-For: 6.6.6.6\r\n\
             X-Keep: yes\r\nX-Drop: no\r\nConnection: X-Drop, keep-alive\r\nCookie: a=b\r\n\r\nhello",
        )
        .await;
    assert_eq!(reply.status, 200);
    let seen = reply.json();
    assert_eq!(seen["target"], "/cart/a%2Fb;v=1//x?q=%2e%2e&r=/seckill");
    assert_eq!(seen["body"], "hello");
    let headers = seen["headers"].as_object().unwrap();
    assert_eq!(headers["host"], "shop.example");
    assert_eq!(headers["x-keep"], "yes");
    assert_eq!(headers["cookie"], "a=b");
    assert_eq!(headers["x-forwarded-for"], "6.6.6.6, 127.0.0.1");
    assert!(!headers.keys().any(|name| name.starts_with("seckill")), "{headers:?}");
    assert!(!headers.contains_key("x-drop"));
    assert_eq!(client.send("GET /again HTTP/1.1\r\nHost: x\r\n\r\n").await.status, 200, "on the same connection");
    // A client that nominates what the gate sets is refused: nothing can be taken away that way.
    let nominated = "GET /n HTTP/1.1\r\nHost: x\r\nConnection: X-Forwarded-For\r\n\r\n";
    let mut client = world.connect().await;
    let reply = client.send(nominated).await;
    assert_eq!(reply.status, 400, "{}", reply.head);
}

#[tokio::test]
async fn a_dead_shop_is_said_to_be_unavailable() {
    let world = start_with(|config| config.dead_shop = true).await;
    let mut client = world.connect().await;
    let reply = client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert_eq!((reply.status, reply.code()), (502, "UPSTREAM_UNAVAILABLE".into()));
    assert_eq!(reply.header("content-type"), Some("application/problem+json"));
    // An upload that nobody reads does not destroy the answer.
    let upload = format!("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\n{}", "x".repeat(300_000));
    let mut client = world.connect().await;
    let reply = client.send(&upload).await;
    assert_eq!((reply.status, reply.code()), (502, "UPSTREAM_UNAVAILABLE".into()));
    let mut client = world.connect().await;
    assert_eq!(client.send("GET /seckill/sale HTTP/1.1\r\nHost: x\r\n\r\n").await.status, 200, "the page is served");
}

#[tokio::test]
async fn a_silent_shop_times_out() {
    let world = start_with(|config| config.shop_timeout = Duration::from_millis(300)).await;
    let mut client = world.connect().await;
    let reply = client.send("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert_eq!((reply.status, reply.code()), (504, "UPSTREAM_UNAVAILABLE".into()));
}

#[tokio::test]
async fn bodies_are_bounded_and_timed() {
    let world = start_with(|config| config.body_deadline = Duration::from_millis(300)).await;
    let long = format!("POST /seckill/sale HTTP/1.1\r\nHost: x\r\nContent-Length: 2049\r\n\r\n{}", "x".repeat(2_049));
    let mut client = world.connect().await;
    let reply = client.send(&long).await;
    assert_eq!((reply.status, reply.code()), (413, "TOO_LARGE".into()));
    let mut client = world.connect().await;
    let reply = client.send("POST /seckill/sale HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{}").await;
    assert_eq!((reply.status, reply.code()), (408, "TIMEOUT".into()));
    let mut client = world.connect().await;
    let head = "POST /seckill/sale HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n";
    let reply = client.send(head).await;
    assert_eq!(reply.status, 100);
    let reply = client.send("{}").await;
    assert_eq!((reply.status, reply.code()), (400, "BAD_REQUEST".into()));
    assert_eq!(reply.header("connection"), Some("keep-alive"));
    let mut client = world.connect().await;
    let uri = format!("GET /seckill/{} HTTP/1.1\r\nHost: x\r\n\r\n", "a".repeat(9_000));
    assert_eq!(client.send(&uri).await.status, 414);
    let mut client = world.connect().await;
    let headers = format!("GET / HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "a".repeat(40_000));
    assert_eq!(client.send(&headers).await.status, 431);
}

#[tokio::test]
async fn a_header_that_dawdles_is_cut_off_and_an_idle_connection_goes_quietly() {
    let world = start_with(|config| {
        config.limits.header_deadline = Duration::from_millis(300);
        config.limits.idle_timeout = Duration::from_millis(600);
    })
    .await;
    for warm in [false, true] {
        let mut client = world.connect().await;
        if warm {
            client.send("GET /seckill/sale HTTP/1.1\r\nHost: x\r\n\r\n").await;
        }
        let started = Instant::now();
        client.write("GET / HTTP/1.1\r\nHo").await;
        // One byte at a time would reset a timer per read.
        tokio::time::sleep(Duration::from_millis(150)).await;
        client.write("s").await;
        let reply = client.reply().await;
        assert_eq!((reply.status, reply.code()), (408, "TIMEOUT".into()));
        assert!(started.elapsed() < Duration::from_millis(1_500));
    }
    let mut client = world.connect().await;
    client.send("GET /seckill/sale HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert_eq!(client.rest().await, "", "closed without a word");
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_let_go() {
    let world = start_with(|config| {
        config.limits.max_connections = 1;
        config.limits.requests_per_connection = 1_000_000;
        config.limits.write_timeout = Duration::from_millis(300);
    })
    .await;
    let mut client = world.connect().await;
    let pages = "GET /seckill/sale HTTP/1.1\r\nHost: x\r\n\r\n".repeat(5_000);
    // Far more than the sockets' buffers hold comes back, so the server gets stuck, and then the client.
    let _ = tokio::time::timeout(Duration::from_secs(2), client.write(&pages)).await;
    let started = Instant::now();
    loop {
        // The only place is free again once the first connection was given up.
        let mut next = world.connect().await;
        next.write("HEAD /seckill/sale HTTP/1.1\r\nHost: x\r\n\r\n").await;
        if !next.is_closed().await {
            break;
        }
        assert!(started.elapsed() < Duration::from_secs(5), "the stuck connection is still held");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(world.in_flight(), 0);
}

#[tokio::test]
async fn connections_are_capped_and_used_only_so_often() {
    let world = start_with(|config| {
        config.limits.max_connections = 2;
        config.limits.requests_per_connection = 2;
    })
    .await;
    let page = "GET /seckill/sale HTTP/1.1\r\nHost: x\r\n\r\n";
    let mut first = world.connect().await;
    let mut second = world.connect().await;
    assert_eq!(first.send(page).await.header("connection"), Some("keep-alive"));
    second.send(page).await;
    assert!(world.connect().await.is_closed().await, "the third is closed at once");
    first.send(page).await;
    let last = first.send(page).await;
    assert_eq!(last.header("connection"), Some("close"));
}

#[tokio::test]
async fn pipelined_requests_are_all_answered() {
    let world = start().await;
    let mut client = world.connect().await;
    let head = "HEAD /seckill/sale HTTP/1.1\r\nHost: x\r\n\r\n";
    client.write(&format!("{head}{}{head}", world.attempt("k", "", "{}"))).await;
    assert_eq!(client.reply_to_head().await.status, 200);
    assert_eq!(client.reply().await.status, 403);
    assert_eq!(client.reply_to_head().await.status, 200);
}

#[tokio::test]
async fn the_page_is_cacheable_and_compressed() {
    let world = start().await;
    let mut client = world.connect().await;
    let get = |more: &str| format!("GET /seckill/sale HTTP/1.1\r\nHost: x\r\n{more}\r\n");
    let plain = client.send(&get("")).await;
    assert_eq!(plain.header("content-type"), Some("text/html; charset=utf-8"));
    assert!(plain.body.contains("<button"), "{}", plain.body);
    assert_eq!(plain.header("set-cookie"), None);
    let packed = client.send(&get("Accept-Encoding: gzip\r\n")).await;
    assert_eq!(packed.header("content-encoding"), Some("gzip"));
    assert!(packed.body.len() < plain.body.len());
    let etag = plain.header("etag").unwrap();
    let again = client.send(&get(&format!("If-None-Match: {etag}\r\n"))).await;
    assert_eq!((again.status, again.body.as_str()), (304, ""));
    client.write("HEAD /seckill/sale HTTP/1.1\r\nHost: x\r\n\r\n").await;
    let head = client.reply_to_head().await;
    assert_eq!(head.header("content-length"), Some(plain.body.len().to_string().as_str()));
    let state = client.send("GET /seckill/sale/state HTTP/1.1\r\nHost: x\r\n\r\n").await.json();
    assert_eq!((state["phase"].as_str(), state["epoch"].as_u64()), (Some("open"), Some(1)));
    assert_eq!(state["skus"][0]["stock"]["level"], "plenty");
}

#[tokio::test]
async fn a_result_is_waited_for_until_it_changes() {
    let world = start().await;
    let mut client = world.connect().await;
    assert_eq!(client.send(&world.get("/seckill/sale/results/k?wait=1ms")).await.code(), "NO_SUCH_RESULT");
    world.port.holds("k", WinState::Held, None);
    let queued = client.send(&world.get("/seckill/sale/results/k")).await.json();
    assert_eq!((queued["state"].as_str(), queued["key"].as_str()), (Some("queued"), Some("k")));
    client.write(&world.get("/seckill/sale/results/k?wait=20s")).await;
    let early = tokio::time::timeout(Duration::from_millis(300), client.reply()).await;
    assert!(early.is_err(), "there was an answer before anything changed");
    let started = Instant::now();
    world.port.holds("k", WinState::Accepted, Some(booked()));
    let accepted = client.reply().await.json();
    assert_eq!((accepted["state"].as_str(), accepted["order"]["order_id"].as_str()), (Some("accepted"), Some("o1")));
    assert!(started.elapsed() < Duration::from_secs(5), "the change was not told: {:?}", started.elapsed());
    let all = client.send(&world.get("/seckill/sale/results")).await.json();
    assert_eq!(all["results"].as_array().unwrap().len(), 1);
    assert_eq!(client.send(&world.get("/seckill/sale/results/k/events")).await.code(), "NOT_FOUND");
    assert_eq!(client.send(&world.get("/seckill/sale/results/k?wait=x")).await.code(), "BAD_REQUEST");
}

#[tokio::test]
async fn a_store_that_has_lost_something_tells_nobody_that_they_have_not_won() {
    let world = start().await;
    let mut client = world.connect().await;
    let [one, all] = ["k", ""].map(|key| world.get(format!("/seckill/sale/results/{key}").trim_end_matches('/')));
    for barred in [Barred::Fenced, Barred::NotPreheated] {
        *world.port.lost.lock().unwrap() = Some(barred);
        for request in [&one, &all] {
            let told = client.send(request).await;
            assert_eq!((told.status, told.code().as_str()), (503, "PAUSED"), "{barred:?}");
        }
    }
    // Before the start nobody can have won, and no store need be there.
    world.port.starts_in(Duration::from_secs(60));
    assert_eq!(client.send(&one).await.code(), "NO_SUCH_RESULT");
    assert_eq!(client.send(&all).await.json()["results"], serde_json::json!([]));
}

#[tokio::test]
async fn limits_name_themselves() {
    let world = start_with(|config| config.attempts_per_user = Some("1/s".parse().unwrap())).await;
    let mut client = world.connect().await;
    let token = world.token(&mut client, "k").await;
    world.port.answers(Admitted::Judged(Verdict::SoldOut, world.now()));
    assert_eq!(client.send(&world.attempt("k", &token, "{}")).await.code(), "SOLD_OUT");
    let limited = client.send(&world.attempt("k", &token, "{}")).await;
    assert_eq!((limited.status, limited.code()), (429, "RATE_LIMITED".into()));
    assert_eq!(limited.header("ratelimit-policy"), Some("\"user\";q=1;w=1"));
    assert_eq!(limited.header("ratelimit"), Some("\"user\";r=0;t=1"));
    assert_eq!(limited.header("retry-after"), Some("1"));
    let counted = world.metrics();
    for line in [
        r#"seckill_refusals_total{activity="sale",code="RATE_LIMITED",stage="caller_limit"} 1"#,
        r#"seckill_attempts_total{activity="sale",outcome="SOLD_OUT"} 1"#,
        r#"seckill_requests_total{route="token",status="200"} 1"#,
    ] {
        assert!(counted.contains(line), "{line} is missing in\n{counted}");
    }
}
