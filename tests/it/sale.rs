//! The whole road on real servers and real processes: from the click to the booked order.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use loadtest::crowd::{Crowd, Plan};

use crate::harness::deployment::{Deployment, OTHER_SALE, SALE, SKU, Told, run, seckill_gate};

/// Waits until the ledger holds so many orders; fails after 20 s.
async fn orders_reach(deployment: &Deployment, wanted: i64) {
    let started = Instant::now();
    loop {
        let orders = deployment.count("SELECT COUNT(*) FROM orders WHERE state = 'pending'").await;
        if orders == wanted {
            return;
        }
        assert!(started.elapsed() < Duration::from_secs(20), "{orders} orders, not {wanted}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_click_becomes_a_booked_order_and_its_buyer_hears_within_a_second() {
    let deployment = Deployment::start(1, 3).await;
    let token = deployment.token(0, "ann", "k1").await;
    let first = deployment.attempt(0, "ann", "k1", &token).await;
    assert!(first.outcome == "WON" || first.outcome == "QUEUED", "{first:?}");
    let started = Instant::now();
    let result = deployment.json(0, &format!("/seckill/{SALE}/results/k1?wait=10s"), "ann").await;
    assert_eq!(result["state"], "accepted", "{result}");
    assert!(started.elapsed() < Duration::from_secs(5), "took {:?}", started.elapsed());
    orders_reach(&deployment, 1).await;

    // From now on the same request is told WON, with one body.
    let again = deployment.attempt(0, "ann", "k1", &token).await;
    assert_eq!((again.outcome.as_str(), &again.request_id), ("WON", &first.request_id));
    assert_eq!(deployment.attempt(0, "ann", "k1", &token).await, again);
    // Another key is another attempt, and ann has all she may have.
    let other = deployment.token(0, "ann", "k2").await;
    assert_eq!(deployment.attempt(0, "ann", "k2", &other).await.outcome, "ALREADY_BOUGHT");
    // Ann's token is good for nobody else, and for no other key.
    assert_eq!(deployment.attempt(0, "bob", "k1", &token).await.outcome, "TOKEN_INVALID");
    assert_eq!(deployment.attempt(0, "ann", "k3", &token).await.outcome, "TOKEN_INVALID");
    // The same key of another user is another attempt, with another request id.
    let bobs = deployment.token(0, "bob", "k1").await;
    let bob = deployment.attempt(0, "bob", "k1", &bobs).await;
    assert!(bob.outcome == "WON" || bob.outcome == "QUEUED", "{bob:?}");
    assert_ne!(bob.request_id, first.request_id);
    // So is the same user's key in another sale, where the token of this one is worth nothing.
    assert_eq!(deployment.attempt_at(OTHER_SALE, 0, "ann", "k1", &token).await.outcome, "TOKEN_INVALID");
    let encore = deployment.token_for(OTHER_SALE, 0, "ann", "k1").await;
    let other_sale = deployment.attempt_at(OTHER_SALE, 0, "ann", "k1", &encore).await;
    assert!(other_sale.outcome == "WON" || other_sale.outcome == "QUEUED", "{other_sale:?}");
    assert_ne!(other_sale.request_id, first.request_id);
    orders_reach(&deployment, 3).await;
    run(seckill_gate().args(["audit", SALE, "-c"]).arg(&deployment.config));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_copies_at_two_gates_are_one_win_and_one_order() {
    let deployment = Arc::new(Deployment::start(2, 50).await);
    let token = deployment.token(0, "ann", "k1").await;
    let copies = (0..100).map(|n| {
        let (deployment, token) = (Arc::clone(&deployment), token.clone());
        tokio::spawn(async move { deployment.attempt(n % 2, "ann", "k1", &token).await })
    });
    let told: Vec<Told> = futures::future::join_all(copies).await.into_iter().map(Result::unwrap).collect();
    let ids: HashSet<_> = told.iter().map(|told| told.request_id.clone()).collect();
    assert_eq!(ids.len(), 1, "{ids:?}");
    assert!(told.iter().all(|told| told.outcome == "WON" || told.outcome == "QUEUED"), "{told:#?}");
    orders_reach(&deployment, 1).await;
    // Once WON was told, only WON with the same body is.
    let mut bodies = HashSet::new();
    let result = deployment.json(1, &format!("/seckill/{SALE}/results/k1?wait=10s"), "ann").await;
    assert_eq!(result["state"], "accepted", "{result}");
    for n in 0..20 {
        let told = deployment.attempt(n % 2, "ann", "k1", &token).await;
        assert_eq!(told.outcome, "WON");
        bodies.insert(told.body);
    }
    bodies.extend(told.into_iter().filter(|told| told.outcome == "WON").map(|told| told.body));
    assert_eq!(bodies.len(), 1, "{bodies:?}");
    assert_eq!(deployment.count("SELECT COUNT(*) FROM orders").await, 1);
    let stock = deployment.store.command(&["HGET", &format!("sk:{{{SALE}.0}}:stock"), &format!("{SKU}:left")]);
    assert_eq!(stock.unwrap(), redis::Value::BulkString(b"49".to_vec()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_at_two_gates_leaves_exactly_the_stock_in_the_ledger() {
    const STOCK: u32 = 50;
    let deployment = Deployment::start(2, STOCK).await;
    let gates = deployment.gates.iter().map(|gate| ([127, 0, 0, 1], gate.public).into()).collect();
    let mut plan = Plan::new(gates, SALE, SKU, deployment.signer());
    plan.users = 1_000;
    plan.attempts_per_user = 2;
    plan.pace = Duration::from_millis(200);
    plan.arrive_within = Duration::from_secs(1);
    plan.surge = Duration::from_millis(300);
    plan.concurrency = 500;
    plan.give_up_after = Duration::from_secs(60);
    let funnel = Crowd::send(plan).finish(|_, _| ()).await;
    assert_eq!(funnel.broken, Vec::<String>::new());
    assert!(funnel.adds_up());
    orders_reach(&deployment, i64::from(STOCK)).await;
    assert_eq!(deployment.count("SELECT COUNT(DISTINCT user) FROM orders").await, i64::from(STOCK));
    assert_eq!(
        deployment.count("SELECT CAST(SUM(sold) AS SIGNED) FROM stock WHERE activity = 'launch'").await,
        i64::from(STOCK)
    );
    let audit = run(seckill_gate().args(["audit", SALE, "--json", "-c"]).arg(&deployment.config));
    assert!(audit.contains("\"violations\":0"), "{audit}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_metrics_of_gate_and_order_service_pass_promtool() {
    let deployment = Deployment::start(1, 5).await;
    let token = deployment.token(0, "ann", "k1").await;
    deployment.attempt(0, "ann", "k1", &token).await;
    assert_eq!(deployment.attempt(0, "bob", "k1", &token).await.outcome, "TOKEN_INVALID");
    let page = reqwest::get(format!("http://127.0.0.1:{}/seckill/{SALE}", deployment.gates[0].public)).await.unwrap();
    assert_eq!(page.status(), 200);
    orders_reach(&deployment, 1).await;
    let url = format!("http://127.0.0.1:{}/metrics", deployment.gates[0].metrics);
    let metrics = reqwest::get(url).await.unwrap().text().await.unwrap();
    for name in [
        "seckill_requests_total",
        "seckill_attempts_total",
        "seckill_refusals_total",
        "seckill_stock_units",
        "seckill_wins_unsettled",
        "seckill_store_batch_size",
        "seckill_store_admit_duration_seconds",
        "seckill_deliveries_total",
        "seckill_delivery_duration_seconds",
        "seckill_dead_letters",
        "seckill_limiter_keys",
        "seckill_page_hits_total",
        "seckill_build_info",
    ] {
        assert!(metrics.contains(&format!("# TYPE {name} ")), "{name} is missing");
    }
    check_metrics(&metrics);
    let url = format!("http://127.0.0.1:{}/metrics", deployment.orders_port);
    let read = async || reqwest::get(&url).await.unwrap().text().await.unwrap();
    let started = Instant::now();
    // Gauges are read every few seconds.
    while !read().await.contains("# TYPE seckill_orders_by_status ") && started.elapsed() < Duration::from_secs(15) {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let metrics = read().await;
    for name in [
        "seckill_orders_by_status",
        "seckill_orders_queue_lag",
        "seckill_orders_consumer_batch_orders",
        "seckill_orders_consumer_batch_seconds",
        "seckill_orders_pool_connections",
    ] {
        assert!(metrics.contains(&format!("# TYPE {name} ")), "{name} is missing");
    }
    check_metrics(&metrics);
}

fn check_metrics(metrics: &str) {
    let mut promtool = std::process::Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("promtool: `make setup` installs it");
    std::io::Write::write_all(&mut promtool.stdin.take().unwrap(), metrics.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_demo_sells_exactly_its_stock_and_says_so() {
    let printed =
        run(seckill_gate().args(["demo", "--crowd", "300", "--stock", "20", "--opens-in", "1s", "--exit-after-sale"]));
    let last: serde_json::Value = serde_json::from_str(printed.lines().last().unwrap()).unwrap();
    for (name, wanted) in [("stock", 20), ("sold", 20), ("orders", 20), ("distinct_users", 20), ("violations", 0)] {
        assert_eq!(last[name], wanted, "{name} in {last}");
    }
    assert!(last["attempts"].as_u64().unwrap() >= 300, "{last}");
}
