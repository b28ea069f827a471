//! `POST {prefix}/{activity}`: an attempt, through the whole funnel.

use crate::domain::admission::{Attempt, DueWin};
use crate::domain::refusal::Code;
use crate::domain::{Fingerprint, RequestId};
use crate::gate::answer::{self, Answer, Refusal, result_url, results_url};
use crate::gate::delivery::told::{FirstDelivery, Told};
use crate::gate::edge::{Edge, Entry, Sale};
use crate::gate::metrics::{AttemptOutcome, Stage};
use crate::gate::pipeline::{At, Stop};
use crate::gate::port::AttemptPort;
use crate::gate::request::Inbound;
use crate::gate::stages::outcome::{Fate, fate};
use crate::gate::stages::shape;
use crate::gate::stages::time::{Leave, Moment, leave, not_started};

/// Judges an attempt, delivers it if it wins, and answers.
pub(super) async fn attempt<A, D>(edge: &Edge<A, D>, sale: &Sale<A>, entry: &Entry<A>, request: &Inbound<'_>) -> Answer
where
    A: AttemptPort,
    D: FirstDelivery<A>,
{
    match funnel(edge, sale, entry, request).await {
        Ok((answer, outcome)) => {
            entry.meter.attempt(outcome);
            answer
        }
        Err(Stop { stage, refusal }) => {
            entry.meter.refused(stage, refusal.code);
            entry.meter.attempt(AttemptOutcome::Refused(refusal.code));
            sale.problems.render(&refusal)
        }
    }
}

async fn funnel<A, D>(
    edge: &Edge<A, D>,
    sale: &Sale<A>,
    entry: &Entry<A>,
    request: &Inbound<'_>,
) -> Result<(Answer, AttemptOutcome), Stop>
where
    A: AttemptPort,
    D: FirstDelivery<A>,
{
    let now = request.now;
    // 1. Shape. (2, the activity, is known.)
    let key = shape::idempotency_key(request).at(Stage::Shape)?;
    shape::json_content_type(request).at(Stage::Shape)?;
    // 3. Everything sold out, as the lease says. A winner's key passes: it must hear of its win, not of the end.
    let view = entry.port.view();
    if view.lease_says_sold_out(now.instant) && !entry.port.may_be_winner(&key) {
        return Err(Code::SoldOut).at(Stage::SoldOut);
    }
    // 4–6. Limits, cheapest first, and who it is.
    sale.limits.attempts.check_address(request.client).at(Stage::AddressLimit)?;
    let user = sale.identity.user(request).at(Stage::Identity)?;
    let device = sale.identity.device(request).at(Stage::Identity)?;
    sale.limits.attempts.check_caller(&user, device.as_ref(), &entry.id).at(Stage::CallerLimit)?;
    // 7. The token: genuine, and for exactly this attempt. It says what is wanted.
    let id = RequestId::derive(&entry.id, &user, &key);
    let token = request.single("seckill-token").at(Stage::Token)?.unwrap_or_default();
    let wanted =
        sale.tokens.verify(token, &entry.id, id, device.as_ref(), now).ok_or(Code::TokenInvalid).at(Stage::Token)?;
    shape::payload(&request.body).at(Stage::Shape)?;
    // 8. This SKU sold out, as the lease says; the same exception.
    if view.lease_says_sku_sold_out(&wanted.sku, now.instant) && !entry.port.may_be_winner(&key) {
        return Err(Code::SoldOut).at(Stage::Sku);
    }
    // 9. Time and state. Whatever is too late for a win may still be an earlier one's repetition.
    let leave = leave(Moment {
        now,
        starts_at: view.starts_at,
        phase: view.phase(now.store),
        token: wanted.timing,
        own_device: wanted.own_device,
        on_offer: wanted.on_offer,
        sku_stopped: view.stock_of(&wanted.sku).is_some_and(|stock| stock.stopped),
        won_before: now.store_at_most < view.starts_at && entry.port.may_be_winner(&key),
    })
    .at(if wanted.own_device { Stage::Time } else { Stage::Token })?;
    // 10. The store: the only place where stock is judged and taken.
    let attempt = Attempt {
        request_id: id,
        user: user.clone(),
        key: key.clone(),
        sku: wanted.sku.clone(),
        qty: wanted.qty,
        fingerprint: Fingerprint::of(&request.body),
        may_win: leave == Leave::MayWin,
        payload: request.body.clone(),
    };
    let admitted = entry.port.admit(attempt, now.instant).await;
    let url = || result_url(&sale.prefix, &entry.id, &key);
    // 11. Deliver the winner, answer.
    let (told, stage) = match fate(admitted, &leave, now.store, view.starts_at) {
        Fate::Deliver(won_at) => {
            tracing::info!(activity = %entry.id, request_id = %id, sku = %wanted.sku, qty = wanted.qty, "won");
            let (sku, qty, payload) = (wanted.sku, wanted.qty, request.body.clone());
            let win = DueWin { request_id: id, user, sku, qty, won_at, tries: 0, payload };
            (edge.delivery.deliver_first(&entry.port, win, traceparent(request)).await, Stage::Delivery)
        }
        Fate::Known(told) => (told, Stage::Store),
        Fate::Refused(code) => {
            let stage = match leave {
                Leave::LookUpOnly(held_back) if held_back == code && !wanted.own_device => Stage::Token,
                Leave::LookUpOnly(held_back) if held_back == code && code == Code::BadRequest => Stage::Sku,
                Leave::LookUpOnly(held_back) if held_back == code => Stage::Time,
                _ => Stage::Store,
            };
            return Err(match code {
                Code::NotStarted => not_started(now.store, view.starts_at),
                Code::BadRequest => Refusal::bad_request("The SKU, or so many units of it, is not on offer."),
                Code::AlreadyBought => Refusal::from(code).result_url(results_url(&sale.prefix, &entry.id)),
                Code::RequestIdConflict | Code::OutcomeUnknown => Refusal::from(code).request_id(id).result_url(url()),
                _ => code.into(),
            })
            .at(stage);
        }
    };
    match told {
        Told::Won(reply) => Ok((answer::won(id, &url(), reply.as_ref()), AttemptOutcome::Won)),
        Told::Queued => Ok((answer::queued(id, &url()), AttemptOutcome::Queued)),
        Told::Ended(release) => {
            Err(Refusal::ended_win(release.cause, &release.reason).request_id(id).result_url(url())).at(stage)
        }
    }
}

/// The client's trace context, as it came; delivery passes it on if it has the form.
fn traceparent(request: &Inbound<'_>) -> Option<String> {
    request.single("traceparent").ok().flatten().map(str::to_owned)
}
