//! A shop that is dead or hangs: its requests fail at once, and the sale's routes are served.

use std::time::{Duration, Instant};

use futures::future::join_all;
use tokio::task::JoinHandle;

use super::eventually;
use crate::edge::world::{World, start_with};

const SLOW: &str = "GET /slow HTTP/1.1\r\nHost: x\r\n\r\n";
const FAST: &str = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
const PAGE: &str = "GET /seckill/sale HTTP/1.1\r\nHost: x\r\n\r\n";

const UPLOAD: &str = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n";
const OPEN: &str = "seckill_breaker_open{activity=\"\",target=\"shop\"} 1";

/// Uploads a byte now and then, for ever.
async fn trickle(world: &World) -> JoinHandle<()> {
    let mut client = world.connect().await;
    client.write(UPLOAD).await;
    tokio::spawn(async move {
        loop {
            client.write("x").await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
}

async fn status(world: &World, request: &str) -> (u16, String) {
    let reply = world.connect().await.send(request).await;
    (reply.status, if reply.status < 400 { String::new() } else { reply.code() })
}

#[tokio::test]
async fn a_shop_that_hangs_is_refused_at_once_until_a_probe_is_answered() {
    let world = start_with(|config| config.shop_timeout = Duration::from_millis(800)).await;
    let hung = join_all((0..5).map(|_| status(&world, SLOW))).await;
    assert!(hung.iter().all(|told| *told == (504, "UPSTREAM_UNAVAILABLE".into())), "{hung:?}");
    assert!(world.metrics().contains(OPEN), "{}", world.metrics());
    let asked = world.shop_requests();
    let started = Instant::now();
    let mut client = world.connect().await;
    let reply = client.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}").await;
    assert_eq!((reply.status, reply.code()), (502, "UPSTREAM_UNAVAILABLE".into()));
    assert_eq!(reply.header("retry-after"), Some("1"));
    assert_eq!(reply.header("connection"), Some("keep-alive"));
    assert_eq!(client.send(PAGE).await.status, 200);
    assert!(started.elapsed() < Duration::from_millis(800), "waited for the shop: {:?}", started.elapsed());
    assert_eq!(world.shop_requests(), asked, "it was asked");
    // One request finds out, and then all go through again.
    let started = Instant::now();
    while status(&world, FAST).await.0 != 200 {
        assert!(started.elapsed() < Duration::from_secs(10), "no probe was let through");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(!world.metrics().contains(OPEN));
    assert!(join_all((0..10).map(|_| status(&world, FAST))).await.iter().all(|told| told.0 == 200));
}

#[tokio::test]
async fn requests_that_hang_at_the_shop_are_capped_and_the_sale_goes_on() {
    let world = start_with(|config| {
        config.shop_timeout = Duration::from_secs(3);
        config.shop_places = 2;
    })
    .await;
    let hung = join_all((0..2).map(|_| status(&world, SLOW)));
    let meanwhile = async {
        eventually("both are under way", || world.shop_requests() == 2).await;
        let started = Instant::now();
        assert_eq!(status(&world, FAST).await, (503, "BUSY".into()));
        assert_eq!(status(&world, PAGE).await.0, 200);
        assert!(started.elapsed() < Duration::from_secs(3), "waited: {:?}", started.elapsed());
    };
    let (hung, ()) = tokio::join!(hung, meanwhile);
    assert!(hung.iter().all(|told| told.0 == 504), "{hung:?}");
    assert_eq!(status(&world, FAST).await.0, 200, "places come back");
}

#[tokio::test]
async fn clients_that_trickle_their_bodies_do_not_keep_the_shop_away() {
    let world = start_with(|config| config.shop_timeout = Duration::from_millis(800)).await;
    join_all((0..5).map(|_| status(&world, SLOW))).await;
    assert!(world.metrics().contains(OPEN));
    let asked = world.shop_requests();
    // The next probe is due: they are the first who ask, and the shop, which is well again, waits for their bodies.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let uploads = join_all((0..12).map(|_| trickle(&world))).await;
    eventually("they hold a probe", || world.shop_requests() > asked).await;
    let started = Instant::now();
    while status(&world, FAST).await.0 != 200 {
        assert!(started.elapsed() < Duration::from_secs(10), "they hold every probe");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(!world.metrics().contains(OPEN));
    uploads.iter().for_each(JoinHandle::abort);
}

#[tokio::test]
async fn a_body_for_the_shop_arrives_in_time_or_is_given_up() {
    let world = start_with(|config| config.shop_body_deadline = Duration::from_millis(700)).await;
    let mut client = world.connect().await;
    client.write(UPLOAD).await;
    let started = Instant::now();
    let reply = loop {
        client.write("x").await;
        tokio::select! {
            reply = client.reply() => break reply,
            () = tokio::time::sleep(Duration::from_millis(50)) => {}
        }
        assert!(started.elapsed() < Duration::from_secs(5), "it may go on for ever");
    };
    assert_eq!((reply.status, reply.code()), (408, "TIMEOUT".into()));
    // One that falls silent is given up at the same time, and one that is in time is not.
    let started = Instant::now();
    assert_eq!(status(&world, UPLOAD).await, (408, "TIMEOUT".into()));
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    let mut client = world.connect().await;
    client.write("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{").await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(client.send("}").await.status, 200);
}

#[tokio::test]
async fn a_client_that_stalls_is_not_taken_for_a_shop_that_does_not_answer() {
    let world = start_with(|config| config.shop_timeout = Duration::from_millis(300)).await;
    let stalled = join_all((0..6).map(|_| status(&world, UPLOAD))).await;
    assert!(stalled.iter().all(|told| *told == (408, "TIMEOUT".into())), "{stalled:?}");
    assert!(!world.metrics().contains(OPEN));
    assert_eq!(status(&world, FAST).await.0, 200);
}
