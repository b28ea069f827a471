//! Where the operating commands find the listeners: address and token, from the configuration file.
//!
//! The one place that these commands read the configuration.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use anyhow::anyhow;

use crate::config;
use crate::config::scalars::SecretSource;
use crate::config::schema::OrdersKind;

/// What the file says about the listeners.
pub struct Listeners {
    /// `http://` address of the admin listener.
    pub admin: String,
    /// Its token; `None` if it cannot be read here (the environment may hold one).
    pub admin_token: anyhow::Result<String>,
    /// Where winners are posted, and the token of the API beside it; `None` for a shop's own order service.
    pub orders: Option<(String, anyhow::Result<String>)>,
}

/// Reads the file; faults are drawn on standard error.
pub fn read(path: &Path) -> anyhow::Result<Listeners> {
    let loaded = config::load(path).map_err(|faults| {
        super::draw(&faults);
        anyhow!(
            "{} has faults; until they are mended, name the gate itself: --admin URL, with SECKILL_ADMIN_TOKEN",
            path.display()
        )
    })?;
    let config = &loaded.config;
    let secret =
        |source: &SecretSource| -> anyhow::Result<String> { Ok(loaded.secret(source)?.expose_text()?.to_owned()) };
    let orders = match config.orders.kind {
        OrdersKind::External => None,
        OrdersKind::Internal => {
            let token = config.orders.api_token.as_ref().ok_or_else(|| anyhow!("orders.api_token is not configured"));
            Some((config.orders.url.clone(), token.and_then(secret)))
        }
    };
    Ok(Listeners {
        admin: format!("http://{}", reachable(config.gate.admin)),
        admin_token: secret(&config.gate.admin_token),
        orders,
    })
}

/// A listener on every address is reached on this machine's own.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}
