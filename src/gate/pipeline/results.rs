//! `GET {prefix}/{activity}/results[/{key}]`: how a user's attempts stand.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use crate::domain::admission::{Barred, FoundWin};
use crate::domain::refusal::Code;
use crate::domain::win::{Cause, WinState};
use crate::domain::{IdempotencyKey, RequestId};
use crate::gate::answer::{Answer, Refusal};
use crate::gate::delivery::reply::StoredReply;
use crate::gate::edge::{Edge, Entry, Sale};
use crate::gate::port::AttemptPort;
use crate::gate::request::Inbound;
use crate::gate::stages::shape;
use crate::gate::store::Guarded;

/// An id that is not known has nothing to be told of its change, so it is looked up again after this.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// One attempt, by its key; with `wait` the answer is held back until it is more than "queued".
pub(super) async fn one<A: AttemptPort, D>(
    edge: &Edge<A, D>,
    sale: &Sale<A>,
    entry: &Entry<A>,
    key: &str,
    request: &Inbound<'_>,
) -> Result<Answer, Refusal> {
    let key = IdempotencyKey::new(key).map_err(|_| Code::NotFound)?;
    let wait = shape::wait(request.query)?;
    sale.limits.reads.check_address(request.client)?;
    let user = sale.identity.user(request)?;
    let id = RequestId::derive(&entry.id, &user, &key);
    let _place = match wait {
        Duration::ZERO => None,
        _ => Some(edge.waiters.try_acquire().map_err(|_| Code::Busy)?),
    };
    let clock = || Instant::from_std(edge.clock.now().instant);
    let until = Instant::from_std(request.now.instant) + wait;
    loop {
        // Subscribed before the look-up, so that no change falls between.
        let change = entry.port.change_of(id);
        let found = known(edge, entry, entry.port.find(id).await)?;
        let pending = found.as_ref().is_none_or(|win| win.record.state == WinState::Held);
        if !pending || clock() >= until || edge.closing.is_cancelled() {
            return match found {
                Some(win) => Ok(Answer::json(200, shown(&win).to_string())),
                None => Err(Refusal::from(Code::NoSuchResult).request_id(id)),
            };
        }
        let look_again = if found.is_some() { until } else { until.min(clock() + LOOK_AGAIN) };
        tokio::select! {
            _ = timeout_at(look_again, change) => {}
            () = edge.closing.cancelled() => {}
        }
    }
}

/// All wins of the user.
pub(super) async fn all<A: AttemptPort, D>(
    edge: &Edge<A, D>,
    sale: &Sale<A>,
    entry: &Entry<A>,
    request: &Inbound<'_>,
) -> Result<Answer, Refusal> {
    sale.limits.reads.check_address(request.client)?;
    let user = sale.identity.user(request)?;
    let wins = known(edge, entry, entry.port.wins_of(&user).await)?;
    let results: Vec<Value> = wins.iter().map(shown).collect();
    Ok(Answer::json(200, json!({ "results": results }).to_string()))
}

/// What a look-up found. A store that is not (wholly) there must not say that somebody has not won: until the start nobody
/// can have, and from then on nobody knows.
fn known<A: AttemptPort, D, T: Default>(edge: &Edge<A, D>, entry: &Entry<A>, found: Guarded<T>) -> Result<T, Code> {
    match found.map_err(|_| Code::StoreUnavailable)? {
        Ok(found) => Ok(found),
        Err(Barred::NotPreheated) if edge.clock.now().store < entry.port.view().starts_at => Ok(T::default()),
        Err(_) => Err(Code::Paused),
    }
}

fn shown(win: &FoundWin) -> Value {
    let record = &win.record;
    let (state, reason) = match &record.state {
        WinState::Held => ("queued", None),
        WinState::Accepted => ("accepted", None),
        WinState::Released(release) => match release.cause {
            Cause::Refused | Cause::Void => ("refused", Some(release.reason.as_str())),
            Cause::Ended => ("released", Some(release.reason.as_str())),
        },
    };
    let mut shown = json!({
        "request_id": win.request_id,
        "key": record.key,
        "sku": record.sku,
        "qty": record.qty,
        "state": state,
    });
    if let Some(reason) = reason {
        shown["reason"] = reason.into();
    }
    let reply = record.reply.as_ref().and_then(StoredReply::decode);
    // A body too long to keep is not shown as an empty order.
    if let Some(reply) = reply.filter(|reply| !reply.body.is_empty()) {
        shown["order"] = serde_json::from_slice(&reply.body)
            .unwrap_or_else(|_| String::from_utf8_lossy(&reply.body).into_owned().into());
    }
    shown["won_at_ms"] = record.won_at.0.into();
    shown
}
