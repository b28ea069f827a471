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
