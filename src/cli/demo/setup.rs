//! The demo's configuration: written to a file and loaded like any other, so that the demo runs what production runs.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, anyhow};
use chrono::{DateTime, SecondsFormat, Utc};
use tokio::net::TcpListener;

use crate::cli::keygen;
use crate::config::{self, Loaded, Scope};
use crate::domain::time::millis;
use crate::gate::serve::Sockets;
use crate::platform::clock::wall_ms;
use crate::platform::listen::listen;

/// What is on sale.
pub const SKU: &str = "phone";

/// How long the sale lasts.
const LASTS: Duration = Duration::from_secs(3_600);

/// A demo that is ready to start.
pub struct Demo {
    /// Its configuration.
    pub loaded: Loaded,
    /// Its sale.
    pub activity: String,
    /// Its sockets.
    pub sockets: DemoSockets,
}

/// Bound sockets: the usual ports where they are free.
pub struct DemoSockets {
    /// The gate's.
    pub gate: Sockets,
    /// The shop's.
    pub shop: TcpListener,
    /// The order service's.
    pub orders: TcpListener,
}

/// Makes secrets, sockets and the configuration in `folder`.
pub fn setup(folder: &Path, stock: u32, opens_in: Duration) -> anyhow::Result<Demo> {
    keygen::generate(&folder.join("secrets"))?;
    let sockets = DemoSockets {
        gate: Sockets { public: usual_port(8080)?, admin: usual_port(8081)?, metrics: usual_port(8082)? },
        shop: usual_port(8070)?,
        orders: usual_port(8090)?,
    };
    let starts_ms = wall_ms() + millis(opens_in);
    // A name of its own each time, since a kept folder remembers the sales before.
    let activity = format!("launch-{}", wall_ms() / 1_000);
    let path = folder.join("demo.yaml");
    let text = yaml(&sockets, &activity, stock, starts_ms)?;
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    let loaded = config::check(&path, None, Scope::Everything)
        .map_err(|faults| anyhow!("the demo's own configuration has faults:\n{}", faults.draw(false)))?;
    Ok(Demo { loaded, activity, sockets })
}

/// The usual port, or any if that is taken.
fn usual_port(port: u16) -> anyhow::Result<TcpListener> {
    let usual = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    match listen(usual) {
        Ok(listener) => Ok(listener),
        Err(_) => {
            let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
            let listener = listen(any)?;
            println!("port {port} is taken; using {} instead", listener.local_addr()?.port());
            Ok(listener)
        }
    }
}

fn rfc3339(ms: u64) -> anyhow::Result<String> {
    let moment = i64::try_from(ms).ok().and_then(DateTime::<Utc>::from_timestamp_millis);
    Ok(moment.context("the sale opens after the end of all calendars")?.to_rfc3339_opts(SecondsFormat::Millis, true))
}

fn yaml(sockets: &DemoSockets, activity: &str, stock: u32, starts_ms: u64) -> anyhow::Result<String> {
    let (public, admin, metrics) =
        (sockets.gate.public.local_addr()?, sockets.gate.admin.local_addr()?, sockets.gate.metrics.local_addr()?);
    let (shop, orders) = (sockets.shop.local_addr()?, sockets.orders.local_addr()?);
    let (starts_at, ends_at) = (rfc3339(starts_ms)?, rfc3339(starts_ms + millis(LASTS))?);
    Ok(format!(
        r#"# Written by `seckill-gate demo`; written again at its next start.
gate:
  id: demo
  listen: {public}
  admin: {admin}
  metrics: {metrics}
  shop: {{ url: "http://{shop}" }}
  admin_token: {{ file: secrets/admin-token }}
  admin_read_token: {{ file: secrets/admin-read-token }}
store: {{ kind: sqlite, path: store.db, deadline: 2s }}
identity:
  keys: [{{ kid: demo, algorithm: HS256, key: {{ file: secrets/user-jwt-secret }} }}]
  issuer: https://shop.example
  audience: seckill
  cookie: shop_session
  secure_cookies: false
  device_secret: {{ file: secrets/device-secret }}
tokens:
  keys: [{{ kid: one, key: {{ file: secrets/token-key }} }}]
orders:
  url: http://{orders}/orders
  ticket_key: {{ file: secrets/ticket-private.pem }}
  api_token: {{ file: secrets/orders-api-token }}
order_service:
  listen: {orders}
  api_token: {{ file: secrets/orders-api-token }}
  ticket_public_key: {{ file: secrets/ticket-public.pem }}
  queue: {{ kind: sqlite, path: queue.db }}
  ledger: {{ kind: sqlite, path: ledger.db }}
logs: {{ filter: warn }}
activities:
  {activity}:
    title: The demo sale
    starts_at: {starts_at}
    ends_at: {ends_at}
    stock_display: exact
    skus:
      {SKU}: {{ stock: {stock}, title: A phone, price: "¥ 1,999" }}
"#
    ))
}
