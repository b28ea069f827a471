//! Asking an order service to promise that a request id never becomes an order: `POST {orders.url}/{request_id}/void`.

use std::time::Duration;

use http::{HeaderMap, StatusCode};
use reqwest::{Client, Response, Url, redirect};
use serde_json::Value;

use super::LedgerError;
use crate::domain::win::Release;
use crate::domain::{ActivityId, RequestId};
use crate::gate::delivery::word::ended_by_name;

/// Longest reply that is read, bytes.
const MAX_REPLY: usize = 4 << 20;

/// What the order service said to a void.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Voided {
    /// No order exists under this id, and none ever will.
    Void,
    /// There is an order.
    OrderExists,
    /// By name: it refused the order, or the order has ended.
    Ended(Release),
    /// It has no such route (404, 405 or 501).
    CannotVoid,
}

/// The void route of one order service, ours or a shop's.
#[derive(Clone)]
pub struct VoidClient {
    http: Client,
    orders: Url,
    token: Option<String>,
}

impl std::fmt::Debug for VoidClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VoidClient").field("orders", &self.orders.as_str()).finish_non_exhaustive()
    }
}

impl VoidClient {
    /// A client; `orders` is where winners are posted. Fails on an address that nothing can be put behind, or if TLS cannot
    /// be set up.
    pub fn new(orders: &Url, token: Option<String>, deadline: Duration) -> Result<VoidClient, LedgerError> {
        let mut orders = orders.clone();
        orders.set_query(None);
        if orders.cannot_be_a_base() {
            return Err(LedgerError(format!("{orders} has no path")));
        }
        Ok(VoidClient { http: http_client(deadline)?, orders, token })
    }

    /// Asks once.
    ///
    /// # Errors
    /// If nothing definite was said. The void may stand all the same; asking again is safe.
    pub async fn void(&self, activity: &ActivityId, id: RequestId) -> Result<Voided, LedgerError> {
        let mut url = self.orders.clone();
        url.path_segments_mut()
            .map_err(|()| LedgerError("no path".into()))?
            .pop_if_empty()
            .extend([id.hex().as_str(), "void"]);
        let mut request =
            self.http.post(url).header("seckill-activity", activity.as_str()).header("content-length", "0");
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        let response = request.send().await.map_err(told)?;
        let (status, headers) = (response.status(), response.headers().clone());
        judge(status, &headers, &read_json(response).await?)
    }
}

/// A client that follows no redirect and waits no longer than `deadline`, connecting included.
pub(super) fn http_client(deadline: Duration) -> Result<Client, LedgerError> {
    Client::builder()
        .redirect(redirect::Policy::none())
        .no_proxy()
        .http1_only()
        .pool_idle_timeout(Duration::from_secs(4))
        .timeout(deadline)
        .build()
        .map_err(|error| LedgerError(error.to_string()))
}

/// The whole reply as JSON; `null` if it is none.
pub(super) async fn read_json(mut response: Response) -> Result<Value, LedgerError> {
    let mut text = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(told)? {
        if text.len() + chunk.len() > MAX_REPLY {
            return Err(LedgerError(format!("a reply above {MAX_REPLY} bytes")));
        }
        text.extend_from_slice(&chunk);
    }
    Ok(serde_json::from_slice(&text).unwrap_or(Value::Null))
}

/// What went wrong, without the address: it may hold a password.
pub(super) fn told(error: reqwest::Error) -> LedgerError {
    LedgerError(format!("{:#}", anyhow::Error::new(error.without_url())))
}

/// Only these replies are definite.
fn judge(status: StatusCode, headers: &HeaderMap, body: &Value) -> Result<Voided, LedgerError> {
    match ended_by_name(headers) {
        Ok(Some(release)) => return Ok(Voided::Ended(release)),
        Ok(None) => {}
        Err(_) => return Err(LedgerError("it contradicts itself about the order".into())),
    }
    match status {
        StatusCode::OK if body["state"] == "void" => Ok(Voided::Void),
        StatusCode::CONFLICT => Ok(Voided::OrderExists),
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED => Ok(Voided::CannotVoid),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            Err(LedgerError(format!("{status}: the order service does not take orders.api_token")))
        }
        _ => Err(LedgerError(format!("{status} to a void"))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::win::{Cause, Reason};

    #[test]
    fn only_a_definite_word_voids() {
        let void = || json!({ "state": "void" });
        let refused = Voided::Ended(Release { cause: Cause::Refused, reason: Reason::lossy("no_stock") });
        let rows = [
            (200, None, void(), Some(Voided::Void)),
            (200, None, json!({ "state": "pending" }), None),
            (200, None, Value::Null, None),
            (201, None, void(), None),
            (202, None, void(), None),
            (204, None, Value::Null, None),
            (303, None, void(), None),
            (409, None, json!({ "state": "booked" }), Some(Voided::OrderExists)),
            (409, Some("refused"), Value::Null, Some(refused.clone())),
            (200, Some("refused"), void(), Some(refused)),
            (409, Some("refused,ended"), Value::Null, None),
            (404, None, Value::Null, Some(Voided::CannotVoid)),
            (405, None, Value::Null, Some(Voided::CannotVoid)),
            (501, None, Value::Null, Some(Voided::CannotVoid)),
            (401, None, Value::Null, None),
            (500, None, void(), None),
            (503, None, void(), None),
        ];
        for (status, order, body, expected) in rows {
            let mut headers = HeaderMap::new();
            if let Some(order) = order {
                headers.insert("seckill-order", order.parse().unwrap());
                headers.insert("seckill-reason", "no_stock".parse().unwrap());
            }
            let judged = judge(StatusCode::from_u16(status).unwrap(), &headers, &body);
            assert_eq!(judged.clone().ok(), expected, "{status} {order:?} {body}: {judged:?}");
        }
    }
}
