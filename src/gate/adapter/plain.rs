//! Whether a request was written plainly. The server underneath is lenient where it can make sense of a request; whoever
//! stands before the gate, or the shop behind it, may make another sense of it, and then the two see different requests.

use http::HeaderMap;
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use pingora::proxy::Session;

/// What is not plain about the request's line and header block, as they came over the wire; on every path.
pub fn fault_of_lines(session: &Session) -> Option<&'static str> {
    let raw = session.downstream_session.as_http1()?.get_headers_raw_bytes();
    if raw.first() == Some(&b'\n') || raw.windows(2).any(|pair| pair[1] == b'\n' && pair[0] != b'\r') {
        return Some("The header holds a line feed without a carriage return.");
    }
    let line = raw.trim_ascii_start().split(|&byte| byte == b'\r').next().unwrap_or_default();
    // The server has cut it off already, and what is judged is what was sent.
    if line.contains(&b'#') {
        return Some("The request target holds a fragment, which is the client's own business.");
    }
    None
}

/// What is not plain about the framing of a body that goes on to the shop: one framing, said once, in one way.
pub fn fault_of_framing(session: &Session) -> Option<&'static str> {
    let headers = &session.req_header().headers;
    let raw = session.downstream_session.as_http1().map(|http1| http1.get_headers_raw_bytes());
    // The server drops one of two framings, and one of two lengths that say the same.
    let lengths = raw.map_or_else(|| count(headers, CONTENT_LENGTH.as_str()), |raw| lengths_in(&raw));
    let codings = count(headers, TRANSFER_ENCODING.as_str());
    match (lengths, codings) {
        (1.., 1..) => return Some("Content-Length and Transfer-Encoding stand together."),
        (2.., _) => return Some("Content-Length stands there twice."),
        (_, 2..) => return Some("Transfer-Encoding stands there twice."),
        _ => {}
    }
    let plain_length = headers.get(CONTENT_LENGTH).is_none_or(|value| value.as_bytes().iter().all(u8::is_ascii_digit));
    if !plain_length {
        return Some("Content-Length is one number.");
    }
    let coding = headers.get(TRANSFER_ENCODING);
    // Another coding would be lost on the way: the server undoes the chunks only.
    if coding.is_some_and(|coding| !coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked")) {
        return Some("Transfer-Encoding may be chunked, and nothing else.");
    }
    None
}

fn count(headers: &HeaderMap, name: &str) -> usize {
    headers.get_all(name).iter().count()
}

fn lengths_in(raw: &[u8]) -> usize {
    let names = raw.split(|&byte| byte == b'\n').filter_map(|line| line.split(|&byte| byte == b':').next());
    names.filter(|name| name.trim_ascii().eq_ignore_ascii_case(CONTENT_LENGTH.as_str().as_bytes())).count()
}
