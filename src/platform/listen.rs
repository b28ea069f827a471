//! Listening sockets.

use std::net::SocketAddr;

use anyhow::Context;
use tokio::net::{TcpListener, TcpSocket};

/// Connections that may wait to be accepted; the kernel caps it at `net.core.somaxconn`. At the opening second thousands
/// arrive at once: one that finds the queue full is retried by its client's kernel a second later, or much later.
const BACKLOG: u32 = 16_384;

/// Listens on `address`.
///
/// # Errors
/// If it is taken or not this machine's; says which.
pub fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let listening = || {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    listening().with_context(|| format!("cannot listen on {address}"))
}
