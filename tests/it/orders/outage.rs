//! A database in trouble: no order is blamed for it, and no winner waits for it.

use std::time::{Duration, Instant};

use futures::future::join_all;
use seckill_gate::orders::consumer::ConsumerSettings;
use sqlx::{AssertSqlSafe, Connection, MySqlConnection};

use super::processes::{configure, start};
use super::world::*;
use crate::harness::mariadb::MariaDb;
use crate::harness::process::{Process, free_port, listens};
use crate::harness::redis::Redis;

async fn run(connection: &mut MySqlConnection, statement: &str) {
    sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(connection).await.unwrap();
}

async fn numbers(connection: &mut MySqlConnection, query: &str) -> Vec<i64> {
    sqlx::query_scalar(AssertSqlSafe(query.to_owned())).fetch_all(connection).await.unwrap()
}

/// Connections of the order service's own user.
const OURS: &str = "SELECT CAST(id AS SIGNED) FROM information_schema.processlist WHERE user = 'shop'";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_trouble_of_the_database_is_blamed_on_an_order() {
    let mariadb = tokio::task::spawn_blocking(MariaDb::start).await.unwrap();
    let root = mariadb.database().await;
    let mut operator = MySqlConnection::connect(&root).await.unwrap();
    // Root is above many of the troubles.
    for host in ["%", "localhost", "127.0.0.1"] {
        run(&mut operator, &format!("CREATE USER shop@'{host}'; GRANT ALL ON `test\\_%`.* TO shop@'{host}'")).await;
    }
    let world = World::on_database(&root.replace("root@", "shop@"), Duration::from_secs(1)).await;
    world.register(1, &[("phone", 1_000)]).await;
    // Whatever were blamed on an order once would be set aside at once.
    let hasty = ConsumerSettings { set_aside_after: 1, ..settings() };
    let (consumer, metrics) = world.consume_counted(world.queue.clone(), hasty);
    let mut total = 0;
    let push = async |trouble: &str| {
        for n in 0..20 {
            world.queue.push(&order(&format!("{trouble}-{n}"), "k")).await.unwrap();
        }
    };
    let waits = || metrics.waits.with_label_values(&["ledger"]).get();
    let met = async |trouble: &str, before: u64| {
        eventually(&format!("the consumer met: {trouble}"), async || waits() > before).await;
    };
    let over = async |trouble: &str, total: u64| {
        let booked =
            async || world.ledger.report(&sale()).await.is_ok_and(|report| report.unwrap().skus["phone"].sold == total);
        eventually(&format!("all were booked after: {trouble}"), booked).await;
        assert_eq!(world.set_aside().await, 0, "{trouble}");
    };

    let before = waits();
    run(&mut operator, "SET GLOBAL read_only = 1").await;
    push("read-only").await;
    met("read-only", before).await;
    run(&mut operator, "SET GLOBAL read_only = 0").await;
    total += 20;
    over("read-only", total).await;

    // Killed in mid-transaction, while it waits for the last row.
    let before = waits();
    let database = root.rsplit('/').next().unwrap();
    let mut holder = MySqlConnection::connect(&root).await.unwrap();
    run(&mut holder, "START TRANSACTION; SELECT * FROM stock FOR UPDATE").await;
    push("killed").await;
    let waiting = format!("{OURS} AND db = '{database}' AND info LIKE 'UPDATE stock%'");
    eventually("it waited for the row", async || {
        let ids = numbers(&mut operator, &waiting).await;
        for id in &ids {
            run(&mut operator, &format!("KILL CONNECTION {id}")).await;
        }
        !ids.is_empty()
    })
    .await;
    met("killed", before).await;
    holder.close().await.unwrap();
    total += 20;
    over("killed", total).await;

    // No connection left for us: others took what there is, then ours were closed.
    let before = waits();
    let mut crowd = vec![];
    for _ in 0..12 {
        crowd.push(MySqlConnection::connect(&root).await.unwrap());
    }
    run(&mut operator, "SET GLOBAL max_connections = 10").await;
    for id in numbers(&mut operator, OURS).await {
        // It may have gone by itself.
        let _ = sqlx::raw_sql(AssertSqlSafe(format!("KILL CONNECTION {id}"))).execute(&mut operator).await;
    }
    push("max-connections").await;
    met("max-connections", before).await;
    run(&mut operator, "SET GLOBAL max_connections = 300").await;
    drop(crowd);
    total += 20;
    over("max-connections", total).await;

    let before = waits();
    mariadb.signal("STOP");
    push("stopped").await;
    met("stopped", before).await;
    mariadb.signal("CONT");
    total += 20;
    over("stopped", total).await;

    let before = waits();
    push("crashed").await;
    let port = mariadb.port;
    let restarting = tokio::task::spawn_blocking(move || mariadb.crash_and_restart(Duration::from_secs(1)));
    eventually("it was down", async || !listens(port)).await;
    push("crashed-later").await;
    let mariadb = restarting.await.unwrap();
    met("crashed", before).await;
    total += 40;
    over("crashed", total).await;

    world.queue_is_empty().await;
    assert_eq!(metrics.set_aside.get(), 0);
    world.audit_is_clean().await;
    consumer.stop().await;
    drop(mariadb);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_ledger_is_away_winners_are_queued_at_once_and_all_are_booked_afterwards() {
    let mariadb = tokio::task::spawn_blocking(MariaDb::start).await.unwrap();
    let world = World::on_database(&mariadb.database().await, Duration::from_secs(10)).await;
    world.register(1, &[("phone", 500)]).await;
    let service = world.serve().await;
    let (booked, refused, void) = (order("old", "k"), order("old", "again"), order("gone", "k"));
    let first = service.post_until_told(&booked).await;
    assert_eq!(first.status, 200);
    assert_eq!(service.post_until_told(&refused).await.reason.as_deref(), Some("limit"));
    world.ledger.void(void.request_id, Some(&sale())).await.unwrap();

    mariadb.signal("STOP");
    let mut winners = crowd(200);
    winners.extend([booked.clone(), refused.clone(), void.clone()]);
    // The gate repeats its deliveries all along.
    for round in 0..3 {
        for chunk in winners.chunks(50) {
            let started = Instant::now();
            for answer in join_all(chunk.iter().map(|order| service.post(order))).await {
                let word = (answer.status, answer.order.as_deref());
                assert_eq!(word, (202, None), "round {round}: nothing definite, and nothing lost: {}", answer.body);
            }
            // Half a second as a rule; never the ledger's own deadline.
            assert!(started.elapsed() < Duration::from_secs(5), "round {round}: {:?}", started.elapsed());
        }
    }
    let metrics = answer(service.client.get(service.url("/metrics"))).await.body;
    let unchecked =
        metrics.lines().find_map(|line| line.strip_prefix("seckill_orders_intake_total{answer=\"queued_unchecked\"} "));
    assert_eq!(unchecked, Some("609"), "{metrics}");
    mariadb.signal("CONT");

    eventually("all were booked", async || {
        world.ledger.report(&sale()).await.is_ok_and(|report| report.unwrap().skus["phone"].sold == 201)
    })
    .await;
    world.queue_is_empty().await;
    assert_eq!((world.rows("pending").await, world.set_aside().await), (201, 0));
    eventually("intake saw the ledger again", async || service.post(&winners[0]).await.status == 200).await;
    assert_eq!(service.post(&booked).await.body, first.body);
    assert_eq!(service.post(&refused).await.reason.as_deref(), Some("limit"));
    assert_eq!(service.post(&void).await.reason.as_deref(), Some("void"));
    world.audit_is_clean().await;
    service.running.stop().await;
    drop(mariadb);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_evicts_is_refused_and_one_that_is_silent_is_waited_for() {
    let world = World::servers().await;
    world.register(1, &[("phone", 10)]).await;
    let evicting = Redis::start_with(&["--maxmemory-policy", "allkeys-lru"]);
    configure(&world, &evicting.url());
    // One that starts all the same is ended, so that the test fails instead of waiting.
    let mut command = std::process::Command::new("timeout");
    command.args(["20", env!("CARGO_BIN_EXE_seckill-gate")]);
    command.current_dir(world.folder.path()).args(["orders", "-c", "seckill.yaml", "--listen", "127.0.0.1:0"]);
    let refused = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{told}");
    assert!(told.contains("order queue") && told.contains("maxmemory-policy noeviction"), "{told}");

    let redis = world.redis.as_ref().unwrap();
    configure(&world, &redis.url());
    crate::harness::process::signal(redis.pid(), "STOP");
    let port = free_port();
    // It listens all the same: `start` waits for that.
    let _process: Process = start(&world, port);
    let (service, order) = (Served::elsewhere(port), order("u1", "k"));
    let post = async || service.post_with(&order, &Claims::fresh(&order), PRIVATE).await.status;
    assert_eq!(post().await, 503);
    crate::harness::process::signal(redis.pid(), "CONT");
    eventually("it was booked", async || post().await == 200).await;
}
