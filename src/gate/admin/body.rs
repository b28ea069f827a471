//! Bodies of changes: strict JSON with `dry_run`; and what came of them.

use axum::extract::{FromRequest, Request};
use bytes::Bytes;
use http::header;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::problem::Problem;
use crate::platform::http_server::Peer;

/// A change as it was asked for, and by whom.
pub struct Asked<T> {
    /// The body.
    pub body: T,
    /// The other end of the connection.
    pub peer: Option<Peer>,
}

/// A change that needs no more than its route.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plain {
    /// Say what would happen, change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Asked<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let peer = request.extensions().get::<Peer>().copied();
        let is_json = request.headers().get(header::CONTENT_TYPE).is_none_or(|value| {
            let kind = value.to_str().unwrap_or_default().split(';').next().unwrap_or_default();
            kind.trim().eq_ignore_ascii_case("application/json")
        });
        if !is_json {
            return Err(Problem::bad_request("the body is not application/json"));
        }
        let bytes = Bytes::from_request(request, state)
            .await
            .map_err(|rejected| Problem::new(rejected.status(), "BAD_REQUEST", rejected.body_text()))?;
        let text: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
        // serde would read a struct from an array, too.
        if text.trim_ascii_start().first() != Some(&b'{') {
            return Err(Problem::bad_request("the body is not a JSON object"));
        }
        let body = serde_json::from_slice(text).map_err(|error| Problem::bad_request(format!("the body: {error}")))?;
        Ok(Asked { body, peer })
    }
}

/// What came of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// `applied`, `already`, …
    pub name: &'static str,
    /// Whether it was only asked what would happen.
    pub dry_run: bool,
}

impl axum::response::IntoResponse for Outcome {
    fn into_response(self) -> axum::response::Response {
        let mut body = serde_json::json!({ "outcome": self.name });
        if self.dry_run {
            body["dry_run"] = true.into();
        }
        ([(header::CACHE_CONTROL, "no-store")], axum::Json(body)).into_response()
    }
}
