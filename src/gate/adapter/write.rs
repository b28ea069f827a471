//! Writes an answer: header and body leave in one write, with Content-Length, and the connection stays open.

use http::header::CONTENT_LENGTH;
use http::{HeaderName, HeaderValue, Method};
use pingora::http::ResponseHeader;
use pingora::proxy::Session;

use super::connection::Connection;
use crate::gate::answer::Answer;

/// Writes a whole answer.
///
/// # Errors
/// If the client is gone.
pub(super) async fn answer(session: &mut Session, answer: Answer) -> pingora::Result<()> {
    if answer.close {
        session.set_keepalive(None);
        if let Some(connection) = connection(session) {
            connection.linger();
        }
    }
    let head = session.req_header().method == Method::HEAD;
    // Room for what is added here and by the server.
    let room = answer.headers.len() + 3;
    let spelled = answer.headers.iter().any(|(name, _)| spelling(name).is_some());
    let mut header = if spelled {
        ResponseHeader::build(answer.status, Some(room))?
    } else {
        ResponseHeader::build_no_case(answer.status, Some(room))?
    };
    for (name, value) in answer.headers {
        match spelling(&name) {
            Some(spelled) => header.append_header(spelled, value)?,
            None => header.append_header(name, value)?,
        };
    }
    let bodiless = answer.status == 304 || answer.status == 204;
    if !bodiless {
        header.insert_header(CONTENT_LENGTH, HeaderValue::from(answer.body.len()))?;
    }
    session.downstream_session.write_response_header(Box::new(header)).await?;
    if head || bodiless {
        return session.downstream_session.finish_body().await;
    }
    session.downstream_session.write_response_body(answer.body, true).await
}

/// A whole answer as bytes, for a client that has not sent a whole request; the connection closes after it.
pub(super) fn on_the_wire(answer: &Answer) -> Vec<u8> {
    let status = http::StatusCode::from_u16(answer.status).unwrap_or(http::StatusCode::BAD_REQUEST);
    let mut wire = format!("HTTP/1.1 {} {}\r\n", answer.status, status.canonical_reason().unwrap_or("-")).into_bytes();
    for (name, value) in &answer.headers {
        wire.extend_from_slice(name.as_str().as_bytes());
        wire.extend_from_slice(b": ");
        wire.extend_from_slice(value.as_bytes());
        wire.extend_from_slice(b"\r\n");
    }
    wire.extend_from_slice(format!("Connection: close\r\nContent-Length: {}\r\n\r\n", answer.body.len()).as_bytes());
    wire.extend_from_slice(&answer.body);
    wire
}

/// The spelling of our own headers; standard ones have theirs.
fn spelling(name: &HeaderName) -> Option<&'static str> {
    match name.as_str() {
        "seckill-outcome" => Some("Seckill-Outcome"),
        "seckill-request-id" => Some("Seckill-Request-Id"),
        "ratelimit" => Some("RateLimit"),
        "ratelimit-policy" => Some("RateLimit-Policy"),
        _ => None,
    }
}

/// The connection under a session.
pub(super) fn connection(session: &Session) -> Option<&Connection> {
    // Through the box: the box itself is an IO type, too.
    session.downstream_session.stream().and_then(|stream| (**stream).as_any().downcast_ref())
}
