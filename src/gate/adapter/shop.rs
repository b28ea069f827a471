//! The shop behind the gate: where it is, how long it may take, and who may still be sent there.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pingora::upstreams::peer::HttpPeer;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::domain::backoff::Backoff;
use crate::domain::refusal::Code;
use crate::gate::answer::Refusal;
use crate::platform::breaker::{Circuit, Pass, Policy};
use crate::platform::clock::monotonic;

/// When requests to the shop are refused at once, and how often one finds out whether it answers again.
pub const BREAKER: Policy = Policy {
    failures: 5,
    probes: Backoff { first: Duration::from_millis(250), cap: Duration::from_secs(2) },
    // A probe is a client's request, and a client may keep its body back: of some at a time one soon shows how the shop is,
    // and whoever holds one for longer than the longest pause is not waited for.
    at_once: 8,
    probe_lasts: Duration::from_secs(2),
};

/// How long a request's body may take from a client to the shop: some 75 MB at 1 Mbit/s. Without it a client that sends a
/// byte now and then keeps its place for ever.
const BODY_DEADLINE: Duration = Duration::from_secs(600);

/// The shop, its name resolved: nothing is looked up while requests are served.
#[derive(Debug, Clone)]
pub struct Shop {
    /// Its address.
    pub address: SocketAddr,
    /// The name expected in its certificate, if it is spoken to over TLS.
    pub tls_name: Option<String>,
    /// Deadline of a connection attempt.
    pub connect_timeout: Duration,
    /// Deadline of each read and write.
    pub timeout: Duration,
    /// Deadline of a request's whole body, the client's part in it included.
    pub body_deadline: Duration,
    /// How long an idle connection is kept; below the shop's own idle timeout.
    pub idle_timeout: Duration,
    /// Places for requests under way: a hung shop must not hold every connection of the gate.
    pub places: Arc<Semaphore>,
    /// Opens when it does not answer.
    pub breaker: Arc<Circuit>,
}

/// The right to send one request to the shop, for as long as it is under way.
pub(super) struct ShopPass {
    _place: OwnedSemaphorePermit,
    breaker: Arc<Circuit>,
    pass: Pass,
    told: bool,
    body_until: Instant,
}

impl ShopPass {
    /// How long the request's body may still take.
    pub(super) fn left_for_body(&self) -> Duration {
        self.body_until.saturating_duration_since(monotonic())
    }

    /// The shop has begun to answer.
    pub(super) fn answered(&mut self) {
        self.told = true;
        self.breaker.succeeded();
    }

    /// The shop gave no answer.
    pub(super) fn not_answered(&mut self, why: &str) {
        if !std::mem::replace(&mut self.told, true) {
            self.breaker.failed(self.pass, why);
        }
    }
}

impl Drop for ShopPass {
    fn drop(&mut self) {
        if !self.told {
            self.breaker.abandoned(self.pass);
        }
    }
}

/// A shop URL that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ShopError {
    /// Not of the form `http://host[:port]` or `https://…`, without a path.
    #[error("`{0}` is not a shop address; write one like `http://127.0.0.1:8070`, without a path")]
    Url(String),
    /// The host has no address.
    #[error("cannot resolve the shop's host `{host}`: {reason}")]
    Resolve {
        /// The host.
        host: String,
        /// Why.
        reason: String,
    },
}

impl Shop {
    /// Resolves the shop of a configuration.
    ///
    /// # Errors
    /// If its URL is malformed or its host has no address.
    pub async fn resolve(
        config: &crate::config::schema::Shop,
        max_in_flight: usize,
        breaker: Circuit,
    ) -> Result<Shop, ShopError> {
        let bad = || ShopError::Url(config.url.clone());
        let uri: http::Uri = config.url.parse().map_err(|_| bad())?;
        let tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(bad()),
        };
        let host = uri.host().ok_or_else(bad)?.to_owned();
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(bad());
        }
        let port = uri.port_u16().unwrap_or(if tls { 443 } else { 80 });
        let unresolved = |reason: String| ShopError::Resolve { host: host.clone(), reason };
        let bare = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let lookup = tokio::time::timeout(Duration::from_secs(5), tokio::net::lookup_host((bare, port))).await;
        let address = lookup
            .map_err(|_| unresolved("timed out".into()))?
            .map_err(|e| unresolved(e.to_string()))?
            .next()
            .ok_or_else(|| unresolved("it has no address".into()))?;
        Ok(Shop {
            address,
            tls_name: tls.then_some(host),
            connect_timeout: config.connect_timeout.0,
            timeout: config.timeout.0,
            body_deadline: BODY_DEADLINE,
            idle_timeout: config.idle_timeout.0,
            places: Arc::new(Semaphore::new(max_in_flight)),
            breaker: Arc::new(breaker),
        })
    }

    /// Lets one request through.
    ///
    /// # Errors
    /// BUSY if too many are under way, UPSTREAM_UNAVAILABLE if the shop does not answer; it was not sent.
    pub(super) fn enter(&self) -> Result<ShopPass, Refusal> {
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_| Code::Busy)?;
        match self.breaker.ask() {
            Pass::Refused(wait) => Err(Refusal::from(Code::UpstreamUnavailable).retry_after(wait)),
            pass => Ok(ShopPass {
                _place: place,
                breaker: Arc::clone(&self.breaker),
                pass,
                told: false,
                body_until: monotonic() + self.body_deadline,
            }),
        }
    }

    pub(super) fn peer(&self) -> HttpPeer {
        let name = self.tls_name.clone().unwrap_or_default();
        let mut peer = HttpPeer::new(self.address, self.tls_name.is_some(), name);
        peer.options.connection_timeout = Some(self.connect_timeout);
        // TLS included.
        peer.options.total_connection_timeout = Some(self.connect_timeout.saturating_mul(2));
        peer.options.read_timeout = Some(self.timeout);
        peer.options.write_timeout = Some(self.timeout);
        peer.options.idle_timeout = Some(self.idle_timeout);
        peer.options.set_http_version(1, 1);
        peer
    }
}
