//! A whole gate, put together from a checked configuration: store, activities, delivery, listeners. [`serve`] takes its
//! sockets and its end as arguments, so that a test or the demo can run one beside other things.

mod left_out;
mod live;
mod parts;
mod store;

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context;
use arc_swap::ArcSwap;
use futures::{Stream, StreamExt};
use tokio::net::TcpListener;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::left_out::LeftOut;
use self::live::{Live, Roster, Starter};
use crate::config::{self, Loaded};
use crate::domain::dead_letters::DeadLetterPolicy;
use crate::gate::activity::{Activity, StoreMetrics, World};
use crate::gate::adapter::{Listener, ListenerLimits, SHOP_BREAKER, Shop};
use crate::gate::admin::{self, AdminState, AdminWorld};
use crate::gate::delivery::courier::Courier;
use crate::gate::delivery::outbox::Outbox;
use crate::gate::delivery::pacer::Pacer;
use crate::gate::edge::Edge;
use crate::gate::limits::LIMITERS;
use crate::gate::metrics;
use crate::gate::reload::{self, Asker, Reloader, Reread};
use crate::gate::view::RETURNING_DELAY;
use crate::gate::view_metrics::ViewMetrics;
use crate::gate::win_log::{LogFirst, NoWinLog};
use crate::platform::breaker::BreakerMetrics;
use crate::platform::clock::{StoreClock, monotonic};
use crate::platform::http_server::{self, HttpLimits};
use crate::platform::listen::listen;
use crate::platform::metrics::{self as platform_metrics, Metrics};
use crate::platform::shutdown::{self, Shutdown, Stage};

/// How often limiter keys that are as good as new are dropped: one limiter after the other within this time.
const HOUSEKEEPING: Duration = Duration::from_secs(5);

/// From the closing of the listeners, how long requests and deliveries under way may take to end. What is left of deliveries
/// is the relay's of another gate, or of the next start.
const FINISH_WITHIN: Duration = Duration::from_secs(10);

/// How long what ends after them may take: deliveries that the last requests began, listeners, background tasks.
const LAST_STEPS: Duration = Duration::from_secs(1);

/// The bound sockets of a gate.
pub struct Sockets {
    /// For everybody.
    pub public: TcpListener,
    /// For operators.
    pub admin: TcpListener,
    /// For Prometheus.
    pub metrics: TcpListener,
}

impl Sockets {
    /// Binds what the configuration names.
    ///
    /// # Errors
    /// If an address is taken or not this machine's; says which.
    pub fn bind(gate: &config::schema::Gate) -> anyhow::Result<Sockets> {
        Ok(Sockets {
            public: listen(gate.listen).context("gate.listen")?,
            admin: listen(gate.admin).context("gate.admin")?,
            metrics: listen(gate.metrics).context("gate.metrics")?,
        })
    }
}

/// How a gate comes to read its file again.
pub struct Reloads {
    /// Reads it as it was read at the start.
    pub reread: Reread,
    /// One item per wish from outside, i.e. SIGHUP; the admin listener has its own.
    pub asked: Pin<Box<dyn Stream<Item = ()> + Send>>,
}

/// Runs a gate until `shutdown` says that the listeners close, and everything under way has ended.
///
/// # Errors
/// If it cannot be put together: a secret, page or key that cannot be read, a store that could lose a sale.
pub async fn serve(loaded: &Loaded, sockets: Sockets, shutdown: Shutdown, reloads: Reloads) -> anyhow::Result<()> {
    let config = &loaded.config;
    let registry = Arc::new(Metrics::new()?);
    let breakers = BreakerMetrics::register(&registry)?;
    let store = store::open(loaded, &breakers).await?;
    let clock = Arc::new(StoreClock::new());
    let closing = CancellationToken::new();
    let ended = CancellationToken::new();

    let (courier, backlog) = parts::courier(loaded, &registry, &breakers)?;
    let world = World {
        gate: config.gate.id.clone(),
        store: Arc::clone(&store.store),
        clock: Arc::clone(&clock),
        wins: Arc::new(LogFirst::new(NoWinLog)),
        store_deadline: store.deadline,
        queue: store.queue,
        first_delivery_lease: courier.lease(),
        dead_letters: DeadLetterPolicy {
            after: config.orders.dead_after.0,
            retry_every: config.orders.dead_retry_every.0,
        },
        metrics: Arc::new(StoreMetrics::register(&registry)?),
    };
    let tasks = TaskTracker::new();
    let rate = config.orders.relay_rate;
    let pacer = Arc::new(Mutex::new(Pacer::new(rate.count, rate.per, monotonic())));
    tasks.spawn(backlog.run(courier.clone(), Arc::clone(&pacer), shutdown.clone()));
    let starter = Starter {
        world,
        courier: courier.clone(),
        pacer,
        tasks: tasks.clone(),
        shutdown: shutdown.clone(),
        ended: ended.clone(),
    };
    let fallible = parts::fallible(loaded)?;
    let (pages, picture) = reload::look(loaded)?;
    let roster = Roster::start(starter, config);
    let activities = roster.present.load_full();
    let present = Arc::clone(&roster.present);
    let outboxes = move || present.load().values().map(|activity| Arc::clone(activity) as Arc<dyn Outbox>).collect();
    registry.register(Box::new(ViewMetrics::new(outboxes, Arc::clone(&clock))?))?;

    let left_out = LeftOut::new(Arc::clone(&store.store), Arc::clone(&roster.present), &registry)?;
    tasks.spawn(left_out.run(ended.clone()));

    let edge_metrics = Arc::new(metrics::Metrics::new(registry.registry())?);
    let sale = parts::sale(loaded, fallible, pages, &activities, &courier, &edge_metrics, None);
    let edge = Arc::new(Edge::new(sale, Arc::new(courier.clone()), Arc::clone(&clock), edge_metrics));
    let breaker = breakers.circuit("shop", "", SHOP_BREAKER);
    let shop = Shop::resolve(&config.gate.shop, config.gate.shop_max_in_flight(), breaker).await?;
    let limits = ListenerLimits {
        max_connections: config.gate.max_connections as usize,
        requests_per_connection: config.gate.requests_per_connection,
        idle_timeout: config.gate.idle_timeout.0,
        finish_within: FINISH_WITHIN,
        ..ListenerLimits::default()
    };
    let public = Listener::new(Arc::clone(&edge), shop, limits);
    let draining = edge.draining.clone();
    tasks.spawn(housekeeping(Arc::clone(&edge), ended.clone()));

    let changes = TaskTracker::new();
    let admin_world = Arc::new(ArcSwap::from_pointee(AdminWorld {
        activities: live::managed(config, &activities),
        store: store.store,
        ledger: parts::ledger(loaded)?,
        clock,
        gates: parts::gates(config),
        returning_delay: RETURNING_DELAY,
        conflicts: courier.conflicts(),
        started: Arc::default(),
        under_way: changes.clone(),
        shutdown: shutdown.clone(),
    }));
    let admin_address = sockets.admin.local_addr()?;
    let auth = parts::admin_auth(loaded, admin_address)?;
    let live = Live {
        roster,
        edge,
        admin: Arc::clone(&admin_world),
        auth: auth.clone(),
        admin_address,
        shutdown: shutdown.clone(),
    };
    let reloader = Reloader::new(&loaded.path, config.clone(), picture, reloads.reread, Arc::new(live), &registry)?;
    let reloader = Arc::new(reloader);
    tasks.spawn(reload_when_asked(Arc::clone(&reloader), reloads.asked, ended.clone()));
    let admin_router = admin::router(AdminState::new(Arc::clone(&admin_world), Some(reloader)), auth);
    let metrics_router = platform_metrics::router(registry);
    // These two outlive the public listener, so that its end can be watched.
    let (end_of_all, last) = shutdown::channel();
    let limits = HttpLimits { closing: LAST_STEPS, ..HttpLimits::default() };
    tasks.spawn(http_server::serve("admin", sockets.admin, admin_router, limits, last.clone()));
    tasks.spawn(http_server::serve("metrics", sockets.metrics, metrics_router, limits, last));

    let closed_at = tasks.spawn({
        let (closing, draining) = (closing.clone(), draining);
        async move {
            shutdown.reached(Stage::Draining).await;
            draining.cancel();
            shutdown.reached(Stage::Closing).await;
            closing.cancel();
            monotonic()
        }
    });
    tracing::info!(listener = "public", address = %sockets.public.local_addr()?, gate = %config.gate.id, "listening");
    admin_world.load().mark_started();
    public.serve(sockets.public, closing).await;

    let closed_at = closed_at.await.unwrap_or_else(|_| monotonic());
    finish(courier, &changes, closed_at + FINISH_WITHIN).await;
    end_of_all.advance(Stage::Closing);
    ended.cancel();
    tasks.close();
    // A change may have been asked for until the admin listener closed.
    let last_tasks = async { tokio::join!(tasks.wait(), changes.wait()) };
    if tokio::time::timeout(LAST_STEPS * 2, last_tasks).await.is_err() {
        tracing::warn!(tasks = tasks.len() + changes.len(), "background tasks did not end: cut off");
    }
    tracing::info!("gate ended");
    Ok(())
}

async fn reload_when_asked(
    reloader: Arc<Reloader>,
    mut asked: Pin<Box<dyn Stream<Item = ()> + Send>>,
    ended: CancellationToken,
) {
    loop {
        tokio::select! {
            () = ended.cancelled() => return,
            wish = asked.next() => match wish {
                // What came of it is in the log.
                Some(()) => drop(reloader.reload(false, Asker::Sighup).await),
                None => return,
            },
        }
    }
}

/// Waits for deliveries and operators' changes under way; a delivery that does not end in time is repeated by a relay, a
/// change by its operator.
async fn finish(courier: Courier, changes: &TaskTracker, until: Instant) {
    let until = until.max(monotonic() + LAST_STEPS);
    changes.close();
    let (deliveries, operators) = tokio::join!(
        tokio::time::timeout_at(until.into(), courier.idle()),
        tokio::time::timeout_at(until.into(), changes.wait()),
    );
    if deliveries.is_err() {
        tracing::warn!("deliveries were still under way; a relay will repeat them");
    }
    if operators.is_err() {
        tracing::warn!("operators' changes were still under way; they are to be repeated");
    }
}

async fn housekeeping(edge: Arc<Edge<Activity, Courier>>, ended: CancellationToken) {
    let mut ticks = tokio::time::interval(HOUSEKEEPING / LIMITERS as u32);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for turn in 0.. {
        tokio::select! {
            () = ended.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let edge = Arc::clone(&edge);
        // The next turn waits for this one, so one thread is busy with it at most.
        if tokio::task::spawn_blocking(move || edge.housekeeping(turn)).await.is_err() {
            tracing::error!(turn, "dropping limiter keys broke off");
        }
    }
}
