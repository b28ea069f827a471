//! The accept loop: takes connections up to a cap, and ends them in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pingora::apps::{HttpServerApp, HttpServerOptions, ServerApp};
use pingora::proxy::HttpProxy;
use pingora::server::configuration::ServerConf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::connection::{Connection, ConnectionLimits};
use super::proxy::Proxy;
use super::shop::Shop;
use super::write;
use crate::domain::refusal::Code;
use crate::gate::answer::Refusal;
use crate::gate::delivery::told::FirstDelivery;
use crate::gate::edge::Edge;
use crate::gate::port::AttemptPort;
use crate::platform::clock::monotonic;

/// What the public listener takes.
#[derive(Debug, Clone)]
pub struct ListenerLimits {
    /// Connections held at once; more are closed at once.
    pub max_connections: usize,
    /// Requests served on one connection at most.
    pub requests_per_connection: u32,
    /// How long an idle connection is kept.
    pub idle_timeout: Duration,
    /// From the first byte of a request's header to its last.
    pub header_deadline: Duration,
    /// For a client to take up what is written to it.
    pub write_timeout: Duration,
    /// Header bytes of one request.
    pub max_header_bytes: usize,
    /// For requests under way to be answered after the listener has closed.
    pub finish_within: Duration,
}

/// When the listener closes, how long its connections may still bring a request that was on its way.
const LAST_REQUESTS: Duration = Duration::from_millis(250);

impl Default for ListenerLimits {
    fn default() -> Self {
        ListenerLimits {
            max_connections: 16_000,
            requests_per_connection: 1_000,
            idle_timeout: Duration::from_secs(60),
            header_deadline: Duration::from_secs(10),
            write_timeout: Duration::from_secs(30),
            max_header_bytes: 32 << 10,
            finish_within: Duration::from_secs(10),
        }
    }
}

/// The public listener: the edge behind a socket.
pub struct Listener<A: AttemptPort, D: FirstDelivery<A>> {
    edge: Arc<Edge<A, D>>,
    proxy: Arc<HttpProxy<Proxy<A, D>>>,
    limits: ListenerLimits,
    in_flight: Arc<AtomicUsize>,
}

impl<A: AttemptPort, D: FirstDelivery<A>> Listener<A, D> {
    /// Puts the edge and the shop behind a listener.
    pub fn new(edge: Arc<Edge<A, D>>, shop: Shop, limits: ListenerLimits) -> Listener<A, D> {
        let in_flight = Arc::new(AtomicUsize::new(0));
        let service = Proxy::new(Arc::clone(&edge), shop, Arc::clone(&in_flight));
        // A stale pooled connection is tried anew; more tries than this hide a sick shop.
        let conf = ServerConf { max_retries: 3, ..ServerConf::default() };
        let mut proxy = pingora::proxy::http_proxy(&Arc::new(conf), service);
        let mut options = HttpServerOptions::default();
        options.keepalive_request_limit = Some(limits.requests_per_connection);
        proxy.server_options = Some(options);
        Listener { edge, proxy: Arc::new(proxy), limits, in_flight }
    }

    /// Requests under way.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Serves until `shutdown`, then closes the socket, lets idle connections go, and returns when every request under
    /// way has been answered, or at `limits.finish_within` after that. Whoever is still served then is cut off.
    pub async fn serve(&self, socket: TcpListener, shutdown: CancellationToken) {
        let places = Arc::new(Semaphore::new(self.limits.max_connections));
        let connections = TaskTracker::new();
        let cut = CancellationToken::new();
        let (closing, closed) = watch::channel(false);
        let problems = &self.edge.sale.load_full().problems;
        let whole = |code: Code| write::on_the_wire(&problems.render(&Refusal::from(code)));
        let limits = Arc::new(ConnectionLimits {
            header_deadline: self.limits.header_deadline,
            idle_timeout: self.limits.idle_timeout,
            write_timeout: self.limits.write_timeout,
            max_header_bytes: self.limits.max_header_bytes,
            timed_out: whole(Code::Timeout),
            too_large: whole(Code::HeadersTooLarge),
            malformed: whole(Code::BadRequest),
        });
        let take = |stream: TcpStream, peer| {
            // No place: closed at once, before it costs anything.
            let Ok(place) = Arc::clone(&places).try_acquire_owned() else { return };
            let _ = stream.set_nodelay(true);
            let connection = Connection::new(stream, peer, Arc::clone(&limits));
            let (proxy, closed, cut) = (Arc::clone(&self.proxy), closed.clone(), cut.clone());
            connections.spawn(async move {
                let _place = place;
                let served = async {
                    let mut stream: Option<pingora::protocols::Stream> = Some(Box::new(connection));
                    while let Some(current) = stream {
                        stream = proxy.process_new(current, &closed).await;
                    }
                };
                tokio::select! {
                    () = served => {}
                    () = cut.cancelled() => {}
                }
            });
        };
        loop {
            let accepted = tokio::select! {
                accepted = socket.accept() => accepted,
                () = shutdown.cancelled() => break,
            };
            match accepted {
                Ok((stream, peer)) => take(stream, peer),
                Err(e) => {
                    // Out of file descriptors, mostly: breathe, so that connections can end.
                    tracing::warn!(error = %e, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
        // Whoever waits to be accepted has connected already: closing the socket would reset them.
        if let Ok(socket) = socket.into_std() {
            for (stream, peer) in std::iter::from_fn(|| socket.accept().ok()).take(self.limits.max_connections) {
                if stream.set_nonblocking(true).is_ok()
                    && let Ok(stream) = TcpStream::from_std(stream)
                {
                    take(stream, peer);
                }
            }
        }
        let finished_by = Instant::from_std(monotonic()) + self.limits.finish_within;
        self.edge.draining.cancel();
        self.edge.closing.cancel();
        let _ = closing.send(true);
        connections.close();
        // Requests on their way are still taken; after that only idle connections are left to be closed.
        _ = timeout(LAST_REQUESTS, connections.wait()).await;
        self.proxy.http_cleanup().await;
        if timeout_at(finished_by, connections.wait()).await.is_err() {
            let (requests, connections) = (self.in_flight(), connections.len());
            tracing::warn!(requests, connections, "still under way at the end: cut off");
        }
        cut.cancel();
        connections.wait().await;
    }
}
