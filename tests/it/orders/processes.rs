//! The command itself: several processes on one configuration.

use std::process::Command;
use std::time::Duration;

use super::world::*;
use crate::harness::mariadb::MariaDb;
use crate::harness::process::{Process, free_port, listens};

pub fn start(world: &World, port: u16) -> Process {
    let mut process = Process::start(
        "seckill-gate orders",
        Command::new(env!("CARGO_BIN_EXE_seckill-gate")).current_dir(world.folder.path()).args([
            "orders",
            "--config",
            "seckill.yaml",
            "--listen",
            &format!("127.0.0.1:{port}"),
        ]),
    );
    process.wait_until("listened", || listens(port));
    process
}

pub fn configure(world: &World, redis: &str) {
    let folder = world.folder.path();
    let mysql = world.mysql_url.as_deref().unwrap();
    std::fs::write(folder.join("token"), format!("{TOKEN}\n")).unwrap();
    std::fs::write(folder.join("ticket.pub"), PUBLIC_KEY).unwrap();
    std::fs::write(folder.join("secret"), "0123456789abcdef0123456789abcdef").unwrap();
    let config = format!(
        r#"
gate:
  id: gate-1
  shop: {{ url: "http://127.0.0.1:8070" }}
  admin_token: {{ file: token }}
store: {{ kind: sqlite, path: store.db }}
identity:
  keys: [{{ kid: shop, algorithm: HS256, key: {{ file: secret }} }}]
  issuer: shop
  audience: sale
  device_secret: {{ file: secret }}
tokens: {{ keys: [{{ kid: one, key: {{ file: secret }} }}] }}
orders: {{ url: "http://127.0.0.1:8090/orders", ticket_key: {{ file: token }}, api_token: {{ file: token }} }}
order_service:
  api_token: {{ file: token }}
  ticket_public_key: {{ file: ticket.pub }}
  queue: {{ kind: redis, url: "{redis}" }}
  ledger: {{ kind: mysql, url: "{mysql}", deadline: 1s }}
  consumer: {{ batch: 50, rate: 1000/s, claim_after: 1s, set_aside_after: 5 }}
activities: {{}}
"#
    );
    std::fs::write(folder.join("seckill.yaml"), config).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_process_leaves_its_orders_to_the_other() {
    let world = World::on_database(&MariaDb::shared().database().await, Duration::from_secs(10)).await;
    world.register(1, &[("phone", 2_000)]).await;
    configure(&world, &world.redis.as_ref().unwrap().url());
    let (first, second) = (free_port(), free_port());
    let doomed = start(&world, first);
    let survivor = start(&world, second);
    for order in crowd(2_000) {
        world.queue.push(&order).await.unwrap();
    }
    eventually("some were booked", async || world.sold("phone").await > 200).await;
    // Killed without warning, most likely within a batch.
    drop(doomed);
    eventually("all were booked", async || world.sold("phone").await == 2_000).await;
    world.queue_is_empty().await;
    assert_eq!(world.rows("pending").await, 2_000);
    world.audit_is_clean().await;

    let stopped = Command::new("kill").arg(survivor.id().to_string()).status().unwrap();
    assert!(stopped.success());
    eventually("the listener was closed", async || !listens(second)).await;
}

#[test]
fn a_missing_configuration_is_named() {
    let folder = tempfile::TempDir::new().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_seckill-gate"))
        .args(["orders", "--config", "none.yaml"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("none.yaml"));
}
