//! The configuration file, as a person writes it.
//!
//! Each type is one mapping of the file; its doc comments become the schema's descriptions, which editors show.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::scalars::{ByteSize, Moment, Rate, SecretSource, Span};
use crate::domain::{ActivityId, GateId, SkuId};

/// The whole file. Each command reads the sections it needs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The gate's listeners and the shop behind it.
    pub gate: Gate,
    /// The gates of this deployment.
    #[serde(default)]
    pub deployment: Deployment,
    /// Where stock is judged and taken.
    pub store: Store,
    /// Who the users are.
    pub identity: Identity,
    /// The sale tokens.
    pub tokens: Tokens,
    /// Rate limits.
    #[serde(default)]
    pub limits: Limits,
    /// How winners are delivered.
    pub orders: Orders,
    /// Our own order service; leave it out if the shop has one.
    #[serde(default)]
    pub order_service: Option<OrderService>,
    /// Logs.
    #[serde(default)]
    pub logs: Logs,
    /// The sales, by name. `{}`: none yet.
    #[schemars(schema_with = "named::<Activity>")]
    pub activities: BTreeMap<ActivityId, Activity>,
}

/// The gate's listeners and the shop behind it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Gate {
    /// This gate's name, one of `deployment.gates`. The flag `--gate` overrides it.
    #[schemars(schema_with = "slug")]
    pub id: GateId,
    /// The public listener.
    #[serde(default = "d::listen")]
    #[schemars(schema_with = "socket_address")]
    pub listen: SocketAddr,
    /// The admin listener; keep it off the internet.
    #[serde(default = "d::admin")]
    #[schemars(schema_with = "socket_address")]
    pub admin: SocketAddr,
    /// The metrics listener.
    #[serde(default = "d::metrics")]
    #[schemars(schema_with = "socket_address")]
    pub metrics: SocketAddr,
    /// Path prefix of the sale's routes.
    #[serde(default = "d::prefix")]
    pub prefix: String,
    /// The shop: everything outside the prefix goes there.
    pub shop: Shop,
    /// Bearer token of the admin listener.
    pub admin_token: SecretSource,
    /// Bearer token that may only read on the admin listener.
    #[serde(default)]
    pub admin_read_token: Option<SecretSource>,
    /// Host names (with port) under which the admin listener may be addressed, besides its own address.
    #[serde(default)]
    pub admin_hosts: Vec<String>,
    /// Proxies whose X-Forwarded-For is believed, as CIDR blocks.
    #[serde(default)]
    #[schemars(schema_with = "cidr_blocks")]
    pub trusted_proxies: Vec<IpNet>,
    /// Longest order payload of an attempt.
    #[serde(default = "d::max_body")]
    pub max_body: ByteSize,
    /// Longest time a request's body may take to arrive.
    #[serde(default = "d::five_seconds")]
    pub body_deadline: Span,
    /// Requests served on one connection at most.
    #[serde(default = "d::requests_per_connection")]
    #[schemars(range(min = 1))]
    pub requests_per_connection: u32,
    /// How long an idle connection is kept.
    #[serde(default = "d::minute")]
    pub idle_timeout: Span,
    /// Connections held at once; more are closed at once.
    #[serde(default = "d::max_connections")]
    #[schemars(range(min = 1))]
    pub max_connections: u32,
    /// Worker threads; 0 means one per core.
    #[serde(default)]
    pub threads: usize,
    /// After SIGTERM, how long the gate goes on serving while load balancers notice.
    #[serde(default = "d::five_seconds")]
    pub drain_delay: Span,
    /// One access log line per so many requests.
    #[serde(default = "d::access_log_sample")]
    #[schemars(range(min = 1))]
    pub access_log_sample: u32,
}

/// The shop behind the gate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Shop {
    /// Base address, e.g. `http://127.0.0.1:8070`.
    pub url: String,
    /// Deadline of a connection attempt.
    #[serde(default = "d::one_second")]
    pub connect_timeout: Span,
    /// Deadline of each read and write.
    #[serde(default = "d::thirty_seconds")]
    pub timeout: Span,
    /// How long an idle connection to the shop is kept; below the shop's own idle timeout.
    #[serde(default = "d::thirty_seconds")]
    pub idle_timeout: Span,
    /// Requests under way at the shop at once, below `gate.max_connections`; more are told BUSY. Half of that if not set.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub max_in_flight: Option<u32>,
}

impl Gate {
    /// Requests that may be under way at the shop: a hung shop leaves connections to the sale.
    pub fn shop_max_in_flight(&self) -> usize {
        self.shop.max_in_flight.unwrap_or(self.max_connections / 2).max(1) as usize
    }
}

/// The gates of this deployment.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Deployment {
    /// Names of all gates. Rates are for the whole deployment and divided by their number. Empty: just this gate.
    #[serde(default)]
    #[schemars(schema_with = "slugs")]
    pub gates: Vec<GateId>,
}

/// Where stock is judged and taken.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Store {
    /// A Redis server (7.0 or later, or Valkey), with `maxmemory-policy noeviction` and persistence.
    Redis {
        /// `redis://` or `rediss://` (TLS), host, port, database. No password here.
        url: String,
        /// ACL user name, if any.
        #[serde(default)]
        username: Option<String>,
        /// The password.
        #[serde(default)]
        password: Option<SecretSource>,
        /// Deadline of one call.
        #[serde(default = "d::store_deadline")]
        deadline: Span,
        /// How far the server's clock may be off this machine's before a start is refused.
        #[serde(default = "d::thirty_seconds")]
        max_clock_offset: Span,
        /// Attempts that may wait per activity; more are shed with BUSY.
        #[serde(default = "d::store_queue")]
        #[schemars(range(min = 1))]
        queue: usize,
    },
    /// An embedded SQLite file, durable, for one gate.
    Sqlite {
        /// The file.
        path: PathBuf,
        /// Deadline of one call.
        #[serde(default = "d::store_deadline")]
        deadline: Span,
        /// Attempts that may wait per activity; more are shed with BUSY.
        #[serde(default = "d::store_queue")]
        #[schemars(range(min = 1))]
        queue: usize,
    },
}

/// Who the users are: the shop's JWTs, and devices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// Keys of user JWTs. A token names its key by `kid`; with a single key it need not.
    #[schemars(length(min = 1))]
    pub keys: Vec<UserKey>,
    /// Required `iss`.
    pub issuer: String,
    /// Required `aud`.
    pub audience: String,
    /// Claim that holds the user.
    #[serde(default = "d::user_claim")]
    pub user_claim: String,
    /// Cookie in which the JWT may also come.
    #[serde(default)]
    pub cookie: Option<String>,
    /// Clock difference that is forgiven.
    #[serde(default = "d::leeway")]
    pub leeway: Span,
    /// Whether the device cookie is sent over TLS only; switch it off for trials over plain HTTP.
    #[serde(default = "d::yes")]
    pub secure_cookies: bool,
    /// Key that signs the device cookie.
    pub device_secret: SecretSource,
    /// The private key with which `seckill-gate token` signs (tests and trials only; for HS256 the key itself is used).
    #[serde(default)]
    pub signing_key: Option<SecretSource>,
}

/// A key of user JWTs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UserKey {
    /// Names the key.
    pub kid: String,
    /// The only algorithm taken with this key.
    pub algorithm: UserAlgorithm,
    /// The shared secret (HS256, at least 32 bytes) or the public key (PEM).
    pub key: SecretSource,
}

/// Algorithms of user JWTs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs)]
pub enum UserAlgorithm {
    HS256,
    RS256,
    ES256,
    EdDSA,
}

/// The sale tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tokens {
    /// Signing keys (at least 32 bytes each), the same on every gate. The first signs; all of them verify.
    #[schemars(length(min = 1))]
    pub keys: Vec<TokenKey>,
    /// How long a token is good for, from the start of the sale or from its issue.
    #[serde(default = "d::token_ttl")]
    pub ttl: Span,
    /// How long before the start tokens are issued.
    #[serde(default = "d::open_before")]
    pub open_before: Span,
}

/// A key of sale tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenKey {
    /// Names the key.
    pub kid: String,
    /// The secret.
    pub key: SecretSource,
}

/// Rate limits, for the whole deployment, per route.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Attempts.
    pub attempts: AttemptLimits,
    /// Token requests.
    pub tokens: AttemptLimits,
    /// Everything that only reads (state, results).
    pub reads: ReadLimits,
    /// Prefix length by which IPv6 addresses are grouped.
    #[serde(default)]
    pub ipv6_prefix: Ipv6Prefix,
    /// Keys held per limiter; unknown ones beyond that share one bucket.
    #[serde(default)]
    pub max_keys: MaxKeys,
}

/// A length of an IPv6 prefix, 1–128; 64 by default.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Ipv6Prefix(#[schemars(range(min = 1, max = 128))] pub u8);

impl Default for Ipv6Prefix {
    fn default() -> Self {
        Ipv6Prefix(64)
    }
}

/// A number of limiter keys; 500,000 by default.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MaxKeys(#[schemars(range(min = 1))] pub usize);

impl Default for MaxKeys {
    fn default() -> Self {
        MaxKeys(500_000)
    }
}

/// One limit: a rate and how many may come at once.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Limit {
    /// The lasting rate.
    pub rate: Rate,
    /// How many at once; the rate's count by default.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub burst: Option<u32>,
}

/// Limits of attempts or token requests. `null` switches one off.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AttemptLimits {
    /// Per client address. Many buyers may share one behind NAT: watch the refusals before lowering it.
    pub address: Option<Limit>,
    /// Per user.
    pub user: Option<Limit>,
    /// Per device.
    pub device: Option<Limit>,
    /// Per activity, all users together.
    pub activity: Option<Limit>,
}

impl Default for AttemptLimits {
    fn default() -> Self {
        AttemptLimits {
            address: Some(Limit { rate: d::per_second(2), burst: Some(10) }),
            user: Some(Limit { rate: d::per_second(1), burst: Some(3) }),
            device: Some(Limit { rate: d::per_second(1), burst: Some(3) }),
            activity: None,
        }
    }
}

/// Limits of reads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ReadLimits {
    /// Per client address.
    pub address: Option<Limit>,
}

impl Default for ReadLimits {
    fn default() -> Self {
        ReadLimits { address: Some(Limit { rate: d::per_second(20), burst: Some(40) }) }
    }
}

/// How winners are delivered to the order service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Orders {
    /// `internal`: ours (section `order_service`). `external`: the shop's own.
    #[serde(default)]
    pub kind: OrdersKind,
    /// Where winners are posted, e.g. `http://127.0.0.1:8090/orders`.
    pub url: String,
    /// Private key (PKCS#8 PEM, Ed25519) that signs tickets.
    pub ticket_key: SecretSource,
    /// With `kind: external`: remembers which sales were preheated. Gates share it, or one of them does all preheats.
    #[serde(default = "d::epoch_file")]
    pub epoch_file: PathBuf,
    /// Bearer token of the order service's API, for totals and void.
    #[serde(default)]
    pub api_token: Option<SecretSource>,
    /// Deadline of one delivery.
    #[serde(default = "d::two_seconds")]
    pub deadline: Span,
    /// How long a winner's connection waits before it is told QUEUED.
    #[serde(default = "d::two_seconds")]
    pub answer_within: Span,
    /// Deliveries under way at once, per gate; with several activities none holds more than half.
    #[serde(default = "d::max_in_flight")]
    #[schemars(range(min = 1))]
    pub max_in_flight: usize,
    /// Deliveries started per second by the relay, per gate.
    #[serde(default = "d::relay_rate")]
    pub relay_rate: Rate,
    /// How long after its first delivery a win without a final word is a dead letter: marked, listed, alarmed, delivered on.
    #[serde(default = "d::dead_after")]
    pub dead_after: Span,
    /// The pause between two deliveries of a dead letter.
    #[serde(default = "d::dead_retry_every")]
    pub dead_retry_every: Span,
    /// Longest reply that is kept.
    #[serde(default = "d::max_reply")]
    pub max_reply: ByteSize,
    /// Statuses that are final success, besides 200 and 201; for shops whose 202 is final.
    #[serde(default)]
    pub final_statuses: Vec<u16>,
    /// Statuses that refuse an order for good. Empty: only the header `Seckill-Order: refused` does.
    #[serde(default)]
    pub refused_statuses: Vec<u16>,
}

/// Whose order service it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OrdersKind {
    /// Ours.
    #[default]
    Internal,
    /// The shop's own.
    External,
}

/// Our own order service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OrderService {
    /// Its listener.
    #[serde(default = "d::orders_listen")]
    #[schemars(schema_with = "socket_address")]
    pub listen: SocketAddr,
    /// Bearer token of its API; the same as `orders.api_token`.
    pub api_token: SecretSource,
    /// Public key (PEM, Ed25519) that verifies tickets.
    pub ticket_public_key: SecretSource,
    /// Where orders wait.
    pub queue: Queue,
    /// Where orders stand.
    pub ledger: Ledger,
    /// The consumer between them.
    #[serde(default)]
    pub consumer: Consumer,
}

/// Where orders wait for the consumer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Queue {
    /// Redis Streams; another server than the store's is best.
    Redis {
        /// `redis://` or `rediss://` (TLS), host, port, database. No password here.
        url: String,
        /// ACL user name, if any.
        #[serde(default)]
        username: Option<String>,
        /// The password.
        #[serde(default)]
        password: Option<SecretSource>,
    },
    /// An embedded SQLite file.
    Sqlite {
        /// The file.
        path: PathBuf,
    },
}

/// Where orders stand.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Ledger {
    /// MySQL 8 or MariaDB 10.6 or later.
    Mysql {
        /// `mysql://user@host:port/database`. No password here.
        url: String,
        /// The password.
        #[serde(default)]
        password: Option<SecretSource>,
        /// Connections at most.
        #[serde(default = "d::pool")]
        #[schemars(range(min = 1))]
        pool: u32,
        /// Deadline of one transaction.
        #[serde(default = "d::five_seconds")]
        deadline: Span,
    },
    /// An embedded SQLite file.
    Sqlite {
        /// The file.
        path: PathBuf,
    },
}

/// The consumer that books orders.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Consumer {
    /// Orders per transaction at most.
    #[schemars(range(min = 1, max = 1000))]
    pub batch: usize,
    /// Orders booked per second at most, per process.
    pub rate: Rate,
    /// An entry that another process took, and does not show to be working on, is claimed after this time.
    pub claim_after: Span,
    /// An order that alone fails so often is set aside.
    #[schemars(range(min = 1))]
    pub set_aside_after: u32,
}

impl Default for Consumer {
    fn default() -> Self {
        Consumer { batch: 500, rate: d::per_second(5_000), claim_after: Span::seconds(10), set_aside_after: 5 }
    }
}

/// Logs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Logs {
    /// `text` for people, `json` for machines.
    pub format: LogFormat,
    /// Filter as `tracing` reads it, e.g. `info` or `info,seckill_gate=debug`.
    pub filter: String,
}

impl Default for Logs {
    fn default() -> Self {
        Logs { format: LogFormat::Text, filter: "info".into() }
    }
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum LogFormat {
    Text,
    Json,
}

/// One sale.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Activity {
    /// First moment of the sale, RFC 3339 with offset, e.g. `2026-12-12T20:00:00+08:00`.
    pub starts_at: Moment,
    /// First moment after the sale.
    pub ends_at: Moment,
    /// Units that one user may hold.
    #[serde(default = "d::one")]
    #[schemars(range(min = 1))]
    pub per_user_limit: u32,
    /// Whether a user whose order was refused, cancelled or expired may buy again.
    #[serde(default = "d::yes")]
    pub rebuy_after_release: bool,
    /// How long after the end the store keeps the activity.
    #[serde(default = "d::retention")]
    pub retention: Span,
    /// How long an order may stay unpaid. Recorded with the sale; expiry itself is not built yet.
    #[serde(default = "d::payment_deadline")]
    pub payment_deadline: Span,
    /// What is on sale, by name.
    #[schemars(schema_with = "named_some::<Sku>")]
    pub skus: BTreeMap<SkuId, Sku>,
    /// Directory with the activity's page (`index.html` and its assets); the built-in page by default.
    #[serde(default)]
    pub page: Option<PathBuf>,
    /// Title on the built-in page.
    #[serde(default)]
    pub title: Option<String>,
    /// How stock is shown.
    #[serde(default)]
    pub stock_display: StockDisplay,
}

/// One kind of thing on sale.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sku {
    /// Units offered, at least 1.
    #[schemars(range(min = 1))]
    pub stock: u32,
    /// Units that one attempt may ask for; the activity's `per_user_limit` by default.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub max_qty: Option<u32>,
    /// Name on the built-in page.
    #[serde(default)]
    pub title: Option<String>,
    /// Price on the built-in page, as text.
    #[serde(default)]
    pub price: Option<String>,
}

/// How stock is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StockDisplay {
    /// The number of units left.
    Exact,
    /// `plenty`, `few` or `none`.
    #[default]
    Fuzzy,
    /// Nothing.
    Hidden,
}

const SLUG: &str = "^[a-z0-9][a-z0-9-]{0,63}$";

fn slug(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "pattern": SLUG })
}

fn slugs(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "items": slug(generator) })
}

fn socket_address(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "format": "socket-address", "examples": ["127.0.0.1:8080"] })
}

fn cidr_blocks(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "items": { "type": "string", "format": "cidr", "examples": ["10.0.0.0/8"] } })
}

fn named<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "propertyNames": { "pattern": SLUG },
        "additionalProperties": generator.subschema_for::<T>(),
    })
}

fn named_some<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = named::<T>(generator);
    schema.insert("minProperties".into(), 1.into());
    schema
}

/// Defaults.
mod d {
    use super::*;

    fn local(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }
    pub(super) fn listen() -> SocketAddr {
        SocketAddr::from(([0, 0, 0, 0], 8080))
    }
    pub(super) fn admin() -> SocketAddr {
        local(8081)
    }
    pub(super) fn metrics() -> SocketAddr {
        local(8082)
    }
    pub(super) fn orders_listen() -> SocketAddr {
        local(8090)
    }
    pub(super) fn prefix() -> String {
        "/seckill".into()
    }
    pub(super) fn max_body() -> ByteSize {
        ByteSize(2 << 10)
    }
    pub(super) fn max_reply() -> ByteSize {
        ByteSize(64 << 10)
    }
    pub(super) fn requests_per_connection() -> u32 {
        1_000
    }
    pub(super) fn max_connections() -> u32 {
        16_000
    }
    pub(super) fn access_log_sample() -> u32 {
        1_000
    }
    pub(super) fn store_deadline() -> Span {
        Span::millis(500)
    }
    pub(super) fn store_queue() -> usize {
        4_096
    }
    pub(super) fn user_claim() -> String {
        "sub".into()
    }
    pub(super) fn leeway() -> Span {
        Span::seconds(2)
    }
    pub(super) fn token_ttl() -> Span {
        Span::seconds(10)
    }
    pub(super) fn open_before() -> Span {
        Span::seconds(600)
    }
    pub(super) fn one_second() -> Span {
        Span::seconds(1)
    }
    pub(super) fn two_seconds() -> Span {
        Span::seconds(2)
    }
    pub(super) fn five_seconds() -> Span {
        Span::seconds(5)
    }
    pub(super) fn thirty_seconds() -> Span {
        Span::seconds(30)
    }
    pub(super) fn minute() -> Span {
        Span::seconds(60)
    }
    pub(super) fn max_in_flight() -> usize {
        64
    }
    pub(super) fn relay_rate() -> Rate {
        per_second(1_000)
    }
    pub(super) fn dead_after() -> Span {
        Span::seconds(600)
    }
    pub(super) fn dead_retry_every() -> Span {
        Span::seconds(60)
    }
    pub(super) fn epoch_file() -> PathBuf {
        "seckill-epochs.json".into()
    }
    pub(super) fn pool() -> u32 {
        8
    }
    pub(super) fn one() -> u32 {
        1
    }
    pub(super) fn yes() -> bool {
        true
    }
    pub(super) fn retention() -> Span {
        Span::seconds(7 * 86_400)
    }
    pub(super) fn payment_deadline() -> Span {
        Span::seconds(15 * 60)
    }
    pub(super) fn per_second(count: u32) -> Rate {
        Rate { count, per: std::time::Duration::from_secs(1) }
    }
}
