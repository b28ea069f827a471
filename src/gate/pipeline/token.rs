//! `POST {prefix}/{activity}/tokens`: a token for one attempt.

use http::header::SET_COOKIE;

use crate::domain::RequestId;
use crate::domain::refusal::Code;
use crate::gate::answer::{Answer, quoted};
use crate::gate::edge::{Edge, Entry, Sale};
use crate::gate::metrics::Stage;
use crate::gate::pipeline::{At, Stop};
use crate::gate::port::AttemptPort;
use crate::gate::request::Inbound;
use crate::gate::stages::shape;
use crate::gate::stages::time::not_started;
use crate::gate::tokens::Wanted;

/// Judges a token request and answers it.
pub(super) fn token<A: AttemptPort, D>(
    edge: &Edge<A, D>,
    sale: &Sale<A>,
    entry: &Entry<A>,
    request: &Inbound<'_>,
) -> Answer {
    funnel(edge, sale, entry, request).unwrap_or_else(|Stop { stage, refusal }| {
        entry.meter.refused(stage, refusal.code);
        sale.problems.render(&refusal)
    })
}

fn funnel<A: AttemptPort, D>(
    edge: &Edge<A, D>,
    sale: &Sale<A>,
    entry: &Entry<A>,
    request: &Inbound<'_>,
) -> Result<Answer, Stop> {
    let now = request.now;
    // The same order as an attempt's, as far as it goes.
    let key = shape::idempotency_key(request).at(Stage::Shape)?;
    shape::json_content_type(request).at(Stage::Shape)?;
    let (sku, qty) = shape::token_body(&request.body).at(Stage::Shape)?;
    // The offer may have been larger when this key won: its copies still need a token. It wins nothing else.
    let offered = entry.check_offer(&sku, qty);
    let wanted = Wanted { sku: &sku, qty, on_offer: offered.is_ok() };
    if !entry.port.may_be_winner(&key) {
        offered.at(Stage::Shape)?;
    }
    let view = entry.port.view();
    let sold_out = view.lease_says_sold_out(now.instant) || view.lease_says_sku_sold_out(&sku, now.instant);
    if sold_out && !entry.port.may_be_winner(&key) {
        return Err(Code::SoldOut).at(Stage::SoldOut);
    }
    sale.limits.tokens.check_address(request.client).at(Stage::AddressLimit)?;
    let user = sale.identity.user(request).at(Stage::Identity)?;
    let device = sale.identity.device(request).at(Stage::Identity)?;
    sale.limits.tokens.check_caller(&user, device.as_ref(), &entry.id).at(Stage::CallerLimit)?;
    let starts_at = view.starts_at;
    if now.store.after(sale.open_before) < starts_at {
        return Err(not_started(now.store.after(sale.open_before), starts_at)).at(Stage::Time);
    }
    // In a pause, and as long as a win of this key may not be known here, a token is needed: to hear of that win.
    if view.all_winners_are_known(now.store) && !entry.port.may_be_winner(&key) {
        return Err(Code::Ended).at(Stage::Time);
    }
    let id = RequestId::derive(&entry.id, &user, &key);
    let issued = sale
        .tokens
        .issue(&entry.id, id, wanted, device.as_ref(), starts_at, now.store)
        .ok_or(Code::Busy)
        .at(Stage::Token)?;
    let body = format!(
        r#"{{"token":{},"not_before_ms":{},"expires_at_ms":{}}}"#,
        quoted(&issued.token),
        issued.not_before,
        issued.expires_at
    );
    let answer = Answer::json(200, body);
    // A browser without a device gets one, for its next requests; this token is good without it.
    Ok(match device {
        Some(_) => answer,
        None => answer.with(SET_COOKIE, sale.identity.issue_device((edge.random)())),
    })
}
