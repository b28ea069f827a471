//! One request: to the pipeline if it is under the prefix, else to the shop.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use http::header::EXPECT;
use http::{HeaderMap, HeaderName};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::modules::http::HttpModules;
use pingora::proxy::{FailToProxy, ProxyHttp, ProxyWarnLogContext, Session};
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorSource, ErrorType};

use super::shop::{Shop, ShopPass};
use super::{body, plain, write};
use crate::domain::refusal::Code;
use crate::gate::answer::Refusal;
use crate::gate::delivery::told::FirstDelivery;
use crate::gate::edge::{Edge, Sale};
use crate::gate::pipeline;
use crate::gate::port::AttemptPort;
use crate::gate::request::{Inbound, Route, RouteName};
use crate::gate::stages::path::{self, Place};
use crate::gate::stages::shape;

/// Longest request target, query included.
const MAX_TARGET: usize = 8 << 10;
/// A body that no route needs is read up to this size, to keep the connection.
const MAX_IDLE_BODY: usize = 64 << 10;

pub(super) struct Proxy<A, D> {
    edge: Arc<Edge<A, D>>,
    shop: Shop,
    in_flight: Arc<AtomicUsize>,
    served: AtomicU64,
    shop_failures: AtomicU64,
}

/// What is kept of one request.
pub(super) struct Ctx {
    route: RouteName,
    /// Held while it is under way at the shop.
    shop: Option<ShopPass>,
    in_flight: Arc<AtomicUsize>,
}

impl Drop for Ctx {
    fn drop(&mut self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<A: AttemptPort, D: FirstDelivery<A>> Proxy<A, D> {
    pub(super) fn new(edge: Arc<Edge<A, D>>, shop: Shop, in_flight: Arc<AtomicUsize>) -> Proxy<A, D> {
        Proxy { edge, shop, in_flight, served: AtomicU64::new(0), shop_failures: AtomicU64::new(0) }
    }

    /// Answers a request under the prefix, `target` being its path below the prefix, and its query.
    async fn serve_sale(
        &self,
        session: &mut Session,
        ctx: &mut Ctx,
        sale: &Sale<A>,
        (rest, query): (&str, Option<&str>),
    ) -> pingora::Result<()> {
        let route = Route::of(rest);
        ctx.route = route.name(&session.req_header().method);
        let refused = pipeline::check_route(&route, &session.req_header().method).err();
        let max_bytes = if refused.is_none() && session.req_header().method == http::Method::POST {
            sale.max_body
        } else {
            MAX_IDLE_BODY
        };
        let body = match (body::read(session, max_bytes, sale.body_deadline).await, refused) {
            (Ok(body), None) => body,
            (Ok(_), Some(refusal)) => return self.refuse(session, sale, refusal).await,
            (Err(_), Some(refusal)) => return self.refuse(session, sale, refusal.closing()).await,
            (Err(unread), None) => return self.refuse(session, sale, unread).await,
        };
        let header = session.req_header();
        let request = Inbound {
            method: &header.method,
            query,
            headers: &header.headers,
            client: sale.proxies.client(peer(session), &header.headers),
            body,
            now: self.edge.clock.now(),
            wall_ms: crate::platform::clock::wall_ms(),
        };
        let answer = pipeline::serve(&self.edge, sale, &route, &request).await;
        drop(request);
        self.close_if_draining(session);
        write::answer(session, answer).await
    }

    /// Refuses a request whose body nobody needs; the connection stays if the body was short.
    async fn refuse_unread(&self, session: &mut Session, sale: &Sale<A>, refusal: Refusal) -> pingora::Result<()> {
        let read = body::read(session, MAX_IDLE_BODY, sale.body_deadline).await;
        self.refuse(session, sale, if read.is_ok() { refusal } else { refusal.closing() }).await
    }

    async fn refuse(&self, session: &mut Session, sale: &Sale<A>, refusal: Refusal) -> pingora::Result<()> {
        self.close_if_draining(session);
        write::answer(session, sale.problems.render(&refusal)).await
    }

    /// To be called before a reply's header is written: a client that is told that the connection closes sends its next
    /// request elsewhere, and never into a connection that is just being closed.
    fn close_if_draining(&self, session: &mut Session) {
        if self.edge.draining.is_cancelled() {
            session.set_keepalive(None);
        }
    }
}

/// The address of the other end of the connection.
fn peer(session: &Session) -> IpAddr {
    let address = session.client_addr().and_then(|address| address.as_inet());
    address.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |address| address.ip())
}

/// Gives the client no more than the rest of its body's time for the next piece.
fn hurry(session: &mut Session, pass: &ShopPass) -> pingora::Result<()> {
    let left = pass.left_for_body();
    if left.is_zero() {
        return Err(Error::explain(ErrorType::ReadTimedout, "the body took too long").into_down());
    }
    let each = session.downstream_session.get_read_timeout();
    session.downstream_session.set_read_timeout(Some(each.map_or(left, |each| each.min(left))));
    Ok(())
}

/// Whether it is the client's turn: its body is not through, and it does not wait to be told to send it.
fn owes_body(session: &mut Session) -> bool {
    !session.is_body_done() && !session.req_header().headers.contains_key(EXPECT)
}

/// Names that only the gate may send to the shop: `Seckill-*`, and the spellings that CGI-like servers make the same.
fn is_reserved(name: &HeaderName) -> bool {
    let rest = name.as_str().strip_prefix("seckill");
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', '_']))
        || name.as_str() == "x_forwarded_for"
        || name.as_str() == "x-forwarded_for"
        || name.as_str() == "x_forwarded-for"
}

/// The line that tells the shop where the request came from: what came in, and the peer.
fn forwarded_for(headers: &HeaderMap, peer: IpAddr) -> String {
    let mut line = String::new();
    for value in headers.get_all("x-forwarded-for").iter().filter_map(|value| value.to_str().ok()) {
        line.push_str(value);
        line.push_str(", ");
    }
    line.push_str(&peer.to_canonical().to_string());
    line
}

#[async_trait]
impl<A: AttemptPort, D: FirstDelivery<A>> ProxyHttp for Proxy<A, D> {
    type CTX = Ctx;

    fn new_ctx(&self) -> Ctx {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        Ctx { route: RouteName::None, shop: None, in_flight: Arc::clone(&self.in_flight) }
    }

    /// None: compression is the shop's business.
    fn init_downstream_modules(&self, _modules: &mut HttpModules) {}

    async fn early_request_filter(&self, session: &mut Session, _ctx: &mut Ctx) -> pingora::Result<()> {
        if let Some(connection) = write::connection(session) {
            connection.header_is_through();
        }
        // Without it a pipelined request is dropped without a word.
        session.downstream_session.set_pipelining_enabled(true);
        Ok(())
    }

    async fn request_filter(&self, session: &mut Session, ctx: &mut Ctx) -> pingora::Result<bool> {
        let sale = self.edge.sale.load_full();
        let target = session.req_header().raw_path();
        if target.len() > MAX_TARGET {
            self.refuse(session, &sale, Refusal::from(Code::UriTooLarge).closing()).await?;
            return Ok(true);
        }
        if let Some(fault) = plain::fault_of_lines(session) {
            self.refuse(session, &sale, Refusal::bad_request(fault).closing()).await?;
            return Ok(true);
        }
        if let Err(refusal) = shape::host(session.req_header().version, &session.req_header().headers) {
            self.refuse(session, &sale, refusal.closing()).await?;
            return Ok(true);
        }
        let mut parts = target.splitn(2, |&byte| byte == b'?');
        let path = parts.next().unwrap_or_default();
        let (rest, query) = match path::place(path, &sale.prefix) {
            Ok(Place::Shop) => {
                ctx.route = RouteName::Shop;
                if let Some(fault) = plain::fault_of_framing(session) {
                    self.refuse(session, &sale, Refusal::bad_request(fault).closing()).await?;
                    return Ok(true);
                }
                match self.shop.enter() {
                    Ok(pass) => {
                        hurry(session, &pass)?;
                        ctx.shop = Some(pass);
                    }
                    Err(refusal) => {
                        self.refuse_unread(session, &sale, refusal).await?;
                        return Ok(true);
                    }
                }
                return Ok(false);
            }
            // Owned, since reading the body needs the session.
            Ok(Place::Sale(rest)) => {
                let query = parts.next().map(|query| String::from_utf8_lossy(query).into_owned());
                (rest.to_owned(), query)
            }
            Err(ambiguous) => {
                self.refuse_unread(session, &sale, Refusal::bad_request(ambiguous.detail())).await?;
                return Ok(true);
            }
        };
        self.serve_sale(session, ctx, &sale, (&rest, query.as_deref())).await?;
        Ok(true)
    }

    async fn upstream_peer(&self, _session: &mut Session, _ctx: &mut Ctx) -> pingora::Result<Box<HttpPeer>> {
        Ok(Box::new(self.shop.peer()))
    }

    /// Runs after the server has stripped what `Connection` nominates, so nothing set here can be stripped by a client.
    async fn upstream_request_filter(
        &self,
        session: &mut Session,
        upstream: &mut RequestHeader,
        _ctx: &mut Ctx,
    ) -> pingora::Result<()> {
        let reserved: Vec<HeaderName> = upstream.headers.keys().filter(|name| is_reserved(name)).cloned().collect();
        for name in &reserved {
            upstream.remove_header(name);
        }
        let line = forwarded_for(&session.req_header().headers, peer(session));
        upstream.insert_header("X-Forwarded-For", line)
    }

    /// Runs for each piece of a body on its way to the shop.
    async fn request_body_filter(
        &self,
        session: &mut Session,
        _piece: &mut Option<Bytes>,
        is_last: bool,
        ctx: &mut Ctx,
    ) -> pingora::Result<()> {
        match &ctx.shop {
            // After an upgrade there is no body, but two sides that talk for as long as they like.
            Some(pass) if !is_last && !session.was_upgraded() => hurry(session, pass),
            _ => Ok(()),
        }
    }

    async fn response_filter(
        &self,
        session: &mut Session,
        _of_shop: &mut ResponseHeader,
        ctx: &mut Ctx,
    ) -> pingora::Result<()> {
        if let Some(pass) = &mut ctx.shop {
            pass.answered();
        }
        self.close_if_draining(session);
        Ok(())
    }

    /// The shop does not answer, or the client is gone. The one way in which a shop's failure becomes an answer.
    async fn fail_to_proxy(&self, session: &mut Session, e: &Error, ctx: &mut Ctx) -> FailToProxy {
        session.set_keepalive(None);
        let begun = session.response_written().is_some_and(|header| !header.status.is_informational());
        let of_shop = *e.esource() == ErrorSource::Upstream;
        // The shop owes nothing before it has the whole request: it was the client who fell silent.
        let stalled = of_shop && *e.etype() == ErrorType::ReadTimedout && owes_body(session);
        let code = match (e.esource(), e.etype()) {
            _ if begun => None,
            _ if stalled => Some(Code::Timeout),
            (ErrorSource::Downstream, ErrorType::ReadTimedout) => Some(Code::Timeout),
            (ErrorSource::Downstream, ErrorType::InvalidHTTPHeader) => Some(Code::BadRequest),
            (ErrorSource::Downstream, _) => None,
            (_, ErrorType::ConnectTimedout | ErrorType::ReadTimedout | ErrorType::WriteTimedout) => {
                Some(Code::UpstreamTimeout)
            }
            _ => Some(Code::UpstreamUnavailable),
        };
        if let Some(code) = code {
            let sale = self.edge.sale.load_full();
            // The client may be gone; then nobody is left to tell.
            let _ = self.refuse(session, &sale, Refusal::from(code).closing()).await;
            // A body that is still coming would reset the connection, and the answer with it.
            session.downstream_session.shutdown().await;
        }
        if of_shop && !stalled {
            if let Some(pass) = &mut ctx.shop {
                pass.not_answered(e.etype().as_str());
            }
            let failures = self.shop_failures.fetch_add(1, Ordering::Relaxed) + 1;
            // A dead shop under a crowd: one line for the first, then fewer and fewer.
            if failures.is_power_of_two() || failures.is_multiple_of(10_000) {
                tracing::warn!(error = %e, failures, "the shop does not answer");
            }
        }
        FailToProxy { error_code: code.map_or(0, |code| code.meaning().status), can_reuse_downstream: false }
    }

    /// The server would write a line per failed request; [`Proxy::fail_to_proxy`] writes what is worth one.
    fn suppress_error_log(&self, _session: &Session, _ctx: &Ctx, _e: &Error) -> bool {
        true
    }

    fn suppress_proxy_warn_log(&self, _session: &Session, _ctx: &Ctx, _e: &Error, _at: ProxyWarnLogContext) -> bool {
        true
    }

    async fn logging(&self, session: &mut Session, _e: Option<&Error>, ctx: &mut Ctx) {
        let unread = !session.is_body_done();
        if let Some(connection) = write::connection(session) {
            if unread {
                connection.linger();
            }
            connection.request_is_over();
        }
        // 499: the client went away before it was answered.
        let status = session.response_written().map_or(499, |header| header.status.as_u16());
        self.edge.metrics.request(ctx.route, status);
        let sample = u64::from(self.edge.sale.load().access_log_sample);
        if sample > 0 && self.served.fetch_add(1, Ordering::Relaxed).is_multiple_of(sample) {
            let bytes = session.body_bytes_sent();
            tracing::info!(target: "access", route = ctx.route.name(), status, bytes, one_in = sample, "request");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_names_are_known_in_every_spelling() {
        let reserved = |name: &str| is_reserved(&HeaderName::from_bytes(name.as_bytes()).unwrap());
        for name in ["Seckill-User", "SECKILL-TICKET", "seckill_user", "Seckill_Outcome", "seckill", "X_Forwarded_For"]
        {
            assert!(reserved(name), "{name}");
        }
        for name in ["seckillshop", "x-seckill-user", "x-forwarded-for", "host"] {
            assert!(!reserved(name), "{name}");
        }
    }
}
