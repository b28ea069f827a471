//! Orders that the ledger cannot take: set aside once, told as unknown, put back by an operator.

use super::on_both;
use super::world::World;

on_both!(
    what_is_set_aside_is_not_queued_again_until_an_operator_puts_it_back,
    a_void_decides_what_was_set_aside,
    only_those_that_offend_are_set_aside_wherever_they_stand_in_a_batch,
    what_is_no_order_cannot_be_put_back,
);

mod bodies {
    use reqwest::Method;

    use super::super::world::*;

    const RETRY: &str = "/activities/sale/set-aside/";

    /// A rule of the shop's own, which the ledger's tables then enforce on some users' orders.
    async fn offend(world: &World, pattern: &str) {
        world
            .execute(&if world.mysql_url.is_some() {
                format!(
                    "CREATE TRIGGER shop_rule BEFORE INSERT ON orders FOR EACH ROW BEGIN IF NEW.user LIKE '{pattern}' \
                     AND NEW.state <> 'void' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'shop rule'; END IF; END"
                )
            } else {
                format!(
                    "CREATE TRIGGER shop_rule BEFORE INSERT ON orders WHEN CAST(NEW.user AS TEXT) LIKE '{pattern}' \
                     AND NEW.state <> 'void' BEGIN SELECT RAISE(ABORT, 'shop rule'); END"
                )
            })
            .await;
    }

    async fn metric(service: &Served, line: &str) -> bool {
        answer(service.client.get(service.url("/metrics"))).await.body.contains(line)
    }

    pub async fn what_is_set_aside_is_not_queued_again_until_an_operator_puts_it_back(world: World) {
        world.register(1, &[("phone", 10)]).await;
        offend(&world, "bad%").await;
        let service = world.serve().await;
        let bad = order("bad", "k");
        assert_eq!(service.post(&bad).await.status, 202);
        eventually("it was set aside", async || world.set_aside().await == 1).await;
        world.queue_is_empty().await;
        for _ in 0..3 {
            let told = service.post(&bad).await;
            assert_eq!((told.status, told.order.as_deref()), (503, None), "nothing definite: {}", told.body);
            assert_eq!(told.json()["code"], "SET_ASIDE");
            assert_eq!(world.queue.lag(&sale()).await, Ok(0), "and not queued again");
        }
        assert!(metric(&service, "seckill_orders_set_aside_total 1\n").await);
        let held = "seckill_orders_set_aside_entries{activity=\"sale\"} ";
        eventually("the gauge told it", async || metric(&service, &format!("{held}1\n")).await).await;

        let listed = service.get("/activities/sale/set-aside").await.json();
        let row = &listed["set_aside"][0];
        assert_eq!((row["entry"].as_str(), row["order"].as_bool()), (Some(&*bad.request_id.to_string()), Some(true)));
        assert!(row["error"].as_str().unwrap().contains("shop rule"), "{row}");
        assert!(row["content"].as_str().unwrap().contains("user=bad"), "{row}");
        let rest = service.get(&format!("/activities/sale/set-aside?after={}", bad.request_id)).await.json();
        assert_eq!(rest, serde_json::json!({"set_aside": [], "next": null}));

        let retry = format!("{RETRY}{}/retry", bad.request_id);
        let unauthorised = service.client.post(service.url(&retry));
        assert_eq!(answer(unauthorised).await.status, 401);
        world.execute("DROP TRIGGER shop_rule").await;
        assert_eq!(service.post(&bad).await.status, 503, "a mended database alone brings nothing back");
        for put_back in [true, false] {
            let answer = service.api(Method::POST, &retry, "").await;
            assert_eq!((answer.status, answer.json()["put_back"].as_bool()), (200, Some(put_back)));
        }
        assert_eq!(service.post(&bad).await.status, 202);
        assert_eq!(service.post_until_told(&bad).await.status, 200);
        assert_eq!((world.set_aside().await, world.sold("phone").await), (0, 1));
        eventually("the gauge fell", async || metric(&service, &format!("{held}0\n")).await).await;
        world.audit_is_clean().await;
        service.running.stop().await;
    }

    pub async fn a_void_decides_what_was_set_aside(world: World) {
        world.register(1, &[("phone", 10)]).await;
        offend(&world, "bad%").await;
        let service = world.serve().await;
        let bad = order("bad", "k");
        assert_eq!(service.post(&bad).await.status, 202);
        eventually("it was set aside", async || world.set_aside().await == 1).await;
        let void = service.api(Method::POST, &format!("/orders/{}/void", bad.request_id), "").await;
        assert_eq!(void.status, 200);
        let told = service.post(&bad).await;
        assert_eq!((told.status, told.order.as_deref(), told.reason.as_deref()), (409, Some("refused"), Some("void")));
        assert_eq!(world.set_aside().await, 0, "nobody needs to look at it any more");
        assert_eq!(service.get("/activities/sale/set-aside").await.json()["set_aside"], serde_json::json!([]));
        service.running.stop().await;
    }

    pub async fn only_those_that_offend_are_set_aside_wherever_they_stand_in_a_batch(world: World) {
        world.register(1, &[("phone", 400)]).await;
        offend(&world, "bad%").await;
        let mut orders = crowd(190);
        for (place, user) in [(0, "bad0"), (63, "bad1"), (64, "bad2"), (192, "bad3")] {
            orders.insert(place, order(user, "k"));
        }
        // A second order of one user is refused, not set aside, in the midst of them.
        orders.insert(65, order("u1", "again"));
        for order in &orders {
            world.queue.push(order).await.unwrap();
        }
        let started = std::time::Instant::now();
        let consumer = world.consume(world.queue.clone());
        world.queue_is_empty().await;
        assert!(started.elapsed().as_secs() < 20, "held up for {:?}", started.elapsed());
        assert_eq!((world.rows("pending").await, world.rows("refused").await), (190, 1));
        let aside = world.ledger.list_set_aside(&sale(), "", 100).await.unwrap();
        let mut named: Vec<_> = aside.iter().map(|row| row.content.split('\n').nth(2).unwrap()).collect();
        named.sort_unstable();
        assert_eq!(named, ["user=bad0", "user=bad1", "user=bad2", "user=bad3"]);
        world.audit_is_clean().await;
        consumer.stop().await;
    }

    pub async fn what_is_no_order_cannot_be_put_back(world: World) {
        world.register(1, &[("phone", 10)]).await;
        world.add_rubbish().await;
        let service = world.serve().await;
        eventually("it was set aside", async || world.set_aside().await == 1).await;
        let row = service.get("/activities/sale/set-aside").await.json()["set_aside"][0].clone();
        assert_eq!(row["order"], false, "{row}");
        let retry = format!("{RETRY}{}/retry", row["entry"].as_str().unwrap());
        let answer = service.api(Method::POST, &retry, "").await;
        assert_eq!((answer.status, answer.json()["code"].as_str()), (400, Some("BAD_REQUEST")), "{}", answer.body);
        assert_eq!(world.set_aside().await, 1);
        service.running.stop().await;
    }
}
