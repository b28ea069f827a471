//! A whole deployment as processes: two Redis servers, a MariaDB database, order service, gates, before a small shop.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use loadtest::signer::Signer;
use reqwest::{Client, Response};
use seckill_gate::platform::clock::wall_ms;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::mariadb::MariaDb;
use super::process::{Process, free_port, listens};
use super::redis::Redis;

/// The sale that most tests are about.
pub const SALE: &str = "launch";
/// Another one, open at the same time, with as much stock.
pub const OTHER_SALE: &str = "encore";
/// What it offers.
pub const SKU: &str = "phone";

/// Running processes; all end with it.
pub struct Deployment {
    /// Public listeners.
    pub gates: Vec<Gate>,
    /// The admission store.
    pub store: Redis,
    /// Where the order service listens.
    pub orders_port: u16,
    _queue: Redis,
    /// `mysql://` address of the ledger's database.
    pub ledger_url: String,
    /// The configuration file.
    pub config: PathBuf,
    _orders: Process,
    http: Client,
    signer: Signer,
    folder: TempDir,
}

/// One gate.
pub struct Gate {
    /// Port of the public listener.
    pub public: u16,
    /// Port of the metrics listener.
    pub metrics: u16,
    _process: Process,
}

impl Deployment {
    /// Starts everything and preheats both sales, which are open.
    pub async fn start(gates: usize, stock: u32) -> Deployment {
        let (store, queue) = (Redis::start(), Redis::start());
        let ledger_url = MariaDb::shared().database().await;
        let folder = tempfile::tempdir().unwrap();
        let secrets = folder.path().join("secrets");
        run(seckill_gate().args(["keygen", "--out"]).arg(&secrets));
        let orders_port = free_port();
        let ports: Vec<[u16; 3]> = (0..gates).map(|_| [free_port(), free_port(), free_port()]).collect();
        let config = folder.path().join("seckill.yaml");
        std::fs::write(&config, yaml(gates, stock, orders_port, ports[0], &store, &queue, &ledger_url)).unwrap();

        let mut orders = Process::start("orders", seckill_gate().arg("orders").arg("-c").arg(&config));
        orders.wait_until("listened", || listens(orders_port));
        let gates = ports.iter().enumerate().map(|(n, &[public, admin, metrics])| {
            let at = |port: u16| format!("127.0.0.1:{port}");
            let mut process = Process::start(
                "gate",
                seckill_gate().args(["serve", "--gate", &format!("gate-{}", n + 1), "-c"]).arg(&config).args([
                    "--listen",
                    &at(public),
                    "--admin",
                    &at(admin),
                    "--metrics",
                    &at(metrics),
                ]),
            );
            process.wait_until("listened", || listens(public));
            Gate { public, metrics, _process: process }
        });
        let gates = gates.collect();
        for sale in [SALE, OTHER_SALE] {
            run(seckill_gate().args(["preheat", sale, "-c"]).arg(&config));
        }
        let user_key = std::fs::read_to_string(secrets.join("user-jwt-secret")).unwrap();
        let signer = Signer::hs256(user_key.trim().as_bytes(), "shop", "https://shop.test", "seckill").unwrap();
        let http = Client::builder().timeout(Duration::from_secs(20)).pool_max_idle_per_host(200).build().unwrap();
        let deployment = Deployment {
            gates,
            store,
            orders_port,
            _queue: queue,
            ledger_url,
            config,
            _orders: orders,
            http,
            signer,
            folder,
        };
        for gate in 0..deployment.gates.len() {
            deployment.until_open(gate).await;
        }
        deployment
    }

    /// The crowd engine's signer, for the same users.
    pub fn signer(&self) -> Arc<Signer> {
        let key = std::fs::read_to_string(self.folder.path().join("secrets/user-jwt-secret")).unwrap();
        Arc::new(Signer::hs256(key.trim().as_bytes(), "shop", "https://shop.test", "seckill").unwrap())
    }

    async fn until_open(&self, gate: usize) {
        for _ in 0..200 {
            let phase =
                async |sale| self.json(gate, &format!("/seckill/{sale}/state"), "nobody").await["phase"].clone();
            if phase(SALE).await == "open" && phase(OTHER_SALE).await == "open" {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("gate {gate} never opened the sale");
    }

    fn url(&self, gate: usize, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.gates[gate].public)
    }

    fn bearer(&self, user: &str) -> String {
        format!("Bearer {}", self.signer.sign(user, Duration::from_secs(600)).unwrap())
    }

    /// `GET` as JSON.
    pub async fn json(&self, gate: usize, path: &str, user: &str) -> Value {
        let request = self.http.get(self.url(gate, path)).header("Authorization", self.bearer(user));
        request.send().await.unwrap().json().await.unwrap()
    }

    /// A sale token for this attempt.
    pub async fn token(&self, gate: usize, user: &str, key: &str) -> String {
        self.token_for(SALE, gate, user, key).await
    }

    /// The same for any sale.
    pub async fn token_for(&self, sale: &str, gate: usize, user: &str, key: &str) -> String {
        let reply = self
            .http
            .post(self.url(gate, &format!("/seckill/{sale}/tokens")))
            .header("Authorization", self.bearer(user))
            .header("Idempotency-Key", key)
            .json(&json!({"sku": SKU, "qty": 1}))
            .send()
            .await
            .unwrap();
        let status = reply.status();
        let body: Value = reply.json().await.unwrap();
        body["token"].as_str().unwrap_or_else(|| panic!("{status}: {body}")).to_owned()
    }

    /// An attempt; what it was told.
    pub async fn attempt(&self, gate: usize, user: &str, key: &str, token: &str) -> Told {
        self.attempt_at(SALE, gate, user, key, token).await
    }

    /// The same at any sale.
    pub async fn attempt_at(&self, sale: &str, gate: usize, user: &str, key: &str, token: &str) -> Told {
        let request = self
            .http
            .post(self.url(gate, &format!("/seckill/{sale}")))
            .header("Authorization", self.bearer(user))
            .header("Idempotency-Key", key)
            .header("Seckill-Token", token)
            .json(&json!({"address": "1 Test Road"}));
        Told::of(request.send().await.unwrap()).await
    }

    /// Rows of a query on the ledger, one number.
    pub async fn count(&self, query: &str) -> i64 {
        use sqlx::Connection;
        let mut connection = sqlx::MySqlConnection::connect(&self.ledger_url).await.unwrap();
        sqlx::query_scalar(sqlx::AssertSqlSafe(query.to_owned())).fetch_one(&mut connection).await.unwrap()
    }
}

/// What an attempt was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    pub status: u16,
    /// `WON`, `QUEUED`, or the code of the refusal.
    pub outcome: String,
    pub request_id: Option<String>,
    pub body: String,
}

impl Told {
    async fn of(reply: Response) -> Told {
        let header = |name: &str| reply.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        let (status, outcome, request_id) =
            (reply.status().as_u16(), header("seckill-outcome"), header("seckill-request-id"));
        let body = reply.text().await.unwrap();
        let code = || serde_json::from_str::<Value>(&body).ok()?["code"].as_str().map(str::to_owned);
        Told { status, outcome: outcome.or_else(code).unwrap_or_default(), request_id, body }
    }
}

/// The binary under test.
pub fn seckill_gate() -> Command {
    Command::new(env!("CARGO_BIN_EXE_seckill-gate"))
}

/// Runs a command to its end; fails with what it printed.
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?} ended with {}:\n{text}", output.status);
    text
}

/// Limits are raised: a 429 is no answer here.
fn yaml(
    gates: usize,
    stock: u32,
    orders: u16,
    [public, admin, metrics]: [u16; 3],
    store: &Redis,
    queue: &Redis,
    ledger: &str,
) -> String {
    let names: Vec<String> = (1..=gates).map(|n| format!("gate-{n}")).collect();
    let now = i64::try_from(wall_ms()).unwrap();
    let at = |ms: i64| chrono::DateTime::<chrono::Utc>::from_timestamp_millis(ms).unwrap().to_rfc3339();
    let (starts, ends) = (at(now - 3_600_000), at(now + 3_600_000));
    let (store, queue) = (store.url(), queue.url());
    let limits = "{ address: { rate: 100000/s }, user: { rate: 100000/s }, device: { rate: 100000/s } }";
    format!(
        r#"
gate:
  id: gate-1
  listen: 127.0.0.1:{public}
  admin: 127.0.0.1:{admin}
  metrics: 127.0.0.1:{metrics}
  shop: {{ url: "http://127.0.0.1:9" }}
  admin_token: {{ file: secrets/admin-token }}
  drain_delay: 100ms
deployment: {{ gates: [{names}] }}
store: {{ kind: redis, url: "{store}", deadline: 2s }}
identity:
  keys: [{{ kid: shop, algorithm: HS256, key: {{ file: secrets/user-jwt-secret }} }}]
  issuer: https://shop.test
  audience: seckill
  device_secret: {{ file: secrets/device-secret }}
tokens:
  keys: [{{ kid: one, key: {{ file: secrets/token-key }} }}]
  ttl: 60s
limits: {{ attempts: {limits}, tokens: {limits}, reads: {{ address: {{ rate: 100000/s }} }} }}
orders:
  url: http://127.0.0.1:{orders}/orders
  ticket_key: {{ file: secrets/ticket-private.pem }}
  api_token: {{ file: secrets/orders-api-token }}
order_service:
  listen: 127.0.0.1:{orders}
  api_token: {{ file: secrets/orders-api-token }}
  ticket_public_key: {{ file: secrets/ticket-public.pem }}
  queue: {{ kind: redis, url: "{queue}" }}
  ledger: {{ kind: mysql, url: "{ledger}" }}
logs: {{ filter: warn }}
activities:
  {SALE}:
    starts_at: {starts}
    ends_at: {ends}
    skus: {{ {SKU}: {{ stock: {stock} }} }}
  {OTHER_SALE}:
    starts_at: {starts}
    ends_at: {ends}
    skus: {{ {SKU}: {{ stock: {stock} }} }}
"#,
        names = names.join(", ")
    )
}
