//! Order services that are sick in every way for the first two tries of an id, and then healthy: nothing is released, each
//! win ends booked, once. And one that refuses by name: told once and for ever, its unit sold again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::future::join_all;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::harness::deployment::{Deployment, OTHER_SALE, SALE, Told, Wish, run, seckill_gate};
use crate::harness::proxy::Mode;

/// Buyers of each kind.
const EACH: usize = 4;
/// How many tries of an id are sick.
const SICK_TRIES: usize = 2;
/// Longer than the 64 KiB that are kept by default.
const LONG: usize = 10 << 20;

/// Ways to be sick. The user's name says which one an order meets.
const KINDS: [&str; 10] = [
    "ten-seconds",
    "status-500",
    "redirect-303",
    "bare-409",
    "half-body",
    "long-500",
    "hangs",
    "closes",
    "no-http",
    "half-header",
];

/// A delivery as it came.
#[derive(Debug, Clone)]
struct Delivery {
    user: String,
    ticket: String,
}

/// An order service over raw sockets.
#[derive(Default)]
struct FakeOrders {
    /// By request id, in order of arrival.
    deliveries: Mutex<BTreeMap<String, Vec<Delivery>>>,
}

impl FakeOrders {
    async fn start() -> (Arc<FakeOrders>, u16) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let fake = Arc::new(FakeOrders::default());
        let serving = Arc::clone(&fake);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let fake = Arc::clone(&serving);
                tokio::spawn(async move {
                    // The gate may hang up first; that is part of the play.
                    _ = fake.serve(stream).await;
                });
            }
        });
        (fake, port)
    }

    async fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        while let Some(head) = read_request(&mut stream).await? {
            let header = |name: &str| {
                let mut lines = head.lines().filter_map(|line| line.split_once(':'));
                let found = lines.find(|(key, _)| key.eq_ignore_ascii_case(name));
                found.map(|(_, value)| value.trim().to_owned()).unwrap_or_else(|| panic!("no {name} in {head}"))
            };
            let (id, user) = (header("idempotency-key"), header("seckill-user"));
            let tries = {
                let mut deliveries = self.deliveries.lock().unwrap();
                let of_this = deliveries.entry(id.clone()).or_default();
                of_this.push(Delivery { user: user.clone(), ticket: header("seckill-ticket") });
                of_this.len()
            };
            let kind = user.rsplit_once('-').unwrap().0;
            if tries <= SICK_TRIES && !answer_sick(&mut stream, kind, &id).await? {
                return Ok(());
            }
            if tries > SICK_TRIES || !is_sick(kind) {
                stream.write_all(answer_well(kind, &id).as_bytes()).await?;
            }
        }
        Ok(())
    }

    /// The deliveries of one user's only win.
    fn of(&self, user: &str) -> Vec<Delivery> {
        let deliveries = self.deliveries.lock().unwrap();
        let mut of_user = deliveries.values().filter(|of_id| of_id[0].user == user);
        let found = of_user.next().unwrap_or_else(|| panic!("nothing was delivered for {user}")).clone();
        assert!(of_user.next().is_none(), "{user} has more than one request id");
        assert!(found.iter().all(|delivery| delivery.user == user), "an id of two users");
        found
    }
}

fn is_sick(kind: &str) -> bool {
    KINDS.contains(&kind)
}

/// What the healthy service says of an id; always the same.
fn order_of(id: &str) -> String {
    format!(r#"{{"order_id":"order-of-{id}"}}"#)
}

fn answer_well(kind: &str, id: &str) -> String {
    let order = order_of(id);
    match kind {
        "refused" => "HTTP/1.1 409 Conflict\r\nSeckill-Order: refused\r\nSeckill-Reason: out-of-area\r\n\
                      Content-Length: 2\r\n\r\n{}"
            .into(),
        // Booked at the first try, with more than is kept.
        "long-201" => format!("HTTP/1.1 201 Created\r\nContent-Length: {LONG}\r\n\r\n{}", "x".repeat(LONG)),
        _ => format!(
            "HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{order}",
            order.len()
        ),
    }
}

/// Answers as this kind does; false if the connection ends with it.
async fn answer_sick(stream: &mut TcpStream, kind: &str, id: &str) -> std::io::Result<bool> {
    let whole = match kind {
        "status-500" => "HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\noops".to_owned(),
        "redirect-303" => "HTTP/1.1 303 See Other\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n".to_owned(),
        "bare-409" => "HTTP/1.1 409 Conflict\r\nContent-Length: 2\r\n\r\n{}".to_owned(),
        "long-500" => format!("HTTP/1.1 500 Oops\r\nContent-Length: {LONG}\r\n\r\n{}", "x".repeat(LONG)),
        "half-body" => {
            let order = order_of(id);
            let half = &order[..order.len() / 2];
            let reply = format!("HTTP/1.1 201 Created\r\nContent-Length: {}\r\n\r\n{half}", order.len());
            stream.write_all(reply.as_bytes()).await?;
            return Ok(false);
        }
        "half-header" => {
            stream.write_all(b"HTTP/1.1 201 Created\r\nContent-Le").await?;
            return Ok(false);
        }
        "no-http" => {
            stream.write_all(b"\x15\x03\x01\x00\x02\x02\x28 201 Created\r\n\r\n").await?;
            return Ok(false);
        }
        "closes" => return Ok(false),
        "ten-seconds" => {
            tokio::time::sleep(Duration::from_secs(10)).await;
            stream.write_all(answer_well(kind, id).as_bytes()).await?;
            return Ok(false);
        }
        "hangs" => {
            tokio::time::sleep(Duration::from_secs(60)).await;
            return Ok(false);
        }
        _ => return Ok(true),
    };
    stream.write_all(whole.as_bytes()).await?;
    Ok(true)
}

/// The head of the next request, its body read; `None` at the end.
async fn read_request(stream: &mut TcpStream) -> std::io::Result<Option<String>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if stream.read(&mut byte).await? == 0 {
            return Ok(None);
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let length =
        head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).await?;
    Ok(Some(head))
}

/// The store's count of wins of a sale: held, accepted, released.
async fn wins(deployment: &Deployment, sale: &str) -> (u64, u64, u64) {
    let text = run(&mut deployment.command(0, &["status", sale, "--json"]));
    let status: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let wins = &status["activities"][0]["wins"];
    let of = |state: &str| wins[state].as_u64().unwrap_or_else(|| panic!("no wins.{state} in {status}"));
    (of("held"), of("accepted"), of("released"))
}

/// A whole attempt with a token of its own.
async fn buy(deployment: &Deployment, sale: &str, user: &str, key: &str) -> Told {
    let token = deployment.token_for(sale, 0, user, key).await;
    deployment.attempt_at(sale, 0, user, key, &token).await
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_a_sick_order_service_does_each_win_ends_booked_once() {
    let (fake, port) = FakeOrders::start().await;
    let kinds: Vec<&str> = KINDS.into_iter().chain(["long-201", "healthy"]).collect();
    let users: Vec<String> =
        kinds.iter().flat_map(|kind| (0..EACH).map(move |number| format!("{kind}-{number}"))).collect();
    let deployment = Deployment::as_wished(Wish {
        stock: users.len() as u32,
        shops_own_orders: Some(port),
        orders: "  deadline: 1s\n  answer_within: 1s\n",
        ..Wish::default()
    })
    .await;
    let deployment = &deployment;
    let first = join_all(users.iter().map(|user| async move { buy(deployment, SALE, user, "k").await })).await;
    let results = join_all(users.iter().map(|user| deployment.result(SALE, 0, user, "k"))).await;
    let mut more_than_needed = 0;
    for ((user, told), result) in users.iter().zip(&first).zip(&results) {
        let kind = user.rsplit_once('-').unwrap().0;
        let deliveries = fake.of(user);
        let id = told.request_id.as_deref().unwrap_or_else(|| panic!("{user} was told {told:?}"));
        let expected = if is_sick(kind) { ("QUEUED", SICK_TRIES + 1) } else { ("WON", 1) };
        // A busy machine may make a first reply late, and then it is told later.
        assert!(told.outcome == expected.0 || told.outcome == "QUEUED", "{user} was told {told:?}");
        assert!(deliveries.len() >= expected.1, "{user}: {} tries", deliveries.len());
        more_than_needed += deliveries.len() - expected.1;
        let tickets: BTreeSet<&str> = deliveries.iter().map(|delivery| delivery.ticket.as_str()).collect();
        // Signed anew for each try; two within one second are the same text.
        assert!(tickets.len() > 1 || deliveries.len() == 1, "{user}: {} tries with one ticket", deliveries.len());
        assert_eq!((&result["state"], &result["request_id"]), (&"accepted".into(), &id.into()), "{user}: {result}");
        // From now on the healthy word is told, always the same.
        let again = buy(deployment, SALE, user, "k").await;
        assert_eq!((again.outcome.as_str(), again.status, again.request_id.as_deref()), ("WON", 201, Some(id)));
        match kind {
            "long-201" => {
                assert_eq!(again.body, "", "a body of 10 MB is not kept");
                assert!(result.get("order").is_none(), "{result}");
            }
            _ => {
                assert_eq!(again.body, order_of(id), "{user}");
                assert_eq!(result["order"].to_string(), order_of(id), "{user}");
            }
        }
    }
    assert!(more_than_needed <= users.len() / 5, "{more_than_needed} deliveries that nothing called for");
    assert_eq!(fake.deliveries.lock().unwrap().len(), users.len(), "one request id for each win");
    assert_eq!(wins(deployment, SALE).await, (0, users.len() as u64, 0), "nothing is released");
    assert_eq!(buy(deployment, SALE, "late-0", "k").await.outcome, "SOLD_OUT");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_by_name_is_told_for_ever_and_its_unit_is_sold_again() {
    let (fake, port) = FakeOrders::start().await;
    let wish = Wish { stock: 1, gates: 2, shops_own_orders: Some(port), ..Wish::default() };
    let deployment = Deployment::as_wished(wish).await;
    let refused_for_ever = async |user: &str, key: &str| {
        for gate in [0, 1] {
            let token = deployment.token_for(OTHER_SALE, gate, user, key).await;
            let told = deployment.attempt_at(OTHER_SALE, gate, user, key, &token).await;
            assert_eq!((told.status, told.outcome.as_str()), (409, "ORDER_REFUSED"), "{user} {key} at {gate}");
            assert!(told.body.contains("out-of-area"), "{}", told.body);
            let result = deployment.result(OTHER_SALE, gate, user, key).await;
            assert_eq!((&result["state"], &result["reason"]), (&"refused".into(), &"out-of-area".into()));
        }
    };
    // One unit: refused to one user, won by another and refused again, then bought by one who lost it.
    for user in ["refused-1", "refused-2"] {
        until_sold_to(&deployment, user, "k1", "ORDER_REFUSED").await;
        refused_for_ever(user, "k1").await;
    }
    until_sold_to(&deployment, "refused-1", "k2", "ORDER_REFUSED").await;
    until_sold_to(&deployment, "happy-1", "k1", "WON").await;
    for (user, key) in [("refused-1", "k1"), ("refused-2", "k1"), ("refused-1", "k2")] {
        refused_for_ever(user, key).await;
    }
    assert_eq!(wins(&deployment, OTHER_SALE).await, (0, 1, 3));
    let deliveries = fake.deliveries.lock().unwrap().clone();
    assert_eq!(deliveries.len(), 4);
    for (id, tries) in &deliveries {
        assert_eq!(tries.len(), 1, "{id} of {} was asked about again", tries[0].user);
    }
}

/// Tries until the unit is on sale again: what was told then.
async fn until_sold_to(deployment: &Deployment, user: &str, key: &str, wanted: &str) {
    let started = Instant::now();
    loop {
        // No token is given while everything is sold out.
        let state = deployment.json(0, &format!("/seckill/{OTHER_SALE}/state"), user).await;
        if state["phase"] == "open" {
            let told = buy(deployment, OTHER_SALE, user, key).await;
            if told.outcome != "SOLD_OUT" {
                assert_eq!(told.outcome, wanted, "{user} {key}: {told:?}");
                return;
            }
        }
        assert!(started.elapsed() < Duration::from_secs(15), "the unit never came back for {user}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_replies_of_our_order_service_make_no_second_order() {
    const STOCK: usize = 12;
    let wish = Wish {
        stock: STOCK as u32,
        orders_proxy: true,
        orders: "  deadline: 1s\n  answer_within: 1s\n",
        ..Wish::default()
    };
    let deployment = Deployment::as_wished(wish).await;
    let deployment = &deployment;
    let proxy = deployment.orders_proxy.as_ref().unwrap();
    proxy.set(Mode::DropReplies);
    let users: Vec<String> = (0..STOCK).map(|number| format!("u{number}")).collect();
    let told = join_all(users.iter().map(|user| buy(deployment, SALE, user, "k"))).await;
    assert!(told.iter().all(|told| told.outcome == "QUEUED"), "{told:?}");
    proxy.until_it_misbehaved().await;
    // Every order stands, and no gate knows of one.
    deployment.until_count("SELECT COUNT(*) FROM orders", STOCK as i64).await;
    assert_eq!(wins(deployment, SALE).await, (STOCK as u64, 0, 0));
    proxy.set(Mode::Pass);
    for (user, told) in users.iter().zip(&told) {
        let result = deployment.result(SALE, 0, user, "k").await;
        assert_eq!(result["state"], "accepted", "{user}: {result}");
        assert_eq!(result["request_id"].as_str(), told.request_id.as_deref());
    }
    assert_eq!(deployment.count("SELECT COUNT(DISTINCT request_id) FROM orders").await, STOCK as i64);
    assert_eq!(deployment.count("SELECT COUNT(*) FROM orders").await, STOCK as i64);
    let sold = format!("SELECT CAST(SUM(sold) AS SIGNED) FROM stock WHERE activity = '{SALE}'");
    assert_eq!(deployment.count(&sold).await, STOCK as i64);
    assert_eq!(wins(deployment, SALE).await, (0, STOCK as u64, 0));
    run(seckill_gate().args(["audit", SALE, "-c"]).arg(&deployment.config));
}
