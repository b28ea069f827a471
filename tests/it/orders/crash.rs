//! Processes that are killed or stopped at the worst moments, on a queue that loses everything: each order is booked once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use seckill_gate::domain::{ActivityId, RequestId, UserId};
use seckill_gate::orders::consumer::ConsumerSettings;
use seckill_gate::orders::ledger::Registered;
use seckill_gate::orders::order::NewOrder;
use sqlx::{Connection, MySqlConnection};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::processes::{configure, start};
use super::world::*;
use crate::harness::mariadb::MariaDb;
use crate::harness::process::{free_port, signal};

/// A way to the queue's Redis that can be cut, so that what a process sends there is lost for good.
struct Way {
    port: u16,
    cut: Arc<AtomicBool>,
}

impl Way {
    async fn to(redis: u16) -> Way {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, cut) = (listener.local_addr().unwrap().port(), Arc::new(AtomicBool::new(false)));
        let watched = cut.clone();
        tokio::spawn(async move {
            loop {
                let (mut near, _) = listener.accept().await.unwrap();
                let cut = watched.clone();
                tokio::spawn(async move {
                    let mut far = TcpStream::connect(("127.0.0.1", redis)).await.unwrap();
                    let (mut near_in, mut near_out) = near.split();
                    let (mut far_in, mut far_out) = far.split();
                    let there = async {
                        let mut bytes = [0; 64 << 10];
                        loop {
                            match near_in.read(&mut bytes).await {
                                Ok(0) | Err(_) => return,
                                Ok(_) if cut.load(Ordering::SeqCst) => {}
                                Ok(n) => far_out.write_all(&bytes[..n]).await.unwrap(),
                            }
                        }
                    };
                    tokio::select! {
                        () = there => {}
                        _ = tokio::io::copy(&mut far_in, &mut near_out) => {}
                    }
                });
            }
        });
        Way { port, cut }
    }

    fn cut(&self, cut: bool) {
        self.cut.store(cut, Ordering::SeqCst);
    }
}

async fn world() -> World {
    let world = World::on_database(&MariaDb::shared().database().await, Duration::from_secs(10)).await;
    world.register(1, &[("phone", 100_000)]).await;
    world
}

/// Orders of users that no other run has.
fn fresh(run: &str, n: usize) -> Vec<NewOrder> {
    (0..n).map(|i| order(&format!("{run}-{i}"), "k")).collect()
}

/// Entries that were handed out and not acknowledged.
fn pending(world: &World) -> usize {
    let redis = world.redis.as_ref().unwrap();
    match redis.command(&["XPENDING", "skq:{sale}", "orders"]) {
        Ok(redis::Value::Array(summary)) => match summary[0] {
            redis::Value::Int(n) => usize::try_from(n).unwrap(),
            ref other => panic!("{other:?}"),
        },
        // No group yet.
        _ => 0,
    }
}

/// Holds the row that ends (`stock`) or begins (`activities`) every booking.
async fn hold(world: &World, table: &str) -> MySqlConnection {
    let mut connection = MySqlConnection::connect(world.mysql_url.as_deref().unwrap()).await.unwrap();
    let lock = format!("START TRANSACTION; SELECT * FROM {table} WHERE activity = 'sale' FOR UPDATE");
    sqlx::raw_sql(sqlx::AssertSqlSafe(lock)).execute(&mut connection).await.unwrap();
    connection
}

async fn all_booked(world: &World, total: usize) {
    eventually(&format!("{total} were booked"), async || world.rows("pending").await == total as u64).await;
    world.queue_is_empty().await;
    eventually("all were acknowledged", async || pending(world) == 0).await;
    assert_eq!((world.rows("pending").await, world.sold("phone").await), (total as u64, total as u64));
    assert_eq!(world.set_aside().await, 0);
    world.audit_is_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_between_commit_and_acknowledgement_or_in_a_batch_a_service_books_each_order_once() {
    let world = world().await;
    let way = Way::to(world.redis.as_ref().unwrap().port).await;
    configure(&world, &format!("redis://127.0.0.1:{}/", way.port));
    let (port, mut total) = (free_port(), 0);
    for seed in 0..5 {
        let mut random = StdRng::seed_from_u64(seed);
        // The rows stand, and the acknowledgement never arrives.
        let batch = fresh(&format!("ack{seed}"), random.random_range(1..50));
        let held = hold(&world, "stock").await;
        for order in &batch {
            world.queue.push(order).await.unwrap();
        }
        let process = start(&world, port);
        eventually("all were handed out", async || pending(&world) == batch.len()).await;
        way.cut(true);
        held.close().await.unwrap();
        total += batch.len();
        eventually("they were committed", async || world.rows("pending").await == total as u64).await;
        drop(process);
        way.cut(false);
        assert_eq!(pending(&world), batch.len(), "seed {seed}: the acknowledgement got through, so this shows nothing");
        let process = start(&world, port);
        all_booked(&world, total).await;

        // Killed somewhere among its batches.
        let many = fresh(&format!("mid{seed}"), 300);
        let done = world.rows("pending").await;
        for chunk in many.chunks(50) {
            for pushed in futures::future::join_all(chunk.iter().map(|order| world.queue.push(order))).await {
                pushed.unwrap();
            }
        }
        let moment = done + random.random_range(1..250);
        eventually("the moment came", async || world.rows("pending").await >= moment).await;
        drop(process);
        total += many.len();
        let process = start(&world, port);
        all_booked(&world, total).await;
        drop(process);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_emptied_after_202_is_filled_by_the_next_deliveries_without_a_restart() {
    let world = world().await;
    configure(&world, &world.redis.as_ref().unwrap().url());
    let port = free_port();
    let _process = start(&world, port);
    let (service, mut total) = (Served::elsewhere(port), 0);
    for seed in 0..5 {
        let mut random = StdRng::seed_from_u64(seed);
        let orders = fresh(&format!("flush{seed}"), 40);
        let post = async |order: &NewOrder| service.post_with(order, &Claims::fresh(order), PRIVATE).await.status;
        let held = hold(&world, "stock").await;
        for order in &orders[..random.random_range(1..40)] {
            assert_eq!(post(order).await, 202);
        }
        world.redis.as_ref().unwrap().command(&["FLUSHALL"]).unwrap();
        held.close().await.unwrap();
        // The gate delivers until it hears of an order.
        for order in &orders {
            eventually("it was booked", async || post(order).await == 200).await;
        }
        total += orders.len();
        all_booked(&world, total).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_stopped_process_holds_is_booked_by_another_and_once() {
    let world = world().await;
    configure(&world, &world.redis.as_ref().unwrap().url());
    let (first, second) = (free_port(), free_port());
    // In its batch, but with no lock in the ledger that would hold up the other.
    let held = hold(&world, "activities").await;
    let batch = fresh("stopped", 50);
    for order in &batch {
        world.queue.push(order).await.unwrap();
    }
    let stopped = start(&world, first);
    eventually("it took them", async || pending(&world) == batch.len()).await;
    signal(stopped.id(), "STOP");
    held.close().await.unwrap();
    let _heir = start(&world, second);
    eventually("the other booked them", async || world.rows("pending").await == batch.len() as u64).await;
    let metrics = answer(reqwest::Client::new().get(format!("http://127.0.0.1:{second}/metrics"))).await.body;
    assert!(metrics.contains(&format!("seckill_orders_queue_claimed_total {}\n", batch.len())), "{metrics}");
    signal(stopped.id(), "CONT");
    // It goes on with what it holds, and then with what comes.
    let more = fresh("after", 200);
    for order in &more {
        world.queue.push(order).await.unwrap();
    }
    all_booked(&world, batch.len() + more.len()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_for_its_turn_in_a_long_hand_out_is_not_claimed() {
    let world = world().await;
    // Thirty sales at once are as many batches, of 80 ms each; what is idle for 900 ms is claimed.
    let sales: Vec<ActivityId> = (0..30).map(|n| format!("sale-{n}").parse().unwrap()).collect();
    for id in &sales {
        let registered = world.ledger.register(id, &terms(1, &[("phone", 100)]), 0, 1).await.unwrap();
        assert_eq!(registered, Registered::Created);
        for n in 0..10 {
            let user: UserId = format!("u{n}").parse().unwrap();
            let request_id = RequestId::derive(id, &user, &"k".parse().unwrap());
            let order = NewOrder { request_id, activity: id.clone(), user, ..order("u", "k") };
            world.queue.push(&order).await.unwrap();
        }
    }
    let claim_after = Duration::from_millis(900);
    let paced = ConsumerSettings { batch: 10, orders_per_second: 125.0, claim_after, ..settings() };
    let (slow, slows) = world.consume_counted(world.queue_of("slow"), paced);
    let booked = || slows.booked.with_label_values(&["booked"]).get();
    eventually("it began", async || booked() > 0).await;
    let (other, others) = world.consume_counted(world.queue_of("other"), paced);
    eventually("all were booked", async || booked() + others.booked.with_label_values(&["booked"]).get() == 300).await;
    assert_eq!(others.claimed.get(), 0, "claimed from a process that works");
    slow.stop().await;
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_being_worked_on_is_not_claimed_however_long_it_takes() {
    let world = world().await;
    let held = hold(&world, "activities").await;
    let batch = fresh("slow", 20);
    for order in &batch {
        world.queue.push(order).await.unwrap();
    }
    // Each claims after 300 ms.
    let (slow, slows) = world.consume_counted(world.queue_of("slow"), settings());
    eventually("it took them", async || pending(&world) == batch.len()).await;
    let (other, others) = world.consume_counted(world.queue_of("other"), settings());
    // Long enough for several claims; time is what this is about.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(pending(&world), batch.len());
    assert_eq!(others.claimed.get(), 0, "claimed from a process that works");
    held.close().await.unwrap();
    all_booked(&world, batch.len()).await;
    assert_eq!(slows.booked.with_label_values(&["booked"]).get(), batch.len() as u64);
    slow.stop().await;
    other.stop().await;
}
