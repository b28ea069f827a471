//! One gate's activity on a real Redis, its courier and admin listener, and our real order service, with a tap between
//! courier and order service that can hold deliveries back, lose their replies, or answer by itself.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use bytes::Bytes;
use seckill_gate::domain::admission::{Attempt, DueWin, Epoch, FoundWin, Terms, Verdict};
use seckill_gate::domain::dead_letters::DeadLetterPolicy;
use seckill_gate::domain::{ActivityId, Fingerprint, IdempotencyKey, RequestId, StoreMs, UserId};
use seckill_gate::gate::activity::{Activity, Admitted, StoreMetrics, World};
use seckill_gate::gate::admin::{AdminAuth, AdminWorld, Managed, router};
use seckill_gate::gate::delivery::client::{ClientOptions, OrderClient};
use seckill_gate::gate::delivery::courier::{Courier, CourierOptions};
use seckill_gate::gate::delivery::metrics::DeliveryMetrics;
use seckill_gate::gate::delivery::pacer::Pacer;
use seckill_gate::gate::delivery::relay;
use seckill_gate::gate::delivery::ticket::{self, TicketSigner};
use seckill_gate::gate::delivery::told::{FirstDelivery, Told};
use seckill_gate::gate::delivery::word::ReplyRules;
use seckill_gate::gate::ledger::client::LedgerClient;
use seckill_gate::gate::store::AdmissionStore;
use seckill_gate::gate::store::redis::RedisStore;
use seckill_gate::gate::store::sqlite::SqliteStore;
use seckill_gate::gate::win_log::{LogFirst, NoWinLog};
use seckill_gate::orders::ledger::Ledger;
use seckill_gate::orders::ledger::sqlite::SqliteLedger;
use seckill_gate::orders::order::{NewOrder, Order};
use seckill_gate::orders::queue::sqlite::SqliteQueue;
use seckill_gate::orders::queue::{Claimed, Delivery, OrderQueue, Pushed, QueueError};
use seckill_gate::orders::ticket::TicketVerifier;
use seckill_gate::orders::{ApiToken, Parts, run};
use seckill_gate::platform::breaker::BreakerMetrics;
use seckill_gate::platform::clock::{StoreClock, monotonic, wall_ms};
use seckill_gate::platform::http_server::{HttpLimits, serve};
use seckill_gate::platform::metrics::Metrics;
use seckill_gate::platform::redis::RedisSettings;
use seckill_gate::platform::shutdown::{self, Trigger};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admin_rig::answer;
use crate::harness::redis::Redis;
use crate::orders::settings;

const SALE: &str = "sale";
const TOKEN: &str = "api";

/// What the tap does with a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Passes it on.
    Pass,
    /// Keeps it, unanswered, as a stalled socket does.
    Hold,
    /// Passes it on, and the reply is lost.
    LoseReply,
    /// Answers by itself, with `Seckill-Order` if it names a word.
    Answer(u16, Option<&'static str>),
}

/// Between courier and order service.
pub struct Tap {
    orders: SocketAddr,
    http: reqwest::Client,
    mode: Mutex<Mode>,
    held: Mutex<Vec<(http::HeaderMap, Bytes)>>,
    /// Deliveries that came.
    pub seen: AtomicUsize,
}

impl Tap {
    pub fn set(&self, mode: Mode) {
        *self.mode.lock().unwrap() = mode;
    }

    pub fn held(&self) -> usize {
        self.held.lock().unwrap().len()
    }

    /// Lets what was held arrive at last: the order service's statuses, and the word it named.
    pub async fn let_go(&self) -> Vec<(u16, Option<String>)> {
        let held = std::mem::take(&mut *self.held.lock().unwrap());
        futures::future::join_all(held.into_iter().map(|(headers, body)| async move {
            let response = self.forward(headers, body).await;
            let word = response.headers().get("seckill-order").map(|word| word.to_str().unwrap().to_owned());
            (response.status().as_u16(), word)
        }))
        .await
    }

    async fn forward(&self, mut headers: http::HeaderMap, body: Bytes) -> reqwest::Response {
        headers.remove("host");
        headers.remove("content-length");
        let url = format!("http://{}/orders", self.orders);
        self.http.post(url).headers(headers).body(body).send().await.unwrap()
    }
}

async fn tapped(State(tap): State<Arc<Tap>>, request: Request) -> Response {
    tap.seen.fetch_add(1, Ordering::SeqCst);
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    let mode = *tap.mode.lock().unwrap();
    match mode {
        Mode::Pass => {
            let response = tap.forward(parts.headers, body).await;
            let mut answer = Response::builder().status(response.status().as_u16());
            for (name, value) in response.headers() {
                answer = answer.header(name, value);
            }
            answer.body(Body::from(response.bytes().await.unwrap())).unwrap()
        }
        Mode::Hold => {
            tap.held.lock().unwrap().push((parts.headers, body));
            std::future::pending().await
        }
        Mode::LoseReply => {
            tap.forward(parts.headers, body).await;
            std::future::pending().await
        }
        Mode::Answer(status, word) => {
            let mut answer = Response::builder().status(status);
            if let Some(word) = word {
                answer = answer.header("seckill-order", word).header("seckill-reason", "because");
            }
            answer.body(Body::empty()).unwrap()
        }
    }
}

/// A queue that hands nothing out while it is shut.
pub struct ShutQueue {
    inner: SqliteQueue,
    shut: AtomicBool,
    /// Held by those who take; so that after `close` nobody is still waiting for what comes.
    taking: tokio::sync::RwLock<()>,
}

impl ShutQueue {
    /// From now on nothing is handed out.
    pub async fn close(&self) {
        self.shut.store(true, Ordering::SeqCst);
        drop(self.taking.write().await);
    }

    /// Hands out again.
    pub fn open(&self) {
        self.shut.store(false, Ordering::SeqCst);
    }
}

#[async_trait]
impl OrderQueue for ShutQueue {
    async fn push(&self, order: &NewOrder) -> Result<Pushed, QueueError> {
        self.inner.push(order).await
    }
    async fn take(&self, activities: &[ActivityId], max: usize, wait: Duration) -> Result<Vec<Delivery>, QueueError> {
        if self.shut.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(20)).await;
            return Ok(Vec::new());
        }
        let _taking = self.taking.read().await;
        if self.shut.load(Ordering::SeqCst) {
            return Ok(Vec::new());
        }
        self.inner.take(activities, max, wait).await
    }
    async fn claim_stale(&self, activities: &[ActivityId], max: usize, idle: Duration) -> Result<Claimed, QueueError> {
        match self.shut.load(Ordering::SeqCst) {
            true => Ok(Claimed::default()),
            false => self.inner.claim_stale(activities, max, idle).await,
        }
    }
    async fn keep(&self, deliveries: &[Delivery]) -> Result<(), QueueError> {
        self.inner.keep(deliveries).await
    }
    async fn done(&self, deliveries: &[Delivery]) -> Result<(), QueueError> {
        self.inner.done(deliveries).await
    }
    async fn lag(&self, activity: &ActivityId) -> Result<u64, QueueError> {
        self.inner.lag(activity).await
    }
    async fn ping(&self) -> Result<(), QueueError> {
        self.inner.ping().await
    }
}

/// Where the activity's wins are kept.
pub enum Kind {
    Redis,
    Sqlite,
}

pub struct Rig {
    pub activity: Arc<Activity>,
    pub redis: Option<Redis>,
    pub tap: Arc<Tap>,
    pub ledger: Arc<dyn Ledger>,
    pub queue: Arc<ShutQueue>,
    pub courier: Courier,
    pub metrics: Arc<Metrics>,
    admin: SocketAddr,
    http: reqwest::Client,
    trigger: Trigger,
    stopped: CancellationToken,
    _folder: tempfile::TempDir,
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.stopped.cancel();
        self.trigger.advance(shutdown::Stage::Closing);
    }
}

pub async fn rig(kind: Kind, stock: i64, dead_letters: DeadLetterPolicy) -> Rig {
    let folder = tempfile::tempdir().unwrap();
    let pair = ticket::generate_key_pair().unwrap();
    let long = Duration::from_secs(20);
    let ledger: Arc<dyn Ledger> = Arc::new(SqliteLedger::open(&folder.path().join("ledger.db"), long).unwrap());
    let inner = SqliteQueue::open(&folder.path().join("queue.db"), long).unwrap();
    let queue = Arc::new(ShutQueue { inner, shut: AtomicBool::new(false), taking: tokio::sync::RwLock::default() });
    let stopped = CancellationToken::new();
    let orders = order_service(&ledger, &queue, &pair.public_pem, stopped.clone()).await;
    let orders_url = format!("http://{orders}/orders").parse().unwrap();

    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let (mode, held) = (Mutex::new(Mode::Pass), Mutex::default());
    let tap = Arc::new(Tap { orders, http: http.clone(), mode, held, seen: AtomicUsize::new(0) });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let tap_address = listener.local_addr().unwrap();
    let routes = Router::new().fallback(tapped).with_state(tap.clone());
    tokio::spawn(async move { axum::serve(listener, routes).await });

    let metrics = Arc::new(Metrics::new().unwrap());
    let options = ClientOptions {
        url: format!("http://{tap_address}/orders").parse().unwrap(),
        deadline: Duration::from_secs(10),
        max_reply: 64 << 10,
        rules: ReplyRules::default(),
    };
    let (courier, _) = Courier::new(
        OrderClient::new(options).unwrap(),
        Arc::new(TicketSigner::from_pem(pair.private_pem.as_bytes()).unwrap()),
        CourierOptions { max_in_flight: 64, answer_within: Duration::from_secs(10) },
        DeliveryMetrics::register(&metrics).unwrap(),
        &BreakerMetrics::register(&metrics).unwrap(),
    );
    let (redis, store): (Option<Redis>, Arc<dyn AdmissionStore>) = match kind {
        Kind::Redis => {
            let redis = Redis::start();
            let settings = RedisSettings { url: redis.url(), username: None, password: None, deadline: long };
            (Some(redis), Arc::new(RedisStore::new(&settings).unwrap()))
        }
        Kind::Sqlite => {
            let (path, clock) = (folder.path().join("store.db"), Arc::new(|| StoreMs(wall_ms())));
            (None, Arc::new(SqliteStore::open(&path, long, clock, Box::new(|why| panic!("{why}"))).await.unwrap()))
        }
    };
    let clock = Arc::new(StoreClock::new());
    let world = World {
        gate: "gate-1".parse().unwrap(),
        store: store.clone(),
        clock: clock.clone(),
        wins: Arc::new(LogFirst::new(NoWinLog)),
        store_deadline: long,
        queue: 64,
        first_delivery_lease: Duration::from_secs(60),
        dead_letters,
        metrics: Arc::new(StoreMetrics::register(&metrics).unwrap()),
    };
    let id: ActivityId = SALE.parse().unwrap();
    let terms = terms(stock);
    let activity = Activity::start(id.clone(), terms.clone(), &world, stopped.clone());
    let (trigger, shutdown) = shutdown::channel();
    let managed = Managed { activity: activity.clone(), terms, payment_deadline: Duration::from_secs(900) };
    let world = Arc::new(AdminWorld {
        activities: BTreeMap::from([(id, managed)]),
        store,
        ledger: Arc::new(LedgerClient::new(&orders_url, TOKEN.into(), Duration::from_secs(10)).unwrap()),
        clock,
        gates: vec!["gate-1".parse().unwrap()],
        returning_delay: Duration::from_secs(1),
        conflicts: courier.conflicts(),
        started: Arc::new(AtomicBool::new(true)),
        under_way: TaskTracker::new(),
        shutdown: shutdown.clone(),
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let admin = listener.local_addr().unwrap();
    let auth = AdminAuth::new(b"change", Some(b"read"), admin, &[]);
    tokio::spawn(serve("admin", listener, router(world, auth), HttpLimits::default(), shutdown));
    let rig =
        Rig { activity, redis, tap, ledger, queue, courier, metrics, admin, http, trigger, stopped, _folder: folder };
    assert_eq!(rig.change("preheat").await, (200, "applied".into()));
    eventually("the gate sees it", async || rig.activity.view().epoch().is_some()).await;
    rig
}

async fn order_service(
    ledger: &Arc<dyn Ledger>,
    queue: &Arc<ShutQueue>,
    ticket_key: &str,
    stop: CancellationToken,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let parts = Parts {
        ledger: ledger.clone(),
        queue: queue.clone(),
        wall_ms: Arc::new(wall_ms),
        metrics: Arc::new(Metrics::new().unwrap()),
        api_token: ApiToken::new(TOKEN),
        tickets: TicketVerifier::new(ticket_key.as_bytes()).unwrap(),
        consumer: settings(),
    };
    tokio::spawn(async move { run(parts, listener, stop).await.unwrap() });
    address
}

fn terms(stock: i64) -> Terms {
    let now = wall_ms();
    Terms {
        epoch: Epoch(1),
        starts_at: StoreMs(now - 60_000),
        ends_at: StoreMs(now + 3_600_000),
        per_user_limit: 1,
        rebuy_after_release: true,
        retention: Duration::from_secs(3_600),
        skus: vec![("phone".parse().unwrap(), stock)],
    }
}

impl Rig {
    /// One attempt for one unit.
    pub async fn attempt(&self, user: &str) -> Admitted {
        let (user, key): (UserId, IdempotencyKey) = (user.parse().unwrap(), "k".parse().unwrap());
        let payload = Bytes::from_static(b"{}");
        let attempt = Attempt {
            request_id: RequestId::derive(&self.activity.id, &user, &key),
            user,
            key,
            sku: "phone".parse().unwrap(),
            qty: 1,
            fingerprint: Fingerprint::of(&payload),
            may_win: true,
            payload,
        };
        self.activity.admit(attempt, monotonic()).await
    }

    /// Wins one unit; it is not delivered yet.
    pub async fn win(&self, user: &str) -> DueWin {
        let won_at = match self.attempt(user).await {
            Admitted::Judged(Verdict::Won, won_at) => won_at,
            other => panic!("{other:?}"),
        };
        let user: UserId = user.parse().unwrap();
        let request_id = RequestId::derive(&self.activity.id, &user, &"k".parse().unwrap());
        let (sku, payload) = ("phone".parse().unwrap(), Bytes::from_static(b"{}"));
        DueWin { request_id, user, sku, qty: 1, won_at, tries: 0, payload }
    }

    /// Starts a delivery that will hang, and waits until it does.
    pub async fn hang(&self, win: &DueWin) {
        let (courier, activity, win) = (self.courier.clone(), self.activity.clone(), win.clone());
        let seen = self.tap.seen.load(Ordering::SeqCst);
        tokio::spawn(async move { courier.deliver_first(&activity, win, None).await });
        eventually("it came", async || self.tap.seen.load(Ordering::SeqCst) > seen).await;
    }

    /// Delivers a win as the gate that admitted it does.
    pub async fn deliver(&self, win: &DueWin) -> Told {
        self.courier.deliver_first(&self.activity, win.clone(), None).await
    }

    /// Wins, and the first delivery brings no word: with [`at_once`] the win is a dead letter.
    pub async fn dead_letter(&self, user: &str) -> DueWin {
        let win = self.win(user).await;
        self.tap.set(Mode::Answer(503, None));
        assert_eq!(self.deliver(&win).await, Told::Queued);
        assert!(self.found(&win).await.record.dead_since.is_some());
        win
    }

    /// Runs the relay until the rig ends.
    pub fn relay(&self) {
        let pacer = Arc::new(Mutex::new(Pacer::new(500, Duration::from_secs(1), monotonic())));
        let (outbox, courier, trigger) = (self.activity.clone(), self.courier.clone(), self.stopped.clone());
        let (advance, shutdown) = shutdown::channel();
        tokio::spawn(relay::run(outbox, courier, pacer, shutdown));
        tokio::spawn(async move {
            trigger.cancelled().await;
            advance.advance(shutdown::Stage::Closing);
        });
    }

    pub async fn found(&self, win: &DueWin) -> FoundWin {
        self.activity.find(win.request_id).await.unwrap().unwrap().unwrap()
    }

    /// When the store will have it delivered again, ms.
    pub fn due(&self, win: &DueWin) -> u64 {
        let words = ["ZSCORE", "sk:{sale.0}:due", &win.request_id.to_string()];
        let score = self.redis.as_ref().unwrap().command(&words).unwrap();
        redis::from_redis_value::<f64>(score).unwrap() as u64
    }

    pub async fn order(&self, win: &DueWin) -> Option<Order> {
        self.ledger.find(win.request_id).await.unwrap()
    }

    /// Units left once everything that comes back is on sale.
    pub async fn left_at_last(&self) -> i64 {
        eventually("nothing is on its way back", async || {
            _ = self.activity.claim_due(0, Duration::from_secs(1), false).await.unwrap().unwrap();
            self.activity.snapshot().await.unwrap().unwrap().skus[0].1.returning == 0
        })
        .await;
        let (_, stock) = &self.activity.snapshot().await.unwrap().unwrap().skus[0];
        assert!(stock.adds_up(), "{stock:?}");
        stock.left
    }

    /// Changes by way of the admin listener: status, and `outcome` or `code`.
    pub async fn change(&self, action: &str) -> (u16, String) {
        let url = format!("http://{}/admin/activities/{SALE}/{action}", self.admin);
        let (status, body) = answer(self.http.post(url).bearer_auth("change").json(&json!({}))).await;
        let named = body.get("outcome").or(body.get("code")).and_then(Value::as_str).unwrap_or_default();
        (status, named.to_owned())
    }

    pub async fn release(&self, win: &DueWin) -> (u16, String) {
        self.change(&format!("dead-letters/{}/release", win.request_id)).await
    }

    pub async fn read(&self, path: &str) -> Value {
        let url = format!("http://{}/admin/activities/{SALE}{path}", self.admin);
        let (status, body) = answer(self.http.get(url).bearer_auth("read")).await;
        assert_eq!(status, 200, "{body}");
        body
    }

    /// Conflicts that were alarmed so far.
    pub fn conflicts(&self) -> u64 {
        let text = self.metrics.render().unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("seckill_win_conflicts_total{activity=\"sale\"} "));
        line.map_or(0, |count| count.parse().unwrap())
    }
}

/// A win is dead after its first delivery, and then left alone.
pub fn at_once() -> DeadLetterPolicy {
    DeadLetterPolicy { after: Duration::ZERO, retry_every: Duration::from_secs(3_600) }
}

/// Waits until `holds`; fails after 20 seconds.
pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !holds().await {
        assert!(started.elapsed() < Duration::from_secs(20), "never: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
