//! An order service from a checked configuration.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::consumer::ConsumerSettings;
use super::ledger::Ledger;
use super::ledger::mysql::{MySqlLedger, MySqlSettings};
use super::ledger::sqlite::SqliteLedger;
use super::queue::OrderQueue;
use super::queue::redis::RedisQueue;
use super::queue::sqlite::SqliteQueue;
use super::ticket::TicketVerifier;
use super::{ApiToken, Parts, run};
use crate::config::Loaded;
use crate::config::scalars::SecretSource;
use crate::config::schema;
use crate::platform::clock::wall_ms;
use crate::platform::metrics::Metrics;
use crate::platform::redis::RedisSettings;
use crate::platform::redis_server::demand_fit;
use crate::platform::shutdown::{Shutdown, Stage};

/// Deadline of a call to an embedded file or to the queue's Redis.
const CALL_DEADLINE: Duration = Duration::from_secs(3);

/// Runs the service until `shutdown` says that the listener closes, and everything under way has ended.
///
/// # Errors
/// If a secret cannot be read, if queue or ledger cannot be opened, or if the queue's Redis answers and is unfit (one that
/// does not answer is waited for).
pub async fn serve(
    loaded: &Loaded,
    service: &schema::OrderService,
    listener: TcpListener,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let ending = CancellationToken::new();
    let public_key = loaded.secret(&service.ticket_public_key).context("order_service.ticket_public_key")?;
    let parts = Parts {
        ledger: open_ledger(loaded, &service.ledger).await?,
        queue: open_queue(loaded, &service.queue, listener.local_addr()?).await?,
        wall_ms: Arc::new(wall_ms),
        metrics: Arc::new(Metrics::new()?),
        api_token: ApiToken::new(text(loaded, &service.api_token, "order_service.api_token")?),
        tickets: TicketVerifier::new(public_key.expose())
            .context("order_service.ticket_public_key is not an Ed25519 public key in PEM")?,
        consumer: ConsumerSettings {
            batch: service.consumer.batch,
            orders_per_second: f64::from(service.consumer.rate.count) / service.consumer.rate.per.as_secs_f64(),
            claim_after: service.consumer.claim_after.0,
            set_aside_after: service.consumer.set_aside_after,
        },
    };
    let watched = ending.clone();
    tokio::spawn(async move {
        shutdown.reached(Stage::Closing).await;
        watched.cancel();
    });
    run(parts, listener, ending).await
}

async fn open_ledger(loaded: &Loaded, ledger: &schema::Ledger) -> anyhow::Result<Arc<dyn Ledger>> {
    Ok(match ledger {
        schema::Ledger::Mysql { url, password, pool, deadline } => {
            let password = password.as_ref().map(|source| text(loaded, source, "order_service.ledger.password"));
            let settings =
                MySqlSettings { url: url.clone(), password: password.transpose()?, pool: *pool, deadline: deadline.0 };
            Arc::new(MySqlLedger::open(&settings).await.context("order_service.ledger")?)
        }
        schema::Ledger::Sqlite { path } => {
            Arc::new(SqliteLedger::open(&loaded.resolve(path), CALL_DEADLINE).context("order_service.ledger")?)
        }
    })
}

async fn open_queue(
    loaded: &Loaded,
    queue: &schema::Queue,
    listens: SocketAddr,
) -> anyhow::Result<Arc<dyn OrderQueue>> {
    Ok(match queue {
        schema::Queue::Redis { url, username, password } => {
            let password = password.as_ref().map(|source| text(loaded, source, "order_service.queue.password"));
            let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
            let settings = RedisSettings {
                url: url.clone(),
                username: username.clone(),
                password: password.transpose()?,
                deadline: CALL_DEADLINE,
            };
            // The same after a restart, so that no dead names pile up in the group.
            let consumer = format!("{}-{}", host.trim(), listens.port());
            let queue = RedisQueue::new(&settings, consumer).context("order_service.queue")?;
            demand_fit("order queue", queue.client(), None).await.context("order_service.queue")?;
            Arc::new(queue)
        }
        schema::Queue::Sqlite { path } => {
            Arc::new(SqliteQueue::open(&loaded.resolve(path), CALL_DEADLINE).context("order_service.queue")?)
        }
    })
}

/// Reads a secret; the message names the place in the file, never the content.
fn text(loaded: &Loaded, source: &SecretSource, place: &'static str) -> anyhow::Result<String> {
    Ok(loaded.secret(source).context(place)?.expose_text().context(place)?.to_owned())
}
