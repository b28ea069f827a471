//! What a gate does when a neighbour is sick: stores that restart or lose what they held, a log that fails, services that
//! hang. On a real Redis and real sockets.

mod breakers;
mod doubts;
mod fences;
mod shop;
mod win_log;

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use seckill_gate::domain::admission::{Attempt, Epoch, Terms, Verdict};
use seckill_gate::domain::backoff::Backoff;
use seckill_gate::domain::dead_letters::DeadLetterPolicy;
use seckill_gate::domain::{ActivityId, Fingerprint, IdempotencyKey, RequestId, StoreMs, UserId};
use seckill_gate::gate::activity::{Activity, Admitted, StoreMetrics, World};
use seckill_gate::gate::store::redis::RedisStore;
use seckill_gate::gate::win_log::{LogFirst, NoWinLog};
use seckill_gate::platform::breaker::{BreakerMetrics, Policy};
use seckill_gate::platform::clock::{StoreClock, monotonic, wall_ms};
use seckill_gate::platform::metrics::Metrics;
use seckill_gate::platform::redis::RedisSettings;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

/// A gate's store on one Redis, and what it shows.
struct Bench {
    world: World,
    metrics: Arc<Metrics>,
}

impl Bench {
    fn new(url: &str, store_deadline: Duration) -> Bench {
        Bench::with_log(url, store_deadline, LogFirst::new(NoWinLog))
    }

    fn with_log(url: &str, store_deadline: Duration, wins: LogFirst) -> Bench {
        let metrics = Arc::new(Metrics::new().unwrap());
        let policy = Policy {
            failures: 3,
            probes: Backoff { first: Duration::from_millis(250), cap: Duration::MAX },
            at_once: 1,
            probe_lasts: Duration::MAX,
        };
        let breaker = BreakerMetrics::register(&metrics).unwrap().circuit("store", "", policy);
        let settings = RedisSettings { url: url.into(), username: None, password: None, deadline: store_deadline };
        let world = World {
            gate: "gate-1".parse().unwrap(),
            store: Arc::new(RedisStore::behind(&settings, breaker).unwrap()),
            clock: Arc::new(StoreClock::new()),
            wins: Arc::new(wins),
            store_deadline,
            queue: 64,
            first_delivery_lease: Duration::from_secs(60),
            dead_letters: DeadLetterPolicy { after: Duration::from_secs(600), retry_every: Duration::from_secs(60) },
            metrics: Arc::new(StoreMetrics::register(&metrics).unwrap()),
        };
        Bench { world, metrics }
    }

    /// A sale of this name, preheated and open.
    async fn sale(&self, id: &str) -> Arc<Activity> {
        self.sale_on(id, terms(1)).await
    }

    async fn sale_on(&self, id: &str, terms: Terms) -> Arc<Activity> {
        let activity = Activity::start(id.parse().unwrap(), terms.clone(), &self.world, CancellationToken::new());
        activity.preheat(&terms).await.unwrap().unwrap();
        eventually("the sale is open", || activity.view().barred.is_none()).await;
        activity
    }

    /// Whether the metrics page holds this line.
    fn shows(&self, line: &str) -> bool {
        self.metrics.render().unwrap().lines().any(|shown| shown == line)
    }
}

fn terms(epoch: u64) -> Terms {
    let now = wall_ms();
    Terms {
        epoch: Epoch(epoch),
        starts_at: StoreMs(now - 60_000),
        ends_at: StoreMs(now + 3_600_000),
        per_user_limit: 1,
        rebuy_after_release: true,
        retention: Duration::from_secs(60),
        skus: vec![("phone".parse().unwrap(), 50)],
    }
}

fn attempt(activity: &ActivityId, user: &str) -> Attempt {
    let (user, key): (UserId, IdempotencyKey) = (user.parse().unwrap(), "k".parse().unwrap());
    let payload = Bytes::from_static(b"{}");
    Attempt {
        request_id: RequestId::derive(activity, &user, &key),
        user,
        key,
        sku: "phone".parse().unwrap(),
        qty: 1,
        fingerprint: Fingerprint::of(&payload),
        may_win: true,
        payload,
    }
}

async fn admit(activity: &Activity, user: &str) -> Admitted {
    activity.admit(attempt(&activity.id, user), monotonic()).await
}

fn won(admitted: &Admitted) -> bool {
    matches!(admitted, Admitted::Judged(Verdict::Won, _))
}

/// Waits until `holds`; fails after ten seconds, and tells how long it took.
async fn eventually(what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < Duration::from_secs(10), "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    started.elapsed()
}

/// Passes connections on to a port that may change; those that are open stay where they lead.
struct TcpProxy {
    port: u16,
    target: Arc<AtomicU16>,
}

impl TcpProxy {
    async fn start(target: u16) -> TcpProxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let target = Arc::new(AtomicU16::new(target));
        let leads_to = Arc::clone(&target);
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let port = leads_to.load(Ordering::SeqCst);
                tokio::spawn(async move {
                    let mut server = TcpStream::connect(("127.0.0.1", port)).await?;
                    tokio::io::copy_bidirectional(&mut client, &mut server).await
                });
            }
        });
        TcpProxy { port, target }
    }

    fn lead_to(&self, port: u16) {
        self.target.store(port, Ordering::SeqCst);
    }
}
