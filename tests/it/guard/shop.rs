//! A shop that is dead or hangs: its requests fail at once, and the sale's routes are served.

use std::time::{Duration, Instant};

use futures::future::join_all;

use super::eventually;
use crate::edge::world::{World, start_with};

const SLOW: &str = "GET /slow HTTP/1.1\r\nHost: x\r\n\r\n";
const FAST: &str = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
const PAGE: &str = "GET /seckill/sale HTTP/1.1\r\nHost: x\r\n\r\n";

async fn status(world: &World, request: &str) -> (u16, String) {
    let reply = world.connect().await.send(request).await;
    (reply.status, if reply.status < 400 { String::new() } else { reply.code() })
}

#[tokio::test]
async fn a_shop_that_hangs_is_refused_at_once_until_a_probe_is_answered() {
    let world = start_with(|config| config.shop_timeout = Duration::from_millis(800)).await;
    let hung = join_all((0..5).map(|_| status(&world, SLOW))).await;
    assert!(hung.iter().all(|told| *told == (504, "UPSTREAM_UNAVAILABLE".into())), "{hung:?}");
    let open = "seckill_breaker_open{activity=\"\",target=\"shop\"} 1";
    assert!(world.metrics().contains(open), "{}", world.metrics());
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
    assert!(!world.metrics().contains(open));
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
