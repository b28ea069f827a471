//! HTTP/1.1 server for the internal listeners (admin, metrics, order service), with a bound on everything a peer can
//! make it hold: connections, requests under way, body size, time for headers and for a whole request.
//!
//! `axum::serve` has no deadline for headers and no cap on connections, hence the loop of our own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;
use tower::Service;

use super::shutdown::{Shutdown, Stage};

/// What one listener holds at most.
#[derive(Debug, Clone, Copy)]
pub struct HttpLimits {
    /// Connections; more wait in the kernel's backlog.
    pub connections: usize,
    /// Requests under way; more get 503.
    pub requests: usize,
    /// Bytes of a request body; more get 413.
    pub body: usize,
    /// From a request's head to its response's head; longer gets 503.
    pub request: Duration,
    /// For a request's head to arrive, idle time included. Clients that pool connections must give up idle ones earlier.
    pub headers: Duration,
    /// For open connections to finish after the listener closed.
    pub closing: Duration,
}

impl Default for HttpLimits {
    /// For a listener with few, trusted clients.
    fn default() -> Self {
        HttpLimits {
            connections: 256,
            requests: 128,
            body: 64 << 10,
            request: Duration::from_secs(15),
            headers: Duration::from_secs(30),
            closing: Duration::from_secs(10),
        }
    }
}

/// The other end of the connection; an extension of every request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

/// Serves `router` until the listeners close, then finishes what is in flight.
pub async fn serve(name: &'static str, listener: TcpListener, router: Router, limits: HttpLimits, shutdown: Shutdown) {
    let router = bounded(router, limits);
    let connections = Arc::new(Semaphore::new(limits.connections));
    let open = TaskTracker::new();
    if let Ok(address) = listener.local_addr() {
        tracing::info!(listener = name, %address, "listening");
    }
    loop {
        let accepted = tokio::select! {
            () = shutdown.reached(Stage::Closing) => break,
            accepted = accept(&listener, &connections) => accepted,
        };
        match accepted {
            Ok((stream, peer, permit)) => {
                let router = router.clone();
                let shutdown = shutdown.clone();
                open.spawn(async move {
                    connection(stream, peer, router, limits, shutdown).await;
                    drop(permit);
                });
            }
            Err(error) => {
                // Out of file descriptors, most likely: without a pause this loop would burn a core.
                tracing::warn!(listener = name, %error, "cannot accept");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    drop(listener);
    open.close();
    open.wait().await;
}

async fn accept(
    listener: &TcpListener,
    connections: &Arc<Semaphore>,
) -> std::io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let permit = connections.clone().acquire_owned().await.map_err(std::io::Error::other)?;
    let (stream, peer) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok((stream, peer, permit))
}

async fn connection(stream: TcpStream, peer: SocketAddr, router: Router, limits: HttpLimits, shutdown: Shutdown) {
    let service = hyper::service::service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        let mut router = router.clone();
        async move { router.call(request).await }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.headers)
        .max_buf_size(64 << 10)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(serving);
    // Errors here are the peer's: it went away, or sent something that is not HTTP.
    tokio::select! {
        _ = serving.as_mut() => {}
        () = shutdown.reached(Stage::Closing) => {
            serving.as_mut().graceful_shutdown();
            let _ = tokio::time::timeout(limits.closing, serving).await;
        }
    }
}

/// The router with the limits around it.
pub fn bounded(router: Router, limits: HttpLimits) -> Router {
    let requests = Arc::new(Semaphore::new(limits.requests));
    router.layer(DefaultBodyLimit::max(limits.body)).layer(middleware::from_fn(move |request: Request, next: Next| {
        let requests = requests.clone();
        async move {
            let Ok(_permit) = requests.try_acquire() else {
                return problem(StatusCode::SERVICE_UNAVAILABLE, "BUSY", "too many requests under way", true);
            };
            tokio::time::timeout(limits.request, next.run(request)).await.unwrap_or_else(|_| {
                let detail = "the request took too long; whether it had its effect is not known";
                problem(StatusCode::SERVICE_UNAVAILABLE, "TIMEOUT", detail, true)
            })
        }
    }))
}

/// An error as `application/problem+json`, never cached.
pub fn problem(status: StatusCode, code: &str, detail: &str, retryable: bool) -> Response {
    problem_with(status, code, detail, retryable, std::iter::empty::<(String, serde_json::Value)>())
}

/// The same with more members.
pub fn problem_with(
    status: StatusCode,
    code: &str,
    detail: &str,
    retryable: bool,
    more: impl IntoIterator<Item = (impl Into<String>, serde_json::Value)>,
) -> Response {
    let title = status.canonical_reason().unwrap_or("Error");
    let mut body = serde_json::json!({
        "type": "about:blank", "title": title, "status": status.as_u16(),
        "code": code, "detail": detail, "retryable": retryable,
    });
    for (name, value) in more {
        body[name.into()] = value;
    }
    let headers = [(header::CONTENT_TYPE, "application/problem+json"), (header::CACHE_CONTROL, "no-store")];
    (status, headers, body.to_string()).into_response()
}
