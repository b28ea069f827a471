//! Units that come back and are sold again while another gate still says "sold out" under its lease: the new winner is
//! never told so.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::join_all;
use http::{HeaderMap, HeaderName, Method};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use seckill_gate::domain::admission::*;
use seckill_gate::domain::dead_letters::{DeadPage, Retried, Retry};
use seckill_gate::domain::win::{Cause, Reason, Release};
use seckill_gate::domain::{ActivityId, RequestId, SkuId, StoreMs, UserId};
use seckill_gate::gate::activity::{Activity, World};
use seckill_gate::gate::delivery::told::{FirstDelivery, Told};
use seckill_gate::gate::edge::{Edge, Offer};
use seckill_gate::gate::metrics::Metrics;
use seckill_gate::gate::pipeline;
use seckill_gate::gate::request::{Inbound, Route};
use seckill_gate::gate::store::redis::RedisStore;
use seckill_gate::gate::store::{AdmissionStore, Guarded, StoreError};
use seckill_gate::gate::tokens::{TokenKey, Tokens, Wanted};
use seckill_gate::gate::view::RETURNING_DELAY;
use seckill_gate::platform::clock::{monotonic, wall_ms};
use seckill_gate::platform::redis::RedisSettings;
use tokio_util::sync::CancellationToken;

use crate::admission;
use crate::edge::world::{Settings, TOKEN_KEY, booked, jwt, sale};
use crate::harness::redis::Redis;

const BODY: &[u8] = b"{}";
pub const PATIENCE: Duration = Duration::from_secs(10);
pub const FAR_OFF: StoreMs = StoreMs(1 << 50);

// ------------------------------------------------------------------------- a gate, its network, its order service

/// The real store. What a slow machine does to calls is not what these tests are about.
pub fn patient(redis: &Redis) -> Arc<dyn AdmissionStore> {
    let settings = RedisSettings { url: redis.url(), username: None, password: None, deadline: PATIENCE };
    Arc::new(RedisStore::new(&settings).unwrap())
}

/// The store over a network on which polls and their replies dawdle: a lease is then most of its time old.
struct Dawdling {
    inner: Arc<dyn AdmissionStore>,
    /// How long the next poll takes on its way, in milliseconds, and its reply.
    pauses: Box<dyn Fn() -> [u64; 2] + Send + Sync>,
}

impl Dawdling {
    /// Half of all messages dawdle, up to 350 ms.
    fn at_random(inner: Arc<dyn AdmissionStore>, seed: u64) -> Dawdling {
        let random = Mutex::new(StdRng::seed_from_u64(seed));
        let pauses = move || {
            let mut random = random.lock().unwrap();
            [(); 2].map(|()| if random.random_bool(0.5) { random.random_range(0..350) } else { 0 })
        };
        Dawdling { inner, pauses: Box::new(pauses) }
    }
}

#[async_trait]
impl AdmissionStore for Dawdling {
    async fn preheat(&self, id: &ActivityId, preheat: &Preheat) -> Result<Reply<Preheated>, StoreError> {
        self.inner.preheat(id, preheat).await
    }
    async fn admit(&self, id: &ActivityId, batch: &Batch) -> Result<Reply<Vec<Verdict>>, StoreError> {
        self.inner.admit(id, batch).await
    }
    async fn settle(&self, id: &ActivityId, settle: &Settle) -> Result<Reply<Recorded>, StoreError> {
        self.inner.settle(id, settle).await
    }
    async fn release(&self, id: &ActivityId, release: &ReleaseWin) -> Result<Reply<Recorded>, StoreError> {
        self.inner.release(id, release).await
    }
    async fn claim_due(&self, id: &ActivityId, claim: &ClaimDue) -> Result<Reply<Claimed>, StoreError> {
        self.inner.claim_due(id, claim).await
    }
    async fn operate(&self, id: &ActivityId, operate: &Operate) -> Result<Reply<Operated>, StoreError> {
        self.inner.operate(id, operate).await
    }
    async fn retry(&self, id: &ActivityId, retry: &Retry) -> Result<Reply<Vec<Retried>>, StoreError> {
        self.inner.retry(id, retry).await
    }
    async fn dead_letters(&self, id: &ActivityId, page: &DeadPage) -> Guarded<Vec<FoundWin>> {
        self.inner.dead_letters(id, page).await
    }
    async fn poll(&self, id: &ActivityId, poll: &Poll) -> Result<Polled, StoreError> {
        let [out, back] = (self.pauses)().map(Duration::from_millis);
        tokio::time::sleep(out).await;
        let polled = self.inner.poll(id, poll).await;
        tokio::time::sleep(back).await;
        polled
    }
    async fn find(&self, id: &ActivityId, ids: &[RequestId]) -> Guarded<Vec<Option<FoundWin>>> {
        self.inner.find(id, ids).await
    }
    async fn wins_of(&self, id: &ActivityId, user: &UserId) -> Guarded<Vec<FoundWin>> {
        self.inner.wins_of(id, user).await
    }
    async fn activities(&self) -> Result<Vec<ActivityId>, StoreError> {
        self.inner.activities().await
    }
    async fn snapshot(&self, id: &ActivityId) -> Result<Option<Snapshot>, StoreError> {
        self.inner.snapshot(id).await
    }
}

/// An order service that books every other win at once and lets the rest wait.
struct BooksEveryOther;

impl FirstDelivery<Activity> for BooksEveryOther {
    async fn deliver_first(&self, activity: &Arc<Activity>, win: DueWin, _: Option<String>) -> Told {
        if win.request_id.to_string().as_bytes()[0].is_multiple_of(2) {
            return Told::Queued;
        }
        let settled = activity.settle(win.request_id, Settlement::Booked { reply: booked().encode() }).await;
        assert!(matches!(settled, Ok(Ok(Recorded::Applied(_)))), "{settled:?}");
        Told::Won(Some(booked()))
    }
}

/// Activity and SKU, each with one unit.
type Lane = (ActivityId, SkuId);

/// Sales of one SKU, which the whole-sale lease is about, and of many, where only a SKU's own word counts.
fn lanes() -> Vec<Lane> {
    let sale = |name: String, skus: usize| {
        (0..skus).map(move |sku| (name.parse().unwrap(), format!("sku-{sku}").parse().unwrap()))
    };
    let lone = (0..6).flat_map(|n| sale(format!("lone-{n}"), 1));
    lone.chain((0..3).flat_map(|n| sale(format!("many-{n}"), 40))).collect()
}

pub fn terms(lanes: &[Lane], id: &ActivityId) -> Terms {
    let now = wall_ms();
    Terms {
        epoch: Epoch(1),
        starts_at: StoreMs(now - 60_000),
        ends_at: StoreMs(now + 3_600_000),
        per_user_limit: 1,
        rebuy_after_release: true,
        retention: Duration::from_secs(60),
        skus: lanes.iter().filter(|(activity, _)| activity == id).map(|(_, sku)| (sku.clone(), 1)).collect(),
    }
}

/// One gate in this process: the real funnel over real activities.
struct Gate {
    edge: Edge<Activity, BooksEveryOther>,
    store: Arc<dyn AdmissionStore>,
    activities: BTreeMap<ActivityId, Arc<Activity>>,
    tokens: Tokens,
}

impl Gate {
    fn start(redis: &Redis, name: &str, seed: u64, lanes: &[Lane]) -> Gate {
        let store = patient(redis);
        let world = World {
            store: Arc::new(Dawdling::at_random(Arc::clone(&store), seed)),
            store_deadline: PATIENCE,
            ..admission::world(redis, name, 4_096)
        };
        let activities: BTreeMap<ActivityId, Arc<Activity>> = lanes
            .iter()
            .map(|(id, _)| id.clone())
            .collect::<BTreeSet<_>>()
            .into_iter()
            .map(|id| (id.clone(), Activity::start(id.clone(), terms(lanes, &id), &world, CancellationToken::new())))
            .collect();
        let entries = activities.iter().map(|(id, activity)| {
            let terms = activity.file.get();
            let offers = terms.skus.iter().map(|(sku, _)| Offer { sku: sku.clone(), stock: 1, max_qty: 1 }).collect();
            (id.clone(), Arc::clone(activity), offers)
        });
        let metrics = Arc::new(Metrics::new(&prometheus::Registry::new()).unwrap());
        let sale = sale(&Settings::default(), entries, &metrics);
        let edge = Edge::new(sale, Arc::new(BooksEveryOther), Arc::clone(&world.clock), metrics);
        let key = TokenKey { kid: "t".into(), key: TOKEN_KEY.to_vec() };
        Gate { edge, store, activities, tokens: Tokens::new(&[key], Duration::from_secs(600)).unwrap() }
    }

    fn says_sold_out(&self, (activity, sku): &Lane) -> bool {
        self.activities[activity].view().lease_says_sku_sold_out(sku, monotonic())
    }

    /// Gives a win's units back, with the gate's own delay or with another one.
    async fn release(&self, activity: &ActivityId, id: RequestId, delay: Option<Duration>) {
        let activity = &self.activities[activity];
        let release = Release { cause: Cause::Ended, reason: Reason::lossy("cancelled") };
        let recorded = match delay {
            None => activity.release(id, release).await,
            Some(returning_delay) => {
                let (epoch, run_id) = activity.view().vouched.clone().unwrap();
                let guard = Guard { epoch, run_id, not_after: FAR_OFF };
                let release = ReleaseWin { guard, request_id: id, release, ledger_short: false, returning_delay };
                self.store.release(&activity.id, &release).await.map(|reply| reply.outcome)
            }
        };
        assert!(matches!(recorded, Ok(Ok(Recorded::Applied(_)))), "{recorded:?}");
    }

    /// A whole attempt: what it was told.
    async fn attempt(&self, (activity, sku): &Lane, buyer: &Buyer) -> String {
        let sale = self.edge.sale.load_full();
        let request = Inbound {
            method: &Method::POST,
            query: None,
            headers: &buyer.headers,
            client: [127, 0, 0, 1].into(),
            body: Bytes::from_static(BODY),
            now: self.edge.clock.now(),
            wall_ms: wall_ms(),
        };
        let answer = pipeline::serve(&self.edge, &sale, &Route::Activity(activity.clone()), &request).await;
        let outcome = answer.header("seckill-outcome").map(str::to_owned);
        outcome.or(answer.code.map(|code| code.name().to_owned())).unwrap_or_else(|| panic!("{sku}: {answer:?}"))
    }
}

struct Buyer {
    id: RequestId,
    headers: HeaderMap,
}

impl Buyer {
    /// `name` is the user's and the key: a key that another winner had would be looked up at once.
    fn new(gate: &Gate, (activity, sku): &Lane, name: &str) -> Buyer {
        let id = RequestId::derive(activity, &name.parse().unwrap(), &name.parse().unwrap());
        let now = gate.edge.clock.now().store;
        let wanted = Wanted { sku, qty: 1, on_offer: true };
        let token = gate.tokens.issue(activity, id, wanted, None, StoreMs(now.0 - 60_000), now).unwrap().token;
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("authorization", format!("Bearer {}", jwt(name))),
            ("idempotency-key", name.into()),
            ("seckill-token", token),
            ("content-type", "application/json".into()),
        ] {
            headers.insert(HeaderName::from_static(name), value.parse().unwrap());
        }
        Buyer { id, headers }
    }
}

// ------------------------------------------------------------------------------------------ the runs

/// Puts returned units on sale, as a relay does.
fn put_on_sale(gate: &Arc<Gate>) -> CancellationToken {
    let (gate, ended) = (Arc::clone(gate), CancellationToken::new());
    let until = ended.clone();
    tokio::spawn(async move {
        while !until.is_cancelled() {
            for activity in gate.activities.values() {
                _ = activity.claim_due(0, Duration::from_secs(60), false).await;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    ended
}

/// What the new winners were told by the gate that did not sell to them.
#[derive(Default)]
struct Heard {
    runs: usize,
    words: BTreeMap<String, usize>,
}

impl Heard {
    fn note(&mut self, word: String) {
        *self.words.entry(word).or_default() += 1;
    }
}

/// Sells a lane's unit again and again: sold out at both gates, given back at the first, won there by another user, who
/// then asks the second. Without `delay` the release is the gate's own, with the delay that it uses.
async fn lane(gates: [Arc<Gate>; 2], lane: Lane, seed: u64, rounds: usize, delay: Option<Duration>) -> Heard {
    let [first, second] = &gates;
    let mut random = StdRng::seed_from_u64(seed);
    let mut heard = Heard::default();
    let mut holder = Buyer::new(first, &lane, &format!("{}-0", lane.1));
    let told = first.attempt(&lane, &holder).await;
    assert!(told == "WON" || told == "QUEUED", "{told}");
    for round in 1..=rounds {
        until(|| first.says_sold_out(&lane) && second.says_sold_out(&lane)).await;
        tokio::time::sleep(Duration::from_millis(random.random_range(0..300))).await;
        first.release(&lane.0, holder.id, delay).await;
        holder = Buyer::new(first, &lane, &format!("{}-{round}", lane.1));
        let started = Instant::now();
        loop {
            match first.attempt(&lane, &holder).await.as_str() {
                "WON" | "QUEUED" => break,
                "SOLD_OUT" => {}
                other => panic!("{other}"),
            }
            assert!(started.elapsed() < Duration::from_secs(20), "the unit of {lane:?} never came back");
            tokio::time::sleep(Duration::from_millis(random.random_range(15..60))).await;
        }
        // At once, a moment later, and when the second gate has learned that everything is sold again.
        heard.runs += 1;
        heard.note(second.attempt(&lane, &holder).await);
        tokio::time::sleep(Duration::from_millis(random.random_range(0..50))).await;
        heard.note(second.attempt(&lane, &holder).await);
        until(|| second.says_sold_out(&lane)).await;
        heard.note(second.attempt(&lane, &holder).await);
    }
    heard
}

async fn until(mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < Duration::from_secs(20), "both gates never held a lease at once");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// All lanes at once, over one Redis and two gates.
async fn run(seed: u64, rounds: usize, delay: Option<Duration>) -> Heard {
    let (redis, lanes) = (Redis::start(), lanes());
    let start = |name, seed| Arc::new(Gate::start(&redis, name, seed, &lanes));
    let gates = [start("gate-1", seed), start("gate-2", seed + 1)];
    for (id, activity) in &gates[0].activities {
        assert_eq!(activity.preheat(&terms(&lanes, id)).await.unwrap(), Ok(Preheated::Created));
    }
    until(|| gates.iter().all(|gate| gate.activities.values().all(|a| a.view().vouched.is_some()))).await;
    let relaying = put_on_sale(&gates[0]);
    let runs = lanes
        .iter()
        .enumerate()
        .map(|(number, one)| tokio::spawn(lane(gates.clone(), one.clone(), seed + 2 + number as u64, rounds, delay)));
    let mut all = Heard::default();
    for heard in join_all(runs).await {
        let heard = heard.unwrap();
        all.runs += heard.runs;
        for (word, times) in heard.words {
            *all.words.entry(word).or_default() += times;
        }
    }
    relaying.cancel();
    for activity in gates[0].activities.values() {
        for (sku, stock) in activity.snapshot().await.unwrap().unwrap().skus {
            let units = stock.wins;
            assert_eq!((stock.left, stock.returning, units.held.1 + units.accepted.1), (0, 0, 1), "{sku}: {stock:?}");
            assert_eq!(units.released.1, rounds as i64, "{sku}");
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_winner_never_hears_sold_out_from_the_gate_that_still_holds_a_lease() {
    let heard = run(50_000, 4, None).await;
    assert!(heard.runs >= 500, "{} runs", heard.runs);
    let told: Vec<&str> = heard.words.keys().map(String::as_str).collect();
    assert_eq!(told, ["QUEUED", "WON"], "{:?}", heard.words);
    assert_eq!(heard.words.values().sum::<usize>(), heard.runs * 3);
}

/// What the test above can see: with units on sale before every lease has run out, a winner is told that there is nothing.
#[tokio::test(flavor = "multi_thread")]
async fn with_a_delay_below_the_lease_a_new_winner_would_hear_sold_out() {
    let heard = run(60_000, 1, Some(RETURNING_DELAY / 20)).await;
    assert!(heard.words.contains_key("SOLD_OUT"), "{:?}", heard.words);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_poll_that_was_asked_before_the_preheat_does_not_fence_the_sale() {
    let (redis, asked) = (Redis::start(), Arc::new(AtomicUsize::new(0)));
    let polls = Arc::clone(&asked);
    // The first reply ("not preheated") is long on its way, the preheat's own poll is quick, the next one is late.
    let pauses = move || match polls.fetch_add(1, Ordering::SeqCst) {
        0 => [0, 600],
        1 => [0, 0],
        _ => [300, 0],
    };
    let store = Arc::new(Dawdling { inner: patient(&redis), pauses: Box::new(pauses) });
    let world = World { store, store_deadline: PATIENCE, ..admission::world(&redis, "gate-1", 16) };
    let id: ActivityId = "sale".parse().unwrap();
    let terms = Terms { skus: vec![("phone".parse().unwrap(), 1)], ..terms(&[], &id) };
    let activity = Activity::start(id, terms.clone(), &world, CancellationToken::new());
    until(|| asked.load(Ordering::SeqCst) == 1).await;
    // Asked and judged by the server, which answers within this time.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(activity.preheat(&terms).await.unwrap(), Ok(Preheated::Created));
    let started = Instant::now();
    while started.elapsed() < Duration::from_millis(900) {
        assert_eq!(activity.view().barred, None, "a reply older than the preheat counted");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
