//! One ledger and one queue of a test's own, and the service on them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use seckill_gate::domain::{ActivityId, RequestId};
use seckill_gate::orders::activities::Activities;
use seckill_gate::orders::consumer::{Consumer, ConsumerSettings};
use seckill_gate::orders::ledger::mysql::{MySqlLedger, MySqlSettings};
use seckill_gate::orders::ledger::sqlite::SqliteLedger;
use seckill_gate::orders::ledger::{Ledger, Registered, Registration};
use seckill_gate::orders::metrics::Metrics;
use seckill_gate::orders::order::{NewOrder, Order};
use seckill_gate::orders::queue::OrderQueue;
use seckill_gate::orders::queue::redis::RedisQueue;
use seckill_gate::orders::queue::sqlite::SqliteQueue;
use seckill_gate::orders::ticket::TicketVerifier;
use seckill_gate::orders::{ApiToken, Parts, run};
use seckill_gate::platform::clock::wall_ms;
use seckill_gate::platform::metrics::Metrics as Registry;
use seckill_gate::platform::redis::RedisSettings;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::harness::mariadb::MariaDb;
use crate::harness::redis::Redis;

pub const TOKEN: &str = "test-token";
pub const NOW_MS: u64 = 1_800_000_000_000;
const PRIVATE_KEY: &str = "-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIKAA48aBuv5BWe+F9Iigh2LhUJIuOp5HJMRDEspfcb5l
-----END PRIVATE KEY-----";
const OTHER_PRIVATE_KEY: &str = "-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIMjhU00D8AkY1zFyj6gLqIF6TOC+dckNAaRMxM/atmZv
-----END PRIVATE KEY-----";
pub const PUBLIC_KEY: &str = "-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAE5yfCzk8JTxDDtBnPTgXknQU3Iy3kevE611ZZSkedRE=
-----END PUBLIC KEY-----";

pub struct World {
    pub ledger: Arc<dyn Ledger>,
    pub queue: Arc<dyn OrderQueue>,
    pub redis: Option<Redis>,
    pub mysql_url: Option<String>,
    pub folder: TempDir,
}

pub fn settings() -> ConsumerSettings {
    ConsumerSettings { batch: 200, orders_per_second: 1e6, claim_after: Duration::from_millis(300), set_aside_after: 3 }
}

pub async fn mysql(url: &str, deadline: Duration) -> MySqlLedger {
    MySqlLedger::open(&MySqlSettings { url: url.into(), password: None, pool: 8, deadline }).await.unwrap()
}

pub fn redis_queue(redis: &Redis, consumer: &str) -> Arc<dyn OrderQueue> {
    let settings = RedisSettings { url: redis.url(), username: None, password: None, deadline: Duration::from_secs(2) };
    Arc::new(RedisQueue::new(&settings, consumer.into()).unwrap())
}

impl World {
    pub async fn servers() -> World {
        let url = MariaDb::shared().database().await;
        World::on_database(&url, Duration::from_secs(10)).await
    }

    pub async fn on_database(url: &str, deadline: Duration) -> World {
        let redis = Redis::start();
        World {
            ledger: Arc::new(mysql(url, deadline).await),
            queue: redis_queue(&redis, "one"),
            redis: Some(redis),
            mysql_url: Some(url.into()),
            folder: TempDir::new().unwrap(),
        }
    }

    pub fn embedded() -> World {
        let folder = TempDir::new().unwrap();
        let deadline = Duration::from_secs(10);
        World {
            ledger: Arc::new(SqliteLedger::open(&folder.path().join("ledger.db"), deadline).unwrap()),
            queue: Arc::new(SqliteQueue::open(&folder.path().join("queue.db"), deadline).unwrap()),
            redis: None,
            mysql_url: None,
            folder,
        }
    }

    /// A handle to the same queue for another process.
    pub fn queue_of(&self, consumer: &str) -> Arc<dyn OrderQueue> {
        self.redis.as_ref().map_or_else(|| self.queue.clone(), |redis| redis_queue(redis, consumer))
    }

    pub async fn register(&self, per_user_limit: u32, skus: &[(&str, u32)]) {
        let outcome = self.ledger.register(&sale(), &terms(per_user_limit, skus), 0, 1).await.unwrap();
        assert_eq!(outcome, Registered::Created);
    }

    pub fn consume(&self, queue: Arc<dyn OrderQueue>) -> Running {
        self.consume_with(queue, settings())
    }

    pub fn consume_with(&self, queue: Arc<dyn OrderQueue>, settings: ConsumerSettings) -> Running {
        self.consume_counted(queue, settings).0
    }

    /// The same, with what it counts.
    pub fn consume_counted(&self, queue: Arc<dyn OrderQueue>, settings: ConsumerSettings) -> (Running, Metrics) {
        let metrics = Metrics::register(&Registry::new().unwrap()).unwrap();
        let consumer = Consumer {
            queue,
            ledger: self.ledger.clone(),
            activities: Activities::default(),
            settings,
            metrics: metrics.clone(),
        };
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(consumer.run(shutdown.clone()));
        (Running { shutdown, task }, metrics)
    }

    /// Starts the whole service on a free port.
    pub async fn serve(&self) -> Served {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let parts = Parts {
            ledger: self.ledger.clone(),
            queue: self.queue.clone(),
            wall_ms: Arc::new(|| NOW_MS),
            metrics: Arc::new(Registry::new().unwrap()),
            api_token: ApiToken::new(TOKEN),
            tickets: TicketVerifier::new(PUBLIC_KEY.as_bytes()).unwrap(),
            consumer: settings(),
        };
        let shutdown = CancellationToken::new();
        let stop = shutdown.clone();
        let task = tokio::spawn(async move { run(parts, listener, stop).await.unwrap() });
        Served { address, client: reqwest::Client::new(), running: Running { shutdown, task } }
    }

    pub async fn find(&self, order: &NewOrder) -> Option<Order> {
        self.ledger.find(order.request_id).await.unwrap()
    }

    pub async fn sold(&self, sku: &str) -> u64 {
        self.ledger.report(&sale()).await.unwrap().unwrap().skus[sku].sold
    }

    pub async fn rows(&self, state: &str) -> u64 {
        self.ledger.report(&sale()).await.unwrap().unwrap().orders.get(state).copied().unwrap_or(0)
    }

    pub async fn set_aside(&self) -> u64 {
        self.ledger.report(&sale()).await.unwrap().unwrap().set_aside
    }

    pub async fn queue_is_empty(&self) {
        eventually("the queue was empty", async || self.queue.lag(&sale()).await == Ok(0)).await;
    }

    pub async fn audit_is_clean(&self) {
        let audit = self.ledger.audit(&sale()).await.unwrap();
        assert_eq!(audit.violations(), 0, "{audit:?}");
    }

    /// Puts an entry into the queue that is none of ours.
    pub async fn add_rubbish(&self) {
        match &self.redis {
            Some(redis) => {
                let client = redis::Client::open(redis.url()).unwrap();
                let mut connection = client.get_multiplexed_async_connection().await.unwrap();
                let mut add = redis::cmd("XADD");
                add.arg("skq:{sale}").arg("*").arg("rid").arg("rubbish").arg("\u{fffd}").arg(b"\xff\x00".as_slice());
                let _: String = add.query_async(&mut connection).await.unwrap();
            }
            None => {
                let file = rusqlite::Connection::open(self.folder.path().join("queue.db")).unwrap();
                let row = "INSERT INTO queue (activity, rid, sku, qty, user, epoch, payload) \
                           VALUES ('sale', 'rubbish', '', 'x', '', '', x'ff00')";
                file.execute_batch(row).unwrap();
            }
        }
    }

    /// Runs a statement on the ledger's tables behind its back.
    pub async fn execute(&self, statement: &str) {
        match &self.mysql_url {
            Some(url) => {
                use sqlx::Connection;
                let mut connection = sqlx::MySqlConnection::connect(url).await.unwrap();
                sqlx::raw_sql(sqlx::AssertSqlSafe(statement.to_owned())).execute(&mut connection).await.unwrap();
            }
            None => {
                let connection = rusqlite::Connection::open(self.folder.path().join("ledger.db")).unwrap();
                connection.execute_batch(statement).unwrap();
            }
        }
    }
}

/// A task that is stopped (and must then end by itself) or dropped (as if killed).
pub struct Running {
    pub shutdown: CancellationToken,
    pub task: JoinHandle<()>,
}

impl Running {
    pub async fn stop(self) {
        self.shutdown.cancel();
        tokio::time::timeout(Duration::from_secs(20), self.task).await.expect("it ends in time").unwrap();
    }
}

pub struct Served {
    pub address: SocketAddr,
    pub client: reqwest::Client,
    pub running: Running,
}

pub struct Answer {
    pub status: u16,
    pub order: Option<String>,
    pub reason: Option<String>,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

impl Served {
    /// A service that runs as a process of its own.
    pub fn elsewhere(port: u16) -> Served {
        let running = Running { shutdown: CancellationToken::new(), task: tokio::spawn(async {}) };
        Served { address: ([127, 0, 0, 1], port).into(), client: reqwest::Client::new(), running }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub async fn post(&self, order: &NewOrder) -> Answer {
        self.post_with(order, &Claims::of(order), PRIVATE).await
    }

    /// Posts `order` with a ticket of these claims.
    pub async fn post_with(&self, order: &NewOrder, claims: &Claims, key: Key) -> Answer {
        let request = self
            .client
            .post(self.url("/orders"))
            .header("idempotency-key", order.request_id.to_string())
            .header("seckill-activity", order.activity.as_str())
            .header("seckill-sku", order.sku.as_str())
            .header("seckill-quantity", order.qty)
            .header("seckill-user", order.user.as_str())
            .header("seckill-ticket", claims.sign(key))
            .header("content-type", "application/json")
            .body(order.payload.clone());
        answer(request).await
    }

    pub async fn api(&self, method: reqwest::Method, path: &str, body: &str) -> Answer {
        let request = self.client.request(method, self.url(path)).bearer_auth(TOKEN).body(body.to_owned());
        answer(request).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.api(reqwest::Method::GET, path, "").await
    }

    /// Posts until the answer is not 202.
    pub async fn post_until_told(&self, order: &NewOrder) -> Answer {
        let started = Instant::now();
        loop {
            let answer = self.post(order).await;
            if answer.status != 202 {
                return answer;
            }
            assert!(started.elapsed() < Duration::from_secs(20), "never told");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

pub async fn answer(request: reqwest::RequestBuilder) -> Answer {
    let response = request.send().await.unwrap();
    let header = |name: &str| response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
    Answer {
        status: response.status().as_u16(),
        order: header("seckill-order"),
        reason: header("seckill-reason"),
        body: response.text().await.unwrap(),
    }
}

#[derive(Clone, serde::Serialize)]
pub struct Claims {
    pub sub: String,
    pub act: String,
    pub sku: String,
    pub qty: u32,
    pub rid: String,
    pub epoch: u64,
    pub iat: u64,
    pub exp: u64,
}

#[derive(Clone, Copy)]
pub struct Key(&'static str);
pub const PRIVATE: Key = Key(PRIVATE_KEY);
pub const FORGER: Key = Key(OTHER_PRIVATE_KEY);

impl Claims {
    pub fn of(order: &NewOrder) -> Claims {
        Claims {
            sub: order.user.to_string(),
            act: order.activity.to_string(),
            sku: order.sku.to_string(),
            qty: order.qty,
            rid: order.request_id.to_string(),
            epoch: order.epoch,
            iat: NOW_MS / 1000,
            exp: NOW_MS / 1000 + 5,
        }
    }

    /// The same for a process, which reads the real clock.
    pub fn fresh(order: &NewOrder) -> Claims {
        let now = wall_ms() / 1000;
        Claims { iat: now, exp: now + 60, ..Claims::of(order) }
    }

    fn sign(&self, key: Key) -> String {
        let key = jsonwebtoken::EncodingKey::from_ed_pem(key.0.as_bytes()).unwrap();
        jsonwebtoken::encode(&jsonwebtoken::Header::new(jsonwebtoken::Algorithm::EdDSA), self, &key).unwrap()
    }
}

pub fn sale() -> ActivityId {
    "sale".parse().unwrap()
}

pub fn terms(per_user_limit: u32, skus: &[(&str, u32)]) -> Registration {
    Registration {
        per_user_limit,
        rebuy_after_release: true,
        payment_deadline_ms: 900_000,
        skus: skus.iter().map(|(sku, units)| (sku.parse().unwrap(), *units)).collect(),
    }
}

/// One unit of `phone`.
pub fn order(user: &str, key: &str) -> NewOrder {
    let user = user.parse().unwrap();
    NewOrder {
        request_id: RequestId::derive(&sale(), &user, &key.parse().unwrap()),
        activity: sale(),
        sku: "phone".parse().unwrap(),
        qty: 1,
        user,
        epoch: 1,
        payload: format!("{{ \"note\" : \"{key} é\\n\" }}").into(),
    }
}

/// `n` orders of as many users.
pub fn crowd(n: usize) -> Vec<NewOrder> {
    (0..n).map(|i| order(&format!("u{i}"), "k")).collect()
}

pub async fn eventually(what: &str, mut ready: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !ready().await {
        assert!(started.elapsed() < Duration::from_secs(40), "it never happened that {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
