//! `seckill-gate orders`: the order service as a process of its own.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::config::Config;
use crate::config::scalars::SecretSource;
use crate::config::schema::{Consumer, Ledger, LogFormat, Logs, OrderService, Queue};
use crate::orders::consumer::ConsumerSettings;
use crate::orders::ledger::mysql::{MySqlLedger, MySqlSettings};
use crate::orders::ledger::sqlite::SqliteLedger;
use crate::orders::queue::OrderQueue;
use crate::orders::queue::redis::{RedisQueue, RedisQueueSettings};
use crate::orders::queue::sqlite::SqliteQueue;
use crate::orders::ticket::TicketVerifier;
use crate::orders::{self, ApiToken, Parts};
use crate::platform::clock::wall_ms;

/// Deadline of a call to an embedded file or to the queue's Redis.
const CALL_DEADLINE: Duration = Duration::from_secs(3);

/// Runs the order service with its consumer.
#[derive(Debug, Args)]
pub struct OrdersArgs {
    /// The configuration file.
    #[arg(short, long)]
    config: PathBuf,
    /// Listens here instead of `order_service.listen`, so that several processes can share one file.
    #[arg(long)]
    listen: Option<SocketAddr>,
}

/// Runs until SIGTERM or SIGINT; a second one ends the process at once.
pub fn main(args: &OrdersArgs) -> anyhow::Result<()> {
    let config = load(&args.config)?;
    let Some(service) = config.order_service else {
        bail!("{}: there is no section `order_service`", args.config.display());
    };
    start_logs(&config.logs);
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(serve(&service, args.listen))
}

async fn serve(service: &OrderService, listen: Option<SocketAddr>) -> anyhow::Result<()> {
    let address = listen.unwrap_or(service.listen);
    let listener = TcpListener::bind(address).await.with_context(|| format!("listening on {address}"))?;
    let shutdown = CancellationToken::new();
    tokio::spawn(on_signals(shutdown.clone()));
    let parts = Parts {
        ledger: open_ledger(&service.ledger).await?,
        queue: open_queue(&service.queue, listener.local_addr()?)?,
        wall_ms: Arc::new(wall_ms),
        registry: prometheus::Registry::new(),
        api_token: ApiToken::new(secret(&service.api_token, "order_service.api_token")?),
        tickets: TicketVerifier::new(secret(&service.ticket_public_key, "order_service.ticket_public_key")?.as_bytes())
            .context("order_service.ticket_public_key is not an Ed25519 public key in PEM")?,
        consumer: consumer_settings(&service.consumer),
    };
    orders::run(parts, listener, shutdown).await
}

async fn open_ledger(ledger: &Ledger) -> anyhow::Result<Arc<dyn orders::ledger::Ledger>> {
    Ok(match ledger {
        Ledger::Mysql { url, password, pool, deadline } => {
            let password =
                password.as_ref().map(|source| secret(source, "order_service.ledger.password")).transpose()?;
            let settings = MySqlSettings { url: url.clone(), password, pool: *pool, deadline: deadline.0 };
            Arc::new(MySqlLedger::open(&settings).await?)
        }
        Ledger::Sqlite { path } => Arc::new(SqliteLedger::open(path, CALL_DEADLINE)?),
    })
}

fn open_queue(queue: &Queue, listens: SocketAddr) -> anyhow::Result<Arc<dyn OrderQueue>> {
    Ok(match queue {
        Queue::Redis { url, username, password } => {
            let password =
                password.as_ref().map(|source| secret(source, "order_service.queue.password")).transpose()?;
            let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
            let settings = RedisQueueSettings {
                url: url.clone(),
                username: username.clone(),
                password,
                // The same after a restart, so that no dead names pile up in the group.
                consumer: format!("{}-{}", host.trim(), listens.port()),
                deadline: CALL_DEADLINE,
            };
            Arc::new(RedisQueue::new(&settings).context("order_service.queue")?)
        }
        Queue::Sqlite { path } => Arc::new(SqliteQueue::open(path, CALL_DEADLINE)?),
    })
}

fn consumer_settings(consumer: &Consumer) -> ConsumerSettings {
    ConsumerSettings {
        batch: consumer.batch,
        orders_per_second: f64::from(consumer.rate.count) / consumer.rate.per.as_secs_f64(),
        claim_after: consumer.claim_after.0,
        set_aside_after: consumer.set_aside_after,
    }
}

async fn on_signals(shutdown: CancellationToken) {
    let (Ok(mut term), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) else {
        tracing::warn!("signals cannot be watched");
        return;
    };
    for told in ["stopping", "stopping at once"] {
        tokio::select! {
            _ = term.recv() => {}
            _ = interrupt.recv() => {}
        }
        info!("{told}");
        if shutdown.is_cancelled() {
            std::process::exit(1);
        }
        shutdown.cancel();
    }
}

/// Reads a secret; the message names the place in the file, never the content.
fn secret(source: &SecretSource, place: &str) -> anyhow::Result<String> {
    match (&source.file, &source.env) {
        (Some(file), None) => {
            let text = std::fs::read_to_string(file).with_context(|| format!("{place}: reading {}", file.display()))?;
            Ok(text.strip_suffix('\n').unwrap_or(&text).to_owned())
        }
        (None, Some(name)) => {
            std::env::var(name).map_err(|_| anyhow::anyhow!("{place}: environment variable {name} is not set"))
        }
        _ => bail!("{place}: write either `file` or `env`"),
    }
}

fn load(path: &Path) -> anyhow::Result<Config> {
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    serde_saphyr::from_str(&text).with_context(|| format!("reading {}", path.display()))
}

fn start_logs(logs: &Logs) {
    let filter = tracing_subscriber::EnvFilter::try_new(&logs.filter)
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // Somebody may have started them before us; then those stay.
    let _ = match logs.format {
        LogFormat::Text => lines.try_init(),
        LogFormat::Json => lines.json().try_init(),
    };
}
