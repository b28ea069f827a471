//! The end of a whole gate under load: `/readyz` first, then nobody's request fails.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::post;
use http::StatusCode;
use seckill_gate::domain::admission::Verdict;
use seckill_gate::domain::refusal::Code;
use seckill_gate::gate::activity::Admitted;
use seckill_gate::gate::delivery::reply::StoredReply;
use seckill_gate::gate::delivery::told::Told;
use tokio::net::TcpListener;

use crate::edge::http1::Client;
use crate::edge::world::{self, booked};
use crate::harness::deployment::{Deployment, SALE, Wish};
use crate::harness::process::signal;

/// A shop's own order service that books, slowly.
async fn slow_orders(takes: Duration) -> u16 {
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = socket.local_addr().unwrap().port();
    let book = async move || {
        tokio::time::sleep(takes).await;
        (StatusCode::CREATED, "{\"order_id\":\"o1\"}")
    };
    tokio::spawn(async move { axum::serve(socket, Router::new().route("/orders", post(book))).await });
    port
}

async fn ready(admin: u16) -> u16 {
    let reply = reqwest::get(format!("http://127.0.0.1:{admin}/readyz")).await;
    reply.map_or(0, |reply| reply.status().as_u16())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gate_that_ends_under_load_fails_no_request() {
    let orders = slow_orders(Duration::from_millis(1_500)).await;
    let wish = Wish { shops_own_orders: Some(orders), sales: vec![SALE.into()], ..Wish::default() };
    let mut deployment = Deployment::as_wished(wish).await;
    let text = std::fs::read_to_string(&deployment.config).unwrap();
    std::fs::write(&deployment.config, text.replace("drain_delay: 100ms", "drain_delay: 1s")).unwrap();
    deployment.kill_gate(0);
    deployment.start_gate(0);
    deployment.until_open(0).await;
    let address = SocketAddr::from(([127, 0, 0, 1], deployment.gates[0].public));
    let admin = deployment.gates[0].admin;
    assert_eq!(ready(admin).await, 200);

    // Clients that send one request after another, and connect anew only where a balancer would still lead them.
    let (drained, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let (drained, served) = (Arc::clone(&drained), Arc::clone(&served));
            tokio::spawn(async move {
                while !drained.load(Ordering::SeqCst) {
                    let mut client = Client::try_connect(address).await.unwrap();
                    loop {
                        let reply =
                            client.send(&format!("GET /seckill/{SALE}/state HTTP/1.1\r\nHost: x\r\n\r\n")).await;
                        assert_eq!(reply.status, 200, "{reply:?}");
                        served.fetch_add(1, Ordering::SeqCst);
                        if reply.header("connection") == Some("close") {
                            break;
                        }
                    }
                }
            })
        })
        .collect();
    let mut idle = Client::try_connect(address).await.unwrap();
    let state = format!("GET /seckill/{SALE}/state HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(idle.send(&state).await.header("connection"), Some("keep-alive"));
    let deployment = Arc::new(deployment);
    let polls: Vec<_> = (0..3)
        .map(|n| {
            let deployment = Arc::clone(&deployment);
            let path = format!("/seckill/{SALE}/results/none-{n}?wait=20s");
            tokio::spawn(async move { deployment.json(0, &path, "ann").await })
        })
        .collect();
    let begun = Instant::now();
    while served.load(Ordering::SeqCst) < 50 {
        assert!(begun.elapsed() < Duration::from_secs(20), "the clients are not served");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    let pid = deployment.gates[0].process.as_ref().unwrap().id();
    signal(pid, "TERM");
    let signalled = Instant::now();
    while ready(admin).await != 503 {
        assert!(signalled.elapsed() < Duration::from_secs(1), "still ready");
    }
    drained.store(true, Ordering::SeqCst);
    // Whoever still comes is served, and asked to go elsewhere next time.
    let mut late = Client::try_connect(address).await.unwrap();
    let reply = late.send(&state).await;
    assert_eq!((reply.status, reply.header("connection")), (200, Some("close")));
    // A winner whose order takes longer than the drain.
    let token = deployment.token(0, "bob", "k1").await;
    let winner = tokio::spawn({
        let deployment = Arc::clone(&deployment);
        async move { deployment.attempt(0, "bob", "k1", &token).await }
    });
    for client in clients {
        client.await.unwrap();
    }
    for poll in polls {
        assert_eq!(poll.await.unwrap()["code"], "NO_SUCH_RESULT");
    }
    assert!(signalled.elapsed() < Duration::from_secs(8), "long polls held out for {:?}", signalled.elapsed());
    assert!(idle.is_closed().await);
    let won = winner.await.unwrap();
    assert_eq!((won.status, won.outcome.as_str()), (201, "WON"), "{won:?}");

    let mut deployment = Arc::into_inner(deployment).unwrap();
    assert_eq!(deployment.gates[0].process.as_mut().unwrap().ended(), Some(0));
    assert!(signalled.elapsed() < Duration::from_secs(11), "ended after {:?}", signalled.elapsed());
    // What was told is recorded.
    deployment.start_gate(0);
    deployment.until_open(0).await;
    assert_eq!(deployment.result(SALE, 0, "bob", "k1").await["state"], "accepted");
}

#[tokio::test]
async fn a_request_that_never_ends_does_not_keep_the_gate_from_ending() {
    let mut world = world::start_with(|config| {
        config.limits.finish_within = Duration::from_secs(1);
        config.shop_timeout = Duration::from_secs(60);
    })
    .await;
    let mut stuck = world.connect().await;
    stuck.write("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n").await;
    let begun = Instant::now();
    while world.shop_requests() == 0 {
        assert!(begun.elapsed() < Duration::from_secs(5), "the shop was not asked");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    world.shut_down();
    world.ended().await;
    assert!(stuck.is_closed().await);
}

#[tokio::test]
async fn shutdown_finishes_what_is_under_way_and_lets_idle_connections_go() {
    let mut world = world::start().await;
    let mut idle = world.connect().await;
    idle.send("GET /seckill/sale HTTP/1.1\r\nHost: x\r\n\r\n").await;
    let mut busy = world.connect().await;
    let token = world.token(&mut busy, "k").await;
    world.port.answers(Admitted::Judged(Verdict::Won, world.now()));
    world.delivery.tells(Told::Won(Some(StoredReply { body: "{}".into(), ..booked() })));
    world.delivery.takes(Duration::from_millis(500));
    busy.write(&world.attempt("k", &token, "{}")).await;
    let mut waiting = world.connect().await;
    waiting.write(&world.get("/seckill/sale/results/k?wait=30s")).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(world.in_flight(), 2);
    let started = Instant::now();
    let address = world.address;
    world.shut_down();
    assert_eq!(waiting.reply().await.code(), Code::NoSuchResult.name(), "told at once, as it stands");
    assert_eq!(busy.reply().await.header("seckill-outcome"), Some("WON"));
    assert!(idle.is_closed().await);
    world.ended().await;
    assert!(started.elapsed() < Duration::from_secs(5));
    assert!(Client::try_connect(address).await.is_err(), "the socket is closed");
}
