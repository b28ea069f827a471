//! What the public listener serves from: everything that a reload replaces ([`Sale`]) and everything that outlives it
//! ([`Edge`]).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};
use bytes::Bytes;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::config::schema::StockDisplay;
use crate::domain::refusal::Code;
use crate::domain::{ActivityId, SkuId};
use crate::gate::address::TrustedProxies;
use crate::gate::answer::{Problems, Refusal};
use crate::gate::identity::Identity;
use crate::gate::limits::Limits;
use crate::gate::metrics::{Meter, Metrics};
use crate::gate::pages::Page;
use crate::gate::tokens::Tokens;
use crate::platform::clock::StoreClock;

/// Results that may be waited for at once.
pub const MAX_WAITERS: usize = 10_000;

/// One SKU as the configuration offers it.
#[derive(Debug, Clone)]
pub struct Offer {
    /// Its name.
    pub sku: SkuId,
    /// Units offered, shown until the activity is preheated.
    pub stock: u32,
    /// Units that one attempt may ask for.
    pub max_qty: u32,
}

/// One activity as visitors meet it.
pub struct Entry<A> {
    /// Its name.
    pub id: ActivityId,
    /// The way to its store.
    pub port: Arc<A>,
    /// What it offers, in the order of the configuration.
    pub offers: Vec<Offer>,
    /// Its page.
    pub page: Page,
    /// How stock is shown.
    pub display: StockDisplay,
    /// Its counters.
    pub meter: Meter,
    /// The state as last rendered, and when.
    pub(crate) state: ArcSwapOption<(Instant, Bytes)>,
}

impl<A> Entry<A> {
    /// Puts an activity on the edge.
    pub fn new(
        id: ActivityId,
        port: Arc<A>,
        offers: Vec<Offer>,
        page: Page,
        display: StockDisplay,
        metrics: &Metrics,
    ) -> Entry<A> {
        let meter = metrics.meter(&id);
        Entry { id, port, offers, page, display, meter, state: ArcSwapOption::empty() }
    }

    /// The offer of a SKU.
    pub fn offer(&self, sku: &SkuId) -> Option<&Offer> {
        self.offers.iter().find(|offer| offer.sku == *sku)
    }

    /// Whether so many units of a SKU may be asked for.
    ///
    /// # Errors
    /// NO_SUCH_SKU, or BAD_REQUEST with the most that may be.
    pub fn check_offer(&self, sku: &SkuId, qty: u32) -> Result<(), Refusal> {
        let most = self.offer(sku).ok_or(Code::NoSuchSku)?.max_qty;
        match qty > most {
            true => Err(Refusal::from(Code::BadRequest).detail(format!("qty may be {most} at most."))),
            false => Ok(()),
        }
    }
}

/// Everything that a reload replaces, as a whole. Limiters that did not change are carried over by
/// [`Limits::new`].
pub struct Sale<A> {
    /// Path prefix of the sale's routes, e.g. `/seckill`.
    pub prefix: String,
    /// The refusals, rendered.
    pub problems: Problems,
    /// The activities, by name.
    pub activities: HashMap<ActivityId, Entry<A>>,
    /// Who users and devices are.
    pub identity: Identity,
    /// The sale tokens.
    pub tokens: Tokens,
    /// How long before the start tokens are issued.
    pub open_before: Duration,
    /// The rate limits.
    pub limits: Limits,
    /// Whose X-Forwarded-For is believed.
    pub proxies: TrustedProxies,
    /// Longest body of an attempt or token request, in bytes.
    pub max_body: usize,
    /// Longest time a body may take to arrive.
    pub body_deadline: Duration,
    /// One access log line per so many requests; 0 for none.
    pub access_log_sample: u32,
    /// The public keys of the tickets, as a JWK set.
    pub jwks: Bytes,
}

/// Everything the public listener serves from.
pub struct Edge<A, D> {
    /// What a reload replaces.
    pub sale: ArcSwap<Sale<A>>,
    /// Who delivers winners.
    pub delivery: Arc<D>,
    /// The clocks.
    pub clock: Arc<StoreClock>,
    /// The counters.
    pub metrics: Arc<Metrics>,
    /// Cancelled when the process is on its way out: from then on each reply asks its client to connect elsewhere.
    pub draining: CancellationToken,
    /// Cancelled when the listener is about to close: those who wait for results get their answer at once.
    pub closing: CancellationToken,
    /// Random bytes for device ids.
    pub random: fn() -> [u8; 16],
    /// The counters of requests that name no known activity.
    pub(crate) unknown: Meter,
    pub(crate) waiters: Semaphore,
}

impl<A, D> Edge<A, D> {
    /// Puts the edge together.
    pub fn new(sale: Sale<A>, delivery: Arc<D>, clock: Arc<StoreClock>, metrics: Arc<Metrics>) -> Edge<A, D> {
        Edge {
            sale: ArcSwap::from_pointee(sale),
            delivery,
            clock,
            unknown: metrics.meter_of_none(),
            metrics,
            draining: CancellationToken::new(),
            closing: CancellationToken::new(),
            random: rand::random,
            waiters: Semaphore::new(MAX_WAITERS),
        }
    }

    /// Drops the keys of one limiter that are as good as new, another one each turn, and shows how many are held. It may
    /// take its time: not for a thread that serves.
    pub fn housekeeping(&self, turn: usize) {
        let sale = self.sale.load_full();
        sale.limits.reclaim(turn);
        self.metrics.limiter_keys(&sale.limits.held());
    }
}
