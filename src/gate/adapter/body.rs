//! Reads a request's body before anything is answered: small, bounded, timed. A body left unread would cost the
//! connection, and perhaps the reply.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::Version;
use http::header::{CONTENT_LENGTH, EXPECT, TRANSFER_ENCODING};
use pingora::http::ResponseHeader;
use pingora::proxy::Session;

use crate::domain::refusal::Code;
use crate::gate::answer::Refusal;

/// Reads the body of a request under the prefix.
///
/// # Errors
/// BAD_REQUEST for a body of no declared length, TOO_LARGE, TIMEOUT. The connection cannot go on after any of them.
pub(super) async fn read(session: &mut Session, max_bytes: usize, deadline: Duration) -> Result<Bytes, Refusal> {
    let headers = &session.req_header().headers;
    if headers.contains_key(TRANSFER_ENCODING) {
        // With it the length is not known ahead, and beside Content-Length it smuggles.
        let detail = "Transfer-Encoding is not taken here; send the body with Content-Length.";
        return Err(Refusal::bad_request(detail).closing());
    }
    // The server has checked that several values agree; the first one may still list them.
    let declared = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let length = match declared.map(|text| text.split(',').next().unwrap_or_default().trim().parse::<usize>()) {
        None | Some(Ok(0)) => return Ok(Bytes::new()),
        Some(Ok(length)) => length,
        Some(Err(_)) => return Err(Refusal::bad_request("Content-Length is not a number.").closing()),
    };
    if length > max_bytes {
        return Err(Refusal::from(Code::TooLarge)
            .detail(format!("The body may be {max_bytes} bytes long at most."))
            .closing());
    }
    let waits = headers.get(EXPECT).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
        && session.req_header().version >= Version::HTTP_11;
    let collect = async {
        if waits && let Ok(go_on) = ResponseHeader::build_no_case(100, Some(0)) {
            // The server takes any header written before the body is in for a reason to close.
            let keepalive = session.get_keepalive();
            session.downstream_session.write_response_header(Box::new(go_on)).await?;
            session.set_keepalive(keepalive);
        }
        let mut whole: Option<Bytes> = None;
        let mut joined = BytesMut::new();
        while let Some(chunk) = session.downstream_session.read_request_body().await? {
            // Nearly always there is one chunk, which needs no copy.
            match whole.take() {
                None if joined.is_empty() => whole = Some(chunk),
                None => joined.extend_from_slice(&chunk),
                Some(first) => {
                    joined.reserve(length);
                    joined.extend_from_slice(&first);
                    joined.extend_from_slice(&chunk);
                }
            }
        }
        Ok::<_, Box<pingora::Error>>(whole.unwrap_or_else(|| joined.freeze()))
    };
    match tokio::time::timeout(deadline, collect).await {
        Ok(Ok(body)) if body.len() == length => Ok(body),
        Ok(_) => Err(Refusal::bad_request("The body did not arrive whole.").closing()),
        Err(_) => Err(Refusal::from(Code::Timeout).closing()),
    }
}
