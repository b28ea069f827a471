//! A gate's public edge with a scripted store and delivery, and a small shop behind it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Request, State};
use axum::response::IntoResponse;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use seckill_gate::config::scalars::Rate;
use seckill_gate::config::schema::{self, StockDisplay, UserAlgorithm};
use seckill_gate::domain::admission::{Attempt, Barred, DueWin, Epoch, FoundWin, KnownWin, RunId, Verdict, WinRecord};
use seckill_gate::domain::stock::Stock;
use seckill_gate::domain::win::WinState;
use seckill_gate::domain::{ActivityId, Fingerprint, IdempotencyKey, RequestId, SkuId, StoreMs, UserId};
use seckill_gate::gate::activity::{Admitted, Phase, View};
use seckill_gate::gate::adapter::{Listener, ListenerLimits, SHOP_BREAKER, Shop};
use seckill_gate::gate::address::TrustedProxies;
use seckill_gate::gate::answer::Problems;
use seckill_gate::gate::delivery::reply::StoredReply;
use seckill_gate::gate::delivery::told::{FirstDelivery, Told};
use seckill_gate::gate::edge::{Edge, Entry, Offer, Sale};
use seckill_gate::gate::identity::{Identity, IdentityParts, UserKey};
use seckill_gate::gate::limits::Limits;
use seckill_gate::gate::metrics::Metrics;
use seckill_gate::gate::pages::{Page, PageText};
use seckill_gate::gate::port::AttemptPort;
use seckill_gate::gate::store::Guarded;
use seckill_gate::gate::tokens::{TokenKey, Tokens};
use seckill_gate::platform::breaker::BreakerMetrics;
use seckill_gate::platform::clock::{StoreClock, monotonic};
use seckill_gate::platform::metrics::Metrics as PlatformMetrics;
use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::http1::Client;

pub const TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
/// The shop's key of user JWTs.
const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";
/// The key of sale tokens.
pub const TOKEN_KEY: [u8; 32] = [7; 32];

/// An activity whose store says what the test wants.
pub struct ScriptedPort {
    view: Mutex<View>,
    winners: Mutex<HashSet<String>>,
    answers: Mutex<VecDeque<Admitted>>,
    attempts: Mutex<Vec<Attempt>>,
    wins: Mutex<HashMap<RequestId, FoundWin>>,
    /// Why the store tells of no win.
    pub lost: Mutex<Option<Barred>>,
    changed: Arc<Notify>,
}

impl ScriptedPort {
    fn new(now: StoreMs) -> ScriptedPort {
        let view = View {
            reached: true,
            vouched: Some((Epoch(1), RunId("run".into()))),
            starts_at: StoreMs(now.0 - 1_000),
            ends_at: now.after(Duration::from_secs(3_600)),
            per_user_limit: 1,
            retention: Duration::from_secs(60),
            stock: vec![(SkuId::new("phone").unwrap(), Stock::new(10))],
            barred: None,
            paused: false,
            unsettled: 0,
            dead: 0,
            oldest_unsettled: None,
            winners_known_at: None,
            sold_out_lease_until: None,
        };
        ScriptedPort {
            view: Mutex::new(view),
            winners: Mutex::default(),
            answers: Mutex::default(),
            attempts: Mutex::default(),
            wins: Mutex::default(),
            lost: Mutex::default(),
            changed: Arc::default(),
        }
    }

    /// Nothing is left, under a lease that outlives the test.
    pub fn sell_out(&self) {
        let mut view = self.view.lock().unwrap();
        view.stock[0].1.left = 0;
        view.sold_out_lease_until = Some(monotonic() + Duration::from_secs(3_600));
    }

    pub fn phase(&self, phase: Phase) {
        let now = StoreClock::new().now().store;
        let mut view = self.view.lock().unwrap();
        (view.starts_at, view.ends_at) = (StoreMs(now.0 - 10_000), now.after(Duration::from_secs(3_600)));
        (view.stock[0].1.left, view.paused) = (10, false);
        match phase {
            Phase::Before => view.starts_at = now.after(Duration::from_secs(60)),
            Phase::Open => {}
            Phase::SoldOut => view.stock[0].1.left = 0,
            Phase::Ended => view.ends_at = StoreMs(now.0 - 500),
            Phase::Paused => view.paused = true,
        }
    }

    pub fn all_winners_are_known(&self) {
        let mut view = self.view.lock().unwrap();
        view.winners_known_at = Some(view.ends_at);
    }

    pub fn may_be_winner(&self, key: &str) {
        self.winners.lock().unwrap().insert(key.into());
    }

    /// What the next attempt is told; the last answer is repeated.
    pub fn answers(&self, admitted: Admitted) {
        let mut answers = self.answers.lock().unwrap();
        answers.clear();
        answers.push_back(admitted);
    }

    pub fn starts_in(&self, delay: Duration) {
        let now = StoreClock::new().now().store;
        self.view.lock().unwrap().starts_at = now.after(delay);
    }

    pub fn last_attempt(&self) -> Attempt {
        self.attempts.lock().unwrap().last().unwrap().clone()
    }

    pub fn attempts(&self) -> usize {
        self.attempts.lock().unwrap().len()
    }

    /// Records a win of `u1` in this state.
    pub fn holds(&self, key: &str, state: WinState, reply: Option<StoredReply>) {
        self.holds_for("u1", key, state, reply);
    }

    /// The win of `u1` under this key gets a dead mark.
    pub fn mark_dead(&self, key: &str) {
        for win in self.wins.lock().unwrap().values_mut().filter(|win| win.record.key.as_str() == key) {
            win.record.dead_since = Some(StoreMs(2));
        }
    }

    /// Records a win of somebody.
    pub fn holds_for(&self, user: &str, key: &str, state: WinState, reply: Option<StoredReply>) {
        let (user, key) = (UserId::new(user).unwrap(), IdempotencyKey::new(key).unwrap());
        let request_id = RequestId::derive(&ActivityId::new("sale").unwrap(), &user, &key);
        let record = WinRecord {
            user,
            key,
            sku: SkuId::new("phone").unwrap(),
            qty: 1,
            fingerprint: Fingerprint::of(b"{}"),
            won_at: StoreMs(1),
            state,
            tries: 0,
            first_delivery_at: None,
            last_word: None,
            dead_since: None,
            payload: None,
            reply: reply.map(|reply| reply.encode()),
        };
        self.wins.lock().unwrap().insert(request_id, FoundWin { request_id, record });
        self.changed.notify_waiters();
    }
}

impl AttemptPort for ScriptedPort {
    fn view(&self) -> Arc<View> {
        Arc::new(self.view.lock().unwrap().clone())
    }

    fn may_be_winner(&self, key: &IdempotencyKey) -> bool {
        self.winners.lock().unwrap().contains(key.as_str())
    }

    async fn admit(&self, attempt: Attempt, _at: Instant) -> Admitted {
        self.attempts.lock().unwrap().push(attempt);
        self.answers.lock().unwrap().front().expect("the script has an answer").clone()
    }

    async fn find(&self, id: RequestId) -> Guarded<Option<FoundWin>> {
        Ok(self.lost.lock().unwrap().map_or(Ok(self.wins.lock().unwrap().get(&id).cloned()), Err))
    }

    async fn wins_of(&self, user: &UserId) -> Guarded<Vec<FoundWin>> {
        let wins = self.wins.lock().unwrap();
        let known = wins.values().filter(|win| win.record.user == *user).cloned().collect();
        Ok(self.lost.lock().unwrap().map_or(Ok(known), Err))
    }

    fn change_of(&self, _id: RequestId) -> impl Future<Output = ()> + Send + 'static {
        Arc::clone(&self.changed).notified_owned()
    }
}

/// A delivery that tells what the test wants.
pub struct ScriptedDelivery {
    told: Mutex<Told>,
    takes: Mutex<Duration>,
    delivered: Mutex<Vec<(DueWin, Option<String>)>>,
}

impl ScriptedDelivery {
    pub fn tells(&self, told: Told) {
        *self.told.lock().unwrap() = told;
    }

    pub fn takes(&self, time: Duration) {
        *self.takes.lock().unwrap() = time;
    }

    pub fn last(&self) -> (DueWin, Option<String>) {
        self.delivered.lock().unwrap().last().unwrap().clone()
    }
}

impl FirstDelivery<ScriptedPort> for ScriptedDelivery {
    async fn deliver_first(&self, _: &Arc<ScriptedPort>, win: DueWin, traceparent: Option<String>) -> Told {
        let takes = *self.takes.lock().unwrap();
        tokio::time::sleep(takes).await;
        self.delivered.lock().unwrap().push((win, traceparent));
        self.told.lock().unwrap().clone()
    }
}

/// What a test may change.
pub struct Settings {
    pub limits: ListenerLimits,
    pub body_deadline: Duration,
    pub shop_timeout: Duration,
    pub shop_body_deadline: Duration,
    pub dead_shop: bool,
    pub shop_places: usize,
    pub attempts_per_user: Option<Rate>,
}

/// A running edge.
pub struct World {
    pub address: SocketAddr,
    pub port: Arc<ScriptedPort>,
    pub delivery: Arc<ScriptedDelivery>,
    listener: Arc<Listener<ScriptedPort, ScriptedDelivery>>,
    pub clock: Arc<StoreClock>,
    registry: prometheus::Registry,
    shop_requests: Arc<AtomicUsize>,
    shutdown: CancellationToken,
    serving: Option<JoinHandle<()>>,
    jwt: String,
}

impl Drop for World {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

/// Starts one as most tests want it.
pub async fn start() -> World {
    start_with(|_| {}).await
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            limits: ListenerLimits::default(),
            body_deadline: Duration::from_secs(5),
            shop_timeout: Duration::from_secs(5),
            shop_body_deadline: Duration::from_secs(60),
            dead_shop: false,
            shop_places: 1_000,
            attempts_per_user: None,
        }
    }
}

/// Starts one with changes.
pub async fn start_with(change: impl FnOnce(&mut Settings)) -> World {
    let mut settings = Settings::default();
    change(&mut settings);
    let clock = Arc::new(StoreClock::new());
    // The store was heard, just now.
    clock.observe(clock.now().store, monotonic());
    let port = Arc::new(ScriptedPort::new(clock.now().store));
    let delivery = Arc::new(ScriptedDelivery {
        told: Mutex::new(Told::Queued),
        takes: Mutex::default(),
        delivered: Mutex::default(),
    });
    let platform = PlatformMetrics::new().unwrap();
    let breakers = BreakerMetrics::register(&platform).unwrap();
    let registry = platform.registry().clone();
    let metrics = Arc::new(Metrics::new(&registry).unwrap());
    let shop_requests = Arc::new(AtomicUsize::new(0));
    let shop_address = if settings.dead_shop {
        SocketAddr::from(([127, 0, 0, 1], crate::harness::process::free_port()))
    } else {
        shop(Arc::clone(&shop_requests)).await
    };
    let shop = Shop {
        address: shop_address,
        tls_name: None,
        connect_timeout: Duration::from_secs(1),
        timeout: settings.shop_timeout,
        body_deadline: settings.shop_body_deadline,
        idle_timeout: Duration::from_secs(30),
        places: Arc::new(Semaphore::new(settings.shop_places)),
        breaker: Arc::new(breakers.circuit("shop", "", SHOP_BREAKER)),
    };
    let id = ActivityId::new("sale").unwrap();
    let offers = vec![Offer { sku: SkuId::new("phone").unwrap(), stock: 10, max_qty: 2 }];
    let sale = sale(&settings, [(id, Arc::clone(&port), offers)], &metrics);
    let edge = Arc::new(Edge::new(sale, Arc::clone(&delivery), Arc::clone(&clock), metrics));
    let listener = Arc::new(Listener::new(edge, shop, settings.limits));
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    let shutdown = CancellationToken::new();
    let serving = tokio::spawn({
        let (listener, shutdown) = (Arc::clone(&listener), shutdown.clone());
        async move { listener.serve(socket, shutdown).await }
    });
    let serving = Some(serving);
    let jwt = jwt("u1");
    World { address, port, delivery, listener, clock, registry, shop_requests, shutdown, serving, jwt }
}

/// What visitors meet, for these activities and whoever answers for them.
pub fn sale<A>(
    settings: &Settings,
    activities: impl IntoIterator<Item = (ActivityId, Arc<A>, Vec<Offer>)>,
    metrics: &Metrics,
) -> Sale<A> {
    let entry = |(id, port, offers): (ActivityId, Arc<A>, Vec<Offer>)| {
        let text = PageText {
            prefix: "/seckill",
            activity: id.as_str(),
            title: "Big sale",
            skus: offers.iter().map(|offer| (offer.sku.as_str(), "Phone", "1")).collect(),
        };
        let page = Page::built_in(&text);
        (id.clone(), Entry::new(id, port, offers, page, StockDisplay::Fuzzy, metrics))
    };
    let off = || schema::AttemptLimits { address: None, user: None, device: None, activity: None };
    let user = settings.attempts_per_user.map(|rate| schema::Limit { rate, burst: None });
    let limits = schema::Limits {
        attempts: schema::AttemptLimits { user, ..off() },
        tokens: off(),
        reads: schema::ReadLimits { address: None },
        ..schema::Limits::default()
    };
    Sale {
        prefix: "/seckill".into(),
        problems: Problems::new("/seckill"),
        activities: activities.into_iter().map(entry).collect(),
        identity: Identity::new(IdentityParts {
            keys: vec![UserKey { kid: "k".into(), algorithm: UserAlgorithm::HS256, key: SECRET.to_vec() }],
            issuer: "shop".into(),
            audience: "sale".into(),
            user_claim: "sub".into(),
            cookie: None,
            leeway_ms: 2_000,
            device_secret: b"device".to_vec(),
            secure_cookies: false,
        })
        .unwrap(),
        tokens: Tokens::new(&[TokenKey { kid: "t".into(), key: TOKEN_KEY.to_vec() }], Duration::from_secs(10)).unwrap(),
        open_before: Duration::from_secs(600),
        limits: Limits::new(&limits, 1, None),
        proxies: TrustedProxies::default(),
        max_body: 2_048,
        body_deadline: settings.body_deadline,
        access_log_sample: 0,
        jwks: "{\"keys\":[]}".into(),
    }
}

/// A user's JWT, good for ten minutes.
pub fn jwt(user: &str) -> String {
    let exp = seckill_gate::platform::clock::wall_ms() / 1_000 + 600;
    let claims = serde_json::json!({ "sub": user, "iss": "shop", "aud": "sale", "exp": exp });
    let header = Header { kid: Some("k".into()), ..Header::new(Algorithm::HS256) };
    jsonwebtoken::encode(&header, &claims, &EncodingKey::from_secret(SECRET).unwrap()).unwrap()
}

/// A shop that tells what it was sent.
async fn shop(requests: Arc<AtomicUsize>) -> SocketAddr {
    async fn tell(State(requests): State<Arc<AtomicUsize>>, request: Request) -> impl IntoResponse {
        requests.fetch_add(1, Ordering::Relaxed);
        let (parts, body) = request.into_parts();
        if parts.uri.path() == "/slow" {
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
        let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
        let headers: serde_json::Map<_, _> =
            parts.headers.iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap().into())).collect();
        let target = parts.uri.to_string();
        axum::Json(serde_json::json!({ "target": target, "headers": headers, "body": String::from_utf8_lossy(&body) }))
    }
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    let router = Router::new().fallback(tell).with_state(requests);
    tokio::spawn(async move { axum::serve(socket, router).await });
    address
}

/// The reply of an order service that booked.
pub fn booked() -> StoredReply {
    StoredReply {
        status: 201,
        content_type: Some("application/json".into()),
        location: Some("/orders/o1".into()),
        body: "{\"order_id\":\"o1\"}".into(),
    }
}

/// What the store says of an id that won before.
pub fn known(state: WinState, reply: Option<StoredReply>, at: StoreMs) -> Admitted {
    Admitted::Judged(Verdict::Known(KnownWin { state, won_at: at, reply: reply.map(|reply| reply.encode()) }), at)
}

impl World {
    pub async fn connect(&self) -> Client {
        Client::try_connect(self.address).await.unwrap()
    }

    pub fn now(&self) -> StoreMs {
        self.clock.now().store
    }

    pub fn get(&self, target: &str) -> String {
        format!("GET {target} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n\r\n", self.jwt)
    }

    fn post(&self, target: &str, key: &str, more: &str, body: &str) -> String {
        format!(
            "POST {target} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\nIdempotency-Key: {key}\r\n{more}\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.jwt,
            body.len()
        )
    }

    pub fn token_request(&self, key: &str, body: &str) -> String {
        self.post("/seckill/sale/tokens", key, "", body)
    }

    pub fn attempt(&self, key: &str, token: &str, body: &str) -> String {
        let more = format!("Seckill-Token: {token}\r\ntraceparent: {TRACEPARENT}\r\n");
        self.post("/seckill/sale", key, &more, body)
    }

    /// Fetches a token for one phone.
    pub async fn token(&self, client: &mut Client, key: &str) -> String {
        let reply = client.send(&self.token_request(key, r#"{"sku":"phone","qty":1}"#)).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.json()["token"].as_str().unwrap().into()
    }

    pub fn shop_requests(&self) -> usize {
        self.shop_requests.load(Ordering::Relaxed)
    }

    pub fn in_flight(&self) -> usize {
        self.listener.in_flight()
    }

    pub fn metrics(&self) -> String {
        prometheus::TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap()
    }

    pub fn shut_down(&self) {
        self.shutdown.cancel();
    }

    pub async fn ended(&mut self) {
        let serving = self.serving.take().unwrap();
        tokio::time::timeout(Duration::from_secs(10), serving).await.expect("the listener ends").unwrap();
    }
}
