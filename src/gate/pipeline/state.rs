//! `GET {prefix}/{activity}/state`: how the activity stands, from memory, rendered a few times a second at most.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;

use crate::config::schema::StockDisplay;
use crate::domain::SkuId;
use crate::domain::StoreMs;
use crate::domain::stock::Stock;
use crate::gate::activity::{Phase, View};
use crate::gate::answer::{Answer, Refusal};
use crate::gate::edge::{Entry, Sale};
use crate::gate::port::AttemptPort;
use crate::gate::request::Inbound;

/// How old a rendered state may be.
const RENDERED_FOR: Duration = Duration::from_millis(100);

#[derive(Serialize)]
struct StateBody<'a> {
    activity: &'a str,
    phase: &'static str,
    server_time_ms: u64,
    starts_at_ms: u64,
    ends_at_ms: u64,
    epoch: u64,
    skus: Vec<SkuBody<'a>>,
    challenge: &'static str,
    poll_after_ms: u64,
}

#[derive(Serialize)]
struct SkuBody<'a> {
    sku: &'a str,
    stock: StockBody,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct StockBody {
    display: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    left: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    level: Option<&'static str>,
}

/// Tells how the activity stands.
pub(super) fn state<A: AttemptPort>(
    sale: &Sale<A>,
    entry: &Entry<A>,
    request: &Inbound<'_>,
) -> Result<Answer, Refusal> {
    sale.limits.reads.check_address(request.client)?;
    let at = request.now.instant;
    if let Some(rendered) = entry.state.load().as_deref()
        && at.saturating_duration_since(rendered.0) < RENDERED_FOR
    {
        return Ok(Answer::json(200, Bytes::clone(&rendered.1)));
    }
    let body = render(entry, request);
    entry.state.store(Some(Arc::new((at, Bytes::clone(&body)))));
    Ok(Answer::json(200, body))
}

fn render<A: AttemptPort>(entry: &Entry<A>, request: &Inbound<'_>) -> Bytes {
    let now = request.now.store;
    let view = entry.port.view();
    let phase = view.phase(now);
    let skus = skus(entry, &view)
        .map(|(sku, stock)| SkuBody { sku: sku.as_str(), stock: shown(entry.display, &stock) })
        .collect();
    let body = StateBody {
        activity: entry.id.as_str(),
        phase: phase.as_str(),
        server_time_ms: now.0,
        starts_at_ms: view.starts_at.0,
        ends_at_ms: view.ends_at.0,
        epoch: view.epoch().map_or(0, |epoch| epoch.0),
        skus,
        challenge: "none",
        poll_after_ms: poll_after_ms(phase, now, view.starts_at),
    };
    serde_json::to_vec(&body).map_or_else(|_| Bytes::from_static(b"{}"), Bytes::from)
}

/// The stock as last polled, or, before the activity is preheated, as the configuration offers it.
fn skus<'a, A>(entry: &'a Entry<A>, view: &'a View) -> impl Iterator<Item = (&'a SkuId, Stock)> {
    let offered = entry.offers.iter().map(|offer| (&offer.sku, Stock::new(i64::from(offer.stock))));
    let polled = view.stock.iter().map(|(sku, stock)| (sku, *stock));
    let preheated = !view.stock.is_empty();
    polled.chain(offered.filter(move |_| !preheated))
}

fn shown(display: StockDisplay, stock: &Stock) -> StockBody {
    let left = stock.left.max(0);
    // The last tenth is few.
    let level = || match left {
        0 => "none",
        _ if left * 10 <= stock.total => "few",
        _ => "plenty",
    };
    match display {
        StockDisplay::Exact => StockBody { display: "exact", left: Some(left), level: Some(level()) },
        StockDisplay::Fuzzy => StockBody { display: "fuzzy", left: None, level: Some(level()) },
        StockDisplay::Hidden => StockBody { display: "hidden", left: None, level: None },
    }
}

/// Long before the start there is nothing to see; half of the time left keeps the crowd from asking all at once.
fn poll_after_ms(phase: Phase, now: StoreMs, starts_at: StoreMs) -> u64 {
    match phase {
        Phase::Before => (crate::domain::time::millis(now.until(starts_at)) / 2).clamp(1_000, 30_000),
        Phase::Open | Phase::SoldOut => 2_000,
        Phase::Paused => 3_000,
        Phase::Ended => 60_000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stock_is_shown_as_configured() {
        let stock = |left| Stock { left, ..Stock::new(100) };
        let level = |left| shown(StockDisplay::Fuzzy, &stock(left)).level;
        assert_eq!(
            [level(-1), level(0), level(1), level(10), level(11)].map(Option::unwrap),
            ["none", "none", "few", "few", "plenty"]
        );
        assert_eq!(shown(StockDisplay::Exact, &stock(7)).left, Some(7));
        assert_eq!(shown(StockDisplay::Hidden, &stock(7)), StockBody { display: "hidden", left: None, level: None });
    }

    #[test]
    fn polling_is_slow_while_nothing_happens() {
        let before = |left| poll_after_ms(Phase::Before, StoreMs(0), StoreMs(left));
        assert_eq!([before(500), before(10_000), before(3_600_000)], [1_000, 5_000, 30_000]);
    }
}
