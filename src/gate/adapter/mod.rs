//! The server around the pipeline: Pingora's HTTP proxy in our own runtime and accept loop. The only place that names
//! Pingora.
//!
//! [`accept`] takes connections and ends them in order; [`connection`] is one client's socket with its deadlines;
//! [`plain`] refuses what is not written plainly; [`proxy`] sends a request to the pipeline or to the shop; [`body`] and
//! [`write`] read and write one message.

mod accept;
mod body;
mod connection;
mod plain;
mod proxy;
mod shop;
mod write;

pub use accept::{Listener, ListenerLimits};
pub use shop::{BREAKER as SHOP_BREAKER, Shop, ShopError};
