//! The ledger of our own order service, over its HTTP API.

use std::time::Duration;

use async_trait::async_trait;
use http::StatusCode;
use reqwest::{Client, Method, Url};
use serde_json::{Value, json};

use super::void::{VoidClient, Voided, http_client, read_json, told};
use super::{LedgerAccess, LedgerError, LedgerReport, Registered, Registration, TotalSet};
use crate::domain::{ActivityId, RequestId, SkuId};

/// The order service's API, with its bearer token.
#[derive(Clone)]
pub struct LedgerClient {
    http: Client,
    base: Url,
    token: String,
    void: VoidClient,
}

impl std::fmt::Debug for LedgerClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LedgerClient").field("base", &self.base.as_str()).finish_non_exhaustive()
    }
}

impl LedgerClient {
    /// A client; `orders_url` is where winners are posted, the API lies beside it. Fails on an address without a path to
    /// replace, or if TLS cannot be set up.
    pub fn new(orders_url: &Url, token: String, deadline: Duration) -> Result<LedgerClient, LedgerError> {
        let void = VoidClient::new(orders_url, Some(token.clone()), deadline)?;
        let mut base = orders_url.clone();
        base.set_query(None);
        base.path_segments_mut().map_err(|()| LedgerError(format!("{orders_url} has no path")))?.pop();
        Ok(LedgerClient { http: http_client(deadline)?, base, token, void })
    }

    /// One call: the status, and the JSON it came with (`null` if it was none).
    pub async fn call(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Result<(StatusCode, Value), LedgerError> {
        let mut url = self.base.clone();
        url.path_segments_mut().map_err(|()| LedgerError("no path".into()))?.pop_if_empty().extend(path);
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let mut request = self.http.request(method, url).bearer_auth(&self.token);
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request.send().await.map_err(told)?;
        let status = response.status();
        Ok((status, read_json(response).await?))
    }
}

/// A reply that was not agreed on.
fn unexpected(status: StatusCode, body: &Value) -> LedgerError {
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            LedgerError(format!("{status}: orders.api_token is not the order service's api_token"))
        }
        _ => LedgerError(format!("{status} {}", detail(body))),
    }
}

fn detail(body: &Value) -> String {
    ["detail", "code", "error"]
        .iter()
        .filter_map(|name| body.get(name).and_then(Value::as_str))
        .collect::<Vec<_>>()
        .join(" ")
}

#[async_trait]
impl LedgerAccess for LedgerClient {
    async fn register(&self, activity: &ActivityId, terms: &Registration) -> Result<Registered, LedgerError> {
        let body = json!({ "register": terms, "epoch": { "from": 0, "to": 1 } });
        match self.call(Method::PUT, &["activities", activity.as_str()], &[], Some(&body)).await? {
            (StatusCode::OK | StatusCode::CREATED, _) => Ok(Registered::Stands),
            (StatusCode::CONFLICT, _) => Ok(Registered::Conflict),
            (status, body) => Err(unexpected(status, &body)),
        }
    }

    async fn set_total(&self, activity: &ActivityId, sku: &SkuId, from: i64, to: i64) -> Result<TotalSet, LedgerError> {
        let body = json!({ "totals": { "sku": sku, "from": from, "to": to } });
        match self.call(Method::PUT, &["activities", activity.as_str()], &[], Some(&body)).await? {
            (StatusCode::OK, _) => Ok(TotalSet::Stands),
            (StatusCode::CONFLICT | StatusCode::NOT_FOUND, body) => Ok(TotalSet::Refused(detail(&body))),
            (status, body) => Err(unexpected(status, &body)),
        }
    }

    async fn void(&self, activity: &ActivityId, id: RequestId) -> Result<Voided, LedgerError> {
        self.void.void(activity, id).await
    }

    async fn report(&self, activity: &ActivityId) -> Result<Option<LedgerReport>, LedgerError> {
        match self.call(Method::GET, &["activities", activity.as_str()], &[], None).await? {
            (StatusCode::OK, body) => serde_json::from_value(body)
                .map(Some)
                .map_err(|error| LedgerError(format!("a report that cannot be read: {error}"))),
            (StatusCode::NOT_FOUND, _) => Ok(None),
            (status, body) => Err(unexpected(status, &body)),
        }
    }
}
