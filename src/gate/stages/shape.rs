//! Stage 1, the rest of the shape: keys, content types, bodies.

use http::header::HOST;
use http::{HeaderMap, Version};
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::config::scalars::Span;
use crate::domain::{IdempotencyKey, SkuId};
use crate::gate::answer::Refusal;
use crate::gate::request::Inbound;

/// The client's key.
///
/// # Errors
/// BAD_REQUEST if it is missing or malformed.
pub fn idempotency_key(request: &Inbound<'_>) -> Result<IdempotencyKey, Refusal> {
    let value = request.single("idempotency-key")?.ok_or(Refusal::bad_request("Idempotency-Key is missing."))?;
    IdempotencyKey::from_header(value).map_err(|_| {
        Refusal::bad_request("Idempotency-Key must be 1-64 of A-Z a-z 0-9 . _ -, bare or in double quotes.")
    })
}

/// The body must be named as JSON.
///
/// # Errors
/// BAD_REQUEST if it is not.
pub fn json_content_type(request: &Inbound<'_>) -> Result<(), Refusal> {
    let value = request.single("content-type")?.unwrap_or_default();
    let media_type = value.split(';').next().unwrap_or_default().trim();
    if media_type.eq_ignore_ascii_case("application/json") {
        Ok(())
    } else {
        Err(Refusal::bad_request("Content-Type must be application/json."))
    }
}

/// Deeper payloads are refused: the strictest of the usual JSON readers go no further, and an order that the order service
/// cannot read would hold its unit for ever.
pub const MAX_DEPTH: usize = 64;

/// The order payload must be one JSON value in UTF-8, at most [`MAX_DEPTH`] deep; what it says is the shop's business.
///
/// # Errors
/// BAD_REQUEST if it is not.
pub fn payload(body: &[u8]) -> Result<(), Refusal> {
    // Skipping a value skips the bytes of its strings too, so these are looked at first.
    let text = std::str::from_utf8(body).map_err(|_| Refusal::bad_request("The body is not UTF-8."))?;
    serde_json::from_str::<IgnoredAny>(text).map_err(|_| Refusal::bad_request("The body is not JSON."))?;
    if depth(text) > MAX_DEPTH {
        return Err(Refusal::bad_request("The body is nested more than 64 deep."));
    }
    Ok(())
}

/// How deep the objects and lists of a JSON text are nested.
fn depth(json: &str) -> usize {
    let (mut deepest, mut depth) = (0_usize, 0_usize);
    let (mut in_string, mut escaped) = (false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_string,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// HTTP/1.1 demands exactly one Host; nowhere may there be two, or one that is no host. The shop may go by it.
///
/// # Errors
/// BAD_REQUEST.
pub fn host(version: Version, headers: &HeaderMap) -> Result<(), Refusal> {
    let mut values = headers.get_all(HOST).iter();
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~%:[]".contains(byte);
    match (values.next(), values.next()) {
        (None, _) if version == Version::HTTP_11 => Err(Refusal::bad_request("Host is missing.")),
        (_, Some(_)) => Err(Refusal::bad_request("Host stands more than once.")),
        (Some(host), None) if !host.as_bytes().iter().all(plain) => {
            Err(Refusal::bad_request("Host is not a host name."))
        }
        _ => Ok(()),
    }
}

#[derive(Deserialize)]
struct TokenBody {
    sku: SkuId,
    #[serde(default = "one")]
    qty: u32,
}

fn one() -> u32 {
    1
}

/// What a token is asked for: SKU and quantity (1 if left out).
///
/// # Errors
/// BAD_REQUEST if the body does not say.
pub fn token_body(body: &[u8]) -> Result<(SkuId, u32), Refusal> {
    // A list of the fields' values would be read as well.
    let object = body.trim_ascii_start().starts_with(b"{");
    match serde_json::from_slice::<TokenBody>(body) {
        Ok(TokenBody { sku, qty }) if object && qty > 0 => Ok((sku, qty)),
        _ => Err(Refusal::bad_request("The body must be JSON like {\"sku\":\"name\",\"qty\":1}, with qty at least 1.")),
    }
}

/// The longest that a client may wait for a result.
pub const LONGEST_WAIT: Span = Span::seconds(30);

/// How long the client wants to wait for a result: `wait=20s`; at most [`LONGEST_WAIT`]. Other parameters are ignored.
///
/// # Errors
/// BAD_REQUEST if it is no length of time.
pub fn wait(query: Option<&str>) -> Result<std::time::Duration, Refusal> {
    let wanted = query.unwrap_or_default().split('&').find_map(|pair| pair.strip_prefix("wait="));
    match wanted.map(str::parse::<Span>) {
        None => Ok(std::time::Duration::ZERO),
        Some(Ok(span)) => Ok(span.min(LONGEST_WAIT).0),
        Some(Err(_)) => Err(Refusal::bad_request("wait must be a length of time like 20s.")),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_token_is_asked_for_in_one_form() {
        let good = |body: &str| token_body(body.as_bytes()).ok().map(|(sku, qty)| (sku.to_string(), qty));
        assert_eq!(good(r#"{"sku":"a","qty":2}"#), Some(("a".into(), 2)));
        assert_eq!(good(r#"{"sku":"a"}"#), Some(("a".into(), 1)));
        assert_eq!(good(r#"{"sku":"a","qty":1,"challenge":"x"}"#), Some(("a".into(), 1)));
        for bad in
            ["", "{}", "[]", r#"["a",2]"#, r#"{"sku":"A"}"#, r#"{"sku":"a","qty":0}"#, r#"{"sku":"a","qty":-1}"#, "{"]
        {
            assert_eq!(good(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_payload_is_json_that_everybody_can_read() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let brackets_in_text = format!(r#"{{"a":"\\\"{}"}}"#, "[{".repeat(100));
        for good in ["{}", "[1]", "7", "\"ü\"", &nested(MAX_DEPTH), &brackets_in_text] {
            assert_eq!(payload(good.as_bytes()), Ok(()), "{good}");
        }
        let deep = nested(MAX_DEPTH + 1);
        for bad in [&b""[..], b"{", b"{}{}", b"\"\xff\"", b"{\"\xc3\":1}", b"\xef\xbb\xbf{}", deep.as_bytes()] {
            assert!(payload(bad).is_err(), "{}", String::from_utf8_lossy(bad));
        }
    }

    #[test]
    fn there_is_one_host_and_it_is_one() {
        let judged = |version, hosts: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in hosts {
                headers.append(HOST, value.parse().unwrap());
            }
            host(version, &headers).is_ok()
        };
        for good in ["shop.test", "shop.test:8080", "127.0.0.1:80", "[::1]:80", "my_shop"] {
            assert!(judged(Version::HTTP_11, &[good]), "{good}");
        }
        for bad in ["a, b", "a/b", "u@a", "a b", "a?b", "a\\b"] {
            assert!(!judged(Version::HTTP_11, &[bad]), "{bad}");
        }
        assert!(!judged(Version::HTTP_11, &[]) && judged(Version::HTTP_10, &[]));
        assert!(!judged(Version::HTTP_11, &["a", "a"]) && !judged(Version::HTTP_10, &["a", "a"]));
    }

    #[test]
    fn a_wait_is_bounded() {
        assert_eq!(wait(None), Ok(Duration::ZERO));
        assert_eq!(wait(Some("a=b&wait=20s")), Ok(Duration::from_secs(20)));
        assert_eq!(wait(Some("wait=1h")), Ok(LONGEST_WAIT.0));
        assert!(wait(Some("wait=soon")).is_err());
    }
}
