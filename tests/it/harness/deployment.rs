//! A whole deployment as processes: two Redis servers, a MariaDB database, order service, gates, before a small shop.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use loadtest::signer::Signer;
use reqwest::{Client, RequestBuilder, Response};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::mariadb::MariaDb;
use super::process::{Process, free_port, listens, signal};
use super::proxy::Proxy;
use super::redis::Redis;
pub use super::wish::{OTHER_SALE, SALE, SKU, Wish};
use super::wish::{Places, yaml};

/// Running processes; all end with it.
pub struct Deployment {
    /// The gates.
    pub gates: Vec<Gate>,
    /// The admission store.
    pub store: Redis,
    /// Where the order service listens.
    pub orders_port: u16,
    /// The order service's queue.
    pub queue: Redis,
    /// The ledger's server, if it is the test's own.
    pub database: Option<MariaDb>,
    /// `mysql://` address of the ledger's database.
    pub ledger_url: String,
    /// Between gates and store, if wished for.
    pub store_proxy: Option<Proxy>,
    /// Between gates and order service, if wished for.
    pub orders_proxy: Option<Proxy>,
    /// The configuration file.
    pub config: PathBuf,
    /// The order service; `None` while it is down.
    pub orders: Option<Process>,
    sales: Vec<String>,
    http: Client,
    signer: Signer,
    folder: TempDir,
}

/// One gate.
pub struct Gate {
    /// Port of the public listener.
    pub public: u16,
    /// Port of the admin listener.
    pub admin: u16,
    /// Port of the metrics listener.
    pub metrics: u16,
    /// The process; `None` while it is down.
    pub process: Option<Process>,
}

impl Deployment {
    /// Starts everything and preheats both sales, which are open.
    pub async fn start(gates: usize, stock: u32) -> Deployment {
        Deployment::as_wished(Wish { gates, stock, ..Wish::default() }).await
    }

    /// Starts everything and preheats the sales, which are open.
    pub async fn as_wished(wish: Wish) -> Deployment {
        let store = if wish.durable_store {
            Redis::start_with(&["--appendonly", "yes", "--appendfsync", "always"])
        } else {
            Redis::start()
        };
        let queue = Redis::start();
        let database = wish.own_database.then(MariaDb::start);
        let ledger_url = database.as_ref().unwrap_or_else(|| MariaDb::shared()).database().await;
        let folder = tempfile::tempdir().unwrap();
        let secrets = folder.path().join("secrets");
        run(seckill_gate().args(["keygen", "--out"]).arg(&secrets));
        let orders_port = wish.shops_own_orders.unwrap_or_else(free_port);
        let store_proxy = if wish.store_proxy { Some(Proxy::before(store.port).await) } else { None };
        let orders_proxy = if wish.orders_proxy { Some(Proxy::before(orders_port).await) } else { None };
        let gates: Vec<Gate> = (0..wish.gates)
            .map(|_| Gate { public: free_port(), admin: free_port(), metrics: free_port(), process: None })
            .collect();
        let config = folder.path().join("seckill.yaml");
        let port_of = |proxy: &Option<Proxy>, own| proxy.as_ref().map_or(own, |proxy| proxy.port);
        let places = Places {
            gate: &gates[0],
            store: port_of(&store_proxy, store.port),
            queue: queue.port,
            orders: port_of(&orders_proxy, orders_port),
            orders_listen: orders_port,
            ledger: &ledger_url,
        };
        std::fs::write(&config, yaml(&wish, &places)).unwrap();
        let user_key = std::fs::read_to_string(secrets.join("user-jwt-secret")).unwrap();
        let signer = Signer::hs256(user_key.trim().as_bytes(), "shop", "https://shop.test", "seckill").unwrap();
        let http = Client::builder().timeout(Duration::from_secs(20)).pool_max_idle_per_host(200).build().unwrap();
        let mut deployment = Deployment {
            gates,
            store,
            orders_port,
            queue,
            database,
            ledger_url,
            store_proxy,
            orders_proxy,
            config,
            orders: None,
            sales: wish.sales,
            http,
            signer,
            folder,
        };
        if wish.shops_own_orders.is_none() {
            deployment.start_orders();
        }
        for gate in 0..deployment.gates.len() {
            deployment.start_gate(gate);
        }
        for sale in &deployment.sales {
            run(&mut deployment.command(0, &["preheat", sale]));
        }
        for gate in 0..deployment.gates.len() {
            deployment.until_open(gate).await;
        }
        deployment
    }

    /// Starts the order service, if it is down, and waits until it listens.
    pub fn start_orders(&mut self) {
        let mut orders = Process::start("orders", seckill_gate().arg("orders").arg("-c").arg(&self.config));
        orders.wait_until("listened", || listens(self.orders_port));
        self.orders = Some(orders);
    }

    /// Starts one gate, if it is down, and waits until it listens.
    pub fn start_gate(&mut self, number: usize) {
        let gate = &mut self.gates[number];
        let at = |port: u16| format!("127.0.0.1:{port}");
        let mut process =
            Process::start(
                "gate",
                seckill_gate()
                    .args(["serve", "--gate", &format!("gate-{}", number + 1), "-c"])
                    .arg(&self.config)
                    .args(["--listen", &at(gate.public), "--admin", &at(gate.admin), "--metrics", &at(gate.metrics)]),
            );
        process.wait_until("listened", || listens(gate.public));
        gate.process = Some(process);
    }

    /// `kill -9`, and waits for the end.
    pub fn kill_orders(&mut self) {
        drop(self.orders.take().unwrap());
    }

    /// `kill -9`, and waits for the end.
    pub fn kill_gate(&mut self, number: usize) {
        drop(self.gates[number].process.take().unwrap());
    }

    /// SIGTERM, and waits for the end, which must be in order.
    pub fn end_gate(&mut self, number: usize) {
        let mut process = self.gates[number].process.take().unwrap();
        signal(process.id(), "TERM");
        assert_eq!(process.ended(), Some(0), "gate {number}");
    }

    /// An operator's command to one gate.
    pub fn command(&self, gate: usize, arguments: &[&str]) -> Command {
        let admin = format!("http://127.0.0.1:{}", self.gates[gate].admin);
        let mut command = seckill_gate();
        command.args(arguments).arg("-c").arg(&self.config).args(["--admin", &admin]);
        command
    }

    /// The crowd engine's signer, for the same users.
    pub fn signer(&self) -> Arc<Signer> {
        let key = std::fs::read_to_string(self.folder.path().join("secrets/user-jwt-secret")).unwrap();
        Arc::new(Signer::hs256(key.trim().as_bytes(), "shop", "https://shop.test", "seckill").unwrap())
    }

    /// Waits until a gate says that every sale is open; fails after 15 s.
    pub async fn until_open(&self, gate: usize) {
        for sale in &self.sales {
            self.until_phase(sale, gate, "open").await;
        }
    }

    /// Waits until a gate says that a sale is in this phase; fails after 15 s.
    pub async fn until_phase(&self, sale: &str, gate: usize, wanted: &str) {
        let mut seen = Value::Null;
        for _ in 0..300 {
            seen = self.json(gate, &format!("/seckill/{sale}/state"), "nobody").await["phase"].clone();
            if seen == wanted {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("at gate {gate} {sale} is {seen}, not {wanted}");
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

    /// `GET` by nobody in particular; the status once the body is here.
    pub async fn look(&self, gate: usize, path: &str) -> u16 {
        let reply = self.http.get(self.url(gate, path)).send().await.unwrap();
        let status = reply.status().as_u16();
        reply.bytes().await.unwrap();
        status
    }

    /// A sale token for this attempt.
    pub async fn token(&self, gate: usize, user: &str, key: &str) -> String {
        self.token_for(SALE, gate, user, key).await
    }

    /// The same for any sale.
    pub async fn token_for(&self, sale: &str, gate: usize, user: &str, key: &str) -> String {
        self.try_token(sale, gate, user, key, SKU, None).await.unwrap_or_else(|told| panic!("{told:?}"))
    }

    /// A token for any SKU on any device, or what was said instead.
    pub async fn try_token(
        &self,
        sale: &str,
        gate: usize,
        user: &str,
        key: &str,
        sku: &str,
        device: Option<&str>,
    ) -> Result<String, Told> {
        let mut request = self
            .http
            .post(self.url(gate, &format!("/seckill/{sale}/tokens")))
            .header("Authorization", self.bearer(user))
            .header("Idempotency-Key", key)
            .json(&json!({"sku": sku, "qty": 1}));
        if let Some(device) = device {
            request = request.header("Seckill-Device", device);
        }
        let told = Told::of(request.send().await.unwrap()).await;
        let token = serde_json::from_str::<Value>(&told.body).unwrap()["token"].as_str().map(str::to_owned);
        token.ok_or(told)
    }

    /// An attempt; what it was told.
    pub async fn attempt(&self, gate: usize, user: &str, key: &str, token: &str) -> Told {
        self.attempt_at(SALE, gate, user, key, token).await
    }

    /// The same at any sale.
    pub async fn attempt_at(&self, sale: &str, gate: usize, user: &str, key: &str, token: &str) -> Told {
        Told::of(self.request(sale, gate, user, key, token).send().await.unwrap()).await
    }

    /// An attempt's request, to be sent otherwise than most are.
    pub fn request(&self, sale: &str, gate: usize, user: &str, key: &str, token: &str) -> RequestBuilder {
        self.http
            .post(self.url(gate, &format!("/seckill/{sale}")))
            .header("Authorization", self.bearer(user))
            .header("Idempotency-Key", key)
            .header("Seckill-Token", token)
            .json(&json!({"address": "1 Test Road"}))
    }

    /// What `results` tells of this key, once it is more than "queued"; fails after 60 s.
    pub async fn result(&self, sale: &str, gate: usize, user: &str, key: &str) -> Value {
        let mut seen = Value::Null;
        for _ in 0..60 {
            seen = self.json(gate, &format!("/seckill/{sale}/results/{key}?wait=1s"), user).await;
            if seen["state"].as_str().is_some_and(|state| state != "queued") {
                return seen;
            }
        }
        panic!("no final result of {user} {key}: {seen}");
    }

    /// Waits until a query on the ledger gives this number; fails after 30 s.
    pub async fn until_count(&self, query: &str, wanted: i64) {
        let mut seen = -1;
        for _ in 0..300 {
            seen = self.count(query).await;
            if seen == wanted {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("`{query}` gives {seen}, not {wanted}");
    }

    /// What a gate tells Prometheus.
    pub async fn metrics(&self, gate: usize) -> String {
        let url = format!("http://127.0.0.1:{}/metrics", self.gates[gate].metrics);
        self.http.get(url).send().await.unwrap().text().await.unwrap()
    }

    /// Waits until a gate's metrics hold this line; fails after 15 s.
    pub async fn until_metric(&self, gate: usize, line: &str) {
        for _ in 0..300 {
            if self.metrics(gate).await.lines().any(|have| have == line) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{line} never came:\n{}", self.metrics(gate).await);
    }

    /// Changes something in the ledger behind everybody's back.
    pub async fn execute(&self, statement: &str) {
        use sqlx::Connection;
        let mut connection = sqlx::MySqlConnection::connect(&self.ledger_url).await.unwrap();
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement.to_owned())).execute(&mut connection).await.unwrap();
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
    /// What this reply says.
    pub async fn of(reply: Response) -> Told {
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
