//! The parts of a gate, each from its section of the configuration.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use reqwest::Url;

use crate::config::scalars::SecretSource;
use crate::config::schema::{self, OrdersKind};
use crate::config::{Config, Loaded};
use crate::domain::time::millis;
use crate::domain::{ActivityId, GateId};
use crate::gate::activity::Activity;
use crate::gate::address::TrustedProxies;
use crate::gate::admin::AdminAuth;
use crate::gate::answer::Problems;
use crate::gate::delivery::backlog::Backlog;
use crate::gate::delivery::client::{ClientOptions, OrderClient};
use crate::gate::delivery::courier::{Courier, CourierOptions};
use crate::gate::delivery::metrics::DeliveryMetrics;
use crate::gate::delivery::ticket::TicketSigner;
use crate::gate::delivery::word::ReplyRules;
use crate::gate::edge::{Entry, Offer, Sale};
use crate::gate::identity::{Identity, IdentityParts, UserKey};
use crate::gate::ledger::client::LedgerClient;
use crate::gate::ledger::epoch_file::EpochFile;
use crate::gate::ledger::{LedgerAccess, VoidClient};
use crate::gate::limits::Limits;
use crate::gate::metrics::Metrics as EdgeMetrics;
use crate::gate::pages::{Page, PageText};
use crate::gate::reload::Pages;
use crate::gate::tokens::{TokenKey, Tokens};
use crate::platform::breaker::BreakerMetrics;
use crate::platform::metrics::Metrics;

/// Deadline of one call to the ledger: an operator waits for it.
const LEDGER_DEADLINE: Duration = Duration::from_secs(5);

fn secret(loaded: &Loaded, source: &SecretSource, name: &str) -> anyhow::Result<Vec<u8>> {
    Ok(loaded.secret(source).with_context(|| name.to_owned())?.expose().to_vec())
}

/// Who delivers winners.
pub fn courier(loaded: &Loaded, registry: &Metrics, breakers: &BreakerMetrics) -> anyhow::Result<(Courier, Backlog)> {
    let orders = &loaded.config.orders;
    let client = OrderClient::new(ClientOptions {
        url: Url::parse(&orders.url).context("orders.url")?,
        deadline: orders.deadline.0,
        max_reply: usize::try_from(orders.max_reply.0).unwrap_or(usize::MAX),
        rules: ReplyRules {
            final_statuses: orders.final_statuses.clone(),
            refused_statuses: orders.refused_statuses.clone(),
        },
    })?;
    let signer = TicketSigner::from_pem(&secret(loaded, &orders.ticket_key, "orders.ticket_key")?)
        .context("orders.ticket_key")?;
    let options = CourierOptions { max_in_flight: orders.max_in_flight, answer_within: orders.answer_within.0 };
    Ok(Courier::new(client, Arc::new(signer), options, DeliveryMetrics::register(registry)?, breakers))
}

/// Where sales are registered.
pub fn ledger(loaded: &Loaded) -> anyhow::Result<Arc<dyn LedgerAccess>> {
    let orders = &loaded.config.orders;
    let url = Url::parse(&orders.url).context("orders.url")?;
    let token = match &orders.api_token {
        Some(source) => Some(loaded.secret(source).context("orders.api_token")?.expose_text()?.to_owned()),
        None => None,
    };
    Ok(match orders.kind {
        OrdersKind::Internal => {
            Arc::new(LedgerClient::new(&url, token.context("orders.api_token is missing")?, LEDGER_DEADLINE)?)
        }
        OrdersKind::External => {
            let void = VoidClient::new(&url, token, LEDGER_DEADLINE)?;
            Arc::new(EpochFile::new(loaded.resolve(&orders.epoch_file), void))
        }
    })
}

/// The guard of the admin listener.
pub fn admin_auth(loaded: &Loaded, address: SocketAddr) -> anyhow::Result<AdminAuth> {
    let gate = &loaded.config.gate;
    let change = secret(loaded, &gate.admin_token, "gate.admin_token")?;
    let read = match &gate.admin_read_token {
        Some(source) => Some(secret(loaded, source, "gate.admin_read_token")?),
        None => None,
    };
    Ok(AdminAuth::new(&change, read.as_deref(), address, &gate.admin_hosts))
}

/// What of a sale may fail to be made.
pub struct Fallible {
    /// Who users and devices are.
    identity: Identity,
    /// The sale tokens.
    tokens: Tokens,
}

/// Reads the keys.
pub fn fallible(loaded: &Loaded) -> anyhow::Result<Fallible> {
    Ok(Fallible { identity: identity(loaded)?, tokens: tokens(loaded)? })
}

/// The gates of the deployment; this one at least.
pub fn gates(config: &Config) -> Vec<GateId> {
    if config.deployment.gates.is_empty() { vec![config.gate.id.clone()] } else { config.deployment.gates.clone() }
}

/// Everything that visitors meet. Limiters of `previous` that did not change are carried over.
pub fn sale(
    loaded: &Loaded,
    Fallible { identity, tokens }: Fallible,
    mut pages: Pages,
    activities: &BTreeMap<ActivityId, Arc<Activity>>,
    courier: &Courier,
    metrics: &EdgeMetrics,
    previous: Option<&Limits>,
) -> Sale<Activity> {
    let config = &loaded.config;
    let mut entries = HashMap::new();
    for (id, activity) in activities {
        let Some(of_file) = config.activities.get(id) else { continue };
        let page = pages.remove(id).unwrap_or_else(|| built_in_page(&config.gate.prefix, id, of_file));
        let offers = of_file.skus.iter().map(|(sku, offered)| Offer {
            sku: sku.clone(),
            stock: offered.stock,
            max_qty: offered.max_qty.unwrap_or(of_file.per_user_limit).min(of_file.per_user_limit),
        });
        let (port, offers) = (Arc::clone(activity), offers.collect());
        entries.insert(id.clone(), Entry::new(id.clone(), port, offers, page, of_file.stock_display, metrics));
    }
    Sale {
        prefix: config.gate.prefix.clone(),
        problems: Problems::new(&config.gate.prefix),
        activities: entries,
        identity,
        tokens,
        open_before: config.tokens.open_before.0,
        limits: Limits::new(&config.limits, gates(config).len(), previous),
        proxies: TrustedProxies::new(config.gate.trusted_proxies.clone()),
        max_body: usize::try_from(config.gate.max_body.0).unwrap_or(usize::MAX),
        body_deadline: config.gate.body_deadline.0,
        access_log_sample: config.gate.access_log_sample,
        jwks: courier.jwks(),
    }
}

fn built_in_page(prefix: &str, id: &ActivityId, activity: &schema::Activity) -> Page {
    let skus = activity.skus.iter().map(|(sku, offered)| {
        let title = offered.title.as_deref().unwrap_or(sku.as_str());
        (sku.as_str(), title, offered.price.as_deref().unwrap_or(""))
    });
    Page::built_in(&PageText {
        prefix,
        activity: id.as_str(),
        title: activity.title.as_deref().unwrap_or(id.as_str()),
        skus: skus.collect(),
    })
}

fn identity(loaded: &Loaded) -> anyhow::Result<Identity> {
    let identity = &loaded.config.identity;
    let mut keys = Vec::new();
    for key in &identity.keys {
        let name = format!("identity key `{}`", key.kid);
        let bytes = secret(loaded, &key.key, &name)?;
        keys.push(UserKey { kid: key.kid.clone(), algorithm: key.algorithm, key: bytes });
    }
    Ok(Identity::new(IdentityParts {
        keys,
        issuer: identity.issuer.clone(),
        audience: identity.audience.clone(),
        user_claim: identity.user_claim.clone(),
        cookie: identity.cookie.clone(),
        leeway_ms: millis(identity.leeway.0),
        device_secret: secret(loaded, &identity.device_secret, "identity.device_secret")?,
        secure_cookies: identity.secure_cookies,
    })?)
}

fn tokens(loaded: &Loaded) -> anyhow::Result<Tokens> {
    let mut keys = Vec::new();
    for key in &loaded.config.tokens.keys {
        let name = format!("token key `{}`", key.kid);
        keys.push(TokenKey { kid: key.kid.clone(), key: secret(loaded, &key.key, &name)? });
    }
    Ok(Tokens::new(&keys, loaded.config.tokens.ttl.0)?)
}
