//! What a test wishes of a deployment, and the configuration file that comes of it.

use std::time::Duration;

use seckill_gate::platform::clock::wall_ms;

use super::deployment::Gate;

/// The sale that most tests are about.
pub const SALE: &str = "launch";
/// Another one, open at the same time, with as much stock.
pub const OTHER_SALE: &str = "encore";
/// What it offers.
pub const SKU: &str = "phone";

/// What a test wants otherwise than most do.
pub struct Wish {
    /// How many gates.
    pub gates: usize,
    /// Units of each sale.
    pub stock: u32,
    /// The sales, all open at once.
    pub sales: Vec<String>,
    /// How long they go on.
    pub ends_in: Duration,
    /// How long a sale token is good for.
    pub token_ttl: Duration,
    /// More SKUs, as YAML, each with a comma before it.
    pub more_skus: &'static str,
    /// Deadline of a call to the store.
    pub store_deadline: Duration,
    /// How long a gate serves on after SIGTERM.
    pub drain_delay: Duration,
    /// Whether the store writes what it promised to its disk, so that it can be restarted.
    pub durable_store: bool,
    /// Whether gates reach the store through a proxy.
    pub store_proxy: bool,
    /// Whether gates reach the order service through a proxy.
    pub orders_proxy: bool,
    /// A database server of its own, which the test may stop.
    pub own_database: bool,
    /// Where winners go instead of our order service: then `orders.kind` is `external`.
    pub shops_own_orders: Option<u16>,
    /// Port of the shop behind the gates.
    pub shop: u16,
    /// Lines of the section `gate`, indented by two.
    pub gate: &'static str,
    /// Lines of the section `orders`, indented by two.
    pub orders: &'static str,
    /// Lines of the section `order_service`, indented by two.
    pub order_service: &'static str,
}

impl Default for Wish {
    fn default() -> Wish {
        Wish {
            gates: 1,
            stock: 10,
            sales: vec![SALE.into(), OTHER_SALE.into()],
            ends_in: Duration::from_secs(3_600),
            token_ttl: Duration::from_secs(60),
            more_skus: "",
            store_deadline: Duration::from_secs(2),
            drain_delay: Duration::from_millis(100),
            durable_store: false,
            store_proxy: false,
            orders_proxy: false,
            own_database: false,
            shops_own_orders: None,
            shop: 9,
            gate: "",
            orders: "",
            order_service: "",
        }
    }
}

/// Where everything is.
pub struct Places<'a> {
    pub gate: &'a Gate,
    pub store: u16,
    pub queue: u16,
    pub orders: u16,
    pub orders_listen: u16,
    pub ledger: &'a str,
}

/// Limits are raised: a 429 is no answer here.
pub fn yaml(wish: &Wish, at: &Places<'_>) -> String {
    let names: Vec<String> = (1..=wish.gates).map(|n| format!("gate-{n}")).collect();
    let now = i64::try_from(wall_ms()).unwrap();
    let time = |ms: i64| chrono::DateTime::<chrono::Utc>::from_timestamp_millis(ms).unwrap().to_rfc3339();
    let ends_in = i64::try_from(wish.ends_in.as_millis()).unwrap();
    let (starts, ends) = (time(now - 3_600_000), time(now + ends_in));
    let limits = "{ address: { rate: 100000/s }, user: { rate: 100000/s }, device: { rate: 100000/s } }";
    let (stock, more) = (wish.stock, wish.more_skus);
    let sales: String = wish
        .sales
        .iter()
        .map(|sale| {
            format!(
                "  {sale}: {{ starts_at: {starts}, ends_at: {ends}, skus: {{ {SKU}: {{ stock: {stock} }}{more} }} }}\n"
            )
        })
        .collect();
    let order_service = if wish.shops_own_orders.is_some() {
        String::new()
    } else {
        format!(
            r#"order_service:
  listen: 127.0.0.1:{listen}
  api_token: {{ file: secrets/orders-api-token }}
  ticket_public_key: {{ file: secrets/ticket-public.pem }}
  queue: {{ kind: redis, url: "redis://127.0.0.1:{queue}/" }}
  ledger: {{ kind: mysql, url: "{ledger}" }}
{more}"#,
            listen = at.orders_listen,
            queue = at.queue,
            ledger = at.ledger,
            more = wish.order_service,
        )
    };
    let kind = if wish.shops_own_orders.is_some() { "external" } else { "internal" };
    format!(
        r#"
gate:
  id: gate-1
  listen: 127.0.0.1:{public}
  admin: 127.0.0.1:{admin}
  metrics: 127.0.0.1:{metrics}
  shop: {{ url: "http://127.0.0.1:{shop}" }}
  admin_token: {{ file: secrets/admin-token }}
  drain_delay: {drain}ms
{of_gate}
deployment: {{ gates: [{names}] }}
store: {{ kind: redis, url: "redis://127.0.0.1:{store}/", deadline: {deadline}ms }}
identity:
  keys: [{{ kid: shop, algorithm: HS256, key: {{ file: secrets/user-jwt-secret }} }}]
  issuer: https://shop.test
  audience: seckill
  device_secret: {{ file: secrets/device-secret }}
tokens:
  keys: [{{ kid: one, key: {{ file: secrets/token-key }} }}]
  ttl: {ttl}ms
limits: {{ attempts: {limits}, tokens: {limits}, reads: {{ address: {{ rate: 100000/s }} }} }}
orders:
  kind: {kind}
  url: http://127.0.0.1:{orders}/orders
  ticket_key: {{ file: secrets/ticket-private.pem }}
  api_token: {{ file: secrets/orders-api-token }}
{more}
{order_service}
logs: {{ filter: warn }}
activities:
{sales}"#,
        public = at.gate.public,
        admin = at.gate.admin,
        metrics = at.gate.metrics,
        shop = wish.shop,
        ttl = wish.token_ttl.as_millis(),
        drain = wish.drain_delay.as_millis(),
        of_gate = wish.gate,
        names = names.join(", "),
        store = at.store,
        deadline = wish.store_deadline.as_millis(),
        orders = at.orders,
        more = wish.orders,
    )
}
