//! The bearer API: orders, void, totals, listings, audit.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::Deserialize;
use serde_json::json;

use super::reply::{Problem, json_reply, told};
use super::{Service, one_header, read_body};
use crate::domain::{ActivityId, InvalidId, RequestId, SkuId};
use crate::orders::ledger::{Registered, Registration, TotalSet, Voided};
use crate::orders::order::{OrderId, OrderState};

/// Rows of a page unless `limit` says less.
const PAGE_ROWS: u32 = 1_000;

type Answer = Result<Response, Problem>;

/// Where a page starts, and how long it is.
#[derive(Deserialize)]
pub(super) struct Page {
    #[serde(default)]
    after: Option<String>,
    #[serde(default)]
    limit: Option<u32>,
}

impl Page {
    fn limit(&self) -> u32 {
        self.limit.unwrap_or(PAGE_ROWS).clamp(1, PAGE_ROWS)
    }
}

/// The body of `PUT /activities/{id}`: one of two.
#[derive(Deserialize)]
#[serde(untagged)]
enum Put {
    Register(PutRegister),
    Totals(PutTotals),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PutRegister {
    register: Registration,
    epoch: EpochMove,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EpochMove {
    from: u64,
    to: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PutTotals {
    totals: TotalMove,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TotalMove {
    sku: SkuId,
    from: u32,
    to: u32,
}

pub(super) async fn order(State(service): State<Arc<Service>>, Path(id): Path<String>) -> Answer {
    let OrderId(id) = OrderId::parse_either(&id).map_err(bad_id)?;
    let order = service.ledger.find(id).await?;
    let order = order.ok_or_else(|| Problem::new(StatusCode::NOT_FOUND, "NO_SUCH_ORDER", "not known (yet)"))?;
    let body = json!({
        "order_id": order.order_id().to_string(),
        "request_id": order.request_id,
        "activity": order.activity,
        "sku": order.sku,
        "qty": order.qty,
        "user": order.user,
        "state": order.state.as_str(),
        "reason": order.reason,
        "epoch": order.epoch,
        "created_at_ms": order.created_at_ms,
        "payload": String::from_utf8_lossy(&order.payload),
    });
    Ok(json_reply(StatusCode::OK, &body))
}

pub(super) async fn void(State(service): State<Arc<Service>>, Path(id): Path<String>, headers: HeaderMap) -> Answer {
    let id: RequestId = id.parse().map_err(bad_id)?;
    // Optional: it lets the void row appear in the sale's listings.
    let activity = match headers.contains_key("seckill-activity") {
        true => Some(one_header(&headers, "seckill-activity")?.parse::<ActivityId>().map_err(bad_id)?),
        false => None,
    };
    Ok(match service.ledger.void(id, activity.as_ref()).await? {
        Voided::Void => json_reply(StatusCode::OK, &json!({"state": OrderState::Void.as_str()})),
        Voided::Exists(order) => {
            let mut response = told(&order);
            // The order, whatever its state, is what stands against the void.
            *response.status_mut() = StatusCode::CONFLICT;
            response
        }
    })
}

pub(super) async fn activity(State(service): State<Arc<Service>>, Path(id): Path<String>) -> Answer {
    let activity = id.parse().map_err(bad_id)?;
    let report = service.ledger.report(&activity).await?;
    Ok(json_reply(StatusCode::OK, &report.ok_or_else(no_such_activity)?))
}

pub(super) async fn put_activity(State(service): State<Arc<Service>>, Path(id): Path<String>, body: Body) -> Answer {
    let activity: ActivityId = id.parse().map_err(bad_id)?;
    let body = read_body(body).await?;
    let put = serde_json::from_slice(&body).map_err(|_| {
        Problem::bad(
            "the body must be {\"register\":{\"per_user_limit\",\"rebuy_after_release\",\"payment_deadline_ms\",\
             \"skus\":{sku:units}},\"epoch\":{\"from\",\"to\"}} or {\"totals\":{\"sku\",\"from\",\"to\"}}",
        )
    })?;
    match put {
        Put::Register(put) => register(&service, activity, put).await,
        Put::Totals(put) => set_total(&service, &activity, &put.totals).await,
    }
}

async fn register(service: &Service, activity: ActivityId, put: PutRegister) -> Answer {
    let terms = put.register;
    if terms.per_user_limit == 0 || terms.skus.is_empty() || terms.skus.values().any(|units| *units == 0) {
        return Err(Problem::bad("the limit, the SKUs and the units of each must be at least 1"));
    }
    if put.epoch.to <= put.epoch.from {
        return Err(Problem::bad("the epoch must grow"));
    }
    let created = match service.ledger.register(&activity, &terms, put.epoch.from, put.epoch.to).await? {
        Registered::Created => true,
        Registered::Already => false,
        Registered::Conflict { epoch, orders } => {
            let detail = "the ledger remembers this activity otherwise, or has orders of it";
            let problem = Problem::new(StatusCode::CONFLICT, "ACTIVITY_EXISTS", detail);
            return Err(problem.with("epoch", epoch).with("orders", orders));
        }
    };
    service.activities.add(&activity);
    Ok(json_reply(StatusCode::OK, &json!({"activity": activity, "epoch": put.epoch.to, "created": created})))
}

async fn set_total(service: &Service, activity: &ActivityId, totals: &TotalMove) -> Answer {
    let conflict = |detail: &str| Problem::new(StatusCode::CONFLICT, "TOTAL_CONFLICT", detail);
    let changed = match service.ledger.set_total(activity, &totals.sku, totals.from, totals.to).await? {
        TotalSet::Done => true,
        TotalSet::Already => false,
        TotalSet::OtherTotal(total) => return Err(conflict("the total is another one").with("total", total)),
        TotalSet::Sold(sold) => return Err(conflict("more are sold than that").with("sold", sold)),
        TotalSet::Unknown => {
            return Err(Problem::new(StatusCode::NOT_FOUND, "NO_SUCH_SKU", "the ledger does not know this SKU"));
        }
    };
    Ok(json_reply(StatusCode::OK, &json!({"sku": totals.sku, "total": totals.to, "changed": changed})))
}

pub(super) async fn journal(
    State(service): State<Arc<Service>>,
    Path(id): Path<String>,
    Query(page): Query<Page>,
) -> Answer {
    let activity = id.parse().map_err(bad_id)?;
    let after = page.after.as_deref().unwrap_or("0").parse();
    let after = after.map_err(|_| Problem::bad("`after` must be the id of a line"))?;
    let lines = service.ledger.journal(&activity, after, page.limit()).await?;
    let next = lines.last().map(|line| line.id);
    Ok(json_reply(StatusCode::OK, &json!({"journal": lines, "next": next})))
}

pub(super) async fn orders(
    State(service): State<Arc<Service>>,
    Path(id): Path<String>,
    Query(page): Query<Page>,
) -> Answer {
    let activity = id.parse().map_err(bad_id)?;
    let after = page.after.as_deref().map(str::parse).transpose().map_err(bad_id)?;
    let orders = service.ledger.orders(&activity, after, page.limit()).await?;
    let next = orders.last().map(|order| order.request_id);
    Ok(json_reply(StatusCode::OK, &json!({"orders": orders, "next": next})))
}

pub(super) async fn audit(State(service): State<Arc<Service>>, Path(id): Path<String>) -> Answer {
    let activity = id.parse().map_err(bad_id)?;
    let audit = service.ledger.audit(&activity).await?;
    Ok(json_reply(StatusCode::OK, &json!({"violations": audit.violations(), "found": audit})))
}

pub(super) async fn set_aside(
    State(service): State<Arc<Service>>,
    Path(id): Path<String>,
    Query(page): Query<Page>,
) -> Answer {
    let activity = id.parse().map_err(bad_id)?;
    let rows = service.ledger.list_set_aside(&activity, page.after.as_deref().unwrap_or(""), page.limit()).await?;
    let next = rows.last().map(|row| row.entry.clone());
    Ok(json_reply(StatusCode::OK, &json!({"set_aside": rows, "next": next})))
}

pub(super) async fn put_back(
    State(service): State<Arc<Service>>,
    Path((activity, id)): Path<(String, String)>,
) -> Answer {
    let activity: ActivityId = activity.parse().map_err(bad_id)?;
    let id: RequestId = id
        .parse()
        .map_err(|_| Problem::bad("only an order can be put back, named by its request id of 32 hex digits"))?;
    let put_back = service.ledger.put_back(&activity, id).await?;
    if put_back {
        tracing::info!(%activity, request_id = %id, "put back by an operator; its next delivery queues it");
    }
    Ok(json_reply(StatusCode::OK, &json!({"request_id": id, "put_back": put_back})))
}

fn bad_id(error: InvalidId) -> Problem {
    Problem::bad(&error.to_string())
}

fn no_such_activity() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "NO_SUCH_ACTIVITY", "the ledger does not know this activity")
}
