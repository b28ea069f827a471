//! What gate and operator see over HTTP.

use super::on_both;
use super::world::World;

on_both!(
    a_win_is_queued_then_booked_and_told_the_same_for_ever,
    a_hundred_copies_make_one_order,
    refused_and_void_are_told_for_ever,
    only_genuine_fresh_and_matching_tickets_are_taken,
    the_api_wants_its_token,
    an_operator_registers_sets_totals_and_reads,
    metrics_and_health_answer,
);

mod bodies {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use futures::future::join_all;
    use reqwest::Method;
    use serde_json::json;

    use super::super::world::*;

    pub async fn a_win_is_queued_then_booked_and_told_the_same_for_ever(world: World) {
        world.register(1, &[("phone", 10)]).await;
        let service = world.serve().await;
        let order = order("u1", "k1");
        let first = service.post(&order).await;
        let order_id = format!("o{}", order.request_id);
        assert_eq!((first.status, first.json()), (202, json!({"order_id": order_id, "state": "queued"})));
        let told = service.post_until_told(&order).await;
        assert_eq!((told.status, told.json()["order_id"].as_str()), (200, Some(order_id.as_str())));
        world.execute("UPDATE orders SET state = 'paid'").await;
        assert_eq!(service.post(&order).await.body, told.body, "byte for byte, also when it is paid");
        for id in [order.request_id.to_string(), order_id] {
            let found = service.get(&format!("/orders/{id}")).await.json();
            assert_eq!((found["state"].as_str(), found["user"].as_str()), (Some("paid"), Some("u1")));
            assert_eq!(found["payload"].as_str().unwrap().as_bytes(), &order.payload);
        }
        for (state, reason) in [("expired", "expired"), ("cancelled", "cancelled")] {
            world.execute(&format!("UPDATE orders SET state = '{state}', reason = ''")).await;
            let ended = service.post(&order).await;
            assert_eq!(
                (ended.status, ended.order.as_deref(), ended.reason.as_deref()),
                (409, Some("ended"), Some(reason))
            );
        }
        service.running.stop().await;
    }

    pub async fn a_hundred_copies_make_one_order(world: World) {
        world.register(1, &[("phone", 10)]).await;
        let service = world.serve().await;
        let order = order("u1", "k1");
        for answer in join_all((0..100).map(|_| service.post(&order))).await {
            assert!(matches!(answer.status, 200 | 202), "{} {}", answer.status, answer.body);
        }
        assert_eq!(service.post_until_told(&order).await.status, 200);
        world.queue_is_empty().await;
        assert_eq!((world.rows("pending").await, world.sold("phone").await), (1, 1));
        service.running.stop().await;
    }

    pub async fn refused_and_void_are_told_for_ever(world: World) {
        world.register(1, &[("phone", 1)]).await;
        let service = world.serve().await;
        let (first, second, dead) = (order("u1", "k"), order("u2", "k"), order("u3", "k"));
        assert_eq!(service.post_until_told(&first).await.status, 200);
        for _ in 0..2 {
            let told = service.post_until_told(&second).await;
            let told = (told.status, told.order.as_deref(), told.reason.as_deref());
            assert_eq!(told, (409, Some("refused"), Some("no_stock")));
        }
        let void = service.api(Method::POST, &format!("/orders/{}/void", dead.request_id), "").await;
        assert_eq!((void.status, void.json()), (200, json!({"state": "void"})));
        let told = service.post(&dead).await;
        let told = (told.status, told.order.as_deref(), told.reason.as_deref());
        assert_eq!(told, (409, Some("refused"), Some("void")));
        let kept = service.api(Method::POST, &format!("/orders/{}/void", first.request_id), "").await;
        assert_eq!((kept.status, kept.order.as_deref(), kept.json()["state"].as_str()), (409, None, Some("booked")));
        service.running.stop().await;
    }

    pub async fn only_genuine_fresh_and_matching_tickets_are_taken(world: World) {
        world.register(1, &[("phone", 10)]).await;
        let service = world.serve().await;
        let good = order("u1", "k1");
        let now = NOW_MS / 1000;
        type Change = fn(&mut Claims);
        let rows: [(&str, Change); 8] = [
            ("expired", |c| c.exp = NOW_MS / 1000 - 2),
            ("from the future", |c| c.iat = NOW_MS / 1000 + 60),
            ("another user", |c| c.sub = "u2".into()),
            ("another sku", |c| c.sku = "case".into()),
            ("another quantity", |c| c.qty = 2),
            ("another activity", |c| c.act = "other".into()),
            ("another request", |c| c.rid = "0".repeat(32)),
            ("no quantity", |c| c.qty = 0),
        ];
        for (what, change) in rows {
            let mut claims = Claims::of(&good);
            change(&mut claims);
            let answer = service.post_with(&good, &claims, PRIVATE).await;
            assert_eq!((answer.status, answer.order), (401, None), "{what}: it is not said to be refused");
        }
        let forged = service.post_with(&good, &Claims::of(&good), FORGER).await;
        assert_eq!((forged.status, forged.order), (401, None));
        let unsigned = service.client.post(service.url("/orders")).body("{}");
        assert_eq!(answer(unsigned).await.status, 400);
        let mut unknown = order("u1", "k1");
        unknown.activity = "never-registered".parse().unwrap();
        let answer = service.post(&unknown).await;
        assert_eq!((answer.status, answer.order), (404, None));
        assert_eq!(world.queue.lag(&sale()).await, Ok(0), "nothing of it was queued");

        let within_leeway = Claims { exp: now - 1, ..Claims::of(&good) };
        assert_eq!(service.post_with(&good, &within_leeway, PRIVATE).await.status, 202);
        service.running.stop().await;
    }

    pub async fn the_api_wants_its_token(world: World) {
        world.register(1, &[("phone", 10)]).await;
        let service = world.serve().await;
        let paths = ["/orders/x", "/activities/sale", "/activities/sale/journal", "/activities/sale/orders"];
        for path in paths {
            for header in ["", "Bearer", "Bearer ", "Bearer wrong", "bearer test-token", "Bearer test-token2"] {
                let request = service.client.get(service.url(path)).header("authorization", header);
                assert_eq!(answer(request).await.status, 401, "{path} with {header:?}");
            }
        }
        let request = service.client.post(service.url(&format!("/orders/{}/void", "0".repeat(32))));
        assert_eq!(answer(request).await.status, 401);
        assert_eq!(world.rows("void").await, 0);
        assert_eq!(service.get("/activities/sale").await.status, 200);
        service.running.stop().await;
    }

    pub async fn an_operator_registers_sets_totals_and_reads(world: World) {
        let service = world.serve().await;
        let register = json!({
            "register": {"per_user_limit": 1, "rebuy_after_release": true, "payment_deadline_ms": 900_000,
                         "skus": {"phone": 10}},
            "epoch": {"from": 0, "to": 1},
        });
        for created in [true, false] {
            let answer = service.api(Method::PUT, "/activities/sale", &register.to_string()).await;
            assert_eq!((answer.status, answer.json()["created"].as_bool()), (200, Some(created)), "{}", answer.body);
        }
        let order = order("u1", "k1");
        assert_eq!(service.post_until_told(&order).await.status, 200);
        let answer = service.api(Method::PUT, "/activities/sale", &register.to_string()).await;
        assert_eq!((answer.status, answer.json()["code"].as_str()), (409, Some("ACTIVITY_EXISTS")));
        let totals = json!({"totals": {"sku": "phone", "from": 10, "to": 5}}).to_string();
        assert_eq!(service.api(Method::PUT, "/activities/sale", &totals).await.status, 200);
        for bad in [
            "",
            "{}",
            "[1]",
            r#"{"totals":{"sku":"phone","from":1,"to":-1}}"#,
            r#"{"totals":{"sku":"phone","from":1,"to":1,"x":1}}"#,
        ] {
            assert_eq!(service.api(Method::PUT, "/activities/sale", bad).await.status, 400, "{bad}");
        }
        let report = service.get("/activities/sale").await.json();
        assert_eq!(report["skus"]["phone"], json!({"total": 5, "sold": 1}));
        assert_eq!(report["orders"], json!({"pending": 1}));
        let listed = service.get("/activities/sale/orders").await.json();
        assert_eq!(listed["orders"][0]["request_id"], json!(order.request_id));
        let rest = service.get(&format!("/activities/sale/orders?after={}", order.request_id)).await.json();
        assert_eq!(rest, json!({"orders": [], "next": null}));
        let journal = service.get("/activities/sale/journal?limit=2").await.json();
        let kinds = |journal: &serde_json::Value| -> Vec<String> {
            journal["journal"].as_array().unwrap().iter().map(|l| l["kind"].as_str().unwrap().into()).collect()
        };
        assert_eq!(kinds(&journal), ["total", "book"]);
        let journal = service.get(&format!("/activities/sale/journal?after={}", journal["next"])).await.json();
        assert_eq!(kinds(&journal), ["total"]);
        assert_eq!(service.get("/activities/sale/audit").await.json()["violations"], json!(0));
        assert_eq!(service.get("/activities/other").await.status, 404);
        service.running.stop().await;
    }

    pub async fn metrics_and_health_answer(world: World) {
        world.register(1, &[("phone", 10)]).await;
        let service = world.serve().await;
        service.post_until_told(&order("u1", "k1")).await;
        for path in ["/healthz", "/readyz"] {
            assert_eq!(answer(service.client.get(service.url(path))).await.status, 200, "{path}");
        }
        let metrics = answer(service.client.get(service.url("/metrics"))).await.body;
        assert!(metrics.contains("seckill_orders_consumed_total{verdict=\"booked\"} 1"), "{metrics}");
        let mut promtool = Command::new("promtool")
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        promtool.stdin.take().unwrap().write_all(metrics.as_bytes()).unwrap();
        let checked = promtool.wait_with_output().unwrap();
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
        service.running.stop().await;
    }
}
