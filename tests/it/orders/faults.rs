//! Servers that stop, rows that offend, entries that are none.

use std::sync::Arc;
use std::time::Duration;

use seckill_gate::orders::consumer::ConsumerSettings;
use seckill_gate::orders::ledger::{BatchBooked, Booked, Ledger};
use seckill_gate::orders::queue::Pushed;
use sqlx::{AssertSqlSafe, Connection, MySqlConnection};

use super::on_both;
use super::world::*;
use crate::harness::mariadb::MariaDb;

on_both!(what_is_no_order_is_set_aside, an_order_that_offends_alone_is_set_aside_and_holds_up_nobody);

mod bodies {
    use super::*;

    pub async fn what_is_no_order_is_set_aside(world: World) {
        world.register(1, &[("phone", 10)]).await;
        let good = order("u1", "k1");
        world.add_rubbish().await;
        world.queue.push(&good).await.unwrap();
        let consumer = world.consume(world.queue.clone());
        world.queue_is_empty().await;
        assert_eq!((world.set_aside().await, world.rows("pending").await), (1, 1));
        consumer.stop().await;
    }

    pub async fn an_order_that_offends_alone_is_set_aside_and_holds_up_nobody(world: World) {
        world.register(1, &[("phone", 10)]).await;
        world
            .execute(if world.mysql_url.is_some() {
                "CREATE TRIGGER shop_rule BEFORE INSERT ON orders FOR EACH ROW \
                 BEGIN IF NEW.user = 'u3' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not u3'; END IF; END"
            } else {
                "CREATE TRIGGER shop_rule BEFORE INSERT ON orders WHEN NEW.user = CAST('u3' AS BLOB) \
                 BEGIN SELECT RAISE(ABORT, 'not u3'); END"
            })
            .await;
        for order in crowd(6) {
            world.queue.push(&order).await.unwrap();
        }
        let consumer = world.consume(world.queue.clone());
        world.queue_is_empty().await;
        assert_eq!((world.set_aside().await, world.rows("pending").await, world.sold("phone").await), (1, 5, 5));
        // The gate delivers it again and again: that fills no table.
        world.queue.push(&crowd(6)[3]).await.unwrap();
        world.queue_is_empty().await;
        assert_eq!(world.set_aside().await, 1);
        world.audit_is_clean().await;
        consumer.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_hangs_or_crashes_loses_nothing() {
    let mariadb = tokio::task::spawn_blocking(MariaDb::start).await.unwrap();
    let world = World::on_database(&mariadb.database().await, Duration::from_secs(1)).await;
    world.register(1, &[("phone", 600)]).await;
    let orders = crowd(600);
    let service = world.serve().await;
    for order in &orders[..200] {
        world.queue.push(order).await.unwrap();
    }
    eventually("the first were booked", async || world.sold("phone").await >= 100).await;

    mariadb.signal("STOP");
    for order in &orders[200..400] {
        world.queue.push(order).await.unwrap();
    }
    let unsure = service.post(&orders[0]).await;
    assert_eq!(
        (unsure.status, unsure.order),
        (202, None),
        "a silent database refuses nothing, and nobody waits for it"
    );
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    mariadb.signal("CONT");
    eventually("the next were booked", async || {
        world.ledger.report(&sale()).await.is_ok_and(|report| report.unwrap().skus["phone"].sold >= 300)
    })
    .await;

    for order in &orders[400..] {
        world.queue.push(order).await.unwrap();
    }
    let mariadb = tokio::task::spawn_blocking(move || mariadb.crash_and_restart(Duration::from_secs(2))).await.unwrap();
    eventually("all were booked", async || {
        world.ledger.report(&sale()).await.is_ok_and(|report| report.unwrap().skus["phone"].sold == 600)
    })
    .await;
    world.queue_is_empty().await;
    assert_eq!((world.rows("pending").await, world.set_aside().await), (600, 0));
    world.audit_is_clean().await;
    service.running.stop().await;
    drop(mariadb);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadlocked_transaction_is_tried_again() {
    let world = World::servers().await;
    world.register(1, &[("phone", 10)]).await;
    world.execute("CREATE TABLE ballast (n INT PRIMARY KEY)").await;
    let url = world.mysql_url.as_deref().unwrap();
    let mut other = MySqlConnection::connect(url).await.unwrap();
    let orders = crowd(3);
    // The other transaction has changed more rows, so the server picks ours as the victim.
    let ballast = "START TRANSACTION; INSERT INTO ballast SELECT seq FROM seq_1_to_5000; \
                   SELECT * FROM stock WHERE activity = 'sale' FOR UPDATE";
    sqlx::raw_sql(ballast).execute(&mut other).await.unwrap();
    let ledger = world.ledger.clone();
    let batch = orders.clone();
    let booking = tokio::spawn(async move { ledger.book_batch(&batch).await });
    let mut looker = MySqlConnection::connect(url).await.unwrap();
    let waiting = "SELECT COUNT(*) FROM information_schema.innodb_trx t JOIN information_schema.processlist p \
                   ON p.id = t.trx_mysql_thread_id WHERE t.trx_state = 'LOCK WAIT' AND p.db = DATABASE()";
    eventually("the booking waited for the stock row", async || {
        // The server shows the same picture for 100 ms after each look.
        tokio::time::sleep(Duration::from_millis(150)).await;
        sqlx::query_scalar::<_, i64>(waiting).fetch_one(&mut looker).await.unwrap() > 0
    })
    .await;
    let deadlocks = async |connection: &mut MySqlConnection| -> i64 {
        let row: (String, String) =
            sqlx::query_as("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'").fetch_one(connection).await.unwrap();
        row.1.parse().unwrap()
    };
    let before = deadlocks(&mut looker).await;
    let close_the_circle = format!("UPDATE orders SET reason = 'x' WHERE request_id = '{}'", orders[0].request_id);
    sqlx::raw_sql(AssertSqlSafe(close_the_circle)).execute(&mut other).await.unwrap();
    sqlx::raw_sql("COMMIT").execute(&mut other).await.unwrap();
    assert_eq!(booking.await.unwrap(), Ok(BatchBooked::Done(vec![Booked::Booked; 3])));
    assert!(deadlocks(&mut looker).await > before, "there was no deadlock: the test shows nothing");
    world.audit_is_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_processes_may_bring_the_tables_up_to_date_at_once() {
    let url = MariaDb::shared().database().await;
    let opened = futures::future::join_all((0..6).map(|_| mysql(&url, Duration::from_secs(10)))).await;
    assert_eq!(opened.last().unwrap().activities().await, Ok(vec![]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_writers_of_the_same_orders_book_each_once() {
    let world = World::servers().await;
    world.register(1, &[("phone", 400)]).await;
    let orders = Arc::new(crowd(400));
    let writers = (0..6).map(|writer| {
        let (ledger, orders) = (world.ledger.clone(), orders.clone());
        tokio::spawn(async move {
            for batch in 0..8 {
                // Overlapping windows, each writer from another place.
                let start = (writer * 61 + batch * 50) % 300;
                match ledger.book_batch(&orders[start..start + 100]).await.unwrap() {
                    BatchBooked::Done(_) => {}
                    BatchBooked::GoRowByRow => panic!("keys and deadlocks are dealt with inside"),
                }
            }
        })
    });
    for writer in futures::future::join_all(writers).await {
        writer.unwrap();
    }
    let BatchBooked::Done(_) = world.ledger.book_batch(&orders).await.unwrap() else { panic!() };
    assert_eq!((world.rows("pending").await, world.sold("phone").await), (400, 400));
    world.audit_is_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_queue_goes_on_when_the_gate_delivers_again() {
    let world = World::servers().await;
    world.register(1, &[("phone", 10)]).await;
    let service = world.serve().await;
    assert_eq!(service.post_until_told(&order("u1", "k")).await.status, 200);
    let client = redis::Client::open(world.redis.as_ref().unwrap().url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let _: String = redis::cmd("FLUSHALL").query_async(&mut connection).await.unwrap();
    assert_eq!(service.post_until_told(&order("u2", "k")).await.status, 200);
    // The order is told a moment before its entry is done.
    eventually("nothing was left in the stream and the set of waiting ids", async || {
        let lengths: (u64, u64) = redis::pipe()
            .cmd("XLEN")
            .arg("skq:{sale}")
            .cmd("ZCARD")
            .arg("skq:{sale}:waiting")
            .query_async(&mut connection)
            .await
            .unwrap();
        lengths == (0, 0)
    })
    .await;
    service.running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_vanishes_from_the_stream_can_be_queued_anew() {
    let world = World::servers().await;
    let order = order("u1", "k");
    let client = redis::Client::open(world.redis.as_ref().unwrap().url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let wait = Duration::from_millis(10);
    let take = async || world.queue.take(&[sale()], 10, wait).await;

    assert_eq!(world.queue.push(&order).await, Ok(Pushed::Queued));
    assert_eq!(world.queue.push(&order).await, Ok(Pushed::Waiting), "a repetition does not make the queue longer");
    let entry = take().await.unwrap().remove(0).entry;
    let _: u64 = redis::cmd("XDEL").arg("skq:{sale}").arg(entry).query_async(&mut connection).await.unwrap();
    let claimed = world.queue.claim_stale(&[sale()], 10, Duration::ZERO).await.unwrap();
    assert_eq!((claimed.lost, claimed.deliveries.len()), (1, 0), "the loss is told");
    assert_eq!(world.queue.push(&order).await, Ok(Pushed::Queued));

    let _: u64 = redis::cmd("DEL").arg("skq:{sale}").query_async(&mut connection).await.unwrap();
    assert!(take().await.is_err(), "the group is gone");
    assert_eq!(take().await, Ok(vec![]), "and made again");
    assert_eq!(world.queue.push(&order).await, Ok(Pushed::Queued));
    assert_eq!(take().await.unwrap()[0].order.as_ref(), Ok(&order));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rate_cap_spares_the_database() {
    let world = World::embedded();
    world.register(1, &[("phone", 100)]).await;
    for order in crowd(60) {
        world.queue.push(&order).await.unwrap();
    }
    let started = std::time::Instant::now();
    let slow = ConsumerSettings { batch: 10, orders_per_second: 50.0, ..settings() };
    let consumer = world.consume_with(world.queue.clone(), slow);
    eventually("all were booked", async || world.sold("phone").await == 60).await;
    // The last batch is booked at its beginning, so five batches of 200 ms lie before it.
    assert!(started.elapsed() >= Duration::from_millis(990), "60 orders in {:?}", started.elapsed());
    consumer.stop().await;
}
