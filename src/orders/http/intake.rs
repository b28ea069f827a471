//! `POST /orders`: the gate hands over a win. It comes at least once, always with the same request id.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::reply::{Problem, json_reply, told};
use super::{Service, one_header, read_body};
use crate::domain::{ActivityId, RequestId};
use crate::orders::ledger::{Known, LedgerError};
use crate::orders::order::{NewOrder, OrderId, Word};
use crate::orders::ticket::{Ticket, TicketFault};
use crate::platform::clock::monotonic;

/// How long a winner waits for the ledger's memory. Without it the order is queued: that promises nothing, and the
/// ledger drops what it knows.
const LOOK_UP_WITHIN: Duration = Duration::from_millis(500);

pub(super) async fn post_order(State(service): State<Arc<Service>>, headers: HeaderMap, body: Body) -> Response {
    let (answer, response) = match intake(&service, &headers, body).await {
        Ok(answered) => answered,
        Err(problem) => (problem.code(), problem.into_response()),
    };
    service.metrics.intake.with_label_values(&[answer]).inc();
    response
}

/// The stages in order: genuine, known sale, known order, queue.
///
/// A ledger that does not answer is no reason to turn a win away: it waits in the queue, and 202 says nothing definite.
/// An id that was refused, voided or booked is told so again once the ledger answers.
async fn intake(service: &Service, headers: &HeaderMap, body: Body) -> Result<(&'static str, Response), Problem> {
    let ticket = ticket(service, headers)?;
    let payload = read_body(body).await?;
    if !service.activities.contains(&ticket.activity) {
        refresh(service).await?;
        if !service.activities.contains(&ticket.activity) {
            let detail = "the ledger does not know this activity; it must be registered before it is preheated";
            return Err(Problem::new(StatusCode::NOT_FOUND, "NO_SUCH_ACTIVITY", detail));
        }
    }
    let answer = match look_up(service, &ticket.activity, ticket.request_id).await {
        Some(Known::Order(order)) => {
            let answer = match order.state.word() {
                Word::Booked => "booked",
                Word::Refused => "refused",
                Word::Ended => "ended",
            };
            return Ok((answer, told(&order)));
        }
        // Queueing it again would only fail again. The gate's dead mark calls for an operator.
        Some(Known::SetAside) => {
            let detail = "the ledger could not take this order, and it was set aside; an operator must look at it";
            return Err(Problem::later("SET_ASIDE", detail));
        }
        Some(Known::No) => "queued",
        None => "queued_unchecked",
    };
    let order = NewOrder {
        request_id: ticket.request_id,
        activity: ticket.activity,
        sku: ticket.sku,
        qty: ticket.qty,
        user: ticket.user,
        epoch: ticket.epoch,
        payload,
    };
    service.queue.push(&order).await?;
    let body = json!({"order_id": OrderId(order.request_id).to_string(), "state": "queued"});
    Ok((answer, json_reply(StatusCode::ACCEPTED, &body)))
}

/// What the ledger knows of an id; `None` if it does not say.
async fn look_up(service: &Service, activity: &ActivityId, id: RequestId) -> Option<Known> {
    if !service.sight.may_ask(monotonic()) {
        return None;
    }
    match service.ledger.look_up(activity, id, LOOK_UP_WITHIN).await {
        Ok(known) => {
            service.sight.answered();
            Some(known)
        }
        Err(error) => {
            if service.sight.was_silent(monotonic()) {
                tracing::warn!(%error, "the ledger does not answer; orders are queued unchecked until it does");
            }
            None
        }
    }
}

/// A sale that this process has not heard of: without the ledger it cannot be told from one that does not exist.
async fn refresh(service: &Service) -> Result<(), LedgerError> {
    if !service.sight.may_ask(monotonic()) {
        return Err(LedgerError::Unavailable("it was silent a moment ago".into()));
    }
    let refreshed = service.activities.refresh(&*service.ledger).await;
    match &refreshed {
        Ok(()) => service.sight.answered(),
        Err(_) => _ = service.sight.was_silent(monotonic()),
    }
    refreshed
}

/// The ticket, which the other headers must agree with: they are for people and logs, it alone is signed.
fn ticket(service: &Service, headers: &HeaderMap) -> Result<Ticket, Problem> {
    let said = Said {
        key: one_header(headers, "idempotency-key")?,
        activity: one_header(headers, "seckill-activity")?,
        sku: one_header(headers, "seckill-sku")?,
        quantity: one_header(headers, "seckill-quantity")?,
        user: one_header(headers, "seckill-user")?,
    };
    let ticket = service
        .tickets
        .verify(one_header(headers, "seckill-ticket")?, (service.wall_ms)())
        .map_err(|fault| unauthorised(&fault))?;
    if said.agrees(&ticket) {
        Ok(ticket)
    } else {
        Err(Problem::new(StatusCode::UNAUTHORIZED, "TICKET_MISMATCH", "the headers say otherwise than the ticket"))
    }
}

fn unauthorised(fault: &TicketFault) -> Problem {
    let code = match fault {
        TicketFault::Expired => "TICKET_EXPIRED",
        TicketFault::Forged | TicketFault::FromTheFuture | TicketFault::Claim(_) => "TICKET_INVALID",
    };
    Problem::new(StatusCode::UNAUTHORIZED, code, &fault.to_string())
}

/// What the headers beside the ticket say.
struct Said<'a> {
    key: &'a str,
    activity: &'a str,
    sku: &'a str,
    quantity: &'a str,
    user: &'a str,
}

impl Said<'_> {
    fn agrees(&self, ticket: &Ticket) -> bool {
        self.key == ticket.request_id.hex().as_str()
            && self.activity == ticket.activity.as_str()
            && self.sku == ticket.sku.as_str()
            && self.quantity == ticket.qty.to_string()
            && self.user == ticket.user.as_str()
    }
}
