//! Where the operating commands find the listeners: address and token, from the configuration file.
//!
//! The one place that these commands read the configuration.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use anyhow::{Context, anyhow};

use crate::config::Config;
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

/// Reads the file.
pub fn read(path: &Path) -> anyhow::Result<Listeners> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let config: Config = serde_saphyr::from_str(&text)
        .with_context(|| format!("{} has faults; `seckill-gate check` lists them", path.display()))?;
    let base = path.parent().unwrap_or(Path::new("."));
    let orders = match config.orders.kind {
        OrdersKind::External => None,
        OrdersKind::Internal => {
            let token = config.orders.api_token.as_ref().ok_or_else(|| anyhow!("orders.api_token is not configured"));
            Some((config.orders.url.clone(), token.and_then(|source| secret(base, source))))
        }
    };
    Ok(Listeners {
        admin: format!("http://{}", reachable(config.gate.admin)),
        admin_token: secret(base, &config.gate.admin_token),
        orders,
    })
}

fn secret(base: &Path, source: &SecretSource) -> anyhow::Result<String> {
    let text = match (&source.file, &source.env) {
        (Some(file), _) => {
            let path = base.join(file);
            std::fs::read_to_string(&path).with_context(|| format!("cannot read the secret in {}", path.display()))?
        }
        (None, Some(name)) => std::env::var(name).with_context(|| format!("the environment lacks {name}"))?,
        (None, None) => return Err(anyhow!("a secret needs `file` or `env`")),
    };
    Ok(text.trim_end_matches(['\n', '\r']).to_owned())
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
