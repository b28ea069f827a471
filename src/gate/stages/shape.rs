//! Stage 1, the rest of the shape: keys, content types, bodies.

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

/// The order payload must be one JSON value; what it says is the shop's business.
///
/// # Errors
/// BAD_REQUEST if it is not.
pub fn payload(body: &[u8]) -> Result<(), Refusal> {
    serde_json::from_slice::<IgnoredAny>(body).map(|_| ()).map_err(|_| Refusal::bad_request("The body is not JSON."))
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
    match serde_json::from_slice::<TokenBody>(body) {
        Ok(TokenBody { sku, qty }) if qty > 0 => Ok((sku, qty)),
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
        for bad in ["", "{}", "[]", r#"{"sku":"A"}"#, r#"{"sku":"a","qty":0}"#, r#"{"sku":"a","qty":-1}"#, "{"] {
            assert_eq!(good(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_wait_is_bounded() {
        assert_eq!(wait(None), Ok(Duration::ZERO));
        assert_eq!(wait(Some("a=b&wait=20s")), Ok(Duration::from_secs(20)));
        assert_eq!(wait(Some("wait=1h")), Ok(LONGEST_WAIT.0));
        assert!(wait(Some("wait=soon")).is_err());
    }
}
