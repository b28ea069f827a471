//! Our order service: intake, queue, consumer, ledger.
//!
//! It knows no catalogue, price or payment provider, but its bookkeeping is complete: a shop can run on it or copy it.
//! It talks to the gate over HTTP only. [`run`] takes its world as arguments, so that it also runs inside the demo and
//! tests. Payments, the closer and reconcile will be files of their own beside [`consumer`].

pub mod activities;
pub mod consumer;
mod http;
pub mod ledger;
pub mod metrics;
pub mod order;
pub mod queue;
pub mod serve;
pub mod ticket;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use self::activities::Activities;
use self::consumer::{Consumer, ConsumerSettings};
use self::http::Service;
use self::ledger::Ledger;
use self::metrics::Metrics;
use self::order::OrderState;
use self::queue::OrderQueue;
use self::ticket::TicketVerifier;
use crate::platform::shutdown::Stage;
use crate::platform::{http_server, metrics as platform_metrics};

/// How often the gauges are read anew.
const GAUGES_EVERY: Duration = Duration::from_secs(5);

/// Reads the wall clock, in milliseconds since the Unix epoch.
pub type WallClock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The bearer token of the API. Never printed.
#[derive(Clone)]
pub struct ApiToken(String);

impl ApiToken {
    /// An empty token matches nothing.
    pub fn new(token: impl Into<String>) -> ApiToken {
        ApiToken(token.into())
    }
}

/// The service's world.
pub struct Parts {
    /// Where orders stand.
    pub ledger: Arc<dyn Ledger>,
    /// Where orders wait.
    pub queue: Arc<dyn OrderQueue>,
    /// By which tickets expire.
    pub wall_ms: WallClock,
    /// Where the service's metrics are registered; `/metrics` shows all of it.
    pub metrics: Arc<platform_metrics::Metrics>,
    /// Bearer token of the API.
    pub api_token: ApiToken,
    /// Verifies the gate's tickets.
    pub tickets: TicketVerifier,
    /// How the consumer works.
    pub consumer: ConsumerSettings,
}

/// Runs intake, API and one consumer until `shutdown`; then finishes what is under way.
///
/// Errors: the metrics are registered already, or the listener fails.
pub async fn run(parts: Parts, listener: TcpListener, shutdown: CancellationToken) -> anyhow::Result<()> {
    let metrics = Metrics::register(&parts.metrics).context("registering the order service's metrics")?;
    let activities = Activities::default();
    let consumer = Consumer {
        queue: parts.queue.clone(),
        ledger: parts.ledger.clone(),
        activities: activities.clone(),
        settings: parts.consumer,
        metrics: metrics.clone(),
    };
    let gauges = refresh_gauges(
        parts.ledger.clone(),
        parts.queue.clone(),
        activities.clone(),
        metrics.clone(),
        shutdown.clone(),
    );
    let service = Service {
        ledger: parts.ledger,
        queue: parts.queue,
        activities,
        tickets: parts.tickets,
        api_token: parts.api_token,
        wall_ms: parts.wall_ms,
        metrics,
        sight: Default::default(),
        shutdown: shutdown.clone(),
    };
    let mut consumer = tokio::spawn(consumer.run(shutdown.clone()));
    let gauges = tokio::spawn(gauges);
    let (trigger, stages) = crate::platform::shutdown::channel();
    tokio::spawn({
        let shutdown = shutdown.clone();
        async move {
            shutdown.cancelled().await;
            trigger.advance(Stage::Closing);
        }
    });
    let serving =
        http_server::serve("orders", listener, http::router(Arc::new(service), parts.metrics), http::LIMITS, stages);
    tokio::pin!(serving);
    // A service whose consumer is gone would take orders for ever and book none: it ends.
    let consumed = tokio::select! {
        consumed = &mut consumer => {
            shutdown.cancel();
            serving.await;
            consumed
        }
        () = &mut serving => {
            shutdown.cancel();
            consumer.await
        }
    };
    let gauged = gauges.await;
    consumed.context("the consumer")?;
    gauged.context("the gauges")
}

async fn refresh_gauges(
    ledger: Arc<dyn Ledger>,
    queue: Arc<dyn OrderQueue>,
    activities: Activities,
    metrics: Metrics,
    shutdown: CancellationToken,
) {
    let mut tick = tokio::time::interval(GAUGES_EVERY);
    loop {
        tokio::select! {
            _ = tick.tick() => {}
            () = shutdown.cancelled() => return,
        }
        let pool = ledger.pool_use();
        metrics.pool.with_label_values(&["busy"]).set(pool.busy.into());
        metrics.pool.with_label_values(&["idle"]).set(pool.idle.into());
        let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        // A gauge that cannot be read keeps its last value; the waits are counted where they matter.
        if let Ok(counts) = ledger.counts().await {
            // States without rows are not counted, but their gauges must fall to zero.
            for activity in activities.all() {
                for state in OrderState::ALL {
                    let found = counts.iter().find(|(of, is, _)| *of == activity && *is == state);
                    let rows = found.map_or(0, |(_, _, rows)| *rows);
                    metrics.orders.with_label_values(&[activity.as_str(), state.as_str()]).set(gauge(rows));
                }
            }
        }
        if let Ok(counts) = ledger.set_aside_counts().await {
            for activity in activities.all() {
                let rows = counts.iter().find(|(of, _)| *of == activity).map_or(0, |(_, rows)| *rows);
                metrics.set_aside_now.with_label_values(&[activity.as_str()]).set(gauge(rows));
            }
        }
        for activity in activities.all() {
            if let Ok(lag) = queue.lag(&activity).await {
                metrics.lag.with_label_values(&[activity.as_str()]).set(gauge(lag));
            }
        }
    }
}
