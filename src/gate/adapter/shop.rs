//! The shop behind the gate: where it is and how long it may take.

use std::net::SocketAddr;
use std::time::Duration;

use pingora::upstreams::peer::HttpPeer;

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
    /// How long an idle connection is kept; below the shop's own idle timeout.
    pub idle_timeout: Duration,
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
    pub async fn resolve(config: &crate::config::schema::Shop) -> Result<Shop, ShopError> {
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
            idle_timeout: config.idle_timeout.0,
        })
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
